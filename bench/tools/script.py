"""The language of `commands/*.txt`: what is typed, once with Apache's tool and once with ours.

    $ kafka-topics --bootstrap-server BROKER --create --topic orders-SIDE     a command
    < one                                     a line of its standard input
    > unordered                               before a command: how its output is compared
    ~ exit a refusal is a failure             before a command: what is known to differ, and why
    : records orders-SIDE 10 20 30            something the stage does for both sides

BROKER is the broker, DATA its data folder, SECOND another one, which the broker has if the file
names it, TMP a folder for files, OFFSETS the segments of `__consumer_offsets` that hold something,
TRANSACTIONS those of `__transaction_state`. SIDE is a word for each side, both of one length, so
that both change things of their own and columns stay where they are. A command without SIDE looks
at what both sides share, and has to say the same to the last digit.

`> unordered` sorts the lines, where Java's order is that of a hash table; `> unordered folders`
sorts the data folders inside a line of JSON, and the partitions of each; `> unordered words` sorts
the words of each line, for sets that Java prints in another order in every run; `> figures`
compares numbers and times as N, and not how they are padded.

`~ exit`, `~ stdout`, `~ stderr` name one part that differs, `~ all` everything. A difference that
is named here and is not found is a failure, too: the list stays true.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIDES = {"Apache's": "apa7", "ours": "ott7"}
MODES = frozenset({"unordered", "unordered folders", "unordered words", "figures"})
PARTS = frozenset({"exit", "stdout", "stderr", "all"})


class ScriptError(Exception):
    """A line of a command file that cannot be read."""


@dataclass(slots=True)
class Step:
    """One command, or one thing the stage does (`action`)."""

    words: str
    action: bool = False
    stdin: list[str] = field(default_factory=list)
    modes: set[str] = field(default_factory=set)
    differs: dict[str, str] = field(default_factory=dict)
    """The part that is known to differ, and why."""

    @property
    def tool(self) -> str:
        return self.words.split(maxsplit=1)[0]

    @property
    def shared(self) -> bool:
        """Whether both sides look at the very same things."""
        return "SIDE" not in self.words

    def arguments(self, names: Mapping[str, str]) -> list[str]:
        return shlex.split(fill(self.words, names))[1:]


def fill(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def read(text: str, where: str = "") -> list[Step]:
    steps: list[Step] = []
    modes: set[str] = set()
    differs: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        kind, rest = line[:2], line[2:]
        if not line.strip() or kind == "# ":
            continue
        if kind in ("$ ", ": "):
            steps.append(Step(rest, kind == ": ", [], modes, differs))
            modes, differs = set(), {}
        elif kind == "< " and steps:
            steps[-1].stdin.append(rest + "\n")
        elif kind == "> " and rest in MODES:
            modes.add(rest)
        elif kind == "~ " and rest.partition(" ")[0] in PARTS and " " in rest:
            part, _, reason = rest.partition(" ")
            differs[part] = reason
        else:
            raise ScriptError(f"{where}:{number}: {line}")
    if modes or differs:
        raise ScriptError(f"{where}: the last modifier belongs to no command")
    return steps


def read_file(path: Path) -> list[Step]:
    return read(path.read_text(), path.name)
