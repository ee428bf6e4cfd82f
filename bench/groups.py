"""Groups: how soon a member reads, how long a rebalance takes, what steady members cost.

The rows with librdkafka show what a user sees, most of which is the client's own pace. The rows at
scale are driven by bare sockets (`bench.load.members`); how much of their time the generator itself
was busy is printed beside them.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bench.client import Client, measure
from bench.course import Course
from bench.figures import Rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.course import Step

PROTOCOLS = ("classic", "consumer")
STEADY_SECONDS = {"classic": 3.0, "consumer": 5.0}
"""How often a member of each protocol is heard of by default."""
_CROWD_COMMITS = ("group-commits-16", "cpu-commits-16")
_FEW_MEMBERS, _FEW_PARTITIONS = 4, 10
SMALL_GROUP, SMALL_PARTITIONS = 3, 6
_SINGLY = 100
_FILLED = 1_000
_SETTLE_SECONDS = 2.0


def rebalances(
    bootstrap: str,
    protocol: str,
    groups: int,
    members: int,
    topic: str,
    partitions: int,
    *,
    warm: int,
    repeats: int = 0,
) -> dict[str, float]:
    """One more member comes into all groups at once, so many times, and leaves in between."""
    os.sync()
    return measure(
        "rebalances-raw",
        bootstrap=bootstrap,
        topic=topic,
        protocol=protocol,
        groups=groups,
        group_members=members,
        partitions=partitions,
        warm=warm,
        repeats=repeats,
        singly=min(groups, _SINGLY) if repeats else 0,
    )


class GroupSession(Course):
    """One broker and many groups."""

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "10",
        "group.consumer.min.heartbeat.interval.ms": "10",
    }
    """So that the broker is measured, and not the time it waits for more members, nor the time
    until a client asks."""

    def _steps(self) -> Sequence[Step]:
        steps: list[Step] = []
        for each in PROTOCOLS:
            steps += [
                (partial(self._first_record, each), (f"group-first-record-{each}",)),
                (partial(self._rebalance, each), (f"group-rebalance-{each}",)),
                (partial(self._large_group, each), (f"group-large-{each}",)),
                (partial(self._many_groups, each), (f"group-one-{each}", f"group-many-{each}")),
                (partial(self._heartbeats, each), (f"group-heartbeats-{each}",)),
            ]
        steps.append((self._commits, ("group-commits-1", *_CROWD_COMMITS)))
        return steps

    def _warm_up(self) -> None:
        """Enough of everything that a JVM has compiled it."""
        self._create("filled", 1)
        self._create("few", _FEW_PARTITIONS)
        self._create("small", SMALL_PARTITIONS)
        self._create("large", self._sizes.large_partitions)
        bootstrap = self._node.bootstrap
        measure(
            "produce", bootstrap=bootstrap, topic="filled", partitions=1, size=100, count=_FILLED
        )
        measure("commits", bootstrap=bootstrap, topic="filled", connections=16, seconds=1.0)
        groups = self._sizes.many_groups // 5
        for each in PROTOCOLS:
            rebalances(bootstrap, each, groups, SMALL_GROUP, "small", SMALL_PARTITIONS, warm=4)

    def _first_record(self, protocol: str) -> None:
        figures = measure(
            "first-record",
            bootstrap=self._node.bootstrap,
            topic="filled",
            protocol=protocol,
            warm=1,
            repeats=self._sizes.group_repeats,
        )
        for seconds in figures.values():
            self._report(f"group-first-record-{protocol}", seconds * 1000)

    def _rebalance(self, protocol: str) -> None:
        figures = measure(
            "rebalance",
            bootstrap=self._node.bootstrap,
            topic="few",
            protocol=protocol,
            members=_FEW_MEMBERS,
            partitions=_FEW_PARTITIONS,
            warm=1,
            repeats=self._sizes.group_repeats,
        )
        for seconds in figures.values():
            self._report(f"group-rebalance-{protocol}", seconds * 1000)

    def _large_group(self, protocol: str) -> None:
        partitions = self._sizes.large_partitions
        members = self._sizes.large_group
        self._scale_row(f"group-large-{protocol}", protocol, 1, members, "large", partitions)

    def _many_groups(self, protocol: str) -> None:
        """All of them at once, and one while the others are there."""
        groups = self._sizes.many_groups
        key = f"group-many-{protocol}"
        figures = self._scale_row(key, protocol, groups, SMALL_GROUP, "small", SMALL_PARTITIONS)
        self._report(f"group-one-{protocol}", figures["one"] * 1000)

    def _scale_row(
        self, key: str, protocol: str, groups: int, members: int, topic: str, partitions: int
    ) -> dict[str, float]:
        repeats = self._sizes.group_repeats
        bootstrap = self._node.bootstrap
        figures = rebalances(
            bootstrap, protocol, groups, members, topic, partitions, warm=1, repeats=repeats
        )
        for turn in range(repeats):
            self._report(key, figures[f"seconds-{turn}"] * 1000)
        seconds = sum(figures[f"seconds-{turn}"] for turn in range(repeats))
        busy = sum(figures[f"busy-{turn}"] for turn in range(repeats))
        print(f"  the load generator was busy for {busy / seconds:.0%} of that", flush=True)
        return figures

    def _heartbeats(self, protocol: str) -> None:
        """CPU of the broker while all its members do nothing but say that they are there."""
        with Client(
            "heartbeats",
            bootstrap=self._node.bootstrap,
            topic="small",
            protocol=protocol,
            groups=self._sizes.many_groups,
            group_members=SMALL_GROUP,
            partitions=SMALL_PARTITIONS,
            interval=STEADY_SECONDS[protocol],
        ) as client:
            client.wait_ready()
            time.sleep(_SETTLE_SECONDS)
            before, began = self._child.usage().cpu_seconds, time.monotonic()
            time.sleep(self._sizes.heartbeat_seconds)
            cpu = self._child.usage().cpu_seconds - before
            seconds = time.monotonic() - began
            client.tell()
            client.result()
        self._report(f"group-heartbeats-{protocol}", cpu / seconds)

    def _commits(self) -> None:
        for connections, keys in ((1, ("group-commits-1",)), (16, _CROWD_COMMITS)):
            if not self._wants(*keys):
                continue
            if connections > 1:
                # CPU counts here, and a JVM that still compiles takes several times as much.
                self._commit(connections, self._sizes.crowd_warm_seconds)
            for _ in range(self._sizes.repeats):
                found = self._commit(connections, self._sizes.request_seconds)
                self._report(keys[0], found.a_second)
                if len(keys) > 1:
                    self._report(keys[1], found.cpu_microseconds)

    def _commit(self, connections: int, seconds: float) -> Rate:
        os.sync()
        before = self._child.usage().cpu_seconds
        figures = measure(
            "commits",
            bootstrap=self._node.bootstrap,
            topic="filled",
            connections=connections,
            seconds=seconds,
        )
        cpu = self._child.usage().cpu_seconds - before
        return Rate(figures["requests"], figures["seconds"], cpu)
