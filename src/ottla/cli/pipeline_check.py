"""`ottla pipeline validate`, `schema`, `preview`, `test` and `redrive`: a pipeline looked at.

What may be printed never holds the value of a variable or of a secret option.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.command import Command
from ottla.cli.options import json_option
from ottla.cli.output import Column, broker_errors, count, json_text, say, show_json, show_table
from ottla.cli.pipeline_places import environment

if TYPE_CHECKING:
    from ottla.pipelines.connectors.errors.letters import Letter
    from ottla.pipelines.connectors.needs import Needed
    from ottla.pipelines.connectors.process import Note
    from ottla.pipelines.connectors.spec.tree import Problem
    from ottla.pipelines.connectors.spec.values import PipelineSpec

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WIDEST = 60
_HERE = "local[2]"


# -- validate


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@click.option("--master", metavar="URL", help="The Spark master that it is to run on.")
@click.option("--shared-path", is_flag=True,
              help="The folders that it uses are mounted on all of its machines.")  # fmt: skip
@click.option("--offline", is_flag=True, help="Ask no broker.")
@json_option
def validate(
    file: Path, master: str | None, shared_path: bool, offline: bool, as_json: bool
) -> None:
    """Check a pipeline's file: every mistake at once, with line and column.

    Shows the topics and the ACLs that the pipeline will need. If a broker answers, it is asked
    whether the topics are there. Exits with 1 if something is wrong.

    \b
    JSON: {"pipeline", "valid", "problems": [{"file", "line", "column", "path", "sentence"}],
           "cluster": "checked" | "not checked" | text,
           "topics": {"read": [name], "written": [name]}, "group",
           "acls": [{"resource", "name", "operation", "why"}]}
    """
    with _pipelines_errors():
        from ottla.pipelines.connectors.assemble import keys_of
        from ottla.pipelines.connectors.needs import missing, needs_of
        from ottla.pipelines.connectors.spec.tree import Mistakes, Problem
        from ottla.pipelines.connectors.spec.variables import scrubbed

        try:
            spec = _read(file)
        except Mistakes as mistakes:
            every = Mistakes([*mistakes.problems, *_sql_problems(file)])
            _report(file, None, every.problems, None, "not checked", as_json)
            sys.exit(1)
        needed = needs_of(spec)
        keys = keys_of(spec.sink.make())
        found = sorted(_sql_problems(file, keys)) + _place_problems(spec, master, shared_path)
        asked: str = "not checked"
        if not offline:
            absent, why = missing(spec, needed)
            asked = "checked" if why is None else why
            found += [Problem(0, 0, "", scrubbed(each, spec.secrets)) for each in absent]
    _report(file, spec, found, needed, asked, as_json)
    if found:
        sys.exit(1)


def _sql_problems(file: Path, keys: Sequence[str] = ()) -> list[Problem]:
    """What Spark's own parser says about the transform, whatever else is wrong with the file."""
    from ottla.pipelines.connectors.spec.tree import Mistakes, parse
    from ottla.pipelines.connectors.spec.variables import Variables, scrubbed
    from ottla.pipelines.connectors.transform import mistakes_in
    from ottla.pipelines.session import start_jvm

    try:
        written = parse(file.read_text(encoding="utf-8-sig")).at("transform")
    except (Mistakes, UnicodeDecodeError):
        return []
    if written is None or not isinstance(written.value, str) or not written.value.strip():
        return []
    variables = Variables(os.environ, file.parent)
    node = variables.replaced(written)
    if variables.problems:  # told already; without its variables the text is another one
        return []
    sql = node.value.rstrip().removesuffix(";")
    with _quiet():
        found = mistakes_in(sql, start_jvm(), keys)
    return [
        node.problem_within(each.line, each.column, scrubbed(each.sentence, variables.secrets))
        for each in found
    ]


def _place_problems(spec: PipelineSpec, master: str | None, shared_path: bool) -> list[Problem]:
    from ottla.pipelines import masters
    from ottla.pipelines.connectors.spec.tree import Problem
    from ottla.pipelines.driver import start

    where = master or spec.spark.get("spark.master", "local")
    if not masters.is_master(where):
        return [Problem(0, 0, "", f"it {start.no_master(where)}")]
    if not masters.is_remote(where):
        return []
    found = [f"it cannot run on {where}: {each}" for each in start.only_here(spec)]
    if not shared_path and not found:
        own = "the pipeline's own folder"
        checkpoint = spec.checkpoint or f"the checkpoint in {own}"
        staging = f"the rows that its source keeps in {own}"
        found += [
            f"the machines of {where} do not see {each}: name a place that all of them reach, or "
            "say with --shared-path that it is mounted everywhere"
            for each in start.local_places(spec, checkpoint, staging)
        ]
    return [Problem(0, 0, "", each) for each in found]


def _report(
    file: Path,
    spec: PipelineSpec | None,
    problems: Sequence[Problem],
    needed: Needed | None,
    cluster: str,
    as_json: bool,
) -> None:
    if as_json:
        show_json(
            {
                "pipeline": None if spec is None else spec.name,
                "valid": not problems,
                "problems": [
                    {
                        "file": each.file or str(file),
                        "line": each.line,
                        "column": each.column,
                        "path": each.path,
                        "sentence": each.sentence,
                    }
                    for each in problems
                ],
                "cluster": cluster,
                "topics": {
                    "read": [] if needed is None else list(needed.read),
                    "written": [] if needed is None else list(needed.written),
                },
                "group": None if needed is None else needed.group,
                "acls": [] if needed is None else [acl._asdict() for acl in needed.acls],
            }
        )
        return
    for problem in problems:
        place = f"{problem.file or file}:"
        click.echo(f"{place}{problem}" if problem.line else f"{place} {problem}", err=True)
    if spec is None or needed is None:
        say(count(len(problems), "mistake"))
        return
    transform = "" if spec.transform is None else ", transformed"
    verdict = "has " + count(len(problems), "mistake") if problems else "is valid"
    click.echo(f"{spec.name} {verdict}: from {spec.source.name} to {spec.sink.name}{transform}")
    if cluster not in ("checked", "not checked"):
        say(f"No broker was asked: {cluster}")
    show_table(
        [Column("RESOURCE"), Column("NAME"), Column("OPERATION"), Column("FOR")],
        [list(acl) for acl in needed.acls],
        title="It needs these rights:",
    )


# -- schema


@click.command(cls=Command)
def schema() -> None:
    """Print the JSON schema of a pipeline's file, for editors."""
    with _pipelines_errors():
        from ottla.pipelines.connectors.spec.json_schema import json_schema

        show_json(json_schema())


# -- preview


@click.command(cls=Command)
@click.argument("file", type=_FILE)
@click.option("--rows", "rows", type=click.IntRange(1), default=10, show_default=True,
              metavar="N", help="How many rows to show.")  # fmt: skip
@json_option
def preview(file: Path, rows: int, as_json: bool) -> None:
    """Show real rows of the source as they would reach the sink.

    They take the way that `run` takes them. No group, checkpoint or sink is touched.

    \b
    JSON, one line each: {"row": {…}}, {"letter": {"position", "stage", "kind", "message"}}
    """
    with _pipelines_errors():
        from ottla.pipelines.connectors.assemble import way_of
        from ottla.pipelines.connectors.spec.variables import scrubbed
        from ottla.pipelines.connectors.trial import preview as previewed

        spec = _valid(file)
        with _session(spec) as spark, _failures(spec):
            found = previewed(spec, way_of(spec), spark, rows)
        letters = [_letter(each, spec) for each in found.letters]
    if as_json:
        for row in found.rows:
            click.echo(json_text({"row": _printable(row)}))
        for letter in letters:
            click.echo(json_text({"letter": letter}))
        return
    title = f"{count(len(found.rows), 'row')} of {found.outcome.rows} read, as {spec.sink.name}"
    columns = [Column(name) for name, _ in found.columns]
    cells = [[_cell(row[name]) for name, _ in found.columns] for row in found.rows]
    show_table(columns, cells, title=f"{title} would get them")
    for letter in letters:
        click.echo(
            scrubbed(
                f"dead letter: {letter['position']} {letter['stage']}: {letter['kind']}: "
                f"{letter['message']}",
                spec.secrets,
            )
        )


# -- test


@click.command(name="test", cls=Command)
@click.argument("file", type=_FILE)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@json_option
def test_(file: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Run the tests of a pipeline: rows in, rows expected.

    They are in the pipeline's file under `tests`, or beside it: orders.tests.yaml for orders.yaml.
    With names, only these. Exits with 1 if one fails.

    JSON: [{"name", "passed", "wrong": [text]}]
    """
    with _pipelines_errors():
        from ottla.pipelines.connectors.trial import run_case

        spec = _valid(file)
        cases = [case for case in spec.tests if not names or case.name in names]
        if not cases:
            wanted = f"none of {file} is called {', '.join(names)}" if names else f"{file} has none"
            raise click.ClickException(f"there are no tests to run: {wanted}")
        verdicts = []
        with _session(spec) as spark, _failures(spec):
            for case in cases:
                verdicts.append(run_case(spec, case, spark))
                if not as_json:
                    _show_verdict(verdicts[-1])
    failed = [each for each in verdicts if not each.passed]
    if as_json:
        show_json(
            [{"name": v.case.name, "passed": v.passed, "wrong": list(v.wrong)} for v in verdicts]
        )
    else:
        say(f"{count(len(verdicts), 'test')}, {len(failed)} failed")
    if failed:
        sys.exit(1)


def _show_verdict(verdict: Any) -> None:
    click.echo(f"{'passed' if verdict.passed else 'FAILED'}  {verdict.case.name}")
    for sentence in verdict.wrong:
        click.echo(f"        {sentence}")


# -- redrive


@click.command(cls=Command)
@click.argument("pipeline", metavar="NAME|FILE")
@click.option("--where", metavar="SQL",
              help="Only letters for which this is true, as `tries < 3`.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show which letters would be sent.")
@click.option("--state-dir", metavar="DIR",
              help="Where pipelines keep their state.  [default: $OTTLA_PIPELINES, or "
              "~/.local/state/ottla/pipelines]")  # fmt: skip
@json_option
def redrive(
    pipeline: str, where: str | None, dry_run: bool, state_dir: str | None, as_json: bool
) -> None:
    """Send dead letters through their pipeline again.

    Those that fail again are dead letters again, with their first position and one try more. A
    letter that was sent is not sent a second time. --where sees the columns partition, offset,
    timestamp, key, value, position, first_position, tries, stage, kind and message.

    \b
    JSON: {"pipeline", "letters": [{"partition", "offset", "position", "first_position", "tries",
           "stage", "kind", "message"}], "sent", "written", "failed", "without_value"}
    """
    with _pipelines_errors():
        from ottla.pipelines.connectors.assemble import letters_of, way_of
        from ottla.pipelines.connectors.redrive import Redrive

        spec = _valid(_file_of(pipeline, state_dir))
        topic = letters_of(spec)
        if topic is None:
            raise click.ClickException(f"{spec.name} has no on_error.dead_letter topic")
        with _telling(spec) as tell, _session(spec) as spark, _failures(spec):
            found = Redrive(spec, replace(way_of(spec), tell=tell), topic, spark)
            chosen = found.chosen(where)
            outcome = None if dry_run else found.go(chosen)
            without_value = found.without_value()
    _show_redriven(spec, chosen, outcome, without_value, as_json)


def _show_redriven(
    spec: PipelineSpec, chosen: Sequence[Any], outcome: Any, without_value: int, as_json: bool
) -> None:
    names = [
        "partition", "offset", "position", "first_position", "tries", "stage", "kind", "message",
    ]  # fmt: skip
    rows = [{name: getattr(each, name) for name in names} for each in chosen]
    if as_json:
        show_json(
            {
                "pipeline": spec.name,
                "letters": rows,
                "sent": 0 if outcome is None else len(rows),
                "written": 0 if outcome is None else outcome.written,
                "failed": 0 if outcome is None else outcome.letters,
                "without_value": without_value,
            }
        )
        return
    if without_value:
        click.echo(
            f"{count(without_value, 'letter')} without value, key or headers stay where they are: "
            "they were too large for the topic"
        )
    if outcome is None:
        columns = [Column(name.upper(), name in ("partition", "offset", "tries"), True)
                   for name in names]  # fmt: skip
        cells = [[_cell(row[name]) for name in names] for row in rows]
        show_table(columns, cells, title=f"{count(len(rows), 'letter')} would be sent")
        return
    click.echo(
        f"{count(len(rows), 'letter')} sent: {count(outcome.written, 'row')} written, "
        f"{outcome.letters} failed again"
    )


# -- shared


def _read(file: Path) -> PipelineSpec:
    from ottla.pipelines.connectors.spec.check import read_file

    return read_file(file, environment())


def _valid(file: Path) -> PipelineSpec:
    """A file without mistakes; all of them as one message otherwise."""
    from ottla.pipelines.connectors.spec.tree import Mistakes

    try:
        return _read(file)
    except Mistakes as mistakes:
        raise click.ClickException("\n".join([
            f"{file} has {count(len(mistakes.problems), 'mistake')}:", str(mistakes)
        ])) from None  # fmt: skip


def _file_of(pipeline: str, state_dir: str | None) -> Path:
    """A file, or that of a pipeline that has run."""
    if Path(pipeline).is_file():
        return Path(pipeline)
    from ottla.pipelines.driver.home import Home, state_folder

    try:
        known = Home(state_folder(state_dir), pipeline).remembered()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not known.get("file"):
        raise click.ClickException(f"no pipeline {pipeline!r} has run here; name its file instead")
    file = Path(known["file"])
    if not file.is_file():
        raise click.ClickException(f"{file}, the file of {pipeline}, is not there any more")
    return file


@contextlib.contextmanager
def _session(spec: PipelineSpec) -> Iterator[Any]:
    """A session of this command's own, on this machine: a few rows need no cluster."""
    from ottla.pipelines.connectors.assemble import SESSION
    from ottla.pipelines.masters import is_remote
    from ottla.pipelines.session import spark_session

    settings: dict[str, str] = {"spark.ui.enabled": "false", **SESSION, **spec.spark}
    master = settings.pop("spark.master", _HERE)
    if is_remote(master):
        master = _HERE
    with _quiet():
        spark = spark_session(f"{spec.name}-trial", master=master, config=settings)
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def _telling(spec: PipelineSpec) -> Iterator[Callable[[Note], None]]:
    """Whoever waits says for what, on the terminal, while everything else is kept off it."""
    from ottla.pipelines.connectors.spec.variables import scrubbed

    with os.fdopen(os.dup(2), "w") as terminal:
        yield lambda note: click.echo(
            f"{spec.name}: {scrubbed(note.sentence, spec.secrets)}", file=terminal
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a JVM and its workers print off the terminal; `OTTLA_SPARK_LOG=1` leaves it on."""
    import logging

    from ottla.pipelines.session import failures_untold

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    if os.environ.get("OTTLA_SPARK_LOG"):
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        with failures_untold():
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _failures(spec: PipelineSpec) -> Iterator[None]:
    """What ends a batch, in one line that names the pipeline and holds no secret."""
    from ottla.pipelines.connectors.spec.variables import scrubbed
    from ottla.pipelines.connectors.trial import sentence_of

    try:
        yield
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        raise click.ClickException(f"{spec.name}: {scrubbed(sentence, spec.secrets)}") from None


@contextlib.contextmanager
def _pipelines_errors() -> Iterator[None]:
    """What is not installed or cannot be followed, in one line."""
    try:
        from ottla.pipelines.errors import OptionError
        from ottla.pipelines.java import JavaError
    except ImportError as error:
        raise click.ClickException(_not_installed(error)) from None
    try:
        with broker_errors(""):
            yield
    except (OptionError, JavaError) as error:
        raise click.ClickException(str(error)) from None
    except ImportError as error:
        raise click.ClickException(_not_installed(error)) from None


def _not_installed(error: ImportError) -> str:
    return f"pipelines need what `pip install 'ottla[pipelines]'` brings ({error})"


def _letter(letter: Letter, spec: PipelineSpec) -> dict[str, str]:
    from ottla.pipelines.connectors.spec.variables import scrubbed

    failure = letter.failure
    return {
        "position": letter.position,
        "stage": failure.stage,
        "kind": failure.kind,
        "message": scrubbed(failure.message, spec.secrets),
    }


def _printable(value: Any) -> Any:
    """What JSON has: bytes and times become text."""
    if isinstance(value, Mapping):
        return {str(name): _printable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    found = _printable(value)
    text = found if isinstance(found, str) else json_text(found)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


VERBS = (validate, schema, preview, test_, redrive)
