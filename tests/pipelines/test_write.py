"""`df.write.format("ottla")` and `df.writeStream`, on a real Spark and a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.client.partitioners import murmur2_partition
from ottla.errors import KafkaError
from ottla.pipelines.sink.updates import HINT, write_updates
from ottla.testing import Broker

# Each starts Python workers and may be the one that starts Spark, on a machine that is busy.


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, unique: Callable[..., str]) -> str:
    name = unique()
    broker.create_topic(name, 3)
    return name


@pytest.fixture
def options(broker: Broker, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": topic,
        "kafka.max.block.ms": "500",
    }


def append(df: Any, options: dict[str, str]) -> None:
    df.write.format("ottla").options(**options).mode("append").save()


def read(broker: Broker, topic: str, partition: int, count: int) -> list[Any]:
    """By librdkafka, which knows nothing of how it was written."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "check"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = consumer.consume(count, timeout=120)
    consumer.close()
    return found


def test_every_column_becomes_its_part_of_the_record(
    spark: Any, broker: Broker, topic: str, options: dict[str, str]
):
    rows = spark.sql("""
        SELECT 'k' AS key, X'00ff' AS value, 2 AS partition, 'elsewhere' AS topic,
               timestamp_millis(1700000000123) AS timestamp, 1.5 AS left_out,
               array(named_struct('key', 'h', 'value', X'01'),
                     named_struct('key', 'n', 'value', CAST(NULL AS BINARY))) AS headers
        UNION ALL
        SELECT NULL, NULL, 2, NULL, timestamp_millis(5), 0.5, NULL
    """).coalesce(1)
    append(rows, options | {"kafka.compression.type": "zstd", "keepTimestamps": "true"})
    found = read(broker, topic, 2, 2)
    assert [(each.key(), each.value(), each.timestamp()[1], each.headers()) for each in found] == [
        (b"k", b"\x00\xff", 1700000000123, [("h", b"\x01"), ("n", None)]),
        (None, None, 5, None),
    ]


def test_many_tasks_write_each_row_once_where_java_would(
    spark: Any, broker: Broker, topic: str, options: dict[str, str]
):
    count = 20_000
    rows = spark.range(0, count, 1, 3).selectExpr(
        "CAST(id % 100 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    # The answers to the first two requests are lost: they are sent again, and known again.
    lost = broker.faults.disconnect("Produce", processed=True, times=2)
    append(rows, options)
    assert lost.hits == 2
    found = broker.consume(topic)
    assert sorted(int(record.value) for record in found) == list(range(count))
    assert all(murmur2_partition(record.key, 3) == record.partition for record in found)


def test_a_copy_has_the_time_of_writing_unless_timestamps_are_to_be_kept(
    spark: Any, broker: Broker, topic: str, options: dict[str, str], unique: Callable[..., str]
):
    copy, kept = unique("copy"), unique("kept")
    for name in (copy, kept):
        broker.create_topic(name, 1)
    begun = time.time_ns() // 1_000_000
    old = begun - 3 * 24 * 3600 * 1000
    broker.produce(topic, b"v", timestamp_ms=old)
    frame = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .load()
    )
    append(frame, options | {"topic": copy})
    append(frame, options | {"topic": kept, "keepTimestamps": "true"})
    assert broker.consume(copy)[0].timestamp >= begun
    assert broker.consume(kept)[0].timestamp == old
    with pytest.raises(Exception, match="keepTimestamps=true needs a column timestamp"):
        append(frame.drop("timestamp"), options | {"keepTimestamps": "true"})


def test_a_row_that_is_refused_fails_the_job_with_its_position(
    spark: Any, broker: Broker, topic: str, options: dict[str, str]
):
    broker.configure({"cleanup.policy": "compact"}, topic)
    rows = spark.range(0, 20, 1, 2).selectExpr(
        "IF(id = 17, NULL, CAST(id AS STRING)) AS key",
        "CAST(id AS STRING) AS value",
        "0 AS partition",
    )
    with pytest.raises(Exception, match="not written") as caught:
        append(rows, options)
    text = str(caught.value)
    assert "row 7 (counted from 0) of Spark partition 1 was not written" in text
    assert "INVALID_RECORD" in text
    assert "without key" in text


def test_a_topic_that_is_not_there_fails_the_job(
    spark: Any, broker: Broker, options: dict[str, str], unique: Callable[..., str]
):
    absent = unique("absent")
    with pytest.raises(Exception, match=f"topic '{absent}' is not there after 0.5 s"):
        append(spark.sql("SELECT 'v' AS value"), options | {"topic": absent})
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
        broker.consume(absent)


def test_what_is_wrong_before_any_row_is_one_sentence(spark: Any, options: dict[str, str]):
    rows = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match=r'use mode\("append"\)'):
        rows.write.format("ottla").options(**options).mode("overwrite").save()
    with pytest.raises(Exception, match="the column value is missing"):
        append(rows.selectExpr("value AS key"), options)
    # Spark itself refuses these: a sink written in Python is appended to or overwritten.
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(Exception, match='Please use either the "Append"'):
            rows.write.format("ottla").options(**options).mode(mode).save()


@pytest.fixture
def counts(spark: Any) -> Any:
    """A stream of 3 keys with their counts: 10 rows in each micro-batch."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    return (
        rows.groupBy((rows.value % 3).alias("k"))
        .count()
        .selectExpr("CAST(k AS STRING) AS key", "CAST(count AS STRING) AS value")
    )


def run(writer: Any, folder: Path) -> None:
    query = (
        writer.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(400), "still running"
    finally:
        query.stop()


def test_a_stream_is_appended(
    spark: Any, broker: Broker, topic: str, options: dict[str, str], tmp_path: Path
):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    values = rows.selectExpr("CAST(value AS STRING) AS value")
    run(values.writeStream.format("ottla").options(**options), tmp_path)
    found = sorted(int(record.value) for record in broker.consume(topic))
    assert found == list(range(len(found)))
    assert len(found) >= 10


def test_complete_mode_appends_the_whole_result_of_each_micro_batch(
    counts: Any, broker: Broker, topic: str, options: dict[str, str], tmp_path: Path
):
    run(counts.writeStream.format("ottla").options(**options).outputMode("complete"), tmp_path)
    assert {record.key for record in broker.consume(topic)} == {b"0", b"1", b"2"}


def test_update_mode_is_refused_by_spark_and_the_error_names_the_helper(
    counts: Any, broker: Broker, topic: str, options: dict[str, str], tmp_path: Path
):
    with pytest.raises(Exception, match="ottla does not support Update mode") as caught:
        run(counts.writeStream.format("ottla").options(**options).outputMode("update"), tmp_path)
    assert str(caught.value).endswith(HINT)
    assert broker.consume(topic) == []


def test_the_helper_writes_update_mode(
    counts: Any, broker: Broker, topic: str, options: dict[str, str], tmp_path: Path
):
    run(write_updates(counts, options, delivery="idempotent"), tmp_path)
    last = {record.key: int(record.value) for record in broker.consume(topic)}
    assert set(last) == {b"0", b"1", b"2"}
    assert sum(last.values()) >= 10


def test_the_helper_checks_before_the_query_starts(
    spark: Any, counts: Any, options: dict[str, str]
):
    with pytest.raises(ValueError, match="did you mean topic"):
        write_updates(counts, options, topics="x")
    with pytest.raises(ValueError, match="the column value is missing"):
        write_updates(counts.drop("value"), options)
    with pytest.raises(ValueError, match="write_updates is for a stream"):
        write_updates(spark.sql("SELECT 'v' AS value"), options)
