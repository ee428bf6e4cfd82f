"""The way of a shard's records into its log, and of answers out once they are safe.

A command that comes alone is written and replayed at once. Commands that come in a crowd are
written together: the first of a loop's turn on each partition goes at once, since it may stay the
only one; what others bring in the same turn is replayed at once, since the next command must see
it, and *gathered*. It becomes one batch when the turn ends, or sooner when it has become much.

When that write fails the state in memory is ahead of the log. The writer is `broken` then, the
shard must be thrown away, and everybody who waits for that write is told. So that a log that takes
nothing does not do that again and again, nothing is gathered before a write has gone well, nor
after a failure until one has.

With fewer replicas in sync than `min.insync.replicas` nothing is written: it would not be
committed, and whatever is told about the same subject would wait for it.

Records are written under the leader epoch for which the shard was loaded, or refused: what a shard
of an earlier epoch decides may rest on what another leader has changed since.

What is written in a producer's transaction has a batch of its own, since a batch names its
producer, and so have the markers that end transactions.

An answer depends on the records of its subject (the group, see `Shard.subject`), and waits for
nobody else's: for the write if they are gathered, for the high watermark once they are written, and
for the end of the succession where a new leader, or one shortly before it, has written them
(`replication/lease.py`). The
reply to a command whose subject has nothing under way is given at once, without a future. Answers
to earlier commands are given at the end of the turn in any case: giving one may bring the next
command, and whoever sent the present one should not be the last to know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ottla.coordinator.errors import as_coordinator
from ottla.coordinator.replies import settle
from ottla.coordinator.shard import (
    Now,
    Record,
    Result,
    Shard,
    TransactionalProducer,
    Written,
)
from ottla.coordinator.uncommitted import AnswerSettings, UncommittedAnswers
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_ID
from ottla.records.builder import build_batch, build_single
from ottla.records.compression import Compression
from ottla.replication.marker import Marker
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.storage.log import AppendInfo
from ottla.storage.producers import Origin

if TYPE_CHECKING:
    from ottla.records.builder import RecordItem

logger = logging.getLogger(__name__)

FEW = 1
"""So many writes of a turn to one partition are not delayed. With 2, a rebalance of many groups at
once took 7 % more CPU, and commits gained nothing."""
CROWD = 32
"""So many answers wait for one write at most: the first of them waits for the last command."""
MANY = 1_000
"""So many subjects with uncommitted records are remembered before it is seen which still have."""
BATCH_OVERHEAD = 128
RECORD_OVERHEAD = 32


class WriterSettings(AnswerSettings, Protocol):
    """What of the broker's settings a writer reads."""

    @property
    def compression(self) -> Compression: ...


class Turn:
    """A turn of the loop, for all writers together: those that took part are told of its end."""

    def __init__(self) -> None:
        self._writers: list[Writer] = []

    def enter(self, writer: Writer) -> None:
        """The writer has something to do when this turn ends, and is told then."""
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._end)
        self._writers.append(writer)

    def _end(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.end_turn()


class Writer:
    """Writes what one shard decides into the log of its partition."""

    def __init__(
        self,
        partition: Partition,
        leader_epoch: int,
        shard: Shard,
        turn: Turn,
        settings: WriterSettings,
        on_broken: Callable[[KafkaError], None],
    ) -> None:
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._shard = shard
        self._turn = turn
        self._settings = settings
        self._on_broken = on_broken
        self.broken = False
        """The state in memory is not that of the log: nothing must run on it any more."""
        # in this turn
        self._entered = False
        self._writes = 0
        self._answers: list[tuple[int, Deferred[Any], Any]] = []  # for its end
        # replayed, not yet written
        self._gathers = False  # once a write has gone well, until one fails
        self._gathered: list[RecordItem] = []
        self._gathered_bytes = 0
        self._gathered_at = -1  # the offset its first record is meant to get
        self._crowd = 0  # answers that came meanwhile
        # not yet committed: of each subject the end of its records; of None those about everything
        self._ends: dict[Hashable | None, int] = {}
        self._last_end = 0
        self._many = MANY
        self._uncommitted = UncommittedAnswers(partition, settings, self._mark)
        # Whether everybody who led before knows by now that this broker does.
        self._succeeded = partition.tenure.has_succeeded
        self._told_below = 0  # until then

    def loaded(self) -> None:
        """The log has been replayed; what is not committed of it has to be, before it is told."""
        self.look_for_succession()
        end = self._partition.log.log_end_offset
        if end > self._mark():
            self._ends[None] = self._last_end = end

    def look_for_succession(self) -> bool:
        """Whether everything may be told, once it is committed."""
        if not self._succeeded:
            before = self._mark()
            self._succeeded = self._partition.tenure.has_succeeded
            self._told_below = self._partition.tenure.told_below
            if self._mark() > before:
                self._uncommitted.look()
        return self._succeeded

    def _mark(self) -> int:
        """Below which offset records may be told of."""
        mark = self._partition.high_watermark
        return mark if self._succeeded else min(mark, self._told_below)

    # ------------------------------------------------------------------ records in

    def record(self, result: Result, command: Any, now: Now) -> None:
        """Have the records replayed, and written now or at the turn's end. Raises KafkaError."""
        self._partition.check_enough_in_sync()
        if not self._entered:
            self._enter()
        self._writes += 1
        if result.producer is not None:
            self._append_in_transaction(result.records, result.producer, command, now)
            return
        if self._gathers and (self._writes > FEW or self._gathered):
            limit = self._limit()
            size = RECORD_OVERHEAD * len(result.records)
            for key, value in result.records:
                size += len(key) + (0 if value is None else len(value))
            if self._gathered_bytes + size > limit:
                self._write_gathered()
            if size <= limit:
                self._gather(result.records, size, command, now)
                return
        if result.atomic:
            origin = Origin.COORDINATOR if result.must_fit else Origin.CLIENT
            self._append(result.records, command, now, origin)
            return
        limit = self._limit()
        chunk: list[Record] = []
        size = 0
        for record in result.records:
            length = _size(record)
            if chunk and size + length > limit:
                self._append(chunk, command, now)
                chunk, size = [], 0
            chunk.append(record)
            size += length
        self._append(chunk, command, now)

    def _enter(self) -> None:
        self._entered = True
        self._turn.enter(self)

    def _limit(self) -> int:
        """What the records of one batch may take."""
        config = self._partition.log.config
        return min(config.max_message_bytes, config.segment_bytes) - BATCH_OVERHEAD

    def _append(
        self,
        records: Sequence[Record],
        command: Any,
        now: Now,
        origin: Origin = Origin.CLIENT,
    ) -> None:
        """As what a client sends, they may not be larger than `max.message.bytes`."""
        if len(records) == 1 and self._settings.compression is Compression.NONE:
            [(key, value)] = records
            if value is not None:
                offset = self._append_single(now.wall_ms, key, value, origin)
                self._written(command, offset + 1)
                self._replay(records, offset)
                return
        offset = self._append_batch(_stamped(records, now))
        self._written(command, offset + len(records))
        self._replay(records, offset)

    def _append_in_transaction(
        self,
        records: Sequence[Record],
        producer: TransactionalProducer,
        command: Any,
        now: Now,
    ) -> None:
        """Records of a transaction are never gathered: their batch names one producer."""
        if self._gathered:
            self._write_gathered()
        self._check_epoch()
        batch = build_batch(
            _stamped(records, now),
            compression=self._settings.compression,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional=True,
        )
        info = self._partition.append(
            memoryview(bytearray(batch)),
            now.wall_ms,
            origin=Origin.COORDINATOR,
            guard=producer.guard,
        )
        self._written(command, info.base_offset + len(records))
        self._replay(records, info.base_offset, producer.producer_id)

    def end_transaction(self, marker: Marker, now: Now) -> AppendInfo:
        """Write a marker, and apply it. What it makes visible is told when it is committed.
        Raises KafkaError, with nothing changed."""
        self._partition.check_enough_in_sync()
        if self._gathered:
            self._write_gathered()
        self._check_epoch()
        info = self._partition.append_marker(marker, now.wall_ms)
        end = info.last_offset + 1
        if end > self._mark():
            self._ends[None] = self._last_end = end
        try:
            self._shard.end_transaction(marker.producer_id, committed=marker.committed)
        except Exception:
            logger.exception("%s: a transaction's end could not be applied", self._partition.id)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._break(error)
            raise error from None
        return info

    def _gather(self, records: Sequence[Record], size: int, command: Any, now: Now) -> None:
        gathered = self._gathered
        if not gathered:
            self._gathered_at = self._partition.log.log_end_offset
        self._replay(records, self._gathered_at + len(gathered))
        gathered += _stamped(records, now)
        self._gathered_bytes += size
        self._ends[self._shard.subject(command)] = self._last_end = self._gathered_at + len(
            gathered
        )
        if self._crowd >= CROWD:
            self._write_gathered()

    def _written(self, command: Any, end: int) -> None:
        """What is told about the command's subject depends on the records below `end` now."""
        mark = self._mark()
        if end > mark:
            if len(self._ends) > self._many:
                self._ends = {subject: at for subject, at in self._ends.items() if at > mark}
                self._many = max(MANY, 2 * len(self._ends))
            self._ends[self._shard.subject(command)] = self._last_end = end
        elif self._ends:
            self._ends.clear()

    def end_turn(self) -> None:
        self._entered = False
        self._writes = 0
        self.write()

    def _write_gathered(self) -> None:
        """Nothing is gathered any more. Raises KafkaError."""
        self.write()
        if self.broken:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def write(self) -> None:
        """Write what is gathered, and give the answers that were kept for the turn's end."""
        gathered, self._gathered = self._gathered, []
        answers, self._answers = self._answers, []
        error: KafkaError | None = None
        if gathered:
            self._gathered_bytes = self._crowd = 0
            error = self._write_batch(gathered)
        if error is not None:
            self._last_end = self._gathered_at
            self._ends = {
                subject: end for subject, end in self._ends.items() if end <= self._last_end
            }
        if self._ends and self._mark() >= self._last_end:
            self._ends.clear()
        for end, deferred, value in answers:
            if error is not None and end > self._gathered_at:
                deferred.fail(error)
            elif end <= self._mark():
                settle(deferred, value)
            else:
                self._uncommitted.hold(end, deferred, value)

    def _write_batch(self, gathered: Sequence[RecordItem]) -> KafkaError | None:
        """What those who wait for it must be told, if that is an error."""
        try:
            offset = self._append_batch(gathered)
        except KafkaError as failure:
            error = as_coordinator(failure)
            logger.error(
                "%s: changes could not be written and are forgotten, their clients are told: %s",
                self._partition.id,
                error,
            )
            self._break(error)
            return error
        if offset == self._gathered_at:
            return None
        # Kafka lets administrators write into a coordinator's topic.
        logger.error("%s: somebody else has written into it", self._partition.id)
        error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self._break(error)
        committed = self._mark() >= offset + len(gathered)
        return None if committed else error

    def _append_single(
        self, wall_ms: int, key: bytes, value: bytes, origin: Origin = Origin.CLIENT
    ) -> int:
        """Its offset."""
        self._gathers = False
        self._check_epoch()
        batch, header = build_single(wall_ms, key, value)
        info = self._partition.append(memoryview(batch), wall_ms, header=header, origin=origin)
        self._gathers = True
        return info.base_offset

    def _append_batch(self, records: Sequence[RecordItem]) -> int:
        """The offset of the first."""
        if len(records) == 1 and self._settings.compression is Compression.NONE:
            [(wall_ms, key, value, _)] = records
            if key is not None and value is not None:
                return self._append_single(wall_ms, key, value)
        self._gathers = False
        self._check_epoch()
        batch = bytearray(build_batch(records, compression=self._settings.compression))
        # It is ours, with a key in every record: it need not be looked through again.
        info = self._partition.append(memoryview(batch), records[-1][0], prepared=True)
        self._gathers = True
        return info.base_offset

    def _check_epoch(self) -> None:
        if self._partition.leader_epoch != self._leader_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"loaded for leader epoch {self._leader_epoch}, "
                f"but it is {self._partition.leader_epoch} by now",
            )

    def _replay(
        self, records: Sequence[Record], offset: int, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        replay = self._shard.replay
        try:
            for record in records:
                key, value = record
                meaning = record.meaning if type(record) is Written else None
                replay(key, value, offset=offset, producer_id=producer_id, meaning=meaning)
                offset += 1
        except Exception:
            logger.exception("%s: a change could not be applied", self._partition.id)
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._break(error)
            raise error from None

    def _break(self, error: KafkaError) -> None:
        self.broken = True
        self._on_broken(error)

    # ------------------------------------------------------------------ answers out

    def reply(self, value: Any, command: Any) -> Any:
        """The value, or a Deferred of it; a KafkaError is raised, or fails the Deferred."""
        if self._ends:
            mark = self._mark()
            if not self._gathered and mark >= self._last_end:
                self._ends.clear()
            else:
                end = self._end_of(command)
                gathered = self._gathered and end > self._gathered_at
                if gathered or end > mark:
                    deferred: Deferred[Any] = Deferred()
                    if gathered:
                        self._keep(end, deferred, value)
                    else:
                        self._uncommitted.hold(end, deferred, value)
                    return deferred
        if isinstance(value, KafkaError):
            try:
                raise value
            finally:
                del value  # or the error and this frame would hold each other
        return value

    def answer(self, deferred: Deferred[Any], value: Any, command: Any) -> None:
        """Give the answer that the command has brought to an earlier one: at the turn's end, or
        when it may be known."""
        if not self._entered:
            self._enter()
        self._keep(self._end_of(command) if self._ends else 0, deferred, value)

    def has_committed(self, command: Any) -> bool:
        """Whether all is committed that was written about the command's subject."""
        return not self._ends or self._end_of(command) <= self._mark()

    def _keep(self, end: int, deferred: Deferred[Any], value: Any) -> None:
        self._answers.append((end, deferred, value))
        if self._gathered:
            self._crowd += 1

    def _end_of(self, command: Any) -> int:
        """Where the high watermark must be before anything is told about the command's subject."""
        subject = self._shard.subject(command)
        if subject is None:
            return self._last_end
        ends = self._ends
        return max(ends.get(subject, 0), ends.get(None, 0))

    def close(self, error: KafkaError) -> None:
        """The partition is not ours any more: what is not written will not be."""
        self._gathered.clear()
        answers, self._answers = self._answers, []
        for _, deferred, _ in answers:
            deferred.fail(error)
        self._uncommitted.close(error)


def _stamped(records: Sequence[Record], now: Now) -> list[RecordItem]:
    wall_ms = now.wall_ms
    return [(wall_ms, key, value, ()) for key, value in records]


def _size(record: Record) -> int:
    return len(record[0]) + len(record[1] or b"") + RECORD_OVERHEAD
