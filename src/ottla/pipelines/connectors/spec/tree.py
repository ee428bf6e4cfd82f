"""A YAML file as a tree in which every node knows its line and column; the one door to PyYAML.

    tree = parse(text)              # raises Mistakes for what is no YAML, or says a key twice
    tree.at("source", "postgres")   # a node, or None

Scalars are what YAML 1.2 says they are: `true` and `false` are the only flags, so that `no`, `on`
and `12:30` stay text, and a date stays text too. Anchors and aliases work; merge keys (`<<`), tags
of one's own and several documents in one file do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

_PREFIX: Final = "tag:yaml.org,2002:"
_MOST_NODES: Final = 100_000
"""Aliases of aliases grow without end; no file that a person writes comes near this."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake in a file: where it is, what it is about, and a sentence.

    line, column   counted from 1; 0 where there is no file
    path           the keys that lead there: "sink.topic.format"
    file           where it is not the pipeline's own: that of the tests beside it
    """

    line: int
    column: int
    path: str
    sentence: str
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.path}: {self.sentence}" if self.path else f"{place}{self.sentence}"


class Mistakes(ValueError):
    """Everything that is wrong with a pipeline, in the order of the file; what is wrong with
    another one comes after it."""

    def __init__(self, problems: Iterable[Problem], file: str | None = None) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem)))
        self.file = file
        named = ((problem.file or file, problem) for problem in self.problems)
        super().__init__("\n".join(f"{name}:{each}" if name else str(each) for name, each in named))


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar (str, int, float, bool, None), a list of nodes, or a mapping of keys to nodes.

    text      a scalar as the file has it, before variables were replaced: what may be shown
    keys      where the keys of a mapping are
    replaced  whether a variable's value is in it; then it is text, and not to be shown
    origin    where the first character of a text is, if its lines are in the file as they are
    """

    value: Any
    line: int
    column: int
    path: str
    text: str = ""
    keys: Mapping[str, tuple[int, int]] | None = None
    replaced: bool = False
    origin: tuple[int, int] | None = None

    def at(self, *path: str | int) -> Node | None:
        """The node below; None where there is none."""
        found: Node | None = self
        for step in path:
            if found is None:
                return None
            inner = found.value
            if isinstance(inner, dict):
                found = inner.get(step)
            elif isinstance(inner, list) and isinstance(step, int) and step < len(inner):
                found = inner[step]
            else:
                return None
        return found

    def problem(self, sentence: str) -> Problem:
        return Problem(self.line, self.column, self.path, sentence)

    def problem_within(self, line: int, column: int, sentence: str) -> Problem:
        """Of a place in this text, both counted from 1: that place in the file, where it is known,
        and otherwise where the text begins."""
        if self.origin is None or self.replaced:
            return self.problem(sentence)
        place = self.origin[0] + line - 1, self.origin[1] + column - 1
        return Problem(*place, self.path, sentence)

    def problem_at(self, key: str, sentence: str) -> Problem:
        """Of a key of this mapping: that place."""
        line, column = (self.keys or {}).get(key, (self.line, self.column))
        return Problem(line, column, joined(self.path, key), sentence)

    def plain(self) -> Any:
        """Without places: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    @property
    def kind(self) -> str:
        """What it is, in a few words."""
        for type_, word in _KINDS:
            if isinstance(self.value, type_):
                return word
        return "nothing"


_KINDS: Final[Sequence[tuple[type, str]]] = (
    (bool, "true or false"),
    (int, "a number"),
    (float, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a mapping"),
)


def joined(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """SafeLoader with the scalars of YAML 1.2."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"{_PREFIX}{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def parse(text: str) -> Node:
    """The one document of a text; `Mistakes` if it is none, or none that can be used."""
    try:
        documents = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        sentence = f"this is no YAML: {_words(error, text.splitlines()[line - 1 : line])}"
        raise Mistakes([Problem(line, column, "", sentence)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        sentence = f"the character #x{error.character:04x} cannot be in a file like this"
        raise Mistakes([Problem(line, 1, "", sentence)]) from None
    if not documents:
        raise Mistakes([Problem(1, 1, "", "the file is empty")])
    if len(documents) > 1:
        mark = documents[1].start_mark
        sentence = "a file holds one pipeline; give this one a file of its own"
        raise Mistakes([Problem(mark.line + 1, mark.column + 1, "", sentence)])
    reader = _Reader(text)
    tree = reader.node(documents[0], "")
    if reader.problems:
        raise Mistakes(reader.problems)
    return tree


def _words(error: yaml.MarkedYAMLError, line: list[str]) -> str:
    said = [part for part in (error.context, error.problem) if part]
    sentence = ", ".join(said)
    if "cannot start any token" in sentence and "'\\t'" in sentence:
        return "a tab cannot be used to indent; use spaces"
    if "flow mapping" in sentence and "${" in "".join(line):
        return f"{sentence}; put ${{…}} into quotes where it is inside of {{ }}"
    if "mapping values are not allowed here" in sentence:
        return f"{sentence}; put text that holds ': ' into quotes"
    return sentence


class _Reader:
    """From PyYAML's nodes to ours."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._count = 0

    def node(self, found: yaml.Node, path: str) -> Node:
        line, column = found.start_mark.line + 1, found.start_mark.column + 1
        self._count += 1
        if id(found) in self._open or self._count > _MOST_NODES:
            what = "holds itself" if id(found) in self._open else "holds too many aliases"
            raise Mistakes([Problem(line, column, path, f"this {what}")])
        self._open.add(id(found))
        try:
            if isinstance(found, yaml.MappingNode):
                return self._mapping(found, line, column, path)
            if isinstance(found, yaml.SequenceNode):
                items = [
                    self.node(each, joined(path, number)) for number, each in enumerate(found.value)
                ]
                return Node(items, line, column, path)
            value = self._scalar(found, path)
            return Node(
                value, line, column, path, text=found.value, origin=self._origin(found, line)
            )
        finally:
            self._open.discard(id(found))

    def _mapping(self, found: yaml.MappingNode, line: int, column: int, path: str) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, tuple[int, int]] = {}
        for key_node, value_node in found.value:
            key = str(key_node.value)
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode) or key == "<<":
                sentence = "a key is a word; lists, mappings and merges (<<) cannot be keys"
                self.problems.append(Problem(*place, path, sentence))
                continue
            if key in values:
                first = keys[key][0]
                sentence = f"this key is there already, in line {first}"
                self.problems.append(Problem(*place, joined(path, key), sentence))
                continue
            values[key] = self.node(value_node, joined(path, key))
            keys[key] = place
        return Node(values, line, column, path, keys=keys)

    def _origin(self, found: yaml.ScalarNode, line: int) -> tuple[int, int] | None:
        """Only `|` keeps lines as they are; any other text that is one line is there as it is,
        unless something in it is escaped."""
        if found.style == "|":
            for number in range(line, len(self._lines)):
                if self._lines[number].strip():
                    indent = re.match(" *", self._lines[number])
                    first = found.value[: len(found.value) - len(found.value.lstrip(" \n"))]
                    more = len(first.rpartition("\n")[2])  # with an indentation that was given
                    return line + 1, (indent.end() if indent else 0) - more + 1
            return None
        start = found.start_mark.column + (1 if found.style else 0)
        here = self._lines[line - 1][start : start + len(found.value)]
        return (line, start + 1) if found.style != ">" and here == found.value else None

    def _scalar(self, found: yaml.ScalarNode, path: str) -> Any:
        text, tag = found.value, found.tag.removeprefix(_PREFIX)
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        if tag == "int":
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if tag == "float":
            return float(text)
        if tag != "str":
            line, column = found.start_mark.line + 1, found.start_mark.column + 1
            self.problems.append(Problem(line, column, path, f"the tag {found.tag} is not known"))
        return text


def scalars(node: Node) -> Iterator[Node]:
    """Every scalar of a tree, in its order."""
    if isinstance(node.value, dict):
        for each in node.value.values():
            yield from scalars(each)
    elif isinstance(node.value, list):
        for each in node.value:
            yield from scalars(each)
    else:
        yield node


def tree_of(value: Any, path: str = "") -> Node:
    """The same tree from values of a program: it has no lines."""
    if isinstance(value, Mapping):
        inner = {str(key): tree_of(each, joined(path, str(key))) for key, each in value.items()}
        return Node(inner, 0, 0, path, keys={})
    if isinstance(value, (list, tuple)):
        items = [tree_of(each, joined(path, number)) for number, each in enumerate(value)]
        return Node(items, 0, 0, path)
    return Node(value, 0, 0, path, text="" if value is None else str(value))
