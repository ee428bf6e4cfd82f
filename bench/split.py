"""One machine, one broker process or several: how much more they serve, and at what cost.

Ottla is started with `--processes N`. Apache Kafka uses all cores with its one process: it is
measured once, and its figures stand beside those of every N. A topic has more partitions than there
are processes, and each connection goes to the leader of its own; each group commits to its own
coordinator.
"""

from __future__ import annotations

import os
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from bench.client import measure
from bench.course import Course
from bench.figures import Rate
from bench.groups import PROTOCOLS, SMALL_GROUP, SMALL_PARTITIONS, GroupSession, rebalances
from bench.processes import free_port_block, wait_port
from bench.systems import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from bench.course import Step
    from bench.rows import Sizes
    from bench.selection import Selection
    from bench.systems import ApacheKafka, System

    Samples = dict[str, list[float]]

PROCESSES = (1, 2, 4)
GROUPS = tuple(f"groups-{protocol}" for protocol in PROTOCOLS)
FIGURES = ("requests", "cpu-requests", "commits", "cpu-commits", *GROUPS)
KEPT = ("requests", "commits")
_CONNECTIONS = {"requests": 64, "commits": 16}
_PARTITIONS = 8
_A_HUNDRED_THOUSAND = 1e5 / 1e6
"""From the microseconds of one request to the seconds of so many."""
_START_PATIENCE = 120.0


def key_of(processes: int, figure: str) -> str:
    return f"cluster-processes-{processes}-{figure}"


def kept_key(figure: str) -> str:
    return f"cluster-processes-{figure}-kept"


class SplitSession(Course):
    """One start for each number of processes."""

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "offsets.topic.replication.factor": "1",
        **GroupSession.SETTINGS,
    }
    """As a single broker has it: a copy of each commit would be another comparison."""

    def __init__(
        self,
        system: System,
        tools: ApacheKafka,
        folder: Path,
        sizes: Sizes,
        selection: Selection,
        record: Callable[[str, float], None],
    ) -> None:
        super().__init__(system, tools, folder, sizes, selection, record)
        self._folder = folder
        self._taken: dict[int, Samples] = {}

    def _prepare(self) -> None:
        """Each start has a folder of its own."""

    def _start(self, stack: ExitStack) -> None:
        """Each step starts what it measures."""

    def _warm_up(self) -> None:
        """Each start has its own."""

    def _steps(self) -> Sequence[Step]:
        kept = tuple(map(kept_key, KEPT))
        return [
            (
                partial(self._measure, processes),
                (*(key_of(processes, figure) for figure in FIGURES), *kept[: 2 * (processes < 3)]),
            )
            for processes in PROCESSES
        ]

    def _measure(self, processes: int) -> None:
        if self._system.splits or not self._taken:
            self._taken[processes] = self._started(processes)
        else:
            self._taken[processes] = next(iter(self._taken.values()))
        for figure, samples in self._taken[processes].items():
            for value in samples:
                self._report(key_of(processes, figure), value)
        if processes == 2 and 1 in self._taken:
            for figure in KEPT:
                one, two = (median(self._taken[each][f"cpu-{figure}"]) for each in (1, 2))
                self._report(kept_key(figure), two / one)

    def _started(self, processes: int) -> Samples:
        folder = self._folder / str(processes)
        folder.mkdir(parents=True)
        first = free_port_block(max(2, processes))
        # Apache Kafka's controller has the second of the ports, where it is the only process.
        self._node = Node(folder, first, first + 1)
        self._system.prepare(self._node, self.SETTINGS)
        samples: Samples = {figure: [] for figure in FIGURES}
        try:
            with self._system.start_split(self._node, processes) as self._broker:
                for index in range(processes if self._system.splits else 1):
                    wait_port(first + index, self._child, _START_PATIENCE)
                self._create("requests", _PARTITIONS)
                self._create("small", SMALL_PARTITIONS)
                for figure in KEPT:
                    self._take(figure, samples)
                for protocol, figure in zip(PROTOCOLS, GROUPS, strict=True):
                    self._join_all(protocol, samples[figure])
        finally:
            self._broker = None
        return samples

    def _join_all(self, protocol: str, samples: list[float]) -> None:
        """A third member joins all groups at once, as in the rows of groups."""
        repeats = self._sizes.group_repeats
        for groups, warm, measured in (
            (self._sizes.many_groups // 5, 4, 0),  # enough that a JVM has compiled it
            (self._sizes.many_groups, 1, repeats),
        ):
            figures = rebalances(
                self._bootstrap,
                protocol,
                groups,
                SMALL_GROUP,
                "small",
                SMALL_PARTITIONS,
                warm=warm,
                repeats=measured,
            )
        samples += [figures[f"seconds-{turn}"] * 1000 for turn in range(repeats)]

    def _take(self, figure: str, samples: Samples) -> None:
        # CPU counts here, and a JVM that still compiles takes several times as much.
        self._rate(figure, self._sizes.crowd_warm_seconds)
        for _ in range(self._sizes.repeats):
            found = self._rate(figure, self._sizes.request_seconds)
            samples[figure].append(found.a_second)
            samples[f"cpu-{figure}"].append(found.cpu_microseconds * _A_HUNDRED_THOUSAND)

    def _rate(self, figure: str, seconds: float) -> Rate:
        os.sync()
        more = {"partitions": _PARTITIONS} if figure == "requests" else {}
        before = self._cpu_seconds()
        figures = measure(
            "requests-raw" if figure == "requests" else "commits",
            bootstrap=self._bootstrap,
            topic="requests",
            connections=_CONNECTIONS[figure],
            seconds=seconds,
            **more,
        )
        return Rate(figures["requests"], figures["seconds"], self._cpu_seconds() - before)
