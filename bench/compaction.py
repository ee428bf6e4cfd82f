"""A large compaction beside a full produce load, and beside records at a fixed rate.

The topic is filled while it is no compacted one, its last segment is closed, and then its policy
changes: from that moment the cleaner has everything to do at once. It is done when the checkpoint
says so, and half of the bytes must be gone then, because every key was written twice. Both brokers
get the same memory for their cleaner, enough for all keys in one pass, and look for work ten times
a second instead of every 15 s.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench import cleaning
from bench.client import Client, measure
from bench.course import Course
from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.course import Step

VALUE_BYTES = 234
RECORD_BYTES = 252
"""With its key of eight bytes and its lengths."""
PASSES = 2
_WHOLE = 2_000
_CANARY_KEYS = 20_000
_CANARY_SIGN = 30.0
_PATIENCE = 1_800.0
_SETTLE_SECONDS = 3.0
_LEFT_AT_MOST = 0.6
_ROLL_TRIES = 50
_SMALL_SEGMENT = {"segment.bytes": "1048576"}
_COMPACT = {"segment.bytes": "1073741824", "cleanup.policy": "compact"}
_FLOODED = {
    "segment.bytes": "268435456",
    "retention.bytes": "1073741824",
    "file.delete.delay.ms": "1000",
}
"""A full load of minutes is more than the disk should have to hold."""


def keys_for(size: int) -> int:
    """How many keys, written twice, make a topic of that many bytes."""
    return max(_WHOLE, size // (PASSES * RECORD_BYTES) // _WHOLE * _WHOLE)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a producer did before the compaction, beside it and after it."""

    before_records: float
    before_seconds: float
    beside_records: float
    beside_seconds: float
    after_records: float
    after_seconds: float

    @property
    def rate(self) -> float:
        """Beside it, in records a second."""
        return self.beside_records / self.beside_seconds

    @property
    def kept(self) -> float:
        """The share of the rate around it; what is missing to 1 is what the compaction costs."""
        records = self.before_records + self.after_records
        return self.rate / (records / (self.before_seconds + self.after_seconds))


class CompactionSession(Course):
    """One broker that compacts while others want something of it."""

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "log.cleaner.threads": "1",
        "log.cleaner.dedupe.buffer.size": "314572800",
        "log.cleaner.backoff.ms": "100",
        "log.retention.check.interval.ms": "5000",
    }

    def _steps(self) -> Sequence[Step]:
        return (
            (
                self._beside_a_flood,
                ("compaction-time", "compaction-kept", "compaction-produce"),
            ),
            (self._beside_a_pace, ("compaction-p99", "compaction-time-paced")),
        )

    def _warm_up(self) -> None:
        """Also finds out whether there is a cleaner, before gigabytes are written for it."""
        self._create("warm", 1)
        measure(
            "produce",
            bootstrap=self._node.bootstrap,
            topic="warm",
            partitions=1,
            size=100,
            count=self._sizes.warm_records,
        )
        goal = self._filled("canary", _CANARY_KEYS)
        self._compacted("canary", goal, sign=_CANARY_SIGN)

    def _beside_a_flood(self) -> None:
        topic = "compacted-flood"
        goal = self._filled(topic, keys_for(self._sizes.compacted_bytes))
        self._create("flood", 1, _FLOODED)
        self._rest()
        with Client("flood", bootstrap=self._node.bootstrap, topic="flood", size=100) as flood:
            flood.wait_ready()
            time.sleep(_SETTLE_SECONDS)
            flood.tell()
            time.sleep(self._sizes.flood_seconds)
            flood.tell()
            seconds = self._compacted(topic, goal)
            flood.tell()
            time.sleep(self._sizes.flood_seconds)
            flood.tell()
            found = Beside(**flood.result())
        self._report("compaction-time", seconds)
        self._report("compaction-kept", found.kept)
        self._report("compaction-produce", found.rate / 1e6)
        self._delete(topic)
        self._delete("flood")

    def _beside_a_pace(self) -> None:
        topic = "compacted-pace"
        goal = self._filled(topic, keys_for(self._sizes.compacted_bytes))
        self._create("pace", 1)
        self._rest()
        seconds = 0.0

        def compact() -> None:
            nonlocal seconds
            seconds = self._compacted(topic, goal)

        figures = self._paced("pace", compact)
        self._report("compaction-p99", figures["end_to_end_p99"])
        self._report("compaction-time-paced", seconds)
        self._delete(topic)

    def _filled(self, topic: str, keys: int) -> int:
        """Every key twice, in segments that are closed; the offset up to which they reach."""
        self._create(topic, 1, {"retention.ms": "-1"})
        self._fill(topic, keys, PASSES)
        goal = keys * PASSES
        folder = self._node.data / f"{topic}-0"
        self._alter(topic, _SMALL_SEGMENT)
        for _ in range(_ROLL_TRIES):  # the change may take a moment to arrive
            self._fill(topic, _WHOLE, 1)
            active = cleaning.active_offset(folder)
            if active >= goal:
                return active
            time.sleep(0.1)
        raise BenchError(f"{topic} did not roll its segment when its segment.bytes became small")

    def _fill(self, topic: str, keys: int, passes: int) -> None:
        measure(
            "fill-keyed",
            bootstrap=self._node.bootstrap,
            topic=topic,
            keys=keys,
            passes=passes,
            value_bytes=VALUE_BYTES,
        )

    def _compacted(self, topic: str, goal: int, *, sign: float = _PATIENCE) -> float:
        """Make it a compacted topic; the seconds until it is compacted up to the goal."""
        folder = self._node.data / f"{topic}-0"
        before = cleaning.log_bytes(folder)
        began = time.monotonic()
        self._alter(topic, _COMPACT)
        cleaning.wait_compacted(
            self._system.name,
            self._node.data,
            {(topic, 0): goal},
            sign=sign,
            patience=_PATIENCE,
        )
        seconds = time.monotonic() - began
        left = cleaning.log_bytes(folder) / before
        if left > _LEFT_AT_MOST:
            raise BenchError(
                f"{self._system.name} noted {topic} as compacted with {left:.0%} of its bytes "
                "left, although every key was in it twice"
            )
        return seconds

    def _rest(self) -> None:
        os.sync()
        time.sleep(_SETTLE_SECONDS)
