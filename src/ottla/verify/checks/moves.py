"""Consume, transform, produce: every input that was committed is in the output once, in its order.

A mover writes what it reads of a partition to the same partition of another topic, and commits the
offset it has read up to with the same transaction. So, in the end, both partitions hold the same
values for who reads committed records, however often movers were killed or replaced. The offset
that a group is found to have committed is one of a transaction whose commit was asked for, and it
never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.checks.groups import OFFSET_BACK
from ottla.verify.checks.txn_book import name_of, read_values
from ottla.verify.history import Event

TWICE = "moved-twice"
NOT_MOVED = "not-moved"
OUT_OF_ORDER = "moved-out-of-order"
UNCOMMITTED_OFFSET = "uncommitted-offset"

_Key = tuple[str, int]


class _Commit(NamedTuple):
    group: str
    offsets: list[tuple[int, int]]
    event: int


class Moves(Check):
    """Check 7 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        TWICE: "a value that was moved is in the output once",
        NOT_MOVED: "a committed value of the input is in the output, and nothing else is",
        OUT_OF_ORDER: "the output has the order of the input",
        UNCOMMITTED_OFFSET: "a group finds no offset of a transaction before its commit was asked "
        "for",
    }

    def __init__(self) -> None:
        self._final: dict[_Key, dict[int, tuple[int, int]]] = {}  # by topic: offset: value, event
        self._pairs: list[tuple[_Key, _Key, int]] = []  # input, output, the event that says so
        self._committing: dict[str, _Commit] = {}
        self._in_transactions: dict[tuple[str, int], list[_Commit]] = {}
        self._ending: dict[str, tuple[int, bool]] = {}
        self._asked: dict[tuple[str, int], dict[int, int]] = {}  # group, partition: offset: event
        self._tried: dict[tuple[str, int], dict[int, int]] = {}
        self._floors: dict[tuple[str, int], list[tuple[int, int, int]]] = {}

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "txn-offsets":
            self._commits(event)
        elif event.action == "txn-end":
            self._ends(event)
        elif event.action == "txn-committed" and event.phase == "ok":
            return self._found(event)
        elif event.client != "final":
            return ()
        elif event.action == "txn-read" and event.phase == "ok":
            if event.data["level"] == "committed":
                key = event.data["topic"], event.data["p"]
                values = self._final.setdefault(key, {})
                for offset, value in read_values(event):
                    values[offset] = value, event.number
        elif event.action == "txn-moved":
            if event.phase == "fail":
                return (Anomaly(NOT_MOVED, event.data["text"], (event.number,)),)
            number = event.data["p"]
            source, target = event.data["source"], event.data["target"]
            self._pairs.append(((source, number), (target, number), event.number))
        return ()

    def finish(self) -> Iterable[Anomaly]:
        for source, target, event in self._pairs:
            yield from self._compare(source, target, event)

    # ------------------------------------------------------------------ records

    def _compare(self, source: _Key, target: _Key, end: int) -> Iterator[Anomaly]:
        given = [entry for _, entry in sorted(self._final.get(source, {}).items())]
        moved = [entry for _, entry in sorted(self._final.get(target, {}).items())]
        inputs = dict(given)
        outputs: dict[int, int] = {}
        name, to = f"{source[0]}-{source[1]}", f"{target[0]}-{target[1]}"
        for value, event in moved:
            if value in outputs:
                yield Anomaly(
                    TWICE,
                    f"value {name_of(value)} of {name} is twice in {to}",
                    tuple(sorted({outputs[value], event})),
                )
            elif value not in inputs:
                yield Anomaly(
                    NOT_MOVED,
                    f"value {name_of(value)} is in {to}, and was not committed in {name}",
                    (event, end),
                )
            outputs.setdefault(value, event)
        order = {value: index for index, value in enumerate(inputs)}
        last = -1, 0
        for value, event in outputs.items():
            place = order.get(value, -1)
            if 0 <= place < last[0]:
                yield Anomaly(
                    OUT_OF_ORDER,
                    f"value {name_of(value)} of {name} comes later in {to} than one behind it",
                    tuple(sorted({last[1], event})),
                )
                break
            last = max(last, (place, event))
        for value, event in given:
            if value not in outputs:
                yield Anomaly(
                    NOT_MOVED, f"value {name_of(value)} of {name} is not in {to}", (event, end)
                )

    # ------------------------------------------------------------------ offsets

    def _commits(self, event: Event) -> None:
        if event.phase != "invoke":
            self._committing.pop(event.client, None)
            return
        offsets = [(number, offset) for number, offset in event.data["offsets"]]
        commit = _Commit(event.data["group"], offsets, event.number)
        self._committing[event.client] = commit
        self._in_transactions.setdefault((event.client, event.data["txn"]), []).append(commit)
        for number, offset in offsets:
            self._tried.setdefault((commit.group, number), {}).setdefault(offset, event.number)

    def _ends(self, event: Event) -> None:
        if event.phase == "invoke":
            number, commit = event.data["txn"], event.data["commit"]
            self._ending[event.client] = number, commit
            if commit:
                for each in self._in_transactions.get((event.client, number), ()):
                    for partition, offset in each.offsets:
                        asked = self._asked.setdefault((each.group, partition), {})
                        asked.setdefault(offset, event.number)
            return
        number, commit = self._ending.pop(event.client)
        if commit and event.phase == "ok":
            for each in self._in_transactions.get((event.client, number), ()):
                for partition, offset in each.offsets:
                    self._raise_floor(each.group, partition, offset, event)

    def _found(self, event: Event) -> Iterator[Anomaly]:
        group = event.data["group"]
        for number, offset in event.data["offsets"]:
            key = group, number
            if offset >= 0 and offset not in self._asked.get(key, {}):
                tried = self._tried.get(key, {}).get(offset)
                yield Anomaly(
                    UNCOMMITTED_OFFSET,
                    f"{group} finds {offset} of partition {number}, which "
                    + ("nobody has committed" if tried is None else "is of no committed one"),
                    (event.number,) if tried is None else (tried, event.number),
                )
                continue
            if event.data["stable"]:
                known = [floor for floor in self._floors.get(key, ()) if floor[0] <= event.begun]
                if known and offset < known[-1][1]:
                    yield Anomaly(
                        OFFSET_BACK,
                        f"{group} had committed {known[-1][1]} of partition {number} in a "
                        f"transaction, and later finds {'nothing' if offset < 0 else offset}",
                        (known[-1][2], event.number),
                    )
            self._raise_floor(group, number, offset, event)

    def _raise_floor(self, group: str, number: int, offset: int, event: Event) -> None:
        floors = self._floors.setdefault((group, number), [])
        if not floors or offset > floors[-1][1]:
            floors.append((event.time, offset, event.number))
