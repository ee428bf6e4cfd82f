"""Compaction: the last value of every key stays, and so does the tombstone of one that was deleted.

A key belongs to one writer, who numbers its values. In the end, who reads committed records finds
as the last value of a key the one that was acknowledged last, or a later one of which nobody knows
what became of it. Tombstones are kept for `delete.retention.ms`, which is longer than the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.checks.txn_book import Book, Place, Send, name_of, read_values
from ottla.verify.history import Event
from ottla.verify.txn_values import is_deleted, key_of

LOST_KEY = "compacted-away"
LOST_TOMBSTONE = "tombstone-dropped"

_Key = tuple[Place, int, int]
"""Where, which writer's, and which of its keys."""


class Compaction(Check):
    """Check 13 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        LOST_KEY: "compaction keeps the last value of every key",
        LOST_TOMBSTONE: "compaction keeps a tombstone until its time has come",
    }

    def __init__(self) -> None:
        self._book = Book()
        self._final: dict[Place, dict[int, tuple[int, int]]] = {}
        self._ends: dict[Place, int] = {}

    def feed(self, event: Event) -> Iterable[Anomaly]:
        self._book.feed(event)
        if event.client != "final" or event.data.get("level") != "committed":
            return ()
        if event.action == "txn-read" and event.phase == "ok":
            values = self._final.setdefault((event.data["topic"], event.data["p"]), {})
            for offset, value in read_values(event):
                values[offset] = value, event.number
        elif event.action == "txn-final" and event.phase == "ok" and event.data.get("keyed"):
            self._ends[event.data["topic"], event.data["p"]] = event.number
        return ()

    def finish(self) -> Iterable[Anomaly]:
        found: dict[_Key, tuple[int, int]] = {}  # the number of the last value, and an event
        for place in self._ends:
            for _, (value, event) in sorted(self._final.get(place, {}).items()):
                writer, number = value >> 40, value & (1 << 40) - 1
                found[place, writer, key_of(number)] = number, event
        for key, (number, send) in self._expected().items():
            yield from self._judge(key, number, send, found.get(key))

    def _expected(self) -> dict[_Key, tuple[int, Send]]:
        """By key: the number of the last value that is certainly there."""
        expected: dict[_Key, tuple[int, Send]] = {}
        for values in self._book.sends.values():
            for value, sends in values.items():
                for send in sends:
                    if send.place not in self._ends or not _certain(send):
                        continue
                    number = value & (1 << 40) - 1
                    key = send.place, value >> 40, key_of(number)
                    if number > expected.get(key, (-1, send))[0]:
                        expected[key] = number, send
        return expected

    def _judge(
        self, key: _Key, number: int, send: Send, found: tuple[int, int] | None
    ) -> Iterator[Anomaly]:
        place, writer, index = key
        if found is not None and found[0] >= number:
            return
        there = "nothing" if found is None else f"value {writer}.{found[0]}"
        what = "a tombstone" if is_deleted(number) else f"value {name_of(writer << 40 | number)}"
        end = self._ends[place]
        yield Anomaly(
            LOST_TOMBSTONE if is_deleted(number) else LOST_KEY,
            f"{what} was the last of key {writer}-{index} in {place[0]}-{place[1]}, and in the end "
            f"{there} is",
            (send.event, send.acknowledged, end)
            if found is None
            else tuple(sorted({send.event, send.acknowledged, found[1]})),
        )


def _certain(send: Send) -> bool:
    if send.transaction is not None:
        return send.transaction.state == "committed"
    return send.acknowledged > 0
