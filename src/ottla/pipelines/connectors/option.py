"""How the options of sources, sinks and formats are declared: once, as data.

The check of a pipeline's file, the JSON schema for editors and the tables in the documentation are
made from these declarations. An option that is not declared is refused, with the nearest name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """What a value may be, as JSON schema calls it."""

    TEXT = "string"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "boolean"
    DURATION = "duration"
    """Text such as 500ms, 30s, 5m, 2h, 1d; seconds as a float once it is read."""
    SIZE = "size"
    """Text such as 64KiB, 128MiB, 1GB, or a number; bytes as an int once it is read."""
    LIST = "array"
    """A list of texts; a single text counts as a list of one."""
    MAP = "object"
    """Names and values as they are: settings of another system."""
    PATH = "path"
    """A file or folder; relative to the pipeline's file, unless it has a scheme."""
    CHOICE = "choice"
    """A name, or a mapping of one name to its options, as `format` has it; as it is."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    required  there is no default, and it must be given
    choices   the only values there are
    secret    never printed, and never written into a checkpoint
    place     of a secret that is an address: where it leads, which may be printed
    check     raises ValueError with a sentence for a value that cannot be right, whatever the
              other options are; the sentence does not show the value, which may be a secret
    """

    name: str
    kind: Kind
    doc: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    secret: bool = False
    place: Callable[[Any], str] | None = None
    check: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Declaration:
    """A source, sink or format: its name in the file, its options, and how it is made.

    make      called with the options' values by name, every declared option among them (the
              default where none was given); raises `Mistake` for values that do not fit together
    doc       one line
    """

    name: str
    doc: str
    options: tuple[Option, ...]
    make: Callable[[Mapping[str, Any]], Any]


def at_least(least: int, sentence: str) -> Callable[[int], None]:
    """A check for numbers; the sentence is for a smaller one."""

    def check(value: int) -> None:
        if value < least:
            raise ValueError(sentence)

    return check


class Mistake(ValueError):
    """Values that do not fit together; `option` is the one to point at."""

    def __init__(self, option: str, sentence: str) -> None:
        super().__init__(sentence)
        self.option = option
