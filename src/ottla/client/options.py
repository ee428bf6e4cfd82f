"""The options of a client, declared once: for type checkers, for `help()` and for the reference.

A client takes its options as keywords, `**options: Unpack[ConsumerOptions]`, where ConsumerOptions
is a TypedDict whose fields are annotated with an `Option`. `documented` writes them into the
class's docstring, `options_of` gives them to whoever writes a page of them.
"""

from __future__ import annotations

import collections.abc
import inspect
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

C = TypeVar("C", bound=type)


@dataclass(frozen=True, slots=True)
class Option:
    """What a keyword means; `default` as it would be typed."""

    default: str
    doc: str


class Described(NamedTuple):
    """One option as it is shown."""

    name: str
    kind: str
    default: str
    doc: str


def options_of(declared: type) -> list[Described]:
    """The options of a TypedDict, in the order of their declaration."""
    found: list[Described] = []
    for name, hint in hints_of(declared, include_extras=True).items():
        kind, option = get_args(hint)[0], hint.__metadata__[0]
        found.append(Described(name, type_text(kind), option.default, option.doc))
    return found


def documented(declared: type) -> Callable[[C], C]:
    """Add the options of a TypedDict to the docstring of the class that takes them."""

    def add(owner: C) -> C:
        lines = [
            inspect.cleandoc(owner.__doc__ or ""),
            "",
            "Options, all of them keywords:",
            "",
        ]
        for name, kind, default, doc in options_of(declared):
            lines.append(f"{name}: {kind} = {default}")
            lines += textwrap.wrap(doc, 88, initial_indent="    ", subsequent_indent="    ")
        owner.__doc__ = "\n".join(lines)
        return owner

    return add


def type_text(kind: Any) -> str:
    """A type as a person would write it."""
    origin = get_origin(kind)
    if origin is Annotated:
        return type_text(get_args(kind)[0])
    if origin is Literal:
        return " | ".join(
            f'"{each}"' if isinstance(each, str) else repr(each) for each in get_args(kind)
        )
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(each) for each in get_args(kind))
    if origin is collections.abc.Callable:
        return "function"
    if origin is collections.abc.Mapping:
        return "mapping"
    return getattr(kind, "__name__", str(kind)).replace("NoneType", "None")
