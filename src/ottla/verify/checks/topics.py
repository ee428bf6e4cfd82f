"""Topics: a change of the metadata that a controller has acknowledged stays.

A controller that was deposed and does not know it must not acknowledge anything: what it does is
refused by the store. Here topics are created during the run, each under a name of its own, and in
the end every broker must know those that were acknowledged, and none that was refused. When the
store has lost everything, what was created after the backup that is brought back is excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

LOST = "lost-topic"
REFUSED = "refused-topic-exists"


class Topics(Check):
    """Check 10 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        LOST: "a change of the metadata that was acknowledged stays, whoever was controller",
        REFUSED: "a change of the metadata that was refused did not happen",
    }

    def __init__(self) -> None:
        self._underway: dict[str, str] = {}
        self._created: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._backups: dict[int, int] = {}  # by number: the event that began it

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "create":
            if event.phase == "invoke":
                self._underway[event.client] = event.data["topic"]
            else:
                topic = self._underway.pop(event.client)
                if event.phase == "ok":
                    self._created[topic] = event.number
                elif event.phase == "fail":
                    self._refused[topic] = event.number
        elif event.action == "backup" and event.phase == "invoke":
            self._backups[event.data["backup"]] = event.number
        elif event.action == "restore" and event.phase == "ok":
            known = self._backups[event.data["backup"]]
            self._created = {
                topic: created for topic, created in self._created.items() if created < known
            }
        elif event.action == "topics" and event.phase == "ok":
            return self._listed(event)
        return ()

    def _listed(self, event: Event) -> Iterator[Anomaly]:
        there = set(event.data["topics"])
        broker = event.data["broker"]
        for topic, created in self._created.items():
            if topic not in there:
                yield Anomaly(
                    LOST,
                    f"topic {topic} was created, and broker {broker} does not know it in the end",
                    (created, event.number),
                )
        for topic, refused in self._refused.items():
            if topic in there:
                yield Anomaly(
                    REFUSED,
                    f"the creation of topic {topic} was refused, and broker {broker} knows it",
                    (refused, event.number),
                )
