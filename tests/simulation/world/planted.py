"""Mistakes planted into the product, one for each invariant, to see that they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from ottla.controller import election
from ottla.coordinator.group.offsets import OffsetMachine
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.transaction.machine import TransactionShard
from ottla.model.ids import NO_PRODUCER_ID
from ottla.replication.isr import InSyncReplicas
from ottla.replication.partition import Partition
from ottla.storage.producers import ProducerStates

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


# --- transactions ---------------------------------------------------------------------------------


def _stable_past_open(self: ProducerStates, high_watermark: int) -> int:
    """Open transactions hold nobody back."""
    return high_watermark


def _stable_with_marker(self: ProducerStates, high_watermark: int) -> int:
    """A marker counts before it is replicated."""
    return min(next(iter(self._ongoing), high_watermark), high_watermark)


def _any_epoch(self: TransactionShard, found: Any, producer: Any) -> None:
    """Whoever has used the transactional id may end its transaction."""


def _nothing_to_resume(self: TransactionShard, now: Any) -> list[Any]:
    """The next coordinator does not go on with what was decided."""
    _loaded(self, now)
    return []


def _abort_what_was_decided(self: TransactionShard, command: Any, now: Any) -> Any:
    """The next coordinator aborts what was decided, whatever that was."""
    result = _resume(self, command, now)
    result.effects = tuple(each._replace(commit=False) for each in result.effects)
    return result


def _offsets_at_once(self: OffsetMachine, entry: Any, offset: int, producer_id: int) -> None:
    """Offsets that are committed in a transaction do not wait for its end."""
    _replay(self, entry, offset, NO_PRODUCER_ID)


def _nothing_pending(self: GroupShard, now: Any) -> Any:
    """The next coordinator of a group does not know of offsets in open transactions."""
    self.offsets._pending.clear()
    self.offsets._pending_of.clear()
    return _group_loaded(self, now)


_group_loaded = GroupShard.loaded
_replay = OffsetMachine.replay
_loaded = TransactionShard.loaded
_resume = TransactionShard._resume

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
    "stable-past-open": (
        "NoAbortedVisible",
        lambda: patch.object(ProducerStates, "last_stable_offset", _stable_past_open),
    ),
    "stable-too-soon": (
        "MonotonicLastStableOffset",
        lambda: patch.object(ProducerStates, "last_stable_offset", _stable_with_marker),
    ),
    "decision-forgotten": (
        "NoTornTransaction",
        lambda: patch.object(TransactionShard, "_resume", _abort_what_was_decided),
    ),
    "markers-forgotten": (
        "NoHangingTransaction",
        lambda: patch.object(TransactionShard, "loaded", _nothing_to_resume),
    ),
    "any-epoch": (
        "ZombieFenced",
        lambda: patch.object(TransactionShard, "_check_producer", _any_epoch),
    ),
    "offsets-at-once": (
        "OffsetsWithTransaction",
        lambda: patch.object(OffsetMachine, "replay", _offsets_at_once),
    ),
    "offsets-forgotten": (
        "OffsetsWithTransaction",
        lambda: patch.object(GroupShard, "loaded", _nothing_pending),
    ),
}


@contextmanager
def mistake(name: str | None) -> Iterator[None]:
    """The product with a mistake in it."""
    with nullcontext() if name is None else MISTAKES[name][1]():
        yield
