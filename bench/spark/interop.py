"""`python -m bench.spark.interop`: Spark's own Kafka connector uses an Ottla broker, unchanged.

Batch, stream, AvailableNow and both ways of writing, each compared with what was sent. The Spark
is the one of the environment, the connector the newest that Maven has.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import maven
from bench.processes import BenchError, wait_port
from bench.spark import topics
from bench.systems import Ottla, new_node
from ottla.pipelines.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader

_PATIENCE = 90.0
_COUNT = 5_000


class Checks:
    """Each method is one check; what it raises is a failure."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder
        self._sent: dict[str, list[tuple[bytes, bytes]]] = {}

    def batch(self) -> None:
        self._fill("batch", 3)
        self._equal("batch", self._read().option("subscribe", "batch").load())

    def batch_by_pattern_with_headers(self) -> None:
        self._fill("pattern-1", 1)
        table = self._read().option("subscribePattern", "pattern-.*")
        found = table.option("includeHeaders", "true").load().select("headers").first()
        assert found is not None
        header = found["headers"][0]
        if (header["key"], bytes(header["value"])) != ("kind", b"sample"):
            raise BenchError(f"the header came as {header}")

    def batch_split_into_tasks(self) -> None:
        self._fill("split", 1)
        table = self._read().option("subscribe", "split").option("minPartitions", "6").load()
        if table.rdd.getNumPartitions() != 6:
            raise BenchError(f"{table.rdd.getNumPartitions()} tasks, not 6")
        self._equal("split", table)

    def batch_between_timestamps(self) -> None:
        self._fill("times", 1)
        stamps = (
            self._read().option("subscribe", "times").load().selectExpr("unix_millis(timestamp)")
        )
        first = min(row[0] for row in stamps.collect())
        table = self._read().option("subscribe", "times").option("startingTimestamp", str(first))
        self._equal("times", table.load())

    def stream(self) -> None:
        self._fill("stream", 2)
        query = (
            self._stream("stream")
            .writeStream.format("memory")
            .queryName("stream")
            .option("checkpointLocation", str(self._folder / "stream"))
            .start()
        )
        try:
            self._until(lambda: self._spark.table("stream").count() == _COUNT, query)
            self._fill("stream", 2)
            self._until(lambda: self._spark.table("stream").count() == 2 * _COUNT, query)
        finally:
            query.stop()
        self._equal("stream", self._spark.table("stream"))

    def available_now_twice(self) -> None:
        """With a limit on each batch; the second run finds only what is new."""
        counts = []
        for _ in range(2):
            self._fill("now", 2)
            rows = 0

            def count(batch: DataFrame, _number: int) -> None:
                nonlocal rows
                rows += batch.count()

            query = (
                self._stream("now", maxOffsetsPerTrigger="1500")
                .writeStream.foreachBatch(count)
                .option("checkpointLocation", str(self._folder / "now"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination(_PATIENCE)
            counts.append(rows)
        if counts != [_COUNT, _COUNT]:
            raise BenchError(f"the runs saw {counts} rows")

    def write_batch(self) -> None:
        topics.create(self._bootstrap, "written", 2)
        rows = self._rows()
        rows.write.format("kafka").options(**self._where()).option("topic", "written").save()
        self._arrived("written", 2)

    def write_stream(self) -> None:
        self._fill("copied", 1)
        topics.create(self._bootstrap, "copy", 2)
        query = (
            self._stream("copied")
            .select("key", "value")
            .writeStream.format("kafka")
            .options(**self._where())
            .option("topic", "copy")
            .option("checkpointLocation", str(self._folder / "copy"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(_PATIENCE)
        self._arrived("copy", 2)

    # -- what they share

    def _where(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap}

    def _read(self) -> DataFrameReader:
        return self._spark.read.format("kafka").options(**self._where())

    def _stream(self, topic: str, **options: str) -> DataFrame:
        reader: DataStreamReader = self._spark.readStream.format("kafka").options(**self._where())
        reader = reader.options(subscribe=topic, startingOffsets="earliest", **options)
        return reader.load()

    def _rows(self) -> DataFrame:
        return self._spark.range(_COUNT).selectExpr(
            "cast(id AS string) AS key", "concat('value ', id) AS value"
        )

    def _fill(self, topic: str, partitions: int) -> None:
        sent = self._sent.setdefault(topic, [])
        if not sent:
            topics.create(self._bootstrap, topic, partitions)
        producer = Producer({"bootstrap.servers": self._bootstrap, "compression.type": "zstd"})
        for number in range(len(sent), len(sent) + _COUNT):
            key, value = b"key %d" % number, b"value %d" % number
            sent.append((key, value))
            producer.produce(topic, value, key, headers={"kind": b"sample"})
            producer.poll(0)
        if producer.flush(_PATIENCE):
            raise BenchError(f"the broker did not take all records of {topic}")

    def _equal(self, topic: str, table: DataFrame) -> None:
        found = sorted((bytes(row.key), bytes(row.value)) for row in table.collect())
        if found != sorted(self._sent[topic]):
            raise BenchError(
                f"{len(found)} rows of {topic} are not the {len(self._sent[topic])} sent"
            )

    def _arrived(self, topic: str, partitions: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "interop"})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        values = set()
        while len(values) < _COUNT:
            message = consumer.poll(_PATIENCE)
            if message is None or message.error():
                raise BenchError(f"only {len(values)} records of {topic} came")
            values.add(message.value())
        consumer.close()
        if values != {b"value %d" % number for number in range(_COUNT)}:
            raise BenchError(f"the values in {topic} are not those written")

    def _until(self, holds: Callable[[], bool], query: object) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            problem = query.exception()
            if problem is not None:
                raise BenchError(str(problem))
            if time.monotonic() > deadline:
                raise BenchError("the stream did not get there")
            time.sleep(0.2)


_CHECKS: tuple[Callable[[Checks], None], ...] = (
    Checks.batch,
    Checks.batch_by_pattern_with_headers,
    Checks.batch_split_into_tasks,
    Checks.batch_between_timestamps,
    Checks.stream,
    Checks.available_now_twice,
    Checks.write_batch,
    Checks.write_stream,
)


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ottla-interop-") as name:
        folder = Path(name)
        libraries = maven.fetch(maven.SPARK_CONNECTOR)
        system, node = Ottla(), new_node(folder / "broker")
        system.prepare(node, {})
        with system.start(node) as broker:
            wait_port(node.port, broker, _PATIENCE)
            spark = spark_session(
                "interop",
                master="local[2]",
                config={
                    "spark.jars": ",".join(map(str, sorted(libraries.folder.glob("*.jar")))),
                    "spark.ui.enabled": "false",
                    "spark.local.dir": str(folder / "local"),
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                },
            )
            spark.sparkContext.setLogLevel("ERROR")
            checks = Checks(spark, node.bootstrap, folder)
            for check in _CHECKS:
                title = f"Spark's connector: {check.__name__.replace('_', ' ')}"
                try:
                    check(checks)
                    print(f"passed  {title}", flush=True)
                except Exception as error:
                    failed += 1
                    print(f"FAILED  {title}: {error}", flush=True)
            spark.stop()
    print(f"Spark's connector on Ottla: {len(_CHECKS) - failed} of {len(_CHECKS)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
