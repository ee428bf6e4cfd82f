"""Producer ids that the tasks of a worker use one after another.

For each partition a broker keeps what it knows of a producer for a day, or as
producer.id.expiration.ms says. A stream has a few tasks every few seconds: with an id of their own
each they would fill a broker's memory. So a task that ends with every row acknowledged leaves its
id, and the sequence numbers that are next, to the next task of the same process. One that fails
takes its id with it: nobody knows which of its last batches arrived.

An id is worth something only in the cluster that gave it out. Another cluster at the same address
may have given the same one to somebody else, and would take new rows for repetitions: so ids are
kept by the id of their cluster, and not for long.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Final

_KEPT: Final = 300.0  # seconds without a task


@dataclass(slots=True)
class Identity:
    """A producer id, and for each partition the sequence number of the next record."""

    producer_id: int
    epoch: int
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


_lock: Final = threading.Lock()
_kept: dict[tuple[int, str], tuple[float, Identity]] = {}
"""By the number of the process, since one that is forked has a copy, and by the cluster."""


def take(cluster: str | None) -> Identity | None:
    """An id that is free; whoever has taken it has it alone."""
    if not cluster:
        return None
    with _lock:
        since, identity = _kept.pop((os.getpid(), cluster), (0.0, None))
    return identity if time.monotonic() - since < _KEPT else None


def leave(cluster: str | None, identity: Identity) -> None:
    """Let the next task have it. Everything that was sent under it is acknowledged."""
    if cluster:
        with _lock:
            _kept[os.getpid(), cluster] = time.monotonic(), identity
