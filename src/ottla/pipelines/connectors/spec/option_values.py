"""From what a file says to the value of an option: by its kind, with a sentence for what is wrong.

Sentences show a value as the file has it, so never what a variable was replaced with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.pipelines.connectors.option import Kind, Option
from ottla.pipelines.connectors.spec.tree import Node
from ottla.pipelines.connectors.units import seconds, size

_PERCENT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_LONGEST: Final = 60


class NotRight(ValueError):
    """A value that its option does not take; the sentence goes after the option's name."""


def backoff(text: Any) -> tuple[float, float]:
    """1s..1m: the first wait and the longest; a single time is both."""
    first, dots, longest = str(text).partition("..")
    try:
        found = seconds(first), seconds(longest if dots else first)
    except ValueError as error:
        raise NotRight(str(error)) from None
    if not 0 < found[0] <= found[1]:
        raise NotRight("the first wait is above 0 and not above the longest: 1s..1m")
    return found


def share(value: Any) -> float:
    """1% or 0.01."""
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is not None:
        value = float(percent[1]) / 100
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise NotRight("a share is between 0% and 100%")
    return float(value)


def shown(node: Node) -> str:
    """A value as the file has it, for a message; short."""
    if isinstance(node.value, (dict, list)):
        return node.kind
    text = node.text.replace("\n", " ")
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def read(option: Option, node: Node) -> Any:
    """The value; `NotRight` for one that the option does not take."""
    if node.value is None:
        raise NotRight("it has no value; leave it out for the default")
    value = _READERS[option.kind](node)
    if option.choices:
        _check_choice(option.choices, value, node)
    if option.check is not None:
        try:
            option.check(value)
        except ValueError as error:
            raise NotRight(str(error)) from None
    return value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that was probably meant."""
    from difflib import get_close_matches  # only ever needed after a slip of the pen

    by_lower = {each.lower().replace("-", "_"): each for each in known}
    near = get_close_matches(name.lower().replace("-", "_"), by_lower, 1, 0.6)
    return by_lower[near[0]] if near else None


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a name that is not there."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(names)}"
    return f"there is no {what} {name!r}; {hint}"


def _check_choice(choices: tuple[str, ...], value: Any, node: Node) -> None:
    nodes = node.value if isinstance(node.value, list) else [node]
    for each, place in zip(value if isinstance(value, list) else [value], nodes, strict=True):
        if each not in choices:
            near = nearest(str(each), choices) if not place.replaced else None
            hint = f"; did you mean {near}?" if near else ""
            raise NotRight(f"{shown(place)} is none of {', '.join(choices)}{hint}")


def _text(node: Node) -> str:
    if isinstance(node.value, (dict, list, bool)):
        raise NotRight(f"text is expected here, not {node.kind}")
    return node.value if isinstance(node.value, str) else node.text


def _path(node: Node) -> str:
    path = _text(node)
    if not path.strip():
        raise NotRight("a path is expected here, and this is empty")
    try:
        urlsplit(path)
    except ValueError:  # whose sentence may show user and password
        raise NotRight("this is neither a path nor an address") from None
    return path


def _integer(node: Node) -> int:
    value = node.value
    if node.replaced and re.fullmatch(r"[-+]?\d+", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise NotRight(f"a whole number is expected here, not {_given(node)}")
    return value


def _number(node: Node) -> float:
    value = node.value
    if node.replaced:
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise NotRight(f"a number is expected here, not {_given(node)}")
    return value


def _flag(node: Node) -> bool:
    if node.replaced and node.value in ("true", "false"):
        return bool(node.value == "true")
    if not isinstance(node.value, bool):
        raise NotRight(f"true or false is expected here, not {_given(node)}")
    return node.value


def _duration(node: Node) -> float:
    if isinstance(node.value, (dict, list)):
        raise NotRight(f"a time such as 30s is expected here, not {node.kind}")
    try:
        return seconds(node.value)
    except ValueError as error:
        raise NotRight(f"{shown(node)}: {error}") from None


def _size(node: Node) -> int:
    try:
        return size(node.value)
    except ValueError as error:
        raise NotRight(f"{shown(node)}: {error}") from None


def _list(node: Node) -> list[str]:
    if isinstance(node.value, dict):
        raise NotRight("a list is expected here, not a mapping")
    nodes = node.value if isinstance(node.value, list) else [node]
    return [_text(each) for each in nodes]


def _map(node: Node) -> Mapping[str, Any]:
    if not isinstance(node.value, dict):
        raise NotRight(f"names and values are expected here, not {node.kind}")
    found: Mapping[str, Any] = node.plain()
    return found


def _choice(node: Node) -> Any:
    if isinstance(node.value, dict) and len(node.value) != 1:
        raise NotRight("one name with its options is expected here")
    if isinstance(node.value, (list, bool)):
        raise NotRight(f"a name is expected here, or one with its options, not {node.kind}")
    return node.plain()


def _given(node: Node) -> str:
    return shown(node) if isinstance(node.value, str) else node.kind


_READERS: Final[Mapping[Kind, Callable[[Node], Any]]] = {
    Kind.TEXT: _text,
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.FLAG: _flag,
    Kind.DURATION: _duration,
    Kind.SIZE: _size,
    Kind.LIST: _list,
    Kind.MAP: _map,
    Kind.PATH: _path,
    Kind.CHOICE: _choice,
}
