"""Health: after a fault is over the cluster becomes whole again by itself, and goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

NOT_HEALED = "did-not-recover"
DIED = "broker-ended"
NOT_READ = "not-read-in-the-end"
DAMAGED = "damaged-record"


class Health(Check):
    """What the harness itself waited for in vain."""

    promises: ClassVar[Mapping[str, str]] = {
        NOT_HEALED: "after every fault all replicas become in sync again, and writes go on",
        DIED: "a broker ends only when it is told to",
        NOT_READ: "in the end everything can be read",
        DAMAGED: "what is read is what was written, every byte of it",
    }

    def __init__(self) -> None:
        self._faults: list[int] = []

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "fault" and event.phase == "invoke":
            self._faults.append(event.number)
        elif event.action == "healed" and event.phase == "fail":
            yield Anomaly(NOT_HEALED, event.data["text"], (*self._faults[-2:], event.number))
        elif event.action == "died":
            yield Anomaly(DIED, event.data["text"], (*self._faults[-1:], event.number))
        elif event.action == "damaged":
            yield Anomaly(DAMAGED, event.data["text"], (event.number,))
        elif event.action == "end" and event.phase == "fail":
            yield Anomaly(NOT_READ, event.data["text"], (event.number,))
