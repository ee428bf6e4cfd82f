"""A simulated log of real batches, for what looks into them: coordinators, and transactions.

One entry for each offset, as in `SimLog`: the first of a batch has its bytes, the others have none.
What the log knows of producers is the product's own `ProducerStates`, made anew from the batches
when the process ends or the log is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ottla.model.ids import TopicId, TopicPartition
from ottla.records.batch import BatchHeader, batches, read_header, set_offset_and_epoch
from ottla.records.control import EndMarker, read_end_marker
from ottla.storage.log import AppendInfo, ReadResult
from ottla.storage.producers import CompletedTxn, Guard, Origin, ProducerStates

from .disk import SimLog

MOST_BATCHES = 64


class Region(bytes):
    """What a read finds."""

    def read(self) -> bytes:
        return self


class BatchLog(SimLog):
    __slots__ = ("_producers", "ended")

    def __init__(self, tp: TopicPartition, topic_id: TopicId, touch: Callable[[], None]) -> None:
        super().__init__(tp, topic_id, touch)
        self._producers = ProducerStates(tp)
        self.ended: list[CompletedTxn] = []  # transactions with a marker

    # --- appending ----------------------------------------------------------------------------

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        guard: Guard | None = None,
        **_: object,
    ) -> AppendInfo:
        header = read_header(records)
        marker = _marker(records, header)
        if marker is not None:
            self._producers.check_marker(header, marker)
        elif header.producer_id >= 0:
            known = self._producers.check(header, origin=origin)
            if known is not None:
                return AppendInfo(known.base_offset, known.last_offset, -1, 0, True, 0)
            if header.is_transactional:
                self._producers.check_begin(header, guard)
        base = len(self.records)
        data = bytearray(records)
        set_offset_and_epoch(data, 0, base, leader_epoch)
        self._add(bytes(data), header, leader_epoch)
        self._touch()
        return AppendInfo(base, len(self.records) - 1, -1, 0, False, len(data))

    def append_replicated(self, records: memoryview, *, leader_epoch: int) -> None:
        for position, header in batches(records):
            assert header.base_offset == len(self.records)
            data = bytes(records[position : position + header.size])
            self._add(data, header, header.leader_epoch)
        self._touch()

    def _add(self, data: bytes, header: BatchHeader, epoch: int) -> None:
        base = len(self.records)
        self.epochs.assign(epoch, base)
        self.records.append((epoch, data))
        self.records += [(epoch, b"")] * header.last_offset_delta
        self._note(data, header, base)

    def _note(self, data: bytes, header: BatchHeader, base: int) -> None:
        completed = self._producers.update(header, base, _marker(data, header))
        if completed is not None:
            self.ended.append(completed)

    def check_marker(self, batch: memoryview, *, raised: bool) -> BatchHeader:
        header = read_header(batch)
        marker = _marker(batch, header)
        assert marker is not None
        self._producers.check_marker(header, marker, raised=raised)
        return header

    def begin_verification(self, producer_id: int, epoch: int, sequence: int) -> Guard | None:
        return self._producers.begin_verification(producer_id, epoch, sequence, 0)

    # --- reading ------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper: int, **_: object) -> ReadResult:
        found = [data for _, data in islice(self.batches(offset, upper), MOST_BATCHES)]
        region: Any = Region(b"".join(found))
        return ReadResult(region if found else None)

    def batches(self, offset: int, upper: int) -> Iterator[tuple[int, bytes]]:
        """Offset and bytes of those that begin below `upper`, from the one with `offset` on."""
        for base in range(self._begin_of(offset), min(upper, len(self.records))):
            data: Any = self.records[base][1]
            if data:
                yield base, data

    def _begin_of(self, offset: int) -> int:
        """Where the batch with this offset begins."""
        while 0 < offset < len(self.records) and not self.records[offset][1]:
            offset -= 1
        return offset

    def last_stable_offset(self, high_watermark: int) -> int:
        return self._producers.last_stable_offset(high_watermark)

    @property
    def first_undecided_offset(self) -> int | None:
        return self._producers.first_undecided_offset

    def open_transactions(self) -> list[tuple[int, int]]:
        return self._producers.open_transactions()

    # --- losing -------------------------------------------------------------------------------

    def process_ended(self) -> None:
        super().process_ended()
        self._replay()

    def cut(self, offset: int) -> None:
        super().cut(self._begin_of(offset))
        self._replay()

    def _replay(self) -> None:
        self._producers = ProducerStates(self.id)
        self.ended = []
        for base, data in self.batches(0, len(self.records)):
            self._note(data, read_header(data), base)


def _marker(data: bytes | memoryview, header: BatchHeader) -> EndMarker | None:
    return read_end_marker(data, header) if header.is_control else None
