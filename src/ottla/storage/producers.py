"""What a log knows of the producers that write to it: idempotence and open transactions.

A producer numbers its batches (producer id, epoch, sequence). The log remembers the last five of
each producer: a batch that it has already is answered with the offset it got then, a batch that
leaves a gap is refused. Of transactions it remembers where each open one began: nothing from the
oldest of these on is stable, and a reader of committed records is held back there.

    begin_verification(…)  before the first batch of a transaction: a guard to append it with
    check(header)          before the write: a Duplicate, a KafkaError, or nothing to object to
    update(header…)        after it: batch remembered, transaction opened, or by a marker completed

The rules are those of Kafka 4.2's ProducerAppendInfo and ProducerStateManager:

- The first batch of an unknown producer may have any sequence number. The state may have been
  lost with the records that made it (retention, DeleteRecords, expiry), and the producer goes on.
- The first batch of a new epoch has sequence 0. An older epoch is fenced.
- Sequence numbers go round from 2^31 - 1 to 0.
- A producer is forgotten when its last batch's timestamp is `producer.id.expiration.ms` ago, but
  not while its transaction is open.
- Only client appends are judged in full: a coordinator's have no sequence numbers, a marker may
  come from a newer epoch with no data at all. What a leader sent was judged there.
- A batch begins a transaction only with a guard (KIP-890): whoever appends it has asked the
  coordinator meanwhile, and no marker has been written since the guard was given out. So a batch
  that comes late cannot open a transaction which nobody would ever end.
- A marker has the producer's epoch or a later one. Under transaction version 2 every end raises the
  epoch, and a marker with the epoch of the open transaction is one of an earlier end: refused.

State is rebuilt by replaying the log from the newest snapshot, a file per segment that holds the
last batch of each producer.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from ottla.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from ottla.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.model.ids import TopicPartition
    from ottla.records.batch import BatchHeader
    from ottla.records.control import EndMarker

WINDOW = 5
"""Batches remembered for each producer: as many as a client may have in flight."""

_MAX_SEQUENCE = 0x7FFFFFFF
_NO_TRANSACTION = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")  # version, CRC-32C of what follows it, number of entries
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6


class Origin(enum.Enum):
    """Where an append comes from, which says how much of it is judged."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Guard:
    """Proof that the coordinator was asked about a transaction since its last end; compared by
    identity, and made by `ProducerStates.begin_verification` only."""

    __slots__ = ("epoch", "lowest_sequence", "raises_epoch", "since_ms")

    def __init__(self, epoch: int, lowest_sequence: int, since_ms: int) -> None:
        self.epoch = epoch
        # Of transaction version 2: the first batch of a producer that is not known has sequence 0.
        self.raises_epoch = False
        # Of the batches that wait for the coordinator's answer, whatever order they come back in.
        self.lowest_sequence = lowest_sequence
        self.since_ms = since_ms


class SnapshotError(Exception):
    """A producer snapshot that is torn or damaged: the one before it, and more replay, will do."""


class Duplicate(NamedTuple):
    """The batch is in the log already, at these offsets and with this max timestamp."""

    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTxn(NamedTuple):
    """A transaction whose marker has been written at `last_offset`.

    `last_stable_offset` is where a reader of committed records may read up to from here on: the
    start of the oldest transaction still open, or the marker's next offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class ProducerState(NamedTuple):
    """One producer as DescribeProducers shows it; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_start_offset: int


class SnapshotEntry(NamedTuple):
    """One producer in a snapshot, with its last batch; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    txn_start_offset: int


class _Batch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "txn_first_offset")

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: list[_Batch] = []
        self.coordinator_epoch = -1
        self.last_timestamp = NO_TIMESTAMP
        self.txn_first_offset = _NO_TRANSACTION

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerStates:
    """The producers of one log, as of its records below `end_offset`."""

    __slots__ = ("_guards", "_ongoing", "_partition", "_producers", "_unreplicated", "end_offset")

    def __init__(self, partition: TopicPartition, end_offset: int = 0) -> None:
        self._partition = partition
        self.end_offset = end_offset
        self._producers: dict[int, _Producer] = {}
        # First offset -> producer id. A transaction opens at the end of the log, so this dict is
        # in the order of offsets by itself.
        self._ongoing: dict[int, int] = {}
        # First offset -> marker's offset, of transactions whose marker a consumer may not see yet.
        self._unreplicated: dict[int, int] = {}
        # By producer id, while its transaction has not begun here. Not kept over a restart.
        self._guards: dict[int, Guard] = {}

    def __len__(self) -> int:
        return len(self._producers)

    # Appending

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> Guard | None:
        """A guard for the first batch of a transaction; None while the transaction is open here.

        Batches that come meanwhile share it. The lowest of their sequence numbers goes first.
        """
        producer = self._producers.get(producer_id)
        if (
            producer is not None
            and producer.txn_first_offset != _NO_TRANSACTION
            and producer.epoch == epoch
        ):
            return None
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = Guard(epoch, sequence, now_ms)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, sequence
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def check_begin(self, header: BatchHeader, guard: Guard | None) -> None:
        """Judge whether a transactional batch may open a transaction, if none is open."""
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if (
            producer is not None
            and producer.txn_first_offset != _NO_TRANSACTION
            and producer.epoch == header.producer_epoch
        ):
            return
        if guard is None or self._guards.get(producer_id) is not guard:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Record was not part of an ongoing transaction: producer {producer_id} has none "
                f"open in partition {self._partition}",
            )
        if producer is None and guard.raises_epoch and header.base_sequence > 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Invalid sequence number for producer {producer_id} in partition "
                f"{self._partition}: {header.base_sequence} (seq. number), 0 begins a transaction "
                f"of a producer that is not known here",
            )
        if header.base_sequence > guard.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {producer_id} at offset "
                f"{self.end_offset} in partition {self._partition}: {header.base_sequence} "
                f"(incoming seq. number), {guard.lowest_sequence} (earliest seen sequence)",
            )

    def check(self, header: BatchHeader, *, origin: Origin = Origin.CLIENT) -> Duplicate | None:
        """Judge a data batch that would be written at `end_offset`, with or without producer id."""
        if header.producer_id < 0:
            return None
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if origin is Origin.CLIENT:
            if header.producer_epoch != producer.epoch:
                self._check_epoch(header, producer)
                if header.base_sequence != 0 and producer.epoch != NO_PRODUCER_EPOCH:
                    raise self._bad_first_sequence(header, producer)
            elif not _follows(producer.last_sequence, header.base_sequence):
                duplicate = _find_duplicate(header, producer)
                if duplicate is not None:
                    return duplicate
                if producer.epoch != NO_PRODUCER_EPOCH:
                    raise self._out_of_order(header, producer)
        else:
            self._check_epoch(header, producer)
        if producer.txn_first_offset != _NO_TRANSACTION and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {header.producer_id} at offset "
                f"{self.end_offset} in partition {self._partition}",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: EndMarker, *, raised: bool = False) -> None:
        """Judge the end of a transaction: producer and coordinator may both be zombies.

        `raised` says that this end has raised the epoch (transaction version 2). A marker that is
        written again, because its answer was lost, has the epoch that it has set itself; then no
        transaction is open.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        self._check_epoch(header, producer)
        if (
            raised
            and header.producer_epoch == producer.epoch
            and producer.txn_first_offset != _NO_TRANSACTION
        ):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} at offset {self.end_offset} in "
                f"{self._partition} is {header.producer_epoch}, that of the open transaction; the "
                f"marker of transaction version 2 that ends it has a later one",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for producerId {header.producer_id} at offset "
                f"{self.end_offset} in partition {self._partition}: {marker.coordinator_epoch} "
                f"(zombie), {producer.coordinator_epoch} (current)",
            )

    def update(
        self, header: BatchHeader, base_offset: int, marker: EndMarker | None = None
    ) -> CompletedTxn | None:
        """Note a batch that has been written at `base_offset`; for a control batch, its `marker`.

        Called for every batch of the log in order, also when it is replicated or replayed, also
        without a producer id (then only `end_offset` moves). A transaction that this completes is
        returned: an aborted one belongs into the transaction index.
        """
        delta = header.last_offset_delta
        last_offset = base_offset + delta
        self.end_offset = last_offset + 1
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        attributes = header.attributes
        if attributes & CONTROL_FLAG:
            if marker is None:  # emptied by compaction, with the whole transaction
                return None
            return self._end(producer_id, header, base_offset, marker)
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer()
        if producer.epoch != header.producer_epoch:
            producer.move_to(header.producer_epoch)
        batches = producer.batches
        if len(batches) == WINDOW:
            del batches[0]
        timestamp = header.max_timestamp
        batches.append(_Batch(header.last_sequence, last_offset, delta, timestamp))
        producer.last_timestamp = timestamp
        if attributes & TRANSACTIONAL_FLAG and producer.txn_first_offset == _NO_TRANSACTION:
            producer.txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id
            self._guards.pop(producer_id, None)
        return None

    def recall(self, header: BatchHeader) -> None:
        """Remember an older batch of a known producer. The one that a snapshot has stays the last,
        even when compaction has removed it: the producer goes on from its sequence number."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return
        batches = producer.batches
        last_offset = header.last_offset
        slot = bisect_left([batch.last_offset for batch in batches], last_offset)
        if slot < len(batches) and batches[slot].last_offset == last_offset:
            return
        delta, timestamp = header.last_offset_delta, header.max_timestamp
        batches.insert(slot, _Batch(header.last_sequence, last_offset, delta, timestamp))
        del batches[:-WINDOW]

    def _end(
        self, producer_id: int, header: BatchHeader, offset: int, marker: EndMarker
    ) -> CompletedTxn | None:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer()
        # Whoever asked the coordinator before this end was told of the transaction that it ends.
        self._guards.pop(producer_id, None)
        first_offset = producer.txn_first_offset
        producer.move_to(header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.txn_first_offset = _NO_TRANSACTION
        if first_offset == _NO_TRANSACTION:
            return None
        self._ongoing.pop(first_offset, None)
        self._unreplicated[first_offset] = offset
        stable = next(iter(self._ongoing), offset + 1)
        return CompletedTxn(producer_id, first_offset, offset, marker.aborted, stable)

    # Transactions

    @property
    def first_undecided_offset(self) -> int | None:
        """The start of the oldest transaction without a marker."""
        return next(iter(self._ongoing), None)

    def open_transactions(self) -> list[tuple[int, int]]:
        """First offset and producer id of every transaction without a marker."""
        return list(self._ongoing.items())

    def forget_transaction(self, first_offset: int) -> None:
        """A transaction that seems to be open has ended: its marker was compacted away."""
        producer_id = self._ongoing.pop(first_offset)
        self._producers[producer_id].txn_first_offset = _NO_TRANSACTION

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset up to which every transaction is decided, and the decision replicated.

        Never above the high watermark. A transaction whose marker is not below it still counts as
        open, so that the answer does not go back when the marker is lost.
        """
        stable = next(iter(self._ongoing), high_watermark)
        if self._unreplicated:
            for first_offset, marker_offset in list(self._unreplicated.items()):
                if marker_offset < high_watermark:
                    del self._unreplicated[first_offset]
                elif first_offset < stable:
                    stable = first_offset
        return min(stable, high_watermark)

    # Life and death

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers that have been silent that long; says how many."""
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.txn_first_offset == _NO_TRANSACTION
            and now_ms - producer.last_timestamp >= expiration_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        for producer_id, guard in list(self._guards.items()):
            if now_ms - guard.since_ms >= expiration_ms:
                del self._guards[producer_id]
        return len(gone)

    def advance_start(self, log_start_offset: int) -> None:
        """The log now begins here. Producers are kept even if all their records are gone."""
        for first_offset, marker_offset in list(self._unreplicated.items()):
            if marker_offset < log_start_offset:
                del self._unreplicated[first_offset]
        self.end_offset = max(self.end_offset, log_start_offset)

    def reset(self, end_offset: int) -> None:
        """Forget everything; the log is to be replayed from `end_offset`."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._guards.clear()
        self.end_offset = end_offset

    def succeed(self, before: ProducerStates) -> None:
        """Become what another log of the same records knew; that is not to be used any more."""
        self._producers, self._guards = before._producers, before._guards
        self._ongoing, self._unreplicated = before._ongoing, before._unreplicated
        self.end_offset = before.end_offset

    def statistics(self) -> list[ProducerState]:
        """Every known producer, by id."""
        return [
            ProducerState(
                producer_id,
                producer.epoch,
                producer.last_sequence,
                producer.last_timestamp,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Of each producer the last offset of its last batch, -1 when only markers are known, and
        its epoch. Compaction keeps these batches, if only as headers: they rebuild this state."""
        return {
            producer_id: (
                producer.batches[-1].last_offset if producer.batches else -1,
                producer.epoch,
            )
            for producer_id, producer in self._producers.items()
        }

    # Snapshots

    def snapshot(self) -> bytes:
        """The content of a `.snapshot` file: each producer with its last batch."""
        parts = [len(self._producers).to_bytes(4, "big")]
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else _Batch(NO_SEQUENCE, -1, 0, 0)
            parts.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.txn_first_offset,
                )
            )
        body = b"".join(parts)
        return _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body

    def load(self, data: bytes, end_offset: int, *, now_ms: int, expiration_ms: int) -> None:
        """Become what a snapshot taken at `end_offset` says, without the producers expired since.

        On SnapshotError nothing has changed.
        """
        entries = list(_parse_snapshot(data))
        self.reset(end_offset)
        ongoing: list[tuple[int, int]] = []
        for producer_id, epoch, sequence, offset, delta, timestamp, coordinator, txn in entries:
            if txn < 0 and now_ms - timestamp >= expiration_ms:
                continue
            producer = self._producers[producer_id] = _Producer()
            producer.epoch = epoch
            producer.coordinator_epoch = coordinator
            producer.last_timestamp = timestamp
            if offset >= 0:
                producer.batches.append(_Batch(sequence, offset, delta, timestamp))
            if txn >= 0:
                producer.txn_first_offset = txn
                ongoing.append((txn, producer_id))
        self._ongoing.update(sorted(ongoing))

    # Refusals, in Kafka's words: clients and their users search for them

    def _check_epoch(self, header: BatchHeader, producer: _Producer) -> None:
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} at offset {self.end_offset} in "
                f"{self._partition} is {header.producer_epoch}, which is < the last seen epoch "
                f"{producer.epoch}",
            )

    def _bad_first_sequence(self, header: BatchHeader, producer: _Producer) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Invalid sequence number for new epoch of producer {header.producer_id} at offset "
            f"{self.end_offset} in partition {self._partition}: {header.producer_epoch} (request "
            f"epoch), {header.base_sequence} (seq. number), {producer.epoch} (current producer "
            f"epoch)",
        )

    def _out_of_order(self, header: BatchHeader, producer: _Producer) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number for producer {header.producer_id} at offset "
            f"{self.end_offset} in partition {self._partition}: {header.base_sequence} (incoming "
            f"seq. number), {producer.last_sequence} (current end sequence number)",
        )


def _follows(last: int, following: int) -> bool:
    return following == last + 1 or (following == 0 and last == _MAX_SEQUENCE)


def _find_duplicate(header: BatchHeader, producer: _Producer) -> Duplicate | None:
    last_sequence = header.last_sequence
    for batch in producer.batches:
        if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
            return Duplicate(batch.first_offset, batch.last_offset, batch.timestamp)
    return None


def snapshot_entries(data: bytes) -> list[SnapshotEntry]:
    """What a `.snapshot` file says, in its order. Raises SnapshotError."""
    return [SnapshotEntry(*entry) for entry in _parse_snapshot(data)]


def _parse_snapshot(data: bytes) -> Iterable[tuple[int, ...]]:
    if len(data) < _SNAPSHOT_HEAD.size:
        raise SnapshotError(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise SnapshotError(f"version {version}, only version {_SNAPSHOT_VERSION} is known")
    body = memoryview(data)[_CRC_END:]
    if crc32c(body) != crc:
        raise SnapshotError(f"the CRC is {crc32c(body):#x}, stored is {crc:#x}")
    if count * _SNAPSHOT_ENTRY.size != len(data) - _SNAPSHOT_HEAD.size:
        raise SnapshotError(f"{count} entries in {len(data)} bytes")
    return _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])
