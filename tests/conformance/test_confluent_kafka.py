"""librdkafka, through confluent-kafka, as its users run it: no consumer groups here.

Every expectation was checked against Apache Kafka 4.2 (OTTLA_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

TIMEOUT = 120.0
# An hour ago: older records would be retention's to delete whenever its turn comes.
THEN = int(time.time() * 1000) - 3_600_000


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Callable[..., Producer]]:
    """`producer(acks=1, …)`: settings with underscores for dots; flushed when the test ends."""
    opened: list[Producer] = []

    def make(**settings: Any) -> Producer:
        made = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 1,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.flush(TIMEOUT)


@pytest.fixture(scope="module")
def consumer(bootstrap: str) -> Iterator[Consumer]:
    """One consumer for the whole file: each test assigns what it wants to read."""
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused-by-assign",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )
    yield made
    made.close()


@pytest.fixture
def topic(admin: AdminClient, unique: Callable[..., str], answering: Any) -> Callable[..., str]:
    def create(partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or unique()
        settings = {key.replace("_", "."): value for key, value in config.items()}
        wait(admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        answering(name, partitions)
        return name

    return create


def wait(futures: dict[Any, Any]) -> Any:
    """The only result of an admin call."""
    (future,) = futures.values()
    return future.result(TIMEOUT)


def error_of(futures: dict[Any, Any]) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        wait(futures)
    return caught.value.args[0]


def send(producer: Producer, topic: str, *records: dict[str, Any]) -> list[Message]:
    """Produce and wait for every acknowledgement; raises the first delivery error."""
    delivered: list[Message] = []
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, message: Message) -> None:
        (failed if error else delivered).append(error or message)

    for record in records:
        producer.produce(topic, on_delivery=report, **record)
    assert producer.flush(TIMEOUT) == 0
    if failed:
        raise KafkaException(failed[0])
    return delivered


def read(consumer: Consumer, topic: str, count: int, offset: int = 0) -> list[Message]:
    """`count` records of partition 0 from an offset on."""
    assign(consumer, topic, [offset])
    return poll(consumer, count)


def assign(consumer: Consumer, topic: str, offsets: list[int]) -> None:
    # Asked for, metadata comes at once; librdkafka itself looks for a new topic once a second.
    consumer.list_topics(topic, timeout=TIMEOUT)
    consumer.assign([TopicPartition(topic, p, offset) for p, offset in enumerate(offsets)])


def poll(consumer: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + TIMEOUT
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records arrived"
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


# -- produce and consume ---------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_comes_back_as_it_went(codec, producer, consumer, topic):
    name = topic()
    values = [b"the same words over and over " * 20 + str(i).encode() for i in range(50)]
    send(producer(compression_type=codec, linger_ms=20), name, *({"value": v} for v in values))
    assert [m.value() for m in read(consumer, name, 50)] == values


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_may_force_its_codec_on_any_producer(codec, producer, consumer, topic):
    name = topic(compression_type=codec)
    values = [b"squeeze me " * 50 + str(i).encode() for i in range(20)]
    send(producer(compression_type="lz4", linger_ms=20), name, *({"value": v} for v in values))
    assert [m.value() for m in read(consumer, name, 20)] == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(acks, producer, consumer, topic):
    name = topic()
    sent = send(producer(acks=acks), name, *({"value": str(i)} for i in range(20)))
    assert [m.value() for m in read(consumer, name, 20)] == [str(i).encode() for i in range(20)]
    if acks != "0":
        assert [m.offset() for m in sent] == list(range(20))


def test_seek_goes_anywhere_in_the_log(producer, consumer, topic, eventually):
    name = topic()
    send(producer(), name, *({"value": str(i)} for i in range(30)))
    assert read(consumer, name, 1, offset=12)[0].value() == b"12"
    for target, expected in ((25, b"25"), (3, b"3"), (OFFSET_BEGINNING, b"0")):
        consumer.seek(TopicPartition(name, 0, target))
        assert poll(consumer, 1)[0].value() == expected
    consumer.seek(TopicPartition(name, 0, OFFSET_END))
    late = producer()

    def arrived() -> list[Message]:
        send(late, name, {"value": b"after the end"})
        return consumer.consume(1, 0.1)

    assert eventually(arrived)[0].value() == b"after the end"


def test_an_offset_beyond_the_end_is_out_of_range(producer, consumer, topic):
    name = topic()
    send(producer(), name, {"value": b"only"})
    assign(consumer, name, [100])
    deadline = time.monotonic() + TIMEOUT
    while not (message := consumer.poll(0.2)):
        assert time.monotonic() < deadline
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in message.error().str().lower()


def test_timestamps_are_kept_and_found(producer, consumer, topic):
    name = topic()
    times = [THEN + 1000 * i for i in range(10)]
    one_by_one = producer()
    for stamp in times:
        send(one_by_one, name, {"value": b"x", "timestamp": stamp})
    assert [m.timestamp() for m in read(consumer, name, 10)] == [
        (TIMESTAMP_CREATE_TIME, stamp) for stamp in times
    ]

    def offset_at(stamp: int) -> int:
        (found,) = consumer.offsets_for_times([TopicPartition(name, 0, stamp)], TIMEOUT)
        assert found.error is None
        return found.offset

    assert offset_at(0) == 0
    assert offset_at(times[4]) == 4
    assert offset_at(times[4] + 1) == 5
    assert offset_at(times[-1] + 1) == OFFSET_END


def test_log_append_time_is_the_brokers(producer, consumer, topic):
    name = topic(message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000 - 5_000
    (sent,) = send(producer(), name, {"value": b"x", "timestamp": 1_000})
    (got,) = read(consumer, name, 1)
    assert got.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
    assert got.timestamp()[1] > before
    assert sent.timestamp() == got.timestamp()


def test_headers_keep_order_repeats_and_nulls(producer, consumer, topic):
    name = topic()
    headers = [("a", b"1"), ("b", None), ("a", b"2"), ("empty", b""), ("umlaut-ä", b"\x00\xff")]
    send(producer(), name, {"value": b"v", "headers": headers}, {"value": b"none"})
    first, second = read(consumer, name, 2)
    assert first.headers() == headers
    assert second.headers() is None


def test_null_and_empty_keys_and_values_stay_apart(producer, consumer, topic):
    name = topic()
    pairs = [(None, None), (b"", b""), (b"k", None), (None, b"v"), (b"k", b"")]
    send(producer(), name, *({"key": key, "value": value} for key, value in pairs))
    assert [(m.key(), m.value()) for m in read(consumer, name, 5)] == pairs


def test_an_idempotent_producer_writes_each_record_once_in_order(producer, consumer, topic):
    name = topic(partitions=3)
    idempotent = producer(enable_idempotence=True, batch_num_messages=7)
    send(idempotent, name, *({"value": str(i), "partition": i % 3} for i in range(300)))
    assign(consumer, name, [0] * 3)
    got = poll(consumer, 300)
    for partition in range(3):
        values = [int(m.value()) for m in got if m.partition() == partition]
        assert values == list(range(partition, 300, 3))
    assert not consumer.consume(1, 0.3)


def test_one_megabyte_records(producer, consumer, topic):
    name = topic()
    values = [bytes([i]) * 1_000_000 for i in range(10)]
    send(producer(message_max_bytes=1_048_000), name, *({"value": v} for v in values))
    assert [m.value() for m in read(consumer, name, 10)] == values


def test_a_hundred_partitions(producer, consumer, topic):
    name = topic(partitions=100)
    sent = send(producer(), name, *({"value": str(p), "partition": p} for p in range(100)))
    assert {m.partition() for m in sent} == set(range(100))
    assign(consumer, name, [0] * 100)
    assert {(m.partition(), m.value()) for m in poll(consumer, 100)} == {
        (p, str(p).encode()) for p in range(100)
    }


def test_watermarks_follow_the_log(producer, consumer, topic, admin):
    name = topic()
    partition = TopicPartition(name, 0)
    assert consumer.get_watermark_offsets(partition, TIMEOUT) == (0, 0)
    times = [THEN + i for i in (0, 1, 2, 3, 4, 5, 9, 8, 7, 6)]
    send(producer(), name, *({"value": b"x", "timestamp": stamp} for stamp in times))
    assert consumer.get_watermark_offsets(partition, TIMEOUT) == (0, 10)
    deleted = wait(admin.delete_records([TopicPartition(name, 0, 4)]))
    assert deleted.low_watermark == 4
    assert consumer.get_watermark_offsets(partition, TIMEOUT) == (4, 10)
    for spec, offset in (
        (OffsetSpec.earliest(), 4),
        (OffsetSpec.latest(), 10),
        (OffsetSpec.max_timestamp(), 6),
        (OffsetSpec.for_timestamp(times[5]), 5),
    ):
        assert wait(admin.list_offsets({partition: spec})).offset == offset, spec


# -- topics ----------------------------------------------------------------------------------


def described(admin: AdminClient, name: str) -> Any:
    return wait(admin.describe_topics(TopicCollection([name])))


def test_the_life_of_a_topic(admin, topic, unique, eventually):
    name = topic(partitions=2)
    first = described(admin, name)
    assert [p.id for p in first.partitions] == [0, 1]
    assert all(p.leader is not None and len(p.isr) == 1 for p in first.partitions)
    assert not first.is_internal

    wait(admin.create_partitions([NewPartitions(name, 5)]))
    eventually(lambda: len(described(admin, name).partitions) == 5)
    grown = described(admin, name)
    assert str(grown.topic_id) == str(first.topic_id)

    wait(admin.delete_topics([name]))
    eventually(lambda: name not in admin.list_topics(timeout=TIMEOUT).topics)
    topic(partitions=1, name=name)
    again = described(admin, name)
    assert len(again.partitions) == 1
    assert str(again.topic_id) != str(first.topic_id)


def test_a_recreated_topic_starts_empty(admin, producer, consumer, topic, eventually):
    name = topic()
    send(producer(), name, *({"value": b"old"} for _ in range(5)))
    wait(admin.delete_topics([name]))
    eventually(lambda: name not in admin.list_topics(timeout=TIMEOUT).topics)
    topic(name=name)
    (sent,) = send(producer(), name, {"value": b"new"})
    assert sent.offset() == 0


def test_a_producer_creates_the_topic_it_writes_to(producer, admin, unique):
    name = unique("automatic")
    (sent,) = send(producer(), name, {"value": b"x"})
    assert (sent.partition(), sent.offset()) == (0, 0)
    assert len(admin.list_topics(name, timeout=TIMEOUT).topics[name].partitions) == 1


def test_a_coordinators_own_topic_is_for_administrators(producer):
    # metadata makes the topic; the key is of a kind that no coordinator reads
    record = {"key": b"\x7f\xff", "value": b"v", "partition": 0}
    with pytest.raises(KafkaException) as caught:
        send(producer(), "__consumer_offsets", record)
    assert caught.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    assert send(producer(client_id="__admin_client"), "__consumer_offsets", record)


def test_validate_only_creates_nothing(admin, unique):
    name = unique()
    wait(admin.create_topics([NewTopic(name, 1, 1)], validate_only=True))
    assert name not in admin.list_topics(timeout=TIMEOUT).topics


def test_the_cluster_describes_itself(admin, bootstrap):
    cluster = admin.describe_cluster().result(TIMEOUT)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id


# -- configs ---------------------------------------------------------------------------------


def configs(admin: AdminClient, name: str) -> dict[str, ConfigEntry]:
    return wait(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))


def test_topic_configs_show_value_and_source(admin, topic):
    name = topic(retention_ms="1234567")
    found = configs(admin, name)
    assert found["retention.ms"].value == "1234567"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert found["segment.bytes"].value == "1073741824"
    assert found["segment.bytes"].source == ConfigSource.DEFAULT_CONFIG.value
    assert found["segment.bytes"].is_default


def change(admin: AdminClient, name: str, key: str, value: str | None, op: Any) -> dict:
    entry = ConfigEntry(key, value, incremental_operation=op)
    return admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])]
    )


def test_incremental_changes_set_append_subtract_and_delete(admin, topic, eventually):
    name = topic()

    def now(key: str, value: str) -> None:
        eventually(lambda: configs(admin, name)[key].value == value)

    wait(change(admin, name, "retention.ms", "60000", AlterConfigOpType.SET))
    now("retention.ms", "60000")
    wait(change(admin, name, "cleanup.policy", "compact", AlterConfigOpType.APPEND))
    now("cleanup.policy", "delete,compact")
    wait(change(admin, name, "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    now("cleanup.policy", "compact")
    wait(change(admin, name, "retention.ms", None, AlterConfigOpType.DELETE))
    now("retention.ms", "604800000")


def test_alter_configs_replaces_what_was_set(admin, topic, eventually):
    name = topic(retention_ms="1111", max_message_bytes="2222")
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "3333"})
    with pytest.deprecated_call():
        wait(admin.alter_configs([resource]))
    eventually(lambda: configs(admin, name)["retention.ms"].value == "3333")
    assert configs(admin, name)["max.message.bytes"].value == "1048588"


def test_broker_configs_are_described(admin):
    (node,) = admin.describe_cluster().result(TIMEOUT).nodes
    found = wait(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node.id))]))
    assert found["num.partitions"].value == "1"
    assert found["log.dirs"].is_read_only
    assert found["log.retention.hours"].value == "168"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "burn"),
        ("compression.type", "brotli"),
        ("min.insync.replicas", "0"),
        ("no.such.setting", "1"),
    ],
)
def test_an_invalid_config_is_refused(key, value, admin, topic):
    name = topic()
    error = error_of(change(admin, name, key, value, AlterConfigOpType.SET))
    assert error.code() == KafkaError.INVALID_CONFIG
    assert key in error.str()


def test_configs_of_an_unknown_topic(admin, unique):
    name = unique("missing")
    resource = ConfigResource(ResourceType.TOPIC, name)
    assert error_of(admin.describe_configs([resource])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    error = error_of(change(admin, name, "retention.ms", "1", AlterConfigOpType.SET))
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


# -- errors ----------------------------------------------------------------------------------


def test_a_record_over_max_message_bytes_is_refused(producer, consumer, topic):
    name = topic(max_message_bytes="10000")
    with pytest.raises(KafkaException) as caught:
        send(producer(message_max_bytes=2_000_000), name, {"value": b"x" * 20_000})
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    send(producer(), name, {"value": b"fits"})
    assert read(consumer, name, 1)[0].value() == b"fits"


def test_no_topic_appears_where_automatic_creation_is_off(bootstrap_no_auto_create, unique):
    name = unique("missing")
    strict = Producer(
        {
            "bootstrap.servers": bootstrap_no_auto_create,
            "message.timeout.ms": 3_000,
            "topic.metadata.propagation.max.ms": 100,
        }
    )
    with pytest.raises(KafkaException) as caught:
        send(strict, name, {"value": b"x"})
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name not in strict.list_topics(timeout=TIMEOUT).topics


@pytest.mark.parametrize("name", ["with space", "ümlaut", "a/b", ".", "..", "x" * 250, "semi;"])
def test_invalid_topic_names_are_refused(name, admin):
    error = error_of(admin.create_topics([NewTopic(name, 1, 1)]))
    assert error.code() == KafkaError.TOPIC_EXCEPTION


def test_names_that_differ_only_in_dot_and_underscore_collide(admin, topic, unique):
    base = unique("collide").replace("-", "")
    topic(name=f"{base}.b")
    error = error_of(admin.create_topics([NewTopic(f"{base}_b", 1, 1)]))
    assert error.code() == KafkaError.TOPIC_EXCEPTION
    assert "collides" in error.str()


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (1, 3, KafkaError.INVALID_REPLICATION_FACTOR),
        (0, 1, KafkaError.INVALID_PARTITIONS),
    ],
)
def test_impossible_shapes_are_refused(partitions, replicas, code, admin, unique):
    error = error_of(admin.create_topics([NewTopic(unique(), partitions, replicas)]))
    assert error.code() == code


def test_a_topic_can_be_made_only_once(admin, topic):
    error = error_of(admin.create_topics([NewTopic(topic(), 1, 1)]))
    assert error.code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_an_unknown_config_at_creation_is_refused(admin, unique):
    error = error_of(admin.create_topics([NewTopic(unique(), 1, 1, config={"no.such": "1"})]))
    assert error.code() == KafkaError.INVALID_CONFIG


def test_deleting_or_growing_an_unknown_topic(admin, unique):
    name = unique("missing")
    assert error_of(admin.delete_topics([name])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    error = error_of(admin.create_partitions([NewPartitions(name, 3)]))
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_never_shrinks(admin, topic):
    name = topic(partitions=3)
    for count in (3, 2):
        error = error_of(admin.create_partitions([NewPartitions(name, count)]))
        assert error.code() == KafkaError.INVALID_PARTITIONS
