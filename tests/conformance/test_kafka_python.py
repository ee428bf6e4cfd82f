"""kafka-python 3.0, as its users run it: no consumer groups here.

Every expectation was checked against Apache Kafka 4.2 (OTTLA_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

TIMEOUT = 120
# An hour ago: older records would be retention's to delete whenever its turn comes.
THEN = int(time.time() * 1000) - 3_600_000


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield made
    made.close()


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Callable[..., KafkaProducer]]:
    opened: list[KafkaProducer] = []

    def make(**settings: Any) -> KafkaProducer:
        opened.append(KafkaProducer(bootstrap_servers=bootstrap, **settings))
        return opened[-1]

    yield make
    for one in opened:
        one.close(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def consumer(bootstrap: str) -> Iterator[KafkaConsumer]:
    made = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=50,
    )
    yield made
    made.close()


@pytest.fixture
def topic(admin: KafkaAdminClient, unique: Callable[..., str]) -> Callable[..., str]:
    def create(partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or unique()
        admin.create_topics({name: shape(partitions, **config)}, wait_for_metadata=True)
        return name

    return create


def shape(partitions: int = 1, replicas: int = 1, **config: str) -> dict[str, Any]:
    return {
        "num_partitions": partitions,
        "replication_factor": replicas,
        "configs": {key.replace("_", "."): value for key, value in config.items()},
    }


def send(producer: KafkaProducer, topic: str, *records: dict[str, Any]) -> list[Any]:
    """Produce and wait for every acknowledgement."""
    futures = [producer.send(topic, **record) for record in records]
    producer.flush(TIMEOUT)
    return [future.get(TIMEOUT) for future in futures]


def read(consumer: KafkaConsumer, topic: str, count: int, offset: int = 0) -> list[Any]:
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    return poll(consumer, count)


def poll(consumer: KafkaConsumer, count: int) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + TIMEOUT
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records arrived"
        fetched = consumer.poll(timeout_ms=200, max_records=count - len(records))
        for part in fetched.values():
            records += part
    return records


# -- produce and consume ---------------------------------------------------------------------


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_comes_back_as_it_went(codec, producer, consumer, topic):
    name = topic()
    values = [b"the same words over and over " * 20 + str(i).encode() for i in range(50)]
    send(producer(compression_type=codec, linger_ms=20), name, *({"value": v} for v in values))
    assert [r.value for r in read(consumer, name, 50)] == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(acks, producer, consumer, topic):
    name = topic()
    sender = producer(acks=acks, enable_idempotence=False)
    sent = send(sender, name, *({"value": str(i).encode()} for i in range(20)))
    assert [r.value for r in read(consumer, name, 20)] == [str(i).encode() for i in range(20)]
    if acks != 0:
        assert [metadata.offset for metadata in sent] == list(range(20))


def test_seek_goes_anywhere_in_the_log(producer, consumer, topic):
    name = topic()
    partition = TopicPartition(name, 0)
    writer = producer()
    send(writer, name, *({"value": str(i).encode()} for i in range(30)))
    assert read(consumer, name, 1, offset=12)[0].value == b"12"
    for target in (25, 3):
        consumer.seek(partition, target)
        assert poll(consumer, 1)[0].value == str(target).encode()
    consumer.seek_to_beginning(partition)
    assert poll(consumer, 1)[0].value == b"0"
    consumer.seek_to_end(partition)
    assert consumer.position(partition) == 30
    send(writer, name, {"value": b"after the end"})
    assert poll(consumer, 1)[0].value == b"after the end"


def test_an_offset_beyond_the_end_is_out_of_range(producer, consumer, topic):
    name = topic()
    send(producer(), name, {"value": b"only"})
    with pytest.raises(errors.OffsetOutOfRangeError):
        read(consumer, name, 1, offset=100)


def test_timestamps_are_kept_and_found(producer, consumer, topic):
    name = topic()
    partition = TopicPartition(name, 0)
    times = [THEN + 1000 * i for i in range(10)]
    sender = producer(linger_ms=0)
    for stamp in times:
        send(sender, name, {"value": b"x", "timestamp_ms": stamp})
    got = read(consumer, name, 10)
    assert [(r.timestamp, r.timestamp_type) for r in got] == [(stamp, 0) for stamp in times]

    def found(stamp: int) -> Any:
        return consumer.offsets_for_times({partition: stamp})[partition]

    assert (found(0).offset, found(0).timestamp) == (0, times[0])
    assert found(times[4]).offset == 4
    assert (found(times[4] + 1).offset, found(times[4] + 1).timestamp) == (5, times[5])
    assert found(times[-1] + 1) is None


def test_log_append_time_is_the_brokers(producer, consumer, topic):
    name = topic(message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000 - 5_000
    (sent,) = send(producer(), name, {"value": b"x", "timestamp_ms": 1_000})
    (got,) = read(consumer, name, 1)
    assert got.timestamp_type == 1
    assert got.timestamp > before
    assert sent.timestamp == got.timestamp


def test_headers_keep_order_and_repeats(producer, consumer, topic):
    name = topic()
    headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("umlaut-ä", b"\x00\xff")]
    send(producer(), name, {"value": b"v", "headers": headers}, {"value": b"none"})
    first, second = read(consumer, name, 2)
    assert list(first.headers) == headers
    assert list(second.headers) == []


def test_null_and_empty_keys_and_values_stay_apart(producer, consumer, topic):
    name = topic()
    pairs = [(b"", b""), (b"k", None), (None, b"v"), (b"k", b"")]
    send(producer(), name, *({"key": key, "value": value} for key, value in pairs))
    assert [(r.key, r.value) for r in read(consumer, name, 4)] == pairs


def test_an_idempotent_producer_writes_each_record_once_in_order(producer, consumer, topic):
    name = topic(partitions=3)
    idempotent = producer(enable_idempotence=True, acks="all", batch_size=200)
    send(idempotent, name, *({"value": str(i).encode(), "partition": i % 3} for i in range(300)))
    partitions = [TopicPartition(name, p) for p in range(3)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    got = poll(consumer, 300)
    for partition in range(3):
        values = [int(r.value) for r in got if r.partition == partition]
        assert values == list(range(partition, 300, 3))
    assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 100)


def test_one_megabyte_records(producer, consumer, topic):
    name = topic()
    values = [bytes([i]) * 1_000_000 for i in range(5)]
    send(producer(max_request_size=1_100_000), name, *({"value": v} for v in values))
    assert [r.value for r in read(consumer, name, 5)] == values


def test_a_hundred_partitions(producer, consumer, topic):
    name = topic(partitions=100)
    send(producer(), name, *({"value": str(p).encode(), "partition": p} for p in range(100)))
    partitions = [TopicPartition(name, p) for p in range(100)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    assert {(r.partition, r.value) for r in poll(consumer, 100)} == {
        (p, str(p).encode()) for p in range(100)
    }


def test_deleted_records_move_the_beginning(admin, producer, consumer, topic):
    name = topic()
    partition = TopicPartition(name, 0)
    send(producer(), name, *({"value": b"x"} for _ in range(10)))
    deleted = admin.delete_records({partition: 4})
    assert deleted[partition]["low_watermark"] == 4
    assert consumer.beginning_offsets([partition]) == {partition: 4}
    assert consumer.end_offsets([partition]) == {partition: 10}
    with pytest.raises(errors.OffsetOutOfRangeError):
        read(consumer, name, 1, offset=0)
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({partition: 11})


# -- topics ----------------------------------------------------------------------------------


def described(admin: KafkaAdminClient, name: str) -> dict[str, Any]:
    (found,) = admin.describe_topics([name])
    return found


def test_the_life_of_a_topic(admin, topic, eventually):
    name = topic(partitions=2)
    first = described(admin, name)
    assert sorted(p["partition_index"] for p in first["partitions"]) == [0, 1]
    assert all(len(p["isr_nodes"]) == 1 for p in first["partitions"])

    admin.create_partitions({name: 5})
    eventually(lambda: len(described(admin, name)["partitions"]) == 5)
    assert described(admin, name)["topic_id"] == first["topic_id"]

    admin.delete_topics([name])
    eventually(lambda: name not in admin.list_topics())
    topic(partitions=1, name=name)
    again = described(admin, name)
    assert len(again["partitions"]) == 1
    assert again["topic_id"] != first["topic_id"]


def test_topic_partitions_are_described_in_pages(admin, topic):
    name = topic(partitions=5)
    page = admin.describe_topic_partitions([name], response_partition_limit=3)
    assert [p["partition_index"] for p in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"] == {"topic_name": name, "partition_index": 3}
    rest = admin.describe_topic_partitions([name], cursor=page["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None


def test_a_topic_is_deleted_by_its_id(admin, topic, eventually):
    name = topic()
    admin.delete_topics([uuid.UUID(str(described(admin, name)["topic_id"]))])
    eventually(lambda: name not in admin.list_topics())


def test_validate_only_creates_nothing(admin, unique):
    name = unique()
    admin.create_topics({name: shape()}, validate_only=True)
    assert name not in admin.list_topics()


def test_the_cluster_describes_itself(admin, bootstrap):
    cluster = admin.describe_cluster()
    assert cluster["cluster_id"]
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [bootstrap]


# -- configs ---------------------------------------------------------------------------------


def configs(admin: KafkaAdminClient, name: str, kind: str = "topic") -> dict[str, Any]:
    found = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
    return found[kind][name]


def alter(admin: KafkaAdminClient, name: str, change: dict[str, Any], **options: Any) -> str:
    resource = ConfigResource(ConfigResourceType.TOPIC, name, change)
    return admin.alter_configs([resource], raise_on_unknown=False, **options)["topic"][name]


def test_topic_configs_show_value_source_type_and_synonyms(admin, topic):
    name = topic(retention_ms="1234567")
    found = configs(admin, name)
    assert found["retention.ms"]["value"] == "1234567"
    assert found["retention.ms"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    assert found["retention.ms"]["config_type"] == "LONG"
    assert found["cleanup.policy"]["config_type"] == "LIST"
    assert found["segment.bytes"]["config_source"] == "DEFAULT_CONFIG"
    (with_synonyms,) = admin.describe_configs(
        [ConfigResource("topic", name)], include_synonyms=True, config_filter="all"
    )["topic"].values()
    assert [(s["name"], s["source"]) for s in with_synonyms["retention.ms"]["synonyms"]] == [
        ("retention.ms", "DYNAMIC_TOPIC_CONFIG")
    ]
    assert [s["name"] for s in with_synonyms["segment.bytes"]["synonyms"]] == ["log.segment.bytes"]


def test_incremental_changes_set_append_subtract_and_delete(admin, topic, eventually):
    name = topic()

    def change(key: str, operation: AlterConfigOp, value: str | None, result: str) -> None:
        assert alter(admin, name, {key: (operation, value)}) == "OK"
        eventually(lambda: configs(admin, name)[key]["value"] == result)

    change("retention.ms", AlterConfigOp.SET, "60000", "60000")
    change("cleanup.policy", AlterConfigOp.APPEND, "compact", "delete,compact")
    change("cleanup.policy", AlterConfigOp.SUBTRACT, "delete", "compact")
    change("retention.ms", AlterConfigOp.DELETE, None, "604800000")


def test_alter_configs_replaces_what_was_set(admin, topic, eventually):
    name = topic(retention_ms="1111")
    assert alter(admin, name, {"segment.ms": "3333"}, incremental=False) == "OK"
    eventually(lambda: configs(admin, name)["segment.ms"]["value"] == "3333")
    # kafka-python itself adds what was set before to the old, replacing request
    assert configs(admin, name)["retention.ms"]["value"] == "1111"


def test_broker_configs_are_described(admin):
    (node,) = admin.describe_cluster()["brokers"]
    found = configs(admin, str(node["broker_id"]), "broker")
    assert found["num.partitions"]["value"] == "1"
    assert found["log.dirs"]["read_only"]
    assert found["log.retention.hours"]["value"] == "168"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.ms", "soon"),
        ("cleanup.policy", "burn"),
        ("min.insync.replicas", "0"),
        ("no.such.setting", "1"),
    ],
)
def test_an_invalid_config_is_refused(key, value, admin, topic):
    name = topic()
    answer = alter(admin, name, {key: value})
    assert "InvalidConfigurationError" in answer
    assert key in answer
    assert alter(admin, name, {key: value}, incremental=False) != "OK"


def test_config_resources_are_listed(admin, topic):
    name = topic()
    listed = admin.list_config_resources(["TOPIC", "BROKER"])
    assert name in listed["topic"]
    assert [str(n["broker_id"]) for n in admin.describe_cluster()["brokers"]] == listed["broker"]


# -- errors ----------------------------------------------------------------------------------


def test_a_record_over_max_message_bytes_is_refused(producer, consumer, topic):
    name = topic(max_message_bytes="10000")
    sender = producer(max_request_size=2_000_000)
    with pytest.raises(errors.MessageSizeTooLargeError):
        send(sender, name, {"value": b"x" * 20_000})


def test_no_topic_appears_where_automatic_creation_is_off(bootstrap_no_auto_create, unique):
    name = unique("missing")
    strict = KafkaProducer(bootstrap_servers=bootstrap_no_auto_create, max_block_ms=2_000)
    try:
        with pytest.raises(errors.KafkaTimeoutError):
            strict.send(name, b"x")
    finally:
        strict.close(timeout=TIMEOUT)


@pytest.mark.parametrize("name", ["with space", "ümlaut", "a/b", ".", "..", "x" * 250])
def test_invalid_topic_names_are_refused(name, admin):
    with pytest.raises(errors.InvalidTopicError):
        admin.create_topics({name: shape()})


def test_names_that_differ_only_in_dot_and_underscore_collide(admin, topic, unique):
    base = unique("collide").replace("-", "")
    topic(name=f"{base}.b")
    with pytest.raises(errors.InvalidTopicError):
        admin.create_topics({f"{base}_b": shape()})


def test_impossible_shapes_are_refused(admin, topic, unique):
    with pytest.raises(errors.InvalidReplicationFactorError):
        admin.create_topics({unique(): shape(replicas=3)})
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_topics({unique(): shape(partitions=0)})
    with pytest.raises(errors.InvalidConfigurationError):
        admin.create_topics({unique(): shape(no_such="1")})
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics({topic(): shape()})


def test_unknown_topics_cannot_be_deleted_or_grown(admin, topic, unique):
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([unique("missing")])
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.create_partitions({unique("missing"): 3})
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic(partitions=3): 2})
