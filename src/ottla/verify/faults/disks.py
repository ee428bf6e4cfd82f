"""Faults of disks: those that refuse to do their work, and those that destroy what a replica has.
Data is destroyed of one replica at a time: the others have it. `wipe-two` destroys more.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.records.batch import batches
from ottla.verify.cluster import OFFSETS_TOPIC
from ottla.verify.failing_broker import FULL, NO_SYNC, break_disk, mend_disk
from ottla.verify.faults.fault import Fault

_MOST_TORN = 2_000
_ALONE_SECONDS = 4.0
_HEALTHY_SECONDS = 60.0
LOSS = "acknowledged records may be lost"
"""What a controller logs of an election that may lose records."""


class DiskFull(Fault):
    """`disk-full`."""

    name = "disk-full"
    about = "A broker's disk is full (ENOSPC); there is room again, and the broker is restarted."
    seconds = (0.5, 4.0)
    failure = FULL

    async def start(self) -> str:
        self._broker = self.any_broker()
        self.cluster.may_end[self._broker] += 1
        break_disk(self.cluster.brokers[self._broker].folder, self.failure)
        return f"broker {self._broker}"

    async def heal(self) -> None:
        self._has_failed = mend_disk(self.cluster.brokers[self._broker].folder, self.failure)
        self.cluster.kill(self._broker)
        self.cluster.may_end[self._broker] -= 1
        await self.cluster.start_brokers([self._broker])

    def happened(self) -> bool:
        return self._has_failed


class FsyncError(DiskFull):
    """`fsync-error`."""

    name = "fsync-error"
    about = "Every fsync of a broker fails (EIO); the disk works again, and it is restarted."
    failure = NO_SYNC


class _Destroyed(Fault):
    """A broker is killed, alone or with all others, and has less when it comes back, first of all.

    When all are killed nobody can take it out of the in-sync replicas meanwhile."""

    seconds = (0.0, 2.0)
    alone = True

    async def start(self) -> str:
        self._broker = self.any_broker()
        self._together = self.chance.random() < 0.5
        for each in self.cluster.brokers if self._together else [self._broker]:
            self.cluster.kill(each)
        what = self._destroy(self._broker)
        return f"{what}; all brokers were killed" if self._together else what

    async def heal(self) -> None:
        if self._together:
            await self.cluster.start_brokers([self._broker], wait=False)
            await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        await self.cluster.start_brokers(self.cluster.brokers)

    def _destroy(self, broker: int) -> str:
        raise NotImplementedError


class Wipe(_Destroyed):
    """`wipe`."""

    name = "wipe"
    about = "A broker is killed, or all are, and one comes back with an empty disk."

    def _destroy(self, broker: int) -> str:
        self.cluster.wipe(broker)
        return f"broker {broker}"


class WipeTwo(Fault):
    """`wipe-two`: as many as `min.insync.replicas` lose everything, and they alone had the newest.

    What was acknowledged is lost then. The brokers must not hide it."""

    name = "wipe-two"
    about = (
        "One broker is killed, then both others, which come back with empty disks: what was "
        "acknowledged meanwhile is lost, and must be reported. Only where it is asked for."
    )
    seconds = (0.0, 1.0)
    alone = True
    asked_for = True

    async def start(self) -> str:
        cluster = self.cluster
        self._marks = {each: broker.log_size() for each, broker in cluster.brokers.items()}
        left, *wiped = self.chance.sample(sorted(cluster.brokers), len(cluster.brokers))
        self._left = left
        cluster.kill(left)
        await asyncio.sleep(_ALONE_SECONDS)
        for broker in wiped:
            cluster.kill(broker)
            cluster.wipe(broker)
        return f"brokers {wiped}, of which broker {left} has seen nothing for some seconds"

    async def heal(self) -> None:
        cluster = self.cluster
        await cluster.start_brokers([self._left])
        await cluster.start_brokers(cluster.brokers)
        await cluster.wait_healthy([OFFSETS_TOPIC], _HEALTHY_SECONDS)
        for number, broker in cluster.brokers.items():
            if LOSS in broker.log_since(self._marks[number]):
                self.record("loss", "ok", broker=number)
                break


class TornTail(_Destroyed):
    """`torn-tail`."""

    name = "torn-tail"
    about = "The same; what comes back lacks the ends of its newest segments."

    def _destroy(self, broker: int) -> str:
        cut = 0
        for segment in _newest_segments(self.cluster.brokers[broker].data_dir):
            size = segment.stat().st_size
            left = _inside_a_batch(segment, max(1, size - self.chance.randint(1, _MOST_TORN)))
            with segment.open("r+b") as file:
                file.truncate(left)
            cut += size - left
        return f"broker {broker}, {cut} bytes"


def _inside_a_batch(segment: Path, size: int) -> int:
    """A size at which the last batch is torn: where a batch ends, nobody could tell that more had
    been there. A machine that loses whole batches has lost its power, and that is told apart."""
    ends = {position + header.size for position, header in batches(segment.read_bytes())}
    return size - 1 if size in ends else size


def _newest_segments(data: Path) -> list[Path]:
    """The last segment of every partition that holds anything."""
    newest = []
    for folder in sorted(each for each in data.iterdir() if each.is_dir()):
        segments = sorted(folder.glob("*.log"))
        if segments and segments[-1].stat().st_size:
            newest.append(segments[-1])
    return newest
