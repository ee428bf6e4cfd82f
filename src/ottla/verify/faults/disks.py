"""Faults of disks: those that refuse to do their work, and those that destroy what a replica has.
Data is destroyed of one replica at a time: the others have it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.verify.failing_broker import FULL, NO_SYNC, break_disk, mend_disk
from ottla.verify.faults.fault import Fault

_MOST_TORN = 2_000


class DiskFull(Fault):
    """`disk-full`."""

    name = "disk-full"
    about = "A broker's disk is full (ENOSPC); there is room again, and the broker is restarted."
    seconds = (0.5, 4.0)
    failure = FULL

    async def start(self) -> str:
        self._broker = self.any_broker()
        self.cluster.down.add(self._broker)  # it may end for want of a disk
        break_disk(self.cluster.brokers[self._broker].folder, self.failure)
        return f"broker {self._broker}"

    async def heal(self) -> None:
        mend_disk(self.cluster.brokers[self._broker].folder, self.failure)
        self.cluster.kill(self._broker)
        await self.cluster.start_brokers([self._broker])


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


class TornTail(_Destroyed):
    """`torn-tail`."""

    name = "torn-tail"
    about = "The same; what comes back lacks the ends of its newest segments."

    def _destroy(self, broker: int) -> str:
        cut = 0
        for segment in _newest_segments(self.cluster.brokers[broker].data_dir):
            size = segment.stat().st_size
            left = max(0, size - self.chance.randint(1, _MOST_TORN))
            with segment.open("r+b") as file:
                file.truncate(left)
            cut += size - left
        return f"broker {broker}, {cut} bytes"


def _newest_segments(data: Path) -> list[Path]:
    """The last segment of every partition that holds anything."""
    newest = []
    for folder in sorted(each for each in data.iterdir() if each.is_dir()):
        segments = sorted(folder.glob("*.log"))
        if segments and segments[-1].stat().st_size:
            newest.append(segments[-1])
    return newest
