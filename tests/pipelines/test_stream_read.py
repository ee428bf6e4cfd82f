"""Topics as streams on a real Spark: limits, lag, restarts, and what happens behind their back."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from ottla.client.descriptions import NewTopic
from ottla.client.direct import SET, TOPIC, DirectAdmin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition
from ottla.testing.process import BrokerProcess

# A query starts processes and asks them much; on a machine that does other things this lasts.
PATIENCE = 300.0


class Stream:
    """One query at a time on one checkpoint, and every row that its batches have had."""

    def __init__(self, spark: Any, bootstrap: str, checkpoint: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.checkpoint = checkpoint
        self.rows: list[tuple[str, int, int]] = []
        self.batches: dict[int, list[tuple[int, str, int, int]]] = {}
        """By batch: the task, and topic, partition and offset of the row."""
        self.fail_in: int | None = None
        self.go_on = threading.Event()
        """Batches wait for it at their end. Nobody plans the next one meanwhile."""
        self.go_on.set()
        self.query: Any = None

    def start(self, *, trigger: dict[str, Any] | None = None, **options: Any) -> Any:
        given = {"kafka.bootstrap.servers": self.bootstrap, "startingOffsets": "earliest"}
        reader = self.spark.readStream.format("ottla")
        for name, value in (given | options).items():
            reader = reader.option(name, value)
        writer = (
            reader.load()
            .selectExpr("spark_partition_id() as task", "topic", "partition", "offset")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
        )
        for _ in range(5):
            self.query = writer.start()
            if not self._starved():
                break
        return self.query

    def _starved(self) -> bool:
        """Spark gives the source's process ten seconds to start; a busy machine may need more."""
        deadline = time.monotonic() + PATIENCE
        while self.query.isActive and self.query.status["message"] == "Initializing sources":
            assert time.monotonic() < deadline, "Spark does not get to its sources"
            time.sleep(0.02)
        return "failed to connect back" in str(self.query.exception())

    def read_all(self, **options: Any) -> None:
        """Read what is there and end."""
        self.start(trigger={"availableNow": True}, **options)
        assert self.query.awaitTermination(int(PATIENCE)), "AvailableNow did not end"

    def failure(self) -> str:
        """What ended the query."""
        with pytest.raises(StreamingQueryException) as raised:
            assert self.query.awaitTermination(int(PATIENCE)), "the query goes on"
        return str(raised.value)

    def stop(self) -> None:
        self.go_on.set()
        if self.query is not None:
            self.query.stop()

    def reported(self) -> list[dict[str, Any]]:
        """What progress events carry of where the logs end, in order."""
        return [
            json.loads(progress.sources[0].latestOffset)
            for progress in self.query.recentProgress
            if progress.sources[0].latestOffset
        ]

    def last(self, name: str) -> Any:
        """One thing of the newest of these; None when there is none."""
        reports = self.reported()
        return reports[-1].get(name) if reports else None

    def _take(self, frame: Any, batch: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        self.batches[batch] = rows
        if batch == self.fail_in:
            raise RuntimeError("this batch was told to fail")
        self.rows.extend((topic, partition, offset) for _, topic, partition, offset in rows)
        assert self.go_on.wait(PATIENCE)


@pytest.fixture
def stream(spark: Any, bootstrap: str, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """`stream(bootstrap)`: a `Stream` with a checkpoint of its own."""
    made: list[Stream] = []
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(interval, "100")

    def make(address: str | None = None) -> Stream:
        made.append(Stream(spark, address or bootstrap, tmp_path / f"checkpoint-{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    spark.conf.unset(interval)


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    with DirectAdmin(bootstrap) as admin:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin.create_topic(NewTopic(topic, partitions, 1, settings))


def produce(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.post(topic, str(number).encode(), partition=partition)


def alter(bootstrap: str, topic: str, **config: str) -> None:
    with DirectAdmin(bootstrap) as admin:
        changes = [(name.replace("_", "."), SET, value) for name, value in config.items()]
        admin.alter_configs(TOPIC, topic, changes)


def log_start(bootstrap: str, topic: str) -> int:
    with Groups(bootstrap) as groups:
        tp = TopicPartition(topic, 0)
        return groups.topics.offsets({tp: -2})[tp].offset


def stretch(topic: str, *spans: tuple[int, int, int]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (topic, partition, offset) for partition, a, b in spans for offset in range(a, b)
    )


def test_available_now_reads_what_is_there_in_batches_of_limited_size(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic, group = unique(), unique("group")
    create(bootstrap, topic, 2)
    with Groups(bootstrap) as groups:
        # A query that ends waits for its commit for five seconds, and not until a broker that has
        # had no group yet has made the topic for them.
        groups.set_offsets(group, {TopicPartition(topic, 0): 0})
    produce(bootstrap, topic, 30, 0)
    produce(bootstrap, topic, 10, 1)
    options = {
        "subscribe": topic,
        "maxOffsetsPerTrigger": "20",
        "minPartitions": "4",
        "kafka.group.id": group,
    }
    query = stream()
    query.read_all(**options)
    assert Counter(query.rows) == stretch(topic, (0, 0, 30), (1, 0, 10))
    # In proportion to what waits, and one topic partition in several tasks.
    first, second = (rows for _, rows in sorted(query.batches.items()) if rows)
    assert Counter(partition for _, _, partition, _ in first) == {0: 15, 1: 5}
    assert len(second) == 20
    assert len({task for task, _, partition, _ in first if partition == 0}) == 3
    # Progress events say how far behind a batch leaves the query.
    reports = query.reported()
    assert reports[0]["totalLag"] == 20
    assert reports[0]["lag"] == {topic: {"0": 15, "1": 5}}
    assert reports[0]["metrics"] == {
        "avgOffsetsBehindLatest": "10.0",
        "maxOffsetsBehindLatest": "15",
        "minOffsetsBehindLatest": "5",
    }
    assert reports[-1]["latest"] == {topic: {"0": 30, "1": 10}}
    # The query is a consumer group that has finished.
    with Groups(bootstrap) as groups:
        lag = {row.partition: (row.committed, row.lag) for row in groups.lag(group)}
        assert lag == {TopicPartition(topic, 0): (30, 0), TopicPartition(topic, 1): (10, 0)}
        # The group is for looking at: the checkpoint says where to go on.
        groups.set_offsets(group, {TopicPartition(topic, 0): 0})
    produce(bootstrap, topic, 5, 1)
    query.read_all(**options)
    assert Counter(query.rows) == stretch(topic, (0, 0, 30), (1, 0, 15))
    with Groups(bootstrap) as groups:
        assert [row.committed for row in groups.lag(group)] == [30, 15]


def test_a_stream_has_the_columns_that_are_named(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    create(bootstrap, topic)
    produce(bootstrap, topic, 7)
    query = stream()
    query.read_all(subscribe=topic, columns="partition,offset,topic")
    assert Counter(query.rows) == stretch(topic, (0, 0, 7))


def test_a_running_query_follows_new_records_new_partitions_and_new_topics(
    stream: Callable[..., Stream],
    bootstrap: str,
    unique: Callable[..., str],
    eventually: Callable[..., Any],
) -> None:
    prefix = unique("grows")
    old, new = f"{prefix}-old", f"{prefix}-new"
    create(bootstrap, old)
    produce(bootstrap, old, 3)
    query = stream()
    query.start(subscribePattern=f"{prefix}-.*", startingOffsets="latest", groupIdPrefix=prefix)
    eventually(query.reported, timeout=PATIENCE)
    produce(bootstrap, old, 4)
    expected = stretch(old, (0, 3, 7))
    eventually(lambda: Counter(query.rows) == expected, timeout=PATIENCE)
    with DirectAdmin(bootstrap) as admin:
        admin.create_partitions({old: 2}, {})
    create(bootstrap, new)
    produce(bootstrap, old, 5, 1)
    produce(bootstrap, new, 6)
    expected += stretch(old, (1, 0, 5)) + stretch(new, (0, 0, 6))
    eventually(lambda: Counter(query.rows) == expected, timeout=PATIENCE)
    with Groups(bootstrap) as groups:
        [group] = eventually(
            lambda: [g.name for g in groups.list_groups() if g.name.startswith(prefix)],
            timeout=PATIENCE,
        )
        eventually(
            lambda: (
                sorted((r.committed, r.lag) for r in groups.lag(group)) == [(5, 0), (6, 0), (7, 0)]
            ),
            timeout=PATIENCE,
        )
    assert query.query.isActive


def test_a_batch_waits_for_enough_records_but_not_for_ever(
    stream: Callable[..., Stream],
    bootstrap: str,
    unique: Callable[..., str],
    eventually: Callable[..., Any],
) -> None:
    topic = unique()
    create(bootstrap, topic)
    produce(bootstrap, topic, 2)
    query = stream()
    options = {"subscribe": topic, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    query.start(**options)
    eventually(lambda: len(query.rows) == 2, timeout=PATIENCE)
    produce(bootstrap, topic, 4)
    eventually(lambda: query.last("totalLag") == 4, timeout=PATIENCE)
    produce(bootstrap, topic, 6)
    eventually(lambda: len(query.rows) == 12, timeout=PATIENCE)
    assert [len(rows) for _, rows in sorted(query.batches.items()) if rows] == [2, 10]
    # Then the batch is finished, and will not be run again.
    eventually(lambda: query.last("totalLag") == 0, timeout=PATIENCE)
    query.stop()
    # Trigger.Once takes whatever there is, the limits notwithstanding.
    produce(bootstrap, topic, 3)
    query.start(trigger={"once": True}, **options | {"maxOffsetsPerTrigger": "11"})
    assert query.query.awaitTermination(int(PATIENCE))
    assert Counter(query.rows) == stretch(topic, (0, 0, 15))
    produce(bootstrap, topic, 1)
    query.start(**options | {"maxTriggerDelay": "100ms"})
    produce(bootstrap, topic, 1)
    eventually(lambda: len(query.rows) == 17, timeout=PATIENCE)


def test_a_restart_replays_the_same_rows_in_the_same_tasks(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    create(bootstrap, topic, 2)
    produce(bootstrap, topic, 10, 0)
    query = stream()
    query.read_all(subscribe=topic)
    produce(bootstrap, topic, 20, 0)
    produce(bootstrap, topic, 7, 1)
    query.fail_in = max(query.batches) + 1
    query.start(trigger={"availableNow": True}, subscribe=topic, minPartitions="5")
    assert "told to fail" in query.failure()
    failed, seen = query.fail_in, query.batches[query.fail_in]
    assert len({task for task, *_ in seen}) == 5
    produce(bootstrap, topic, 9, 1)
    query.fail_in = None
    query.read_all(subscribe=topic, minPartitions="2", maxOffsetsPerTrigger="3")
    assert sorted(query.batches[failed]) == sorted(seen)
    assert Counter(query.rows) == stretch(topic, (0, 0, 30), (1, 0, 16))


def test_an_unreachable_broker_never_ends_a_query(
    stream: Callable[..., Stream],
    start_broker: Callable[..., BrokerProcess],
    unique: Callable[..., str],
    eventually: Callable[..., Any],
) -> None:
    topic = unique()
    broker = start_broker()
    create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, 5)
    running, begun_in_vain = stream(broker.bootstrap), stream(broker.bootstrap)
    running.start(subscribe=topic)
    eventually(lambda: len(running.rows) == 5, timeout=PATIENCE)
    broker.kill()
    begun_in_vain.start(subscribe=topic)
    for query in (running, begun_in_vain):
        eventually(
            lambda query=query: "refused" in (query.last("unreachable") or ""), timeout=PATIENCE
        )
        assert query.query.isActive
    broker.start()
    produce(broker.bootstrap, topic, 3)
    produce(broker.bootstrap, topic, 4, 1)
    expected = stretch(topic, (0, 0, 8), (1, 0, 4))
    for query in (running, begun_in_vain):
        eventually(lambda query=query: Counter(query.rows) == expected, timeout=PATIENCE)
        eventually(lambda query=query: query.last("unreachable") is None, timeout=PATIENCE)


def test_records_that_were_deleted_are_explained_and_left_out_on_request(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    create(bootstrap, topic, retention_ms="-1")
    produce(bootstrap, topic, 4)
    query = stream()
    query.read_all(subscribe=topic)
    produce(bootstrap, topic, 20)
    with DirectAdmin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 10})
    query.start(subscribe=topic)
    failure = query.failure()
    assert "DataLossError" in failure
    assert "Offsets 4 to 9 of partition 0" in failure
    assert "(6 records) were deleted" in failure
    query.start(subscribe=topic, failOnDataLoss="aged_out=skip,recreated=skip")
    assert "were deleted" in query.failure()
    query.read_all(subscribe=topic, failOnDataLoss="deleted=skip")
    assert Counter(query.rows) == stretch(topic, (0, 0, 4), (0, 10, 24))


def test_records_that_aged_out_are_explained_and_left_out_on_request(
    stream: Callable[..., Stream],
    start_broker: Callable[..., BrokerProcess],
    unique: Callable[..., str],
    eventually: Callable[..., Any],
) -> None:
    topic = unique()
    broker = start_broker(settings={"log.retention.check.interval.ms": "50"})
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 4)
    query = stream(broker.bootstrap)
    query.read_all(subscribe=topic)
    produce(broker.bootstrap, topic, 3)
    alter(broker.bootstrap, topic, retention_ms="1")
    eventually(lambda: log_start(broker.bootstrap, topic) == 7, timeout=PATIENCE)
    alter(broker.bootstrap, topic, retention_ms="3600000")
    produce(broker.bootstrap, topic, 2)
    query.start(subscribe=topic)
    failure = query.failure()
    assert "Offsets 4 to 6 of partition 0" in failure
    assert "(3 records) were removed by retention (aged out)" in failure
    query.read_all(subscribe=topic, failOnDataLoss="false")
    assert Counter(query.rows) == stretch(topic, (0, 0, 4), (0, 7, 9))


def test_a_topic_made_anew_under_a_running_query_is_noticed(
    stream: Callable[..., Stream],
    bootstrap: str,
    unique: Callable[..., str],
    eventually: Callable[..., Any],
) -> None:
    topic = unique()
    create(bootstrap, topic)
    produce(bootstrap, topic, 4)
    strict, lenient = stream(), stream()
    # It does not look before the new one is there: it would say that the old one was deleted.
    strict.go_on.clear()
    strict.start(subscribe=topic)
    lenient.start(subscribe=topic, failOnDataLoss="recreated=rewind,deleted=skip")
    for query in (strict, lenient):
        eventually(lambda query=query: len(query.rows) == 4, timeout=PATIENCE)
    with DirectAdmin(bootstrap) as admin:
        admin.delete_topics([topic])
    create(bootstrap, topic)
    # More records than before: without the id of the topic the first four would be passed over.
    produce(bootstrap, topic, 6)
    strict.go_on.set()
    failure = strict.failure()
    assert "DataLossError" in failure
    assert "which was made anew: its id was" in failure
    expected = stretch(topic, (0, 0, 4), (0, 0, 6))
    eventually(lambda: Counter(lenient.rows) == expected, timeout=PATIENCE)
    lenient.stop()
    strict.read_all(subscribe=topic, failOnDataLoss="recreated=skip")
    produce(bootstrap, topic, 2)
    strict.read_all(subscribe=topic)
    assert Counter(strict.rows) == stretch(topic, (0, 0, 4), (0, 6, 8))
    with DirectAdmin(bootstrap) as admin:
        admin.delete_topics([topic])
    strict.start(subscribe=topic)
    assert "the topic was deleted" in strict.failure()


def test_a_checkpoint_of_another_topic_is_refused(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    one, other = unique(), unique()
    for topic in (one, other):
        create(bootstrap, topic)
        produce(bootstrap, topic, 1)
    query = stream()
    query.read_all(subscribe=one)
    query.start(subscribe=other)
    failure = query.failure()
    assert f"The checkpoint is of topic {one} and subscribe says {other}" in failure
    query.start(subscribe=one, endingOffsets="latest")
    assert "endingOffsets is refused, a stream has no end" in query.failure()


def test_fewer_partitions_over_an_old_checkpoint_are_refused_or_left_out(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    create(bootstrap, topic, 4)
    for partition in range(4):
        produce(bootstrap, topic, 3, partition)
    query = stream()
    query.read_all(subscribe=topic)
    for partition in range(4):
        produce(bootstrap, topic, 2, partition)
    narrow = {"assign": json.dumps({topic: [0, 2]})}
    query.start(**narrow)
    failure = query.failure()
    assert f"leaves out {topic}-1 from offset 3 on, {topic}-3 from offset 3 on" in failure
    assert "set failOnDataLoss to deleted=skip" in failure
    assert len(query.rows) == 12, "nothing was read that the others would be missed beside"
    query.read_all(**narrow, failOnDataLoss="false")
    expected = stretch(topic, (0, 0, 5), (1, 0, 3), (2, 0, 5), (3, 0, 3))
    assert Counter(query.rows) == expected
    # From then on the checkpoint is of those two, and needs no leave.
    produce(bootstrap, topic, 1, 2)
    query.read_all(**narrow)
    assert Counter(query.rows) == expected + stretch(topic, (2, 5, 6))


def test_fewer_topics_over_an_old_checkpoint_are_refused_or_left_out(
    stream: Callable[..., Stream], bootstrap: str, unique: Callable[..., str]
) -> None:
    kept, dropped = unique("kept"), unique("dropped")
    for topic in (kept, dropped):
        create(bootstrap, topic)
        produce(bootstrap, topic, 2)
    query = stream()
    query.read_all(subscribe=f"{kept},{dropped}")
    for topic in (kept, dropped):
        produce(bootstrap, topic, 2)
    query.start(subscribe=kept)
    assert f"which leaves out {dropped}-0 from offset 2 on" in query.failure()
    query.read_all(subscribe=kept, failOnDataLoss="deleted=skip")
    assert Counter(query.rows) == stretch(kept, (0, 0, 4)) + stretch(dropped, (0, 0, 2))
