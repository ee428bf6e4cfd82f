"""Partition: a log, who leads it, and how far its records are safe to read.

Offsets, in their order:

    log start <= last stable <= high watermark <= log end

`append` moves the log end. The high watermark follows when every in-sync replica has the records,
which for a partition with one replica is at once, unless the topic asks for fsync before
acknowledgement (`flush.messages`): then it follows the fsync, and so do answers and readers. After
a restart nobody knows whether the records behind the recovery point were synced, so under such a
setting they are synced before they are shown, or acknowledged to a producer who sends them again.
Where no descriptor was free for that, the producers who wait are told, and it is tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.batch import BatchHeader
from ottla.runtime.waiters import Deferred, Signal
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import AppendInfo, Log, ReadResult


class Durability(Protocol):
    """Whoever runs fsync for all logs."""

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        """Done when everything below `offset` is on the disk; an error when it cannot be, which is
        OutOfDescriptors if it is worth another try. Without `urgent`, after everybody else's."""
        ...


class Partition:
    """The leader's side of one partition."""

    __slots__ = (
        "_durability", "_flushing", "_flushing_tail", "_waiting", "high_watermark", "id",
        "leader_epoch", "log", "readable", "state", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        log: Log,
        state: PartitionState,
        durability: Durability,
    ) -> None:
        # for the life of the partition
        self.id = partition
        self.topic_id = topic_id
        self.log = log
        self.readable = Signal()  # signalled with the number of bytes that became readable
        self._durability = durability
        # changes with every election
        self.state = state
        self.leader_epoch = state.leader_epoch
        # changes with every append
        self._flushing = False
        self._flushing_tail = False
        self._waiting: deque[tuple[int, Deferred[None]]] = deque()
        end = log.log_end_offset
        self.high_watermark = log.high_watermark = end
        if log.unflushed_messages and log.flush_due:
            shown = max(log.recovery_point, log.log_start_offset)
            self.high_watermark = log.high_watermark = shown
            self._flush_tail()

    def lead(self, state: PartitionState) -> None:
        """Become (or stay) leader under `state`. A new epoch begins at the log's end, so that
        followers, who ask for theirs, are told where to truncate to."""
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.log.begin_epoch(state.leader_epoch)

    # ------------------------------------------------------------------ writing

    def append(
        self,
        records: memoryview,
        now_ms: int,
        prepared: bool = False,
        header: BatchHeader | None = None,
    ) -> AppendInfo:
        """Validate, write, and make readable what may be read. Raises KafkaError, or TakesLong.

        `prepared` batches have been through `storage.validate.prepare`; those with a `header` were
        built by the caller.
        """
        log = self.log
        info = log.append(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            prepared=prepared,
            header=header,
        )
        if not info.duplicate:
            if self._flushing or log.flush_due:
                self._flush()
            else:
                self.high_watermark = log.high_watermark = log.log_end_offset
                self.readable.notify(info.bytes)
        elif self._unflushed(info):
            self._flush()
        return info

    def committed(self, info: AppendInfo) -> bool:
        """Whether the append may be acknowledged now; else `wait_committed`."""
        if self.high_watermark <= info.last_offset:
            return False
        return not (info.duplicate and self._unflushed(info))

    def _unflushed(self, info: AppendInfo) -> bool:
        """Whether a batch that was in the log already must be synced before it is acknowledged."""
        return self.log.flush_due and info.last_offset >= self.log.recovery_point

    def wait_committed(self, info: AppendInfo) -> Deferred[None]:
        waiting: Deferred[None] = Deferred()
        self._waiting.append((info.last_offset, waiting))
        return waiting

    def _flush(self) -> None:
        """Ask for one fsync of everything up to the log's end; appends meanwhile get the next."""
        if self._flushing:
            return
        self._flushing = True
        end = self.log.log_end_offset
        self._durability.wait_flushed(self.log, end).add_done_callback(
            lambda flush: self._on_flushed(flush, end)
        )

    def _on_flushed(self, flush: asyncio.Future[None], end: int) -> None:
        self._flushing = False
        if self._flushed(flush, end) and self.log.log_end_offset > end:
            self._flush()

    def _flush_tail(self) -> None:
        """Ask for an fsync up to the log's end that no producer waits for, only readers."""
        if self._flushing_tail:
            return
        self._flushing_tail = True
        end = self.log.log_end_offset
        self._durability.wait_flushed(self.log, end, urgent=False).add_done_callback(
            lambda flush: self._on_tail_flushed(flush, end)
        )

    def _on_tail_flushed(self, flush: asyncio.Future[None], end: int) -> None:
        self._flushing_tail = False
        self._flushed(flush, end)

    def _flushed(self, flush: asyncio.Future[None], end: int) -> bool:
        """A flush of everything below `end` is over: show it, acknowledge it. Says whether it
        succeeded."""
        log = self.log
        error: BaseException | None = None
        if flush.cancelled() or log.failure is not None:
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.failure)
        else:
            error = flush.exception()
        if error is not None:
            failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            while self._waiting:
                self._waiting.popleft()[1].fail(failure)
            if isinstance(error, OutOfDescriptors):
                self._flush_tail()
            return False
        gained = log.bytes_from(self.high_watermark, end)
        self.high_watermark = log.high_watermark = max(self.high_watermark, end)
        # Not in order: who sends a batch again waits for an earlier offset than others before him.
        waiting, self._waiting = self._waiting, deque()
        for last_offset, deferred in waiting:
            if last_offset < end:
                deferred.resolve(None)
            else:
                self._waiting.append((last_offset, deferred))
        self.readable.notify(gained)
        return True

    # ------------------------------------------------------------------ reading

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def read(
        self, offset: int, max_bytes: int, upper: int, min_one: bool, *, cached_only: bool = False
    ) -> ReadResult:
        """Batches from `offset` up to `upper` (a high watermark or last stable offset); with
        `cached_only` ColdRead rather than waiting for the disk."""
        if offset > self.high_watermark and offset <= self.log.log_end_offset:
            # Between the mark and the end there is nothing to see yet, but it is no error.
            offset = self.high_watermark
        return self.log.read(
            offset, max_bytes, upper=upper, min_one=min_one, cached_only=cached_only
        )

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to the given one, and where it ends; (-1, -1) if unknown."""
        return self.log.epoch_end_offset(epoch)

    def start_epoch(self) -> int:
        """The leader epoch at the log's start; that of this leader while the log is empty."""
        epoch = self.log.epoch_for(self.log.log_start_offset)
        return NO_LEADER_EPOCH if epoch is None else epoch

    def check_epoch(self, epoch: int) -> None:
        """Fence a client that knows another leader than us (KIP-320)."""
        if epoch in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def delete_records(self, offset: int) -> int:
        """Move the log start up to `offset` (-1: the high watermark); returns the new start."""
        if "delete" not in self.log.config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.id} are not deletable: its cleanup.policy has no 'delete'",
            )
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self.log.advance_start(offset)
        return self.log.log_start_offset

    def retire(self) -> None:
        """The partition is deleted or led elsewhere: nobody waits here any longer."""
        self.readable.hurry()
        while self._waiting:
            self._waiting.popleft()[1].fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
