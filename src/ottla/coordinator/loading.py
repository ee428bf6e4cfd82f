"""The log of an internal topic's partition, replayed into a new shard.

Slice by slice: reading is done in a thread, and replaying lets the loop run other things every few
milliseconds. What is in a transaction counts when its marker says so.

A group that commits every second has written the same key thousands of times. So of each slice only
the last record of a key is replayed, as native code finds it in the thread that reads. The others
cannot matter: the log cleaner may remove them at any moment. That is true up to the first
transaction that is still open, where the cleaner stops, too: from there on every record is
replayed, since a tombstone that another record follows has deleted what the transaction was to
commit.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from typing import Protocol

from ottla.coordinator.shard import Shard
from ottla.records.batch import BatchHeader, InvalidBatch, batches, read_header
from ottla.records.control import read_end_marker
from ottla.records.reader import iter_records
from ottla.records.walker import NATIVE, End, KeyOffsets, filter_chunk, index_chunk
from ottla.runtime.clock import Clock
from ottla.runtime.files import FileRegion
from ottla.runtime.workers import Workers
from ottla.storage.log import Log


class HasLog(Protocol):
    """A partition: its log may become another, when it moves to another data folder."""

    @property
    def log(self) -> Log: ...


SLICE_SECONDS = 0.005
"""How long replaying may hold the event loop before others have their turn."""

_ANY_OFFSET = (1 << 63) - 1
_KEY_MEMORY = 4
"""The map of a slice's keys has this part of its bytes: a slot is 24, a record of a group seldom
less than 80. Where that is too little, more records than necessary are replayed."""


async def replay_log(
    partition: HasLog, shard: Shard, *, slice_bytes: int, clock: Clock, workers: Workers
) -> int:
    """The number of records. Raises InvalidBatch or KafkaError where the log cannot be read."""
    offset = count = 0
    turn_ends = clock.monotonic() + SLICE_SECONDS
    while (offset := max(offset, partition.log.log_start_offset)) < partition.log.log_end_offset:
        log = partition.log  # retention goes on, and it may be another by now
        region = log.read(offset, slice_bytes, upper=log.log_end_offset).region
        if region is None:
            break
        data, left_out = await workers.run_in_thread(_read, region, log.first_undecided_offset)
        count += left_out
        before = offset
        for position, header in batches(data):
            offset = header.next_offset
            for replayed in _replay(memoryview(data)[position:], header, shard):
                count += replayed
                if clock.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = clock.monotonic() + SLICE_SECONDS
        if offset == before:
            raise InvalidBatch(f"no whole batch at offset {offset}")
    return count


def _replay(data: memoryview, header: BatchHeader, shard: Shard) -> Iterator[int]:
    """Replay the batch that `data` begins with, step by step; yields how many records a step was.

    A batch may have ten thousand records, and after compaction thousands of markers may follow one
    another: others must get their turn in between.
    """
    batch = data[: header.size]
    if header.is_control:
        marker = read_end_marker(batch, header)
        if marker is not None:
            shard.end_transaction(header.producer_id, committed=not marker.aborted)
        yield 0
        return
    producer_id = header.producer_id if header.is_transactional else -1
    for record in iter_records(batch, header):
        if record.key is not None:
            shard.replay(record.key, record.value, offset=record.offset, producer_id=producer_id)
            yield 1


def _read(region: FileRegion, undecided: int | None) -> tuple[bytes | memoryview, int]:
    data = region.read()
    if not NATIVE:
        return data, 0
    return last_of_each_key(data, _ANY_OFFSET if undecided is None else undecided)


def last_of_each_key(data: bytes, stop_offset: int = _ANY_OFFSET) -> tuple[bytes | memoryview, int]:
    """The batches without the records that another one with the same key follows, and how many
    records that leaves out.

    Compressed batches stay as they are, and so do those of a transaction: they may never count, and
    push nobody out. From `stop_offset` on everything stays; from a damaged batch on, too, for the
    reader to report.
    """
    keys = KeyOffsets(max(len(data) // _KEY_MEMORY, 1_024))
    try:
        position, end = 0, End.SPECIAL
        while end is End.SPECIAL:
            position, end, _ = index_chunk(keys, data, position, 0, stop_offset)
            if end is End.SPECIAL:
                position += read_header(data, position).size
        return _without_superseded(data, position, keys)
    finally:
        keys.close()


def _without_superseded(data: bytes, stop: int, keys: KeyOffsets) -> tuple[bytes | memoryview, int]:
    """The batches before `stop` without what `keys` has later, and the rest as it is."""
    chunk = memoryview(data)[:stop]
    out = bytearray(2 * len(data))  # tombstones make a batch a little longer
    last = array("q", [keys.latest_offset])  # its batch stays: it tells where the log goes on
    position = filled = left_out = 0
    while True:
        done = filter_chunk(
            keys, chunk, position, out, filled, now_ms=-1, horizon_ms=0, must_stay=last
        )
        left_out += done.records_read - done.records_kept
        position, filled = done.position, done.filled
        size = len(data) - position
        if done.end is End.SPECIAL:
            size = read_header(data, position).size
        if done.end is End.FULL or size > len(out) - filled:
            return data, 0
        out[filled : filled + size] = data[position : position + size]
        filled += size
        position += size
        if done.end is not End.SPECIAL:
            return memoryview(out)[:filled], left_out
