"""kafkajs 2.2 under Node: its producer, its consumer and its admin client.

What kafkajs produced is read back with librdkafka; its consumer always joins a group, and
`client_groups` has more of that. One Node process takes the calls (`kafkajs/client.js`).
Every expectation was checked against Apache Kafka 4.2 (OTTLA_TEST_BOOTSTRAP).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Message, TopicPartition

TIMEOUT = 120
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def consumer(bootstrap: str) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused-by-assign",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    yield made
    made.close()


@pytest.fixture
def topic(kafkajs: Any, unique: Callable[..., str], answering: Any) -> Callable[..., str]:
    def create(partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or unique()
        wanted = {"topics": [shape(name, partitions, **config)], "waitForLeaders": False}
        kafkajs.admin("createTopics", wanted)
        answering(name, partitions)
        return name

    return create


def shape(name: str, partitions: int = 1, replicas: int = 1, **config: str) -> dict[str, Any]:
    return {
        "topic": name,
        "numPartitions": partitions,
        "replicationFactor": replicas,
        "configEntries": [
            {"name": key.replace("_", "."), "value": value} for key, value in config.items()
        ],
    }


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read(consumer: Consumer, topic: str, count: int, partitions: int = 1) -> list[Message]:
    consumer.list_topics(topic, timeout=TIMEOUT)
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    messages: list[Message] = []
    deadline = time.monotonic() + TIMEOUT
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records arrived"
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


# -- produce ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_as_it_went(codec, kafkajs, consumer, topic):
    name = topic()
    values = [b"the same words over and over " * 20 + str(i).encode() for i in range(50)]
    kafkajs.produce(name, *({"value": b64(v)} for v in values), codec=codec)
    assert [m.value() for m in read(consumer, name, 50)] == values


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement(acks, kafkajs, consumer, topic):
    name = topic()
    sent = kafkajs.produce(name, *({"value": b64(b"x")} for _ in range(20)), acks=acks)
    assert len(read(consumer, name, 20)) == 20
    if acks:
        assert [(s["errorCode"], s["baseOffset"]) for s in sent] == [(0, "0")]


def test_keys_values_nulls_headers_and_timestamps(kafkajs, consumer, topic):
    name = topic()
    kafkajs.produce(
        name,
        {"key": b64(b"k"), "value": None, "timestamp": "1700000000000"},
        {"value": b64(b""), "headers": {"a": [b64(b"1"), b64(b"2")], "ä": b64(b"\x00\xff")}},
        {"key": b64(b""), "value": b64(b"v")},
    )
    first, second, third = read(consumer, name, 3)
    assert (first.key(), first.value()) == (b"k", None)
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, 1_700_000_000_000)
    assert (second.key(), second.value()) == (None, b"")
    assert second.headers() == [("a", b"1"), ("a", b"2"), ("ä", b"\x00\xff")]
    assert (third.key(), third.value()) == (b"", b"v")


def test_its_consumer_reads_what_was_written(kafkajs, topic, unique):
    name = topic()
    kafkajs.produce(
        name,
        {"key": b64(b"k"), "value": None, "timestamp": "1700000000000"},
        {"value": b64(b"v"), "headers": {"a": [b64(b"1"), b64(b"2")]}},
        codec="gzip",
    )
    first, second = kafkajs.consume(name, unique("group"), 2)
    assert (first["offset"], first["key"], first["value"]) == ("0", b64(b"k"), None)
    assert first["timestamp"] == "1700000000000"
    assert (second["offset"], second["key"], second["value"]) == ("1", None, b64(b"v"))
    assert second["headers"] == {"a": [b64(b"1"), b64(b"2")]}


def test_its_consumer_seeks(kafkajs, topic, unique):
    name = topic()
    kafkajs.produce(name, *({"value": b64(str(i).encode())} for i in range(20)))
    found = kafkajs.consume(name, unique("group"), 5, partition=0, offset="15")
    assert [record["offset"] for record in found] == ["15", "16", "17", "18", "19"]


def test_an_idempotent_producer_writes_each_record_once_in_order(kafkajs, consumer, topic):
    name = topic(partitions=3)
    for batch in range(10):
        kafkajs.produce(
            name,
            *(
                {"value": b64(str(i).encode()), "partition": i % 3}
                for i in range(batch * 30, batch * 30 + 30)
            ),
            idempotent=True,
        )
    got = read(consumer, name, 300, partitions=3)
    for partition in range(3):
        values = [int(m.value()) for m in got if m.partition() == partition]
        assert values == list(range(partition, 300, 3))


def test_one_megabyte_records(kafkajs, consumer, topic):
    name = topic()
    for i in range(3):
        kafkajs.produce(name, {"value": b64(bytes([i]) * 1_000_000)})
    assert [m.value() for m in read(consumer, name, 3)] == [
        bytes([i]) * 1_000_000 for i in range(3)
    ]


def test_a_hundred_partitions(kafkajs, consumer, topic):
    name = topic(partitions=100)
    kafkajs.produce(name, *({"value": b64(str(p).encode()), "partition": p} for p in range(100)))
    assert {(m.partition(), m.value()) for m in read(consumer, name, 100, partitions=100)} == {
        (p, str(p).encode()) for p in range(100)
    }


def test_a_record_over_max_message_bytes_is_refused(kafkajs, topic):
    name = topic(max_message_bytes="10000")
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.produce(name, {"value": b64(b"x" * 20_000)})
    assert "MESSAGE_TOO_LARGE" in caught.value.types


# -- offsets ---------------------------------------------------------------------------------


def offsets(kafkajs: Any, topic: str) -> tuple[int, int]:
    (found,) = kafkajs.call(call="admin", method="fetchTopicOffsets", arguments=topic)
    return int(found["low"]), int(found["high"])


def test_offsets_follow_the_log(kafkajs, topic):
    name = topic()
    assert offsets(kafkajs, name) == (0, 0)
    kafkajs.produce(name, *({"value": b64(b"x")} for _ in range(10)))
    assert offsets(kafkajs, name) == (0, 10)
    kafkajs.admin(
        "deleteTopicRecords", {"topic": name, "partitions": [{"partition": 0, "offset": "4"}]}
    )
    assert offsets(kafkajs, name) == (4, 10)


# -- topics and configs ----------------------------------------------------------------------


def partitions_of(kafkajs: Any, name: str) -> int:
    (found,) = kafkajs.admin("fetchTopicMetadata", {"topics": [name]})["topics"]
    return len(found["partitions"])


def test_the_life_of_a_topic(kafkajs, topic, eventually):
    name = topic(partitions=2)
    assert partitions_of(kafkajs, name) == 2
    kafkajs.admin("createPartitions", {"topicPartitions": [{"topic": name, "count": 5}]})
    eventually(lambda: partitions_of(kafkajs, name) == 5)
    kafkajs.produce(name, {"value": b64(b"old"), "partition": 0})
    kafkajs.admin("deleteTopics", {"topics": [name]})
    eventually(lambda: name not in kafkajs.admin("listTopics"))
    topic(partitions=1, name=name)
    eventually(lambda: partitions_of(kafkajs, name) == 1)
    assert offsets(kafkajs, name) == (0, 0)


def test_the_cluster_describes_itself(kafkajs, bootstrap):
    cluster = kafkajs.admin("describeCluster")
    assert cluster["clusterId"]
    assert [f"{b['host']}:{b['port']}" for b in cluster["brokers"]] == [bootstrap]
    assert cluster["controller"] == cluster["brokers"][0]["nodeId"]


TOPIC_RESOURCE = 2


def configs(kafkajs: Any, name: str) -> dict[str, tuple[str, int]]:
    resources = [{"type": TOPIC_RESOURCE, "name": name}]
    answer = kafkajs.admin("describeConfigs", {"resources": resources, "includeSynonyms": False})
    (found,) = answer["resources"]
    return {
        entry["configName"]: (entry["configValue"], entry["configSource"])
        for entry in found["configEntries"]
    }


def alter(kafkajs: Any, name: str, key: str, value: str) -> None:
    entries = [{"name": key, "value": value}]
    resource = {"type": TOPIC_RESOURCE, "name": name, "configEntries": entries}
    kafkajs.admin("alterConfigs", {"validateOnly": False, "resources": [resource]})


def test_topic_configs_are_described_and_replaced(kafkajs, topic, eventually):
    name = topic(retention_ms="1234567")
    assert configs(kafkajs, name)["retention.ms"] == ("1234567", 1)
    assert configs(kafkajs, name)["segment.bytes"] == ("1073741824", 5)
    alter(kafkajs, name, "segment.bytes", "2000000")
    eventually(lambda: configs(kafkajs, name)["segment.bytes"] == ("2000000", 1))
    assert configs(kafkajs, name)["retention.ms"] == ("604800000", 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [("retention.ms", "soon"), ("cleanup.policy", "burn"), ("no.such.setting", "1")],
)
def test_an_invalid_config_is_refused(key, value, kafkajs, topic):
    name = topic()
    with pytest.raises(kafkajs.Error) as caught:
        alter(kafkajs, name, key, value)
    assert "INVALID_CONFIG" in caught.value.types


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "expected"),
    [
        ("with space", 1, 1, "INVALID_TOPIC_EXCEPTION"),
        ("..", 1, 1, "INVALID_TOPIC_EXCEPTION"),
        ("x" * 250, 1, 1, "INVALID_TOPIC_EXCEPTION"),
        ("kafkajs-wide", 1, 3, "INVALID_REPLICATION_FACTOR"),
        ("kafkajs-thin", 0, 1, "INVALID_PARTITIONS"),
    ],
)
def test_impossible_topics_are_refused(name, partitions, replicas, expected, kafkajs):
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.admin("createTopics", {"topics": [shape(name, partitions, replicas)]})
    assert expected in caught.value.types


def test_names_that_differ_only_in_dot_and_underscore_collide(kafkajs, topic, unique):
    base = unique("collide").replace("-", "")
    topic(name=f"{base}.b")
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.admin("createTopics", {"topics": [shape(f"{base}_b")]})
    assert "INVALID_TOPIC_EXCEPTION" in caught.value.types


def test_unknown_topics_cannot_be_deleted_or_grown(kafkajs, unique):
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.admin("deleteTopics", {"topics": [unique("missing")]})
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caught.value.types
    growth = {"topicPartitions": [{"topic": unique("missing"), "count": 5}]}
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.admin("createPartitions", growth)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caught.value.types
