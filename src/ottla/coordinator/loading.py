"""The log of an internal topic's partition, replayed into a new shard.

Slice by slice: reading is done in a thread, and replaying lets the loop run other things every few
milliseconds. What is in a transaction counts when its marker says so.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ottla.coordinator.shard import Shard
from ottla.records.batch import InvalidBatch, batches
from ottla.records.control import read_end_marker
from ottla.records.reader import iter_records
from ottla.runtime.clock import Clock
from ottla.runtime.workers import Workers
from ottla.storage.log import Log


class HasLog(Protocol):
    """A partition: its log may become another, when it moves to another data folder."""

    @property
    def log(self) -> Log: ...


SLICE_SECONDS = 0.005
"""How long replaying may hold the event loop before others have their turn."""


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
        data = await workers.run_in_thread(region.read)
        before = offset
        for position, header in batches(data):
            offset = header.next_offset
            batch = memoryview(data)[position : position + header.size]
            if header.is_control:
                marker = read_end_marker(batch, header)
                if marker is not None:
                    shard.end_transaction(header.producer_id, committed=not marker.aborted)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in iter_records(batch, header):
                if record.key is not None:
                    shard.replay(
                        record.key, record.value, offset=record.offset, producer_id=producer_id
                    )
                    count += 1
            if clock.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = clock.monotonic() + SLICE_SECONDS
        if offset == before:
            raise InvalidBatch(f"no whole batch at offset {offset}")
    return count
