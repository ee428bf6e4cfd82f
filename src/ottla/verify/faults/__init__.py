"""What can go wrong: the list of faults, and choosing from it.

A new kind is one class with a name, a sentence, `start` and `heal` (`fault.py`), an entry in the
list here, and a row in docs/verify.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.verify.cluster import StoreKind
from ottla.verify.faults.disks import DiskFull, FsyncError, TornTail, Wipe, WipeTwo
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
from ottla.verify.faults.reassignments import Reassign
from ottla.verify.faults.stores import (
    KillStore,
    KillZooKeeperLeader,
    Outage,
    PauseZooKeeper,
    WipeZooKeeper,
)

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
    Reassign,
    KillStore,
    CutZooKeeper,
    HalfIsolate,
    SessionExpiry,
    PauseZooKeeper,
    Outage,
    WipeZooKeeper,
    KillZooKeeperLeader,
    DiskFull,
    FsyncError,
    Wipe,
    TornTail,
    WipeTwo,
)
BY_NAME = {kind.name: kind for kind in FAULTS}


def choose(names: Sequence[str], store: StoreKind) -> list[type[Fault]]:
    """The kinds of these names, or all that there are with such a store.

    ValueError for a name that is not known, or that cannot be had.
    """
    chosen = []
    for name in names:
        kind = BY_NAME.get(name)
        if kind is None:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(BY_NAME)}")
        if store not in kind.stores:
            raise ValueError(f"the fault {name!r} needs --store {' or '.join(kind.stores)}")
        chosen.append(kind)
    return chosen or [kind for kind in FAULTS if store in kind.stores and not kind.asked_for]


def brokers_for(kinds: Iterable[type[Fault]]) -> int:
    """How many brokers there must be for faults of these kinds."""
    return max((kind.brokers for kind in kinds), default=Fault.brokers)
