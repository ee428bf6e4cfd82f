"""Markers into the partitions that are led here: the end of a transaction, as it reaches the data.

In a group's log a marker decides about committed offsets as well. So it goes through the group's
shard, which applies it in the same step; while that is being loaded the coordinator of the
transaction has to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

from ottla.coordinator.host import Host, Partitions
from ottla.coordinator.replies import attempt, begin, gather
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.replication.marker import Marker
from ottla.replication.partition import Partition
from ottla.runtime.clock import Clock
from ottla.runtime.waiters import Deferred
from ottla.storage.log import AppendInfo

TIMEOUT_SECONDS = 30.0
SLICE_SECONDS = 0.005
"""How long writing markers may hold the event loop before others have their turn."""

Outcomes = list[KafkaError | None]

_ELSEWHERE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class GroupLogs(Protocol):
    """The group coordinator, as far as markers concern it."""

    @property
    def host(self) -> Host: ...


class MarkerWriter:
    """Writes markers on this broker."""

    def __init__(self, partitions: Partitions, groups: GroupLogs, clock: Clock) -> None:
        self._partitions = partitions
        self._groups = groups
        self._clock = clock

    def write(self, marker: Marker, to: TopicPartition) -> Deferred[None] | None:
        """Append a marker; a Deferred while it is not committed yet. Raises KafkaError."""
        try:
            partition = self._partitions.by_name(*to)
            info = self._append(marker, to, partition)
        except KafkaError as error:
            if error.code in _ELSEWHERE:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message) from None
            raise
        return None if partition.committed(info) else _within(partition.wait_committed(info))

    def write_all(
        self, markers: Iterable[tuple[Marker, TopicPartition]]
    ) -> Outcomes | Deferred[Outcomes]:
        """Append many markers, in turns with what others do; what became of each."""
        left = iter(markers)
        replies: list[KafkaError | Deferred[None] | None] = []
        if self._write_some(left, replies):
            return gather(replies)
        outcome: Deferred[Outcomes] = Deferred()
        loop = asyncio.get_running_loop()

        def go_on() -> None:
            try:
                is_all = self._write_some(left, replies)
            except Exception as error:  # who waits for it hears of it
                outcome.fail(error)
                return
            if is_all:
                begin(lambda: gather(replies), outcome)
            else:
                loop.call_soon(go_on)

        loop.call_soon(go_on)
        return outcome

    def _write_some(
        self,
        left: Iterator[tuple[Marker, TopicPartition]],
        replies: list[KafkaError | Deferred[None] | None],
    ) -> bool:
        """Append markers for as long as others can wait; whether that was all."""
        turn_ends = self._clock.monotonic() + SLICE_SECONDS
        for marker, to in left:
            replies.append(attempt(partial(self.write, marker, to)))
            if self._clock.monotonic() > turn_ends:
                return False
        return True

    def _append(self, marker: Marker, to: TopicPartition, partition: Partition) -> AppendInfo:
        host = self._groups.host
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a marker needs a producer id and an epoch")
        if to.topic == TRANSACTIONS_TOPIC:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{to} takes no markers")
        if to.topic == host.topic:
            slot = host.slot(to.partition)
            if slot is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return slot.end_transaction(marker)
        partition.check_enough_in_sync()
        return partition.append_marker(marker, self._clock.now_ms())


def _within(commit: Deferred[None]) -> Deferred[None]:
    """The commit, or REQUEST_TIMED_OUT: the replicas may be away for long."""
    outcome: Deferred[None] = Deferred()

    def give_up() -> None:
        commit.abandon()
        outcome.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    timer = asyncio.get_running_loop().call_later(TIMEOUT_SECONDS, give_up)

    def settled(done: Deferred[None]) -> None:
        timer.cancel()
        try:
            outcome.resolve(done.result())
        except KafkaError as error:
            outcome.fail(error)

    commit.on_done(settled)
    return outcome
