"""What can go wrong: the list of faults, and choosing from it by a seed."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.verify.faults.disks import DiskFull, FsyncError, TornTail, Wipe
from ottla.verify.faults.elections import PreferredElection
from ottla.verify.faults.fault import Fault
from ottla.verify.faults.links import (
    CutBrokers,
    CutClients,
    CutZooKeeper,
    Delay,
    HalfIsolate,
    Isolate,
    LostBrokerReplies,
    LostReplies,
    SessionExpiry,
)
from ottla.verify.faults.processes import Kill, KillAll, Pause, RollingRestart
from ottla.verify.faults.stores import KillStore, PauseZooKeeper

FAULTS: tuple[type[Fault], ...] = (
    Kill,
    Pause,
    CutBrokers,
    Isolate,
    CutClients,
    LostReplies,
    LostBrokerReplies,
    Delay,
    KillAll,
    RollingRestart,
    PreferredElection,
    KillStore,
    CutZooKeeper,
    HalfIsolate,
    SessionExpiry,
    PauseZooKeeper,
    DiskFull,
    FsyncError,
    Wipe,
    TornTail,
)
BY_NAME = {kind.name: kind for kind in FAULTS}


def choose(names: Sequence[str], *, zookeeper: bool) -> list[type[Fault]]:
    """The kinds of these names, or all; without a ZooKeeper those that need none.

    ValueError for a name that is not known, or that cannot be had.
    """
    chosen = []
    for name in names:
        kind = BY_NAME.get(name)
        if kind is None:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(BY_NAME)}")
        if kind.zookeeper and not zookeeper:
            raise ValueError(f"the fault {name!r} needs a ZooKeeper")
        chosen.append(kind)
    return chosen or [kind for kind in FAULTS if zookeeper or not kind.zookeeper]
