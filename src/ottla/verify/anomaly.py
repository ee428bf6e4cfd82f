"""What a check has to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ottla.verify.history import Event


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that clients of a correct cluster never see.

    `events` are the numbers of the fewest events that show it.
    """

    check: str
    text: str
    events: tuple[int, ...] = ()


class Check:
    """Judges a history. `feed` takes its events in their order, `finish` comes after the last.

    A check reads no clock and does no input or output: the same history is judged alike anywhere.
    """

    promises: ClassVar[Mapping[str, str]]
    """What holds when nothing was found: the names of its anomalies, each with a sentence."""

    def feed(self, event: Event) -> Iterable[Anomaly]:
        """What this event shows to be wrong."""
        raise NotImplementedError

    def finish(self) -> Iterable[Anomaly]:
        """What is wrong with the history as a whole."""
        return ()


def run(check: Check, events: Iterable[Event]) -> Iterator[Anomaly]:
    """Everything that one check finds in a history."""
    for event in events:
        yield from check.feed(event)
    yield from check.finish()
