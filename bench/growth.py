"""What very many partitions cost: making them, memory, and the two kinds of start.

One broker makes a partition's files when the topic is created, the other with the first record. So
the clock of the first figure runs from the first CreateTopics to the record in each partition.

The clock of a start runs from the process's beginning to an acknowledged record in the last of
the partitions. Before the kill every partition gets one more record, so that each has something
that no checkpoint knows of.
"""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, ClassVar

from bench.client import Client, measure
from bench.course import Course
from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.course import Step

FIGURES = ("first", "memory", "stopped", "killed")
_TOPIC_PARTITIONS = 1_000
_PATIENCE = 900.0
_SETTLE_SECONDS = 3.0
_SPARE_DESCRIPTORS = 700


def topics_of(partitions: int) -> dict[str, int]:
    """Topics of a thousand partitions, so many that all the partitions are there."""
    whole, rest = divmod(partitions, _TOPIC_PARTITIONS)
    sizes = [_TOPIC_PARTITIONS] * whole + ([rest] if rest else [])
    return {f"grown-{number}": size for number, size in enumerate(sizes)}


def large_partitions(wanted: int, descriptors: int) -> int:
    """So many partitions, or as many as both brokers can hold open with so many descriptors."""
    if descriptors == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, (descriptors - _SPARE_DESCRIPTORS) // 100 * 100)


class GrowthSession(Course):
    """One broker with so many partitions, started three times."""

    KEY: ClassVar[str] = "growth-5k"
    MAKES_MANY_FILES: ClassVar[bool] = True

    @property
    def _partitions(self) -> int:
        return self._sizes.growth_partitions

    def _steps(self) -> Sequence[Step]:
        return [(self._grow, tuple(f"{self.KEY}-{figure}" for figure in FIGURES))]

    def _warm_up(self) -> None:
        limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = self._partitions + _SPARE_DESCRIPTORS
        if limit != resource.RLIM_INFINITY and limit < needed:
            raise BenchError(
                f"{self._partitions:,} partitions need {needed:,} open files, and a process may "
                f"have {limit:,} here; raise the limit (ulimit -n) or ask for fewer (--large N)"
            )
        self._create("warm", 1)
        measure(
            "produce",
            bootstrap=self._node.bootstrap,
            topic="warm",
            partitions=1,
            size=100,
            count=self._sizes.warm_records // 4,
        )

    def _grow(self) -> None:
        topics = topics_of(self._partitions)
        self._report(f"{self.KEY}-first", self._one_into_each(topics, new=True))
        time.sleep(_SETTLE_SECONDS)
        self._report(f"{self.KEY}-memory", self._child.usage().resident_bytes / 1e6)
        self._child.stop_timeout = _PATIENCE
        self._child.stop()
        self._report(f"{self.KEY}-stopped", self._started(topics))
        self._one_into_each(topics)
        self._child.kill()
        self._report(f"{self.KEY}-killed", self._started(topics))
        self._child.kill()  # its data goes now; an orderly stop would take long for nothing

    def _one_into_each(self, topics: dict[str, int], *, new: bool = False) -> float:
        """A record into each partition of the topics, which are made first when they are new."""
        with Client(
            "each-partition", bootstrap=self._node.bootstrap, topics=topics, patience=_PATIENCE
        ) as client:
            client.wait_ready()
            began = time.monotonic_ns()
            if new:
                for topic, partitions in topics.items():
                    self._create(topic, partitions)
            client.tell()
            return (client.result()["acknowledged_ns"] - began) / 1e9

    def _started(self, topics: dict[str, int]) -> float:
        """Start the broker again; the seconds until it takes a record."""
        os.sync()
        topic, partitions = list(topics.items())[-1]
        with Client(
            "told-ack",
            bootstrap=self._node.bootstrap,
            topic=topic,
            partition=partitions - 1,
            patience=_PATIENCE,
        ) as client:
            client.wait_ready()
            self._start_again()
            client.tell()
            return (client.result()["acknowledged_ns"] - self._child.started) / 1e9


class LargeGrowthSession(GrowthSession):
    """The same with several times as many."""

    KEY: ClassVar[str] = "growth-20k"

    @property
    def _partitions(self) -> int:
        return self._sizes.large_growth_partitions
