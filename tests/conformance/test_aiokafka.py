"""aiokafka 0.14, as its users run it: no consumer groups here.

It speaks the oldest versions of the four clients (Metadata 5, Produce 7, Fetch 11 by topic
name), so it covers what the others leave out. Every expectation was checked against Apache
Kafka 4.2 (OTTLA_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

TIMEOUT = 120
# An hour ago: older records would be retention's to delete whenever its turn comes.
THEN = int(time.time() * 1000) - 3_600_000

NONE, UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS = 0, 3, 17, 36
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG = 37, 38, 40


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    made = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def producer(bootstrap: str) -> AsyncIterator[Callable[..., Any]]:
    opened: list[AIOKafkaProducer] = []

    async def make(**settings: Any) -> AIOKafkaProducer:
        made = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
        opened.append(made)
        await made.start()
        return made

    yield make
    for one in opened:
        await one.stop()


@pytest.fixture
async def consumer(bootstrap: str) -> AsyncIterator[AIOKafkaConsumer]:
    made = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=50,
    )
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def topic(
    admin: AIOKafkaAdminClient, unique: Callable[..., str], answering: Any
) -> Callable[..., Any]:
    async def create(partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or unique()
        assert await created(admin, name, partitions, 1, **config) == NONE
        answering(name, partitions)
        return name

    return create


async def created(
    admin: AIOKafkaAdminClient, name: str, partitions: int, replicas: int, **config: str
) -> int:
    """Ask for a topic; returns the error code."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    wanted = NewTopic(name, partitions, replicas, topic_configs=settings)
    response = await admin.create_topics([wanted])
    ((_, code, _),) = response.topic_errors
    return code


async def send(producer: AIOKafkaProducer, topic: str, *records: dict[str, Any]) -> list[Any]:
    """Produce and wait for every acknowledgement."""
    futures = [await producer.send(topic, **record) for record in records]
    return await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT)


async def read(consumer: AIOKafkaConsumer, topic: str, count: int, offset: int = 0) -> list[Any]:
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    return await poll(consumer, count)


async def poll(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + TIMEOUT
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records arrived"
        fetched = await consumer.getmany(timeout_ms=200, max_records=count - len(records))
        for part in fetched.values():
            records += part
    return records


async def gone(admin: AIOKafkaAdminClient, name: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while name in await admin.list_topics():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# -- produce and consume ---------------------------------------------------------------------


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_comes_back_as_it_went(codec, producer, consumer, topic):
    name = await topic()
    values = [b"the same words over and over " * 20 + str(i).encode() for i in range(50)]
    sender = await producer(compression_type=codec, linger_ms=20)
    await send(sender, name, *({"value": v} for v in values))
    assert [r.value for r in await read(consumer, name, 50)] == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acknowledgement(acks, producer, consumer, topic):
    name = await topic()
    sent = await send(
        await producer(acks=acks), name, *({"value": str(i).encode()} for i in range(20))
    )
    got = await read(consumer, name, 20)
    assert [r.value for r in got] == [str(i).encode() for i in range(20)]
    if acks != 0:
        assert [metadata.offset for metadata in sent] == list(range(20))


async def test_seek_goes_anywhere_in_the_log(producer, consumer, topic):
    name = await topic()
    partition = TopicPartition(name, 0)
    sender = await producer()
    await send(sender, name, *({"value": str(i).encode()} for i in range(30)))
    assert (await read(consumer, name, 1, offset=12))[0].value == b"12"
    for target in (25, 3):
        consumer.seek(partition, target)
        assert (await poll(consumer, 1))[0].value == str(target).encode()
    await consumer.seek_to_beginning(partition)
    assert (await poll(consumer, 1))[0].value == b"0"
    await consumer.seek_to_end(partition)
    assert await consumer.position(partition) == 30
    await send(sender, name, {"value": b"after the end"})
    assert (await poll(consumer, 1))[0].value == b"after the end"


async def test_an_offset_beyond_the_end_is_out_of_range(producer, consumer, topic):
    name = await topic()
    await send(await producer(), name, {"value": b"only"})
    with pytest.raises(errors.OffsetOutOfRangeError):
        await read(consumer, name, 1, offset=100)


async def test_timestamps_are_kept_and_found(producer, consumer, topic):
    name = await topic()
    partition = TopicPartition(name, 0)
    times = [THEN + 1000 * i for i in range(10)]
    sender = await producer()
    for stamp in times:
        await send(sender, name, {"value": b"x", "timestamp_ms": stamp})
    got = await read(consumer, name, 10)
    assert [(r.timestamp, r.timestamp_type) for r in got] == [(stamp, 0) for stamp in times]

    async def found(stamp: int) -> Any:
        return (await consumer.offsets_for_times({partition: stamp}))[partition]

    first, next_one = await found(0), await found(times[4] + 1)
    assert (first.offset, first.timestamp) == (0, times[0])
    assert (await found(times[4])).offset == 4
    assert (next_one.offset, next_one.timestamp) == (5, times[5])
    assert await found(times[-1] + 1) is None


async def test_log_append_time_is_the_brokers(producer, consumer, topic):
    name = await topic(message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000 - 5_000
    (sent,) = await send(await producer(), name, {"value": b"x", "timestamp_ms": 1_000})
    (got,) = await read(consumer, name, 1)
    assert got.timestamp_type == 1
    assert got.timestamp > before
    assert (sent.timestamp, sent.timestamp_type) == (got.timestamp, 1)


async def test_headers_keep_order_repeats_and_nulls(producer, consumer, topic):
    name = await topic()
    headers = [("a", b"1"), ("b", None), ("a", b"2"), ("empty", b""), ("umlaut-ä", b"\x00\xff")]
    await send(await producer(), name, {"value": b"v", "headers": headers}, {"value": b"none"})
    first, second = await read(consumer, name, 2)
    assert list(first.headers) == headers
    assert list(second.headers) == []


async def test_null_and_empty_keys_and_values_stay_apart(producer, consumer, topic):
    name = await topic()
    pairs = [(b"", b""), (b"k", None), (None, b"v"), (b"k", b"")]
    await send(await producer(), name, *({"key": key, "value": value} for key, value in pairs))
    assert [(r.key, r.value) for r in await read(consumer, name, 4)] == pairs


async def test_an_idempotent_producer_writes_each_record_once_in_order(producer, consumer, topic):
    name = await topic(partitions=3)
    idempotent = await producer(enable_idempotence=True, max_batch_size=300)
    await send(
        idempotent, name, *({"value": str(i).encode(), "partition": i % 3} for i in range(300))
    )
    partitions = [TopicPartition(name, p) for p in range(3)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    got = await poll(consumer, 300)
    for partition in range(3):
        values = [int(r.value) for r in got if r.partition == partition]
        assert values == list(range(partition, 300, 3))
    assert await consumer.end_offsets(partitions) == dict.fromkeys(partitions, 100)


async def test_one_megabyte_records(producer, consumer, topic):
    name = await topic()
    values = [bytes([i]) * 1_000_000 for i in range(5)]
    await send(await producer(max_request_size=1_100_000), name, *({"value": v} for v in values))
    assert [r.value for r in await read(consumer, name, 5)] == values


async def test_a_hundred_partitions(producer, consumer, topic):
    name = await topic(partitions=100)
    await send(
        await producer(), name, *({"value": str(p).encode(), "partition": p} for p in range(100))
    )
    partitions = [TopicPartition(name, p) for p in range(100)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    assert {(r.partition, r.value) for r in await poll(consumer, 100)} == {
        (p, str(p).encode()) for p in range(100)
    }


async def test_deleted_records_move_the_beginning(admin, producer, consumer, topic):
    name = await topic()
    partition = TopicPartition(name, 0)
    await send(await producer(), name, *({"value": b"x"} for _ in range(10)))
    assert await admin.delete_records({partition: RecordsToDelete(4)}) == {partition: 4}
    assert await consumer.beginning_offsets([partition]) == {partition: 4}
    assert await consumer.end_offsets([partition]) == {partition: 10}
    with pytest.raises(errors.OffsetOutOfRangeError):
        await read(consumer, name, 1, offset=0)


# -- topics ----------------------------------------------------------------------------------


async def partitions_of(admin: AIOKafkaAdminClient, name: str) -> list[Any]:
    (found,) = await admin.describe_topics([name])
    assert found["error_code"] == NONE
    return found["partitions"]


async def test_the_life_of_a_topic(admin, topic, producer, consumer):
    name = await topic(partitions=2)
    first = await partitions_of(admin, name)
    assert sorted(p["partition"] for p in first) == [0, 1]
    assert all(len(p["isr"]) == 1 and not p["offline_replicas"] for p in first)

    await admin.create_partitions({name: NewPartitions(total_count=5)})
    deadline = time.monotonic() + TIMEOUT
    while len(await partitions_of(admin, name)) != 5:
        assert time.monotonic() < deadline

    response = await admin.delete_topics([name])
    assert response.topic_error_codes == [(name, NONE)]
    await gone(admin, name)
    await topic(partitions=1, name=name)
    assert len(await partitions_of(admin, name)) == 1
    (sent,) = await send(await producer(), name, {"value": b"new"})
    assert sent.offset == 0


async def test_validate_only_creates_nothing(admin, unique):
    name = unique()
    response = await admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)
    assert response.topic_errors[0][1] == NONE
    assert name not in await admin.list_topics()


async def test_the_cluster_describes_itself(admin, bootstrap):
    cluster = await admin.describe_cluster()
    assert cluster["cluster_id"]
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [bootstrap]
    assert cluster["controller_id"] == cluster["brokers"][0]["node_id"]


# -- configs ---------------------------------------------------------------------------------


async def configs(admin: AIOKafkaAdminClient, kind: ConfigResourceType, name: str) -> Any:
    """Error code, and each setting's value and source."""
    (response,) = await admin.describe_configs([ConfigResource(kind, name)])
    ((code, _, _, _, entries),) = response.resources
    return code, {entry[0]: (entry[1], entry[3]) for entry in entries}


async def alter(admin: AIOKafkaAdminClient, name: str, change: dict[str, str]) -> int:
    (response,) = await admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name, change)]
    )
    ((code, _, _, _),) = response.resources
    return code


async def test_topic_configs_are_described_and_replaced(admin, topic):
    name = await topic(retention_ms="1234567")
    code, found = await configs(admin, ConfigResourceType.TOPIC, name)
    assert code == NONE
    assert found["retention.ms"] == ("1234567", 1)
    assert found["segment.bytes"] == ("1073741824", 5)

    assert await alter(admin, name, {"segment.bytes": "2000000"}) == NONE
    deadline = time.monotonic() + TIMEOUT
    while found["segment.bytes"] != ("2000000", 1):
        assert time.monotonic() < deadline
        _, found = await configs(admin, ConfigResourceType.TOPIC, name)
    assert found["retention.ms"] == ("604800000", 5)


async def test_broker_configs_are_described(admin):
    (node,) = (await admin.describe_cluster())["brokers"]
    code, found = await configs(admin, ConfigResourceType.BROKER, str(node["node_id"]))
    assert code == NONE
    assert found["num.partitions"][0] == "1"


@pytest.mark.parametrize(
    ("key", "value"),
    [("retention.ms", "soon"), ("cleanup.policy", "burn"), ("no.such.setting", "1")],
)
async def test_an_invalid_config_is_refused(key, value, admin, topic):
    assert await alter(admin, await topic(), {key: value}) == INVALID_CONFIG


async def test_configs_of_an_unknown_topic(admin, unique):
    code, _ = await configs(admin, ConfigResourceType.TOPIC, unique("missing"))
    assert code == UNKNOWN_TOPIC


# -- errors ----------------------------------------------------------------------------------


async def test_a_record_over_max_message_bytes_is_refused(producer, topic):
    name = await topic(max_message_bytes="10000")
    sender = await producer(max_request_size=2_000_000)
    with pytest.raises(errors.MessageSizeTooLargeError):
        await send(sender, name, {"value": b"x" * 20_000})


async def test_no_topic_appears_where_automatic_creation_is_off(bootstrap_no_auto_create, unique):
    strict = AIOKafkaProducer(bootstrap_servers=bootstrap_no_auto_create, request_timeout_ms=5_000)
    await strict.start()
    try:
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            await strict.partitions_for(unique("missing"))
    finally:
        await strict.stop()


@pytest.mark.parametrize("name", ["with space", "ümlaut", "a/b", ".", "..", "x" * 250])
async def test_invalid_topic_names_are_refused(name, admin):
    assert await created(admin, name, 1, 1) == INVALID_TOPIC


async def test_names_that_differ_only_in_dot_and_underscore_collide(admin, topic, unique):
    base = unique("collide").replace("-", "")
    await topic(name=f"{base}.b")
    assert await created(admin, f"{base}_b", 1, 1) == INVALID_TOPIC


async def test_impossible_shapes_are_refused(admin, topic, unique):
    assert await created(admin, unique(), 1, 3) == INVALID_REPLICATION_FACTOR
    assert await created(admin, unique(), 0, 1) == INVALID_PARTITIONS
    assert await created(admin, unique(), 1, 1, no_such="1") == INVALID_CONFIG
    assert await created(admin, await topic(), 1, 1) == TOPIC_EXISTS


async def test_unknown_topics_cannot_be_deleted_or_grown(admin, topic, unique):
    missing = unique("missing")
    response = await admin.delete_topics([missing])
    assert response.topic_error_codes == [(missing, UNKNOWN_TOPIC)]
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        await admin.create_partitions({missing: NewPartitions(total_count=3)})
    with pytest.raises(errors.InvalidPartitionsError):
        await admin.create_partitions({await topic(partitions=3): NewPartitions(total_count=2)})
