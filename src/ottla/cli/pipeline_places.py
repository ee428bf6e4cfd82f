"""What the commands about pipelines share: where their state is, and how they complain."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.names import nearest
from ottla.cli.options import F, connect
from ottla.cli.output import broker_errors

if TYPE_CHECKING:
    from ottla.client.groups import Groups
    from ottla.pipelines.connectors.spec.values import PipelineSpec
    from ottla.pipelines.driver.home import Home

_QUESTION = 10.0  # seconds for one answer
_FILES = (".yaml", ".yml", ".json")


def state_option(command: F) -> F:
    """`--state-dir`, where the folders of pipelines are."""
    return click.option(
        "--state-dir",
        metavar="DIR",
        help="Where pipelines keep checkpoints and logs.  "
        "[default: $OTTLA_PIPELINES, or ~/.local/state/ottla/pipelines]",
    )(command)


def read_spec(path: str) -> PipelineSpec:
    """A pipeline's file; all its mistakes when it has some."""
    from ottla.pipelines.connectors.spec.check import read_file
    from ottla.pipelines.connectors.spec.tree import Mistakes

    try:
        return read_file(Path(path), environment())
    except Mistakes as mistakes:
        raise click.ClickException(str(mistakes)) from None


def environment() -> Mapping[str, str]:
    """Where a file's variables are looked up, and its broker where it names none: `--bootstrap`
    before the command comes before `OTTLA_BOOTSTRAP`."""
    from ottla.client.settings import ENVIRONMENT

    given = click.get_current_context().find_root().params.get("bootstrap")
    return {**os.environ, ENVIRONMENT: given} if given else os.environ


def is_file(text: str) -> bool:
    """Whether somebody has given a pipeline's file, and not its name."""
    return text.endswith(_FILES) or os.sep in text


def home_of(name: str, state_dir: str | None) -> Home:
    """The folder of a pipeline, given by its name or its file; an error when it has never run."""
    from ottla.pipelines.driver.home import Home, homes, state_folder

    state = state_folder(state_dir)
    if is_file(name):
        name = read_spec(name).name
    try:
        home = Home(state, name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not home.remembered():
        near = nearest(name, [each.name for each in homes(state)])
        hint = f"did you mean {near!r}?" if near else "`ottla pipeline list` shows those that have"
        raise click.ClickException(f"no pipeline {name!r} has run with {state}; {hint}")
    return home


def complete_pipelines(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Names of pipelines that have run."""
    from ottla.pipelines.driver.home import homes, state_folder

    state = state_folder(context.params.get("state_dir"))
    return [each.name for each in homes(state) if each.name.startswith(incomplete)]


@contextmanager
def pipeline_errors(bootstrap: str = "") -> Iterator[None]:
    """What is refused or fails, as one line on stderr and exit code 1."""
    try:
        from ottla.pipelines.driver.home import Refused
        from ottla.pipelines.driver.run import Failed
        from ottla.pipelines.errors import OptionError
        from ottla.pipelines.java import JavaError
    except ImportError as error:
        raise click.ClickException(
            f"pipelines need what `pip install 'ottla[pipelines]'` brings ({error})"
        ) from None
    try:
        with broker_errors(bootstrap):
            yield
    except (Refused, Failed, OptionError, JavaError, ImportError) as error:
        raise click.ClickException(str(error)) from None


def open_groups_of(home: Home) -> Groups:
    """The groups of the cluster that a pipeline belongs to."""
    from ottla.pipelines.cluster import groups_of

    known = home.remembered()
    connect(known["bootstrap"])
    return groups_of(
        known["bootstrap"], known.get("kafka", {}), timeout=_QUESTION, client_id="ottla-cli"
    )
