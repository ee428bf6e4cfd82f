"""The way of a shard's records into its log, and of answers out once they are safe.

A command that comes alone is written and replayed at once. Commands that come in a crowd are
written together: the first of a loop's turn on each partition goes at once, since it may stay the
only one; what others bring in the same turn is replayed at once, since the next command must see
it, and *gathered*. It becomes one batch when the turn ends, or sooner when it has become much, and
only then are they answered, and with them whoever has asked in between.

When that write fails the state in memory is ahead of the log. The writer is `broken` then, the
shard must be thrown away, and everybody who waits is told. So that a log that takes nothing does
not do that again and again, nothing is gathered before a write has gone well, nor after a failure
until one has.

Records are written under the leader epoch for which the shard was loaded, or refused: what a shard
of an earlier epoch decides may rest on what another leader has changed since.

An answer leaves when the high watermark is at the log's end, which with one replica it always is:
so no answer tells of a state that a new leader might not have. The straight path makes no future.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ottla.coordinator.shard import Now, Record, Result, Shard, Written
from ottla.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch, build_single
from ottla.records.compression import Compression
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import AppendInfo

if TYPE_CHECKING:
    from ottla.records.builder import RecordItem

logger = logging.getLogger(__name__)

FEW = 1
"""So many writes of a turn to one partition are not delayed. With 2, a rebalance of many groups at
once took 7 % more CPU, and commits gained nothing."""
CROWD = 32
"""So many answers wait for one write at most: the first of them waits for the last command."""
BATCH_OVERHEAD = 128
RECORD_OVERHEAD = 32


class WriterSettings(Protocol):
    """What of the broker's settings a writer reads."""

    @property
    def compression(self) -> Compression: ...
    @property
    def commit_timeout_ms(self) -> int: ...


class Turn:
    """A turn of the loop, from the first write in it to its end; of all writers together."""

    def __init__(self) -> None:
        self._writers: list[Writer] = []

    def enter(self, writer: Writer) -> None:
        """The writer's first write of this turn: it is told when the turn has ended."""
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
        self._writes = 0  # in this turn
        self._gathers = False  # once a write has gone well, until one fails
        # replayed, not yet written
        self._gathered: list[RecordItem] = []
        self._gathered_bytes = 0
        self._gathered_at = -1  # the offset its first record is meant to get
        self._owed: list[tuple[Deferred[Any], Any]] = []  # answers that wait for that write
        # written, not yet safe
        self._uncommitted: set[Deferred[Any]] = set()

    # ------------------------------------------------------------------ records in

    def record(self, result: Result, now: Now) -> None:
        """Have the records replayed, and written now or at the turn's end. Raises KafkaError."""
        if not self._writes:
            self._turn.enter(self)
        self._writes += 1
        if self._gathers and (self._writes > FEW or self._gathered):
            limit = self._limit()
            size = RECORD_OVERHEAD * len(result.records)
            for key, value in result.records:
                size += len(key) + (0 if value is None else len(value))
            if self._gathered_bytes + size > limit:
                self._write_gathered()
            if size <= limit:
                self._gather(result.records, size, now)
                return
        if result.atomic:
            self._append(result.records, now)
            return
        limit = self._limit()
        chunk: list[Record] = []
        size = 0
        for record in result.records:
            length = _size(record)
            if chunk and size + length > limit:
                self._append(chunk, now)
                chunk, size = [], 0
            chunk.append(record)
            size += length
        self._append(chunk, now)

    def _limit(self) -> int:
        """What the records of one batch may take."""
        return self._partition.log.config.max_message_bytes - BATCH_OVERHEAD

    def _append(self, records: Sequence[Record], now: Now) -> None:
        if len(records) == 1 and self._settings.compression is Compression.NONE:
            [(key, value)] = records
            if value is not None:
                self._gathers = False
                self._check_epoch()
                batch, header = build_single(now.wall_ms, key, value)
                info = self._partition.append(memoryview(batch), now.wall_ms, header=header)
                self._gathers = True
                self._replay(records, info.base_offset)
                return
        self._replay(records, self._append_batch(_stamped(records, now)))

    def _gather(self, records: Sequence[Record], size: int, now: Now) -> None:
        gathered = self._gathered
        if not gathered:
            self._gathered_at = self._partition.log.log_end_offset
        self._replay(records, self._gathered_at + len(gathered))
        gathered += _stamped(records, now)
        self._gathered_bytes += size
        if len(self._owed) >= CROWD:
            self._write_gathered()

    def end_turn(self) -> None:
        self._writes = 0
        if self._gathered:
            self.write()

    def _write_gathered(self) -> None:
        """Nothing is gathered any more. Raises KafkaError."""
        self.write()
        if self.broken:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def write(self) -> None:
        """Write what is gathered, and answer those who wait for that."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        owed, self._owed = self._owed, []
        self._gathered_bytes = 0
        try:
            offset = self._append_batch(gathered)
        except KafkaError as failure:
            error = as_coordinator(failure)
            logger.error(
                "%s: changes could not be written and are forgotten, %d clients are told: %s",
                self._partition.id,
                len(owed),
                error,
            )
            self._break(error)
            for deferred, _ in owed:
                deferred.fail(error)
            return
        for deferred, value in owed:
            self._release(deferred, value)
        if offset != self._gathered_at:
            # Kafka lets administrators write into a coordinator's topic.
            logger.error("%s: somebody else has written into it", self._partition.id)
            self._break(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    def _append_batch(self, records: Sequence[RecordItem]) -> int:
        """The offset of the first."""
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

    def _replay(self, records: Sequence[Record], offset: int) -> None:
        replay = self._shard.replay
        try:
            for record in records:
                key, value = record
                meaning = record.meaning if type(record) is Written else None
                replay(key, value, offset=offset, meaning=meaning)
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

    @property
    def gathering(self) -> bool:
        """Whether something has been replayed that is not written yet."""
        return bool(self._gathered)

    def reply(self, value: Any) -> Any:
        """The value, or a Deferred of it; a KafkaError is raised, or fails the Deferred."""
        if not self._gathered and self._all_committed():
            if isinstance(value, KafkaError):
                try:
                    raise value
                finally:
                    del value  # or the error and this frame would hold each other
            return value
        deferred: Deferred[Any] = Deferred()
        self.answer(deferred, value)
        return deferred

    def answer(self, deferred: Deferred[Any], value: Any) -> None:
        """Give the answer as soon as it may be known."""
        if self._gathered:
            self._owed.append((deferred, value))
        else:
            self._release(deferred, value)

    def close(self, error: KafkaError) -> None:
        """The partition is not ours any more: what is not written will not be."""
        self._gathered.clear()
        for deferred, _ in self._owed:
            deferred.fail(error)
        for deferred in tuple(self._uncommitted):
            deferred.fail(error)

    def _all_committed(self) -> bool:
        return self._partition.high_watermark >= self._partition.log.log_end_offset

    def _release(self, deferred: Deferred[Any], value: Any) -> None:
        if self._all_committed():
            settle(deferred, value)
        else:
            self._release_later(deferred, value)

    def _release_later(self, deferred: Deferred[Any], value: Any) -> None:
        """Give the answer when the high watermark has reached what is now the log's end.

        Not for ever: replicas that do not follow make a commit uncertain, and the client asks anew.
        """
        last = self._partition.log.log_end_offset - 1
        self._uncommitted.add(deferred)
        timer = asyncio.get_running_loop().call_later(
            self._settings.commit_timeout_ms / 1000,
            lambda: end(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)),
        )

        def end(outcome: Any) -> None:
            timer.cancel()
            self._uncommitted.discard(deferred)
            settle(deferred, outcome)

        def committed(done: Deferred[None]) -> None:
            try:
                done.result()
            except KafkaError as error:
                end(as_coordinator(error))
            else:
                end(value)

        self._partition.wait_committed(AppendInfo(last, last, -1, 0, False, 0)).on_done(committed)


def _stamped(records: Sequence[Record], now: Now) -> list[RecordItem]:
    wall_ms = now.wall_ms
    return [(wall_ms, key, value, ()) for key, value in records]


def _size(record: Record) -> int:
    return len(record[0]) + len(record[1] or b"") + RECORD_OVERHEAD


def settle(deferred: Deferred[Any], value: Any) -> None:
    """Resolve it, or fail it if the value is a KafkaError."""
    if isinstance(value, KafkaError):
        deferred.fail(value)
    else:
        deferred.resolve(value)


_TRANSLATED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_coordinator(error: KafkaError) -> KafkaError:
    """What a failed append means to a client of the coordinator: it did not produce anything."""
    if isinstance(error, OutOfDescriptors):  # the log is here, and works again in a moment
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    code = _TRANSLATED.get(error.code)
    return error if code is None else KafkaError(code, error.message)
