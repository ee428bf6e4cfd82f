"""Records straight into and out of a broker's logs, and how far groups have come with them.

No client and no request is involved. Everything here runs on the broker's loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence

from ottla.client.partitioners import murmur2_partition
from ottla.client.records import Delivery, Headers, Record, header_list
from ottla.coordinator.group.commands import FetchOffsets
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.dispatch.context import Services
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import NO_LEADER
from ottla.records.batch import APPEND_TIME_FLAG, BatchHeader, batches
from ottla.records.builder import build_batch
from ottla.records.reader import iter_records
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred, Waiter
from ottla.storage.log import AppendInfo
from ottla.storage.txn_index import AbortedTxn
from ottla.storage.validate import TakesLong, prepare

CHUNK = 1 << 20
TOPIC_PAUSE = 0.002


def _count(services: Services, topic: str) -> int:
    """The number of partitions of a topic. Raises KafkaError."""
    known = services.image.topics.get(topic)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the broker has no topic {topic!r}")
    return len(known.partitions)


def _led(services: Services, topic: str, index: int) -> Partition:
    """A partition that this broker leads. Raises KafkaError, which names who does."""
    try:
        return services.replicas.by_name(topic, index)
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            message = f"{topic} has no partition {index}"
        elif error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader = services.image.topics[topic].partitions[index].leader
            who = "nobody does now" if leader == NO_LEADER else f"broker {leader} does"
            message = f"broker {services.node_id} does not lead {topic}-{index}, {who}"
        else:
            raise
        raise KafkaError(error.code, message) from None


async def produce(
    services: Services,
    topic: str,
    values: Sequence[bytes | None],
    *,
    key: bytes | None,
    partition: int | None,
    headers: Headers | None,
    timestamp_ms: int | None,
) -> list[Delivery]:
    """Append the values as one batch per partition; returns where each of them is."""
    count = _count(services, topic)
    now_ms = services.clock.now_ms()
    moment = now_ms if timestamp_ms is None else timestamp_ms
    pairs = [(n, v.encode() if isinstance(v, str) else v) for n, v in header_list(headers) or ()]
    placed: dict[int, list[int]] = {}
    for position, index in zip(range(len(values)), _places(count, key, partition), strict=False):
        placed.setdefault(index, []).append(position)
    targets = {index: _led(services, topic, index) for index in placed}  # all of them, or nothing
    deliveries: dict[int, Delivery] = {}
    for index, positions in placed.items():
        target = targets[index]
        batch = build_batch([(moment, key, values[place], pairs) for place in positions])
        info = await _append(services, target, batch, now_ms)
        written = info.append_time_ms if info.append_time_ms >= 0 else moment
        for delta, place in enumerate(positions):
            deliveries[place] = Delivery(topic, index, info.base_offset + delta, written)
    return [deliveries[position] for position in range(len(values))]


async def consume(
    services: Services,
    topic: str,
    count: int | None,
    *,
    partition: int | None,
    offset: int,
    timeout: float,
) -> list[Record[bytes, bytes]]:
    """What a read_committed consumer would get, by partition and offset; waits for `count`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while count and topic not in services.image.topics and loop.time() < deadline:
        await asyncio.sleep(TOPIC_PAUSE)  # whoever will send the records makes the topic as well
    indexes = range(_count(services, topic)) if partition is None else (partition,)
    chosen = [_led(services, topic, index) for index in indexes]
    found: dict[TopicPartition, list[Record[bytes, bytes]]] = {each.id: [] for each in chosen}
    positions = {each.id: max(offset, each.log_start_offset) for each in chosen}
    while not all(each.knows_high_watermark for each in chosen) and loop.time() < deadline:
        await asyncio.sleep(TOPIC_PAUSE)  # as a client does that is told OFFSET_NOT_AVAILABLE
    while True:
        for each in chosen:
            read, positions[each.id] = _read(each, positions[each.id])
            found[each.id] += read
        records = [record for each in chosen for record in found[each.id]]
        if count is None:
            return records
        if len(records) >= count:
            return records[:count]
        left = deadline - loop.time()
        if left <= 0:
            raise AssertionError(f"{topic}: {len(records)} of {count} records after {timeout} s")
        readable: asyncio.Future[None] = loop.create_future()
        waiter = Waiter(loop, [each.readable for each in chosen], 1, left, _once(readable))
        try:
            await readable
        finally:
            waiter.cancel()


async def lag(services: Services, group: str, topic: str | None) -> dict[TopicPartition, int]:
    """How far each partition's end is from what the group has committed there."""
    if OFFSETS_TOPIC not in services.image.topics:
        return {}
    await services.groups.wait_loaded()
    reply = services.groups.fetch_offsets([FetchOffsets(group, None)])
    (fetched,) = await reply if isinstance(reply, Deferred) else reply
    if isinstance(fetched, KafkaError):
        raise fetched
    found: dict[TopicPartition, int] = {}
    for name, partitions in fetched:
        for each in partitions:
            if each.committed is not None and topic in (None, name):
                end = _led(services, name, each.partition).high_watermark
                found[TopicPartition(name, each.partition)] = max(0, end - each.committed.offset)
    return dict(sorted(found.items()))


def _read(partition: Partition, offset: int) -> tuple[list[Record[bytes, bytes]], int]:
    """The records from `offset` to the end, and the offset after them."""
    topic, index = partition.id
    records: list[Record[bytes, bytes]] = []
    upper = partition.last_stable_offset()
    while offset < upper:
        result = partition.read(offset, CHUNK, upper, True)
        if result.region is None:
            break
        data = result.region.read()
        aborted = partition.log.aborted_transactions(offset, partition.log.end_of(result))
        for position, header in batches(data):
            if not header.is_control and not _is_aborted(header, aborted):
                appended = bool(header.attributes & APPEND_TIME_FLAG)
                records += [
                    Record(
                        topic,
                        index,
                        record.offset,
                        record.timestamp,
                        "append" if appended else "create",
                        record.key,
                        record.value,
                        tuple(record.headers),
                        header.leader_epoch,
                    )
                    for record in iter_records(data[position : position + header.size], header)
                    if record.offset >= offset
                ]
            offset = header.next_offset
    return records, offset


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTxn]) -> bool:
    return header.is_transactional and any(
        each.producer_id == header.producer_id
        and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


async def _append(services: Services, target: Partition, batch: bytes, now_ms: int) -> AppendInfo:
    try:
        info = target.append(memoryview(bytearray(batch)), now_ms)
    except TakesLong:
        batch = prepare(batch, target.log.config, now_ms, partition=target.id)
        info = target.append(memoryview(bytearray(batch)), now_ms, prepared=True)
    if not target.committed(info):
        await target.wait_committed(info)
    return info


def _places(count: int, key: bytes | None, partition: int | None) -> Iterator[int]:
    """A partition for each value: the one asked for, the key's as in Java, or each in turn."""
    if partition is not None:
        return itertools.repeat(partition)
    if key is not None:
        return itertools.repeat(murmur2_partition(key, count))
    return itertools.cycle(range(count))


def _once(future: asyncio.Future[None]) -> Callable[[], None]:
    def ready() -> None:
        if not future.done():
            future.set_result(None)

    return ready
