"""From a tree to a `PipelineSpec`, or to every mistake that is in it, in the order of the file.

    spec = read_file(Path("orders.yaml"), os.environ)      # raises Mistakes

What is wrong in one place keeps no other place from being looked at. Making the source and the sink
belongs to the check, since making one connects to nothing and tells whether its options fit
together. Nothing here needs Spark; what the SQL says is `transform.py`'s to check.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.client.settings import ENVIRONMENT, bootstrap_servers
from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.formats import FORMATS, declaration
from ottla.pipelines.connectors.formats.options import mistakes_of
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option
from ottla.pipelines.connectors.spec import fields, option_values
from ottla.pipelines.connectors.spec.option_values import NotRight, unknown
from ottla.pipelines.connectors.spec.tree import Mistakes, Node, Problem, joined, parse
from ottla.pipelines.connectors.spec.values import STOP, Case, Connector, ErrorPolicy, PipelineSpec
from ottla.pipelines.connectors.spec.variables import Variables, secrets_in

_MOST_BYTES: Final = 4 << 20
_BESIDE: Final = ".tests.yaml"

TOP: Final = (
    "name",
    "bootstrap",
    "source",
    "transform",
    "sink",
    "on_error",
    *(option.name for option in fields.FILE if option.name not in ("name", "bootstrap")),
    "tests",
)


def read_file(path: Path, environment: Mapping[str, str]) -> PipelineSpec:
    """The pipeline that a file says; `Mistakes` with all that is wrong, OSError if it is not there.

    Tests may be in a file beside it: `orders.tests.yaml` for `orders.yaml`.
    """
    tree = _tree(path)
    beside = path.with_name(path.stem + _BESIDE)
    checker = _Checker(environment, path)
    spec = checker.pipeline(tree)
    if beside.exists() and path.name != beside.name:
        checker.take_tests(beside)
    return checker.result(spec)


def read_text(text: str, environment: Mapping[str, str], folder: Path = Path()) -> PipelineSpec:
    """The same for a text; files that it names are relative to `folder`."""
    checker = _Checker(environment, None, folder)
    return checker.result(checker.pipeline(parse(text)))


def read_tree(tree: Node, environment: Mapping[str, str]) -> PipelineSpec:
    """The same for what a program has said, in which nothing is replaced."""
    checker = _Checker(environment, None, Path(), variables=False)
    return checker.result(checker.pipeline(tree))


def _tree(path: Path) -> Node:
    data = path.read_bytes()
    if len(data) > _MOST_BYTES:
        raise Mistakes([Problem(1, 1, "", "this is too large to be a pipeline")], str(path))
    try:
        return parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Mistakes([Problem(line, 1, "", "this is no text in UTF-8")], str(path)) from None
    except Mistakes as mistakes:
        raise Mistakes(mistakes.problems, str(path)) from None


class _Checker:
    """Goes through a tree once; `problems` grow."""

    def __init__(
        self,
        environment: Mapping[str, str],
        path: Path | None,
        folder: Path | None = None,
        *,
        variables: bool = True,
    ) -> None:
        self._environment = environment
        self._path = path
        self._folder = folder if folder is not None else (path or Path()).parent
        self._variables = Variables(environment, self._folder) if variables else None
        self.problems: list[Problem] = []
        self._made: dict[str, Any] = {}
        """The source and the sink; one with a mistake is made without the option that has it."""
        self.cases: list[Case] = []
        self._secrets: set[str] = set()

    def result(self, found: dict[str, Any]) -> PipelineSpec:
        problems = self._each_once()
        if problems:
            raise Mistakes(problems, None if self._path is None else str(self._path))
        secrets = self._secrets | (self._variables.secrets if self._variables else set())
        return PipelineSpec(
            **found,
            tests=tuple(self.cases),
            secrets=frozenset(secrets),
            path=None if self._path is None else os.path.abspath(self._path),
        )

    def _each_once(self) -> list[Problem]:
        """Without what is said about the value of a variable that is not there."""
        if self._variables is None:
            return self.problems
        unset = {(each.file, each.line, each.column) for each in self._variables.problems}
        others = [
            each for each in self.problems if (each.file, each.line, each.column) not in unset
        ]
        return [*self._variables.problems, *others]

    def take_tests(self, beside: Path) -> None:
        """The tests of another file, and whatever is wrong with it."""
        cases = _Checker(self._environment, beside)
        try:
            self.cases.extend(cases.tests(_tree(beside)))
        except Mistakes as mistakes:
            cases.problems.extend(mistakes.problems)
        self.problems.extend(replace(each, file=str(beside)) for each in cases.problems)

    # -- the whole

    def pipeline(self, written: Node) -> dict[str, Any]:
        tree = written
        if self._variables is not None:
            tree = self._variables.replaced(written)
        if not isinstance(tree.value, dict):
            sentence = "a pipeline is a mapping: name, source and sink at least"
            self.problems.append(tree.problem(sentence))
            return {}
        self._check_names(tree, TOP, "part of a pipeline")
        found = self._options(tree, fields.FILE, others=TOP)
        sink = self._connector(tree, "sink", catalog.SINKS, catalog.sink)
        result = {
            "name": found["name"],
            "bootstrap": self._bootstrap(tree, found["bootstrap"]),
            "source": self._connector(tree, "source", catalog.SOURCES, catalog.source),
            "transform": self._transform(tree),
            "sink": sink,
            "on_error": self._on_error(tree),
            "trigger": self._trigger(tree, found["trigger"], sink),
            "checkpoint": self._checkpoint(found["checkpoint"]),
            "kafka": self._settings(tree, "kafka"),
            "spark": self._settings(tree, "spark"),
        }
        tests = tree.at("tests")
        if tests is not None:
            self.cases.extend(self.tests(tests))
        self._check_circles(tree, result)
        return result

    def _check_circles(self, tree: Node, found: Mapping[str, Any]) -> None:
        """A pipeline that reads what it writes would never come to an end."""
        source, sink = self._made.get("source"), self._made.get("sink")
        read = tuple(getattr(source, "topics_read", tuple)())
        pattern = getattr(source, "topic_pattern", lambda: None)()
        written = [("sink", str(name)) for name in getattr(sink, "topics_written", tuple)()]
        if found["on_error"].dead_letter is not None:
            written.append(("on_error", found["on_error"].dead_letter))
        for part, name in written:
            if name in read or (pattern is not None and re.fullmatch(pattern, name)):
                also = f"pattern {pattern} of the source matches it" if pattern else "read as well"
                what = "dead letters would" if part == "on_error" else "rows would"
                sentence = f"topic {name} is written, and {also}: {what} go round without an end"
                node = tree.at(part, "dead_letter") if part == "on_error" else tree.at(part)
                self.problems.append((node or tree).problem(sentence))

    def _checkpoint(self, given: str | None) -> str | None:
        """The same place wherever a command is typed: a pipeline that does not find it begins anew,
        and a reset removes it."""
        return None if given is None else self._placed(given)

    def _placed(self, path: str) -> str:
        """Of the file's folder, if it is relative; a path with a scheme is a place elsewhere."""
        return path if urlsplit(path).scheme else os.path.abspath(self._folder / path)

    def _trigger(self, tree: Node, given: float, sink: Connector | None) -> float:
        """Where none is given, what the sink would have: files that roll at an interval."""
        if tree.at("trigger") is not None or sink is None:
            return given
        wanted = getattr(self._made.get("sink"), "interval", None)
        return given if wanted is None else float(wanted)

    def _bootstrap(self, tree: Node, given: str | None) -> str:
        try:
            return bootstrap_servers(given or self._environment.get(ENVIRONMENT))
        except ValueError as error:
            self.problems.append((tree.at("bootstrap") or tree).problem(str(error)))
            return ""

    def _settings(self, tree: Node, key: str) -> dict[str, str]:
        node = tree.at(key)
        if node is None or not isinstance(node.value, dict):
            return {}
        found = {}
        for name, each in node.value.items():
            if isinstance(each.value, (dict, list)) or each.value is None:
                self.problems.append(each.problem("a setting has one value"))
            elif key == "spark" and not name.startswith("spark."):
                self.problems.append(
                    node.problem_at(name, f"Spark's properties begin with spark.; spark.{name}?")
                )
            else:
                value = each.value
                found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        if key == "kafka":
            self._check_kafka(node, found)
        return found

    def _check_kafka(self, node: Node, given: Mapping[str, str]) -> None:
        from ottla.pipelines.errors import OptionError
        from ottla.pipelines.kafka_settings import KafkaSettings
        from ottla.pipelines.option_table import Use

        for name, value in given.items():
            for use in (Use.STREAM, Use.WRITE):
                try:
                    KafkaSettings.of({name: value}, use)
                except OptionError as error:
                    sentence = str(error).replace("kafka.", "", 1)
                    self.problems.append(node.problem_at(name, sentence))
                    break

    def _transform(self, tree: Node) -> str | Callable[[Any], Any] | None:
        node = tree.at("transform")
        if node is None:
            return None
        if isinstance(node.value, dict) and list(node.value) == ["python"]:
            return self._function(node.value["python"])
        if callable(node.value):
            return node.value  # type: ignore[no-any-return]  # what a program has given
        if not isinstance(node.value, str) or not node.value.strip():
            sentence = "SQL over the view source is expected here, or {python: module:function}"
            self.problems.append(node.problem(sentence))
            return None
        return node.value.strip().removesuffix(";")

    def _function(self, node: Node) -> Callable[[Any], Any] | None:
        module, colon, name = str(node.value).partition(":")
        if not colon or not module or not name:
            self.problems.append(node.problem("a function is named as module:function"))
            return None
        self._find_modules()
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:  # a module of the user's may raise anything
            why = f"{type(error).__name__}: {error}"
            self.problems.append(node.problem(f"{node.text} cannot be imported: {why}"))
            return None
        if not callable(found):
            self.problems.append(node.problem(f"{node.text} is no function"))
            return None
        return found  # type: ignore[no-any-return]  # whatever it returns is checked when it does

    def _find_modules(self) -> None:
        """A module beside the file is found, whatever the current folder is."""
        folder = str(self._folder.absolute())
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def _on_error(self, tree: Node) -> ErrorPolicy:
        node = tree.at("on_error")
        if node is None:
            return STOP
        if not self._is_mapping(node):
            return STOP
        names = ("retry", "dead_letter", "stop_at")
        self._check_names(node, names, "setting of on_error")
        letters = self._options(node, fields.ON_ERROR, others=names)["dead_letter"]
        retry = self._options(node.at("retry"), fields.RETRY)
        stop_at = self._options(node.at("stop_at"), fields.STOP_AT)
        return ErrorPolicy(
            attempts=retry["attempts"],
            backoff=self._parsed(node.at("retry", "backoff"), option_values.backoff, STOP.backoff),
            dead_letter=letters,
            most_letters=stop_at["letters"],
            most_share=self._parsed(
                node.at("stop_at", "share"), option_values.share, STOP.most_share
            ),
        )

    def _parsed(self, node: Node | None, read: Callable[[Any], Any], default: Any) -> Any:
        if node is None or node.value is None or isinstance(node.value, (dict, list, bool)):
            return default
        try:
            return read(node.value)
        except (NotRight, TypeError) as error:
            self.problems.append(node.problem(f"{option_values.shown(node)}: {error}"))
            return default

    def tests(self, node: Node) -> list[Case]:
        if not isinstance(node.value, list):
            self.problems.append(node.problem(f"a list of tests is expected here, not {node.kind}"))
            return []
        return [case for each in node.value if (case := self._case(each)) is not None]

    def _case(self, node: Node) -> Case | None:
        if not self._is_mapping(node):
            return None
        names = ("name", "given", "expect", "fails", "schema")
        self._check_names(node, names, "part of a test")
        found = self._options(node, fields.TEST, others=names)
        rows = {key: self._rows(node, key) for key in ("given", "expect")}
        return Case(
            name=found["name"],
            rows=rows["given"],
            expected=rows["expect"],
            fails=found["fails"],
            schema=found["schema"],
            line=node.line,
        )

    def _rows(self, node: Node, key: str) -> tuple[Mapping[str, Any], ...]:
        rows = node.at(key)
        if rows is None:
            self.problems.append(node.problem(f"{key} is missing: a list of rows"))
            return ()
        if not isinstance(rows.value, list):
            self.problems.append(rows.problem(f"a list of rows is expected here, not {rows.kind}"))
            return ()
        for each in rows.value:
            if not isinstance(each.value, dict):
                self.problems.append(each.problem("a row is a mapping of columns to values"))
        return tuple(each.plain() for each in rows.value if isinstance(each.value, dict))

    # -- sources and sinks

    def _connector(
        self,
        tree: Node,
        key: str,
        known: Mapping[str, str],
        load: Callable[[str], Declaration],
    ) -> Connector | None:
        node = tree.at(key)
        if node is None:
            sentence = f"{key} is missing; there are {', '.join(known)}"
            self.problems.append(tree.problem(sentence))
            return None
        if isinstance(node.value, str):  # sink: console
            name, given = node.value, Node({}, node.line, node.column, node.path, keys={})
        elif isinstance(node.value, dict) and len(node.value) == 1:
            [(name, given)] = node.value.items()
        else:
            sentence = f"one {key} with its options is expected here: {{topic: {{name: …}}}}"
            self.problems.append(node.problem(sentence))
            return None
        if name not in known:
            problem = node.problem_at if isinstance(node.value, dict) else _at_node(node)
            self.problems.append(problem(name, unknown(key, name, known)))
            return None
        if name == "python":
            self._find_modules()
        try:
            declaration = load(name)
        except ImportError as error:
            sentence = f"{name} needs what `pip install 'ottla[pipelines]'` brings: {error}"
            self.problems.append(node.problem(sentence))
            return None
        before = len(self.problems)
        connector = Connector(name, self._connector_options(given, declaration), declaration)
        found = self._try_making(key, connector, given)
        if len(self.problems) == before:  # else it may be told of what is not given, or not meant
            self.problems.extend(found)
        return connector

    def _connector_options(self, given: Node, declaration: Declaration) -> dict[str, Any]:
        """The defaults where something is wrong. A single value is that of the first option."""
        if given.value is None:
            given = Node({}, given.line, given.column, given.path, keys={})
        elif not isinstance(given.value, dict) and declaration.options:
            first = declaration.options[0].name
            place = {first: (given.line, given.column)}
            given = Node({first: given}, given.line, given.column, given.path, keys=place)
        names = [option.name for option in declaration.options]
        self._check_names(given, names, f"option of {declaration.name}")
        values = self._options(given, declaration.options)
        for option in declaration.options:
            if option.secret or option.kind is Kind.CHOICE:
                self._remember(values[option.name], option)
            if option.kind is Kind.PATH and values[option.name] is not None:
                values[option.name] = self._placed(values[option.name])
            elif option.kind is Kind.CHOICE:
                values[option.name] = self._format(values[option.name], option, given)
        return values

    def _format(self, value: Any, option: Option, given: Node) -> Any:
        """A format with its files in their places. Its mistakes are told here, not by whoever makes
        the source or the sink, which does not come to it when something else is wrong."""
        if value is None:
            return None
        found = [_place(given, each.option, str(each)) for each in mistakes_of(value, option.name)]
        self.problems.extend(found)
        if found:
            return option.default
        if not isinstance(value, Mapping):
            return value
        [(name, options)] = value.items()
        paths = {each.name for each in declaration(name).options if each.kind is Kind.PATH}
        return {
            name: {
                key: self._placed(each) if key in paths else each
                for key, each in (options or {}).items()
            }
        }

    def _remember(self, value: Any, option: Option) -> None:
        """The texts of a secret option, and those of the secret options of a format."""
        if option.secret:
            for text in _texts(value):
                # A URL without user and parameters is what messages call the place.
                if option.place is None or option.place(text) != text:
                    self._secrets |= secrets_in(text)
        elif isinstance(value, Mapping):
            for name, given in value.items():
                if name in FORMATS and isinstance(given, Mapping):
                    for each in declaration(name).options:
                        if each.secret:
                            self._remember(given.get(each.name), each)

    def _try_making(self, key: str, connector: Connector, given: Node) -> list[Problem]:
        """What does not fit together, if it cannot be made."""
        wanted = [each.name for each in connector.declaration.options if each.required]
        if any(connector.options[name] is None for name in wanted):
            return []
        try:
            self._made[key] = connector.make()
        except Mistake as mistake:
            return [_place(given, mistake.option, str(mistake))]
        except ValueError as error:  # OptionError among them, which names its option
            return [_place(given, getattr(error, "option", ""), str(error))]
        except ImportError as error:
            return [given.problem(f"it cannot be imported: {error}")]
        return []

    # -- options

    def _options(
        self, node: Node | None, options: Sequence[Option], others: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Their values by name, the defaults for those that are not there."""
        values: dict[str, Any] = {option.name: option.default for option in options}
        if node is not None and not isinstance(node.value, dict):
            if not others:
                self._is_mapping(node)
            return values
        for option in options:
            given = None if node is None else node.at(option.name)
            if given is None:
                if option.required and node is not None:
                    self.problems.append(node.problem(f"{option.name} is missing: {option.doc}"))
                continue
            try:
                values[option.name] = option_values.read(option, given)
            except NotRight as error:
                self.problems.append(given.problem(str(error)))
        return values

    def _check_names(self, node: Node, known: Sequence[str], what: str) -> None:
        if isinstance(node.value, dict):
            for name in node.value:
                if name not in known:
                    self.problems.append(node.problem_at(name, unknown(what, name, known)))

    def _is_mapping(self, node: Node) -> bool:
        if isinstance(node.value, dict):
            return True
        sentence = f"names and values are expected here, not {node.kind}"
        self.problems.append(node.problem(sentence))
        return False


def _at_node(node: Node) -> Callable[[str, str], Problem]:
    return lambda _key, sentence: node.problem(sentence)


def _place(given: Node, option: str, sentence: str) -> Problem:
    """Where a mistake is that a source or sink has found: `option` may be a.b.c."""
    found, place = given, given
    for step in option.split(".") if option else ():
        below = found.at(step)
        if below is None:
            break
        found = place = below
    path = joined(given.path, option) if option else given.path
    return Problem(place.line, place.column, path, sentence)


def _texts(value: Any) -> Iterator[str]:
    """All texts of a value, the values of a mapping among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)
