"""The way from a real broker's bytes into Arrow, as a task goes it, without Spark around it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

import ottla
from ottla.client.router import Router
from ottla.errors import KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicPartition
from ottla.pipelines.cluster import Cluster
from ottla.pipelines.errors import DataLossError
from ottla.pipelines.source.column_choice import ALL
from ottla.pipelines.source.loss import LossPolicy
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.task import FetchSettings, read_range
from ottla.protocol.apis import ApiKey


def produce(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=b"%d" % number, headers=[("n", b"%d" % number)])
        producer.poll(0)
    assert producer.flush(60) == 0


def settings(bootstrap: str, **changes: Any) -> FetchSettings:
    made = FetchSettings(loss=LossPolicy(), bootstrap=bootstrap, log_end_patience=1.0)
    return replace(made, **changes)


def topic_of(bootstrap: str, topic: str, **config: str) -> bytes:
    """Create it; returns its id."""
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1, config=config)
    with Cluster(bootstrap) as cluster:
        return cluster.topics([topic])[topic].id


def values_of(part: Range, how: FetchSettings) -> list[bytes]:
    return [v for batch in read_range(part, how) for v in batch.column("value").to_pylist()]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_a_client_wrote_is_read_by_id_and_by_name(bootstrap, unique, codec):
    topic = unique()
    topic_id = topic_of(bootstrap, topic)
    written = [b"%06d" % n for n in range(5_000)]
    produce(bootstrap, topic, written, **{"compression.type": codec})
    for which in (topic_id, ZERO_TOPIC_ID):
        part = Range(topic, which, 0, 17, 4_321)
        assert values_of(part, settings(bootstrap, rows_per_batch=1_000)) == written[17:4_321]
    part = Range(topic, topic_id, 0, 4_990, 5_000)
    [batch] = read_range(part, settings(bootstrap, columns=ALL))
    assert batch.column("offset").to_pylist() == list(range(4_990, 5_000))
    assert batch.column("headers").to_pylist()[0] == [{"key": "n", "value": b"4990"}]


def test_topics_are_fetched_by_id_only_where_that_is_asked_for(bootstrap):
    with Router(bootstrap, by_id=(ApiKey.FETCH,)) as by_id, Router(bootstrap) as by_name:
        assert by_id.any().version_of(ApiKey.FETCH) >= 13
        assert by_id.any().version_of(ApiKey.OFFSET_FETCH) < 10
        assert by_name.any().version_of(ApiKey.FETCH) == 12


def test_batches_larger_than_a_fetch_come_all_the_same(bootstrap, unique):
    topic = unique()
    topic_id = topic_of(bootstrap, topic)
    written = [bytes([n]) * 700_000 for n in range(6)]
    produce(bootstrap, topic, written)
    how = settings(bootstrap, max_partition_bytes=1_000, max_bytes=1_000)
    assert values_of(Range(topic, topic_id, 0, 0, 6), how) == written


def test_records_deleted_by_hand_are_a_loss_that_the_policy_decides(bootstrap, unique):
    topic = unique()
    part = Range(topic, topic_of(bootstrap, topic), 0, 5, 100)
    produce(bootstrap, topic, [b"%d" % n for n in range(100)])
    with ottla.Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 40})
    with pytest.raises(DataLossError, match=r"Offsets 5 to 39 of partition 0 .*\(35 records\)"):
        values_of(part, settings(bootstrap))
    how = settings(bootstrap, loss=LossPolicy.parse("false"))
    assert values_of(part, how) == [b"%d" % n for n in range(40, 100)]


def test_a_topic_made_anew_is_not_taken_for_the_old_one(bootstrap, unique, eventually):
    topic = unique()
    part = Range(topic, topic_of(bootstrap, topic), 0, 0, 10)
    with ottla.Admin(bootstrap) as admin:
        admin.delete_topics(topic)
    with Cluster(bootstrap) as cluster:
        eventually(lambda: topic not in cluster.topics([topic]))
    with pytest.raises(DataLossError, match="the topic was deleted"):
        values_of(part, settings(bootstrap))
    topic_of(bootstrap, topic)
    produce(bootstrap, topic, [b"new"] * 10)
    with pytest.raises(DataLossError, match="made anew"):
        values_of(part, settings(bootstrap))
    assert values_of(part, settings(bootstrap, loss=LossPolicy.parse("false"))) == []


def test_a_log_shorter_than_planned_is_truncated_after_a_while(bootstrap, unique):
    topic = unique()
    part = Range(topic, topic_of(bootstrap, topic), 0, 0, 30)
    produce(bootstrap, topic, [b"x"] * 20)
    with pytest.raises(DataLossError, match=r"Offsets 20 to 29 .*the log now ends at 20"):
        values_of(part, settings(bootstrap))
    how = settings(bootstrap, loss=LossPolicy.parse("truncated=skip"))
    assert values_of(part, how) == [b"x"] * 20


def test_records_that_arrive_while_the_end_is_waited_for_are_read(bootstrap, unique):
    topic = unique()
    part = Range(topic, topic_of(bootstrap, topic), 0, 0, 30)
    produce(bootstrap, topic, [b"x"] * 20)
    late = threading.Timer(0.3, produce, (bootstrap, topic, [b"y"] * 10))
    late.start()
    how = settings(bootstrap, log_end_patience=60.0)
    assert values_of(part, how) == [b"x"] * 20 + [b"y"] * 10
    late.join()


def test_reading_survives_a_broker_that_is_killed_and_comes_back(start_broker, unique):
    broker = start_broker()
    topic = unique()
    topic_id = topic_of(broker.bootstrap, topic)
    written = [b"%06d" % n * 100 for n in range(10_000)]
    produce(broker.bootstrap, topic, written)
    how = settings(
        broker.bootstrap,
        rows_per_batch=500,
        max_partition_bytes=200_000,
        prefetch_bytes=1,
        patience=None,
    )
    batches = read_range(Range(topic, topic_id, 0, 0, 10_000), how)
    found = next(batches).column("value").to_pylist()
    broker.kill()
    back = threading.Timer(1.0, broker.start)
    back.start()
    for batch in batches:
        found += batch.column("value").to_pylist()
    back.join()
    assert found == written


def test_a_broker_that_is_not_there_is_an_error_once_patience_ends(start_broker, unique):
    broker = start_broker()
    topic = unique()
    part = Range(topic, topic_of(broker.bootstrap, topic), 0, 0, 10)
    broker.kill()
    with pytest.raises(KafkaError, match=rf"partition 0 of topic {topic}, offset 0: .*for 1 s"):
        values_of(part, settings(broker.bootstrap, patience=1.0))


def test_a_consumer_that_stops_early_leaves_no_thread_behind(bootstrap, unique, eventually):
    topic = unique()
    part = Range(topic, topic_of(bootstrap, topic), 0, 0, 30_000)
    produce(bootstrap, topic, [b"x" * 100] * 20_000)
    batches = read_range(part, settings(bootstrap, rows_per_batch=10, log_end_patience=600.0))
    assert next(batches).num_rows == 10
    batches.close()
    eventually(lambda: not any(each.name == "ottla-fetch" for each in threading.enumerate()))
