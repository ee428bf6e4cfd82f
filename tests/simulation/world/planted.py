"""Mistakes planted into the product, one for each invariant, to see that they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from ottla.controller import election
from ottla.replication.isr import InSyncReplicas
from ottla.replication.partition import Partition

_changed = election._changed


def _mark_without_followers(self: InSyncReplicas, current: int, end: int, *_: Any) -> int:
    """The high watermark is the leader's own end: followers are not waited for."""
    return max(current, end)


def _same_epoch(state: Any, *rest: Any) -> Any:
    """A new leader goes on under the epoch of the one before."""
    after = _changed(state, *rest)
    if after is state:
        return state
    return election.replace(after, leader_epoch=state.leader_epoch)


def _same_history(self: Partition, epoch: int) -> tuple[int, int]:
    """A leader does not tell its followers where their logs differ from its own."""
    return epoch, 2**62


MISTAKES: dict[str, tuple[str, Callable[[], Any]]] = {
    "same-epoch": (
        "SingleLeader",
        lambda: patch.object(election, "_changed", _same_epoch),
    ),
    "ack-early": (
        "NoAckedWriteLost",
        lambda: patch.object(InSyncReplicas, "high_watermark", _mark_without_followers),
    ),
    "mark-too-soon": (
        "MonotonicHighWatermark",
        lambda: patch.object(Partition, "knows_high_watermark", True),
    ),
    "no-truncation": (
        "PrefixLogs",
        lambda: patch.object(Partition, "epoch_end_offset", _same_history),
    ),
}


@contextmanager
def mistake(name: str | None) -> Iterator[None]:
    """The product with a mistake in it."""
    with nullcontext() if name is None else MISTAKES[name][1]():
        yield
