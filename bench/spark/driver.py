"""The Spark side, a process of its own: takes one command a line, answers one line of JSON.

    python -m bench.spark.driver BOOTSTRAP FOLDER JARS

Both formats run in this one session, so they share its JVM, its warmth and its settings.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipelines.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHECKSUM = (
    "count(*) AS rows",
    "sum(cast(crc32(value) AS decimal(30, 0))) AS values",
    "sum(cast(crc32(key) AS decimal(30, 0))) AS keys",
    "sum(offset) AS offsets",
    "sum(unix_millis(timestamp)) AS timestamps",
)


class Driver:
    """One session and what can be measured in it."""

    def __init__(self, bootstrap: str, folder: Path, jars: str) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        started = time.perf_counter()
        self._spark: SparkSession = spark_session(
            "bench",
            master="local[2]",
            config={
                "spark.jars": jars,
                "spark.ui.enabled": "false",
                "spark.driver.memory": "3g",
                "spark.sql.shuffle.partitions": "2",
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            },
        )
        self._spark.sparkContext.setLogLevel("ERROR")
        self._session_seconds = time.perf_counter() - started
        self._rows: dict[str, DataFrame] = {}
        self._query: Any = None

    def started(self) -> float:
        """Seconds that the session took to start."""
        return self._session_seconds

    def _table(self, form: str, topic: str) -> DataFrame:
        reader = self._spark.read.format(form).option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", topic).load()

    def read(self, form: str, topic: str) -> float:
        """Seconds for the whole topic into a sink that does nothing."""
        started = time.perf_counter()
        self._table(form, topic).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def count(self, form: str, topic: str) -> dict[str, float]:
        """A first query as people type it."""
        started = time.perf_counter()
        rows = self._table(form, topic).count()
        return {"rows": rows, "seconds": time.perf_counter() - started}

    def checksum(self, form: str, topic: str) -> dict[str, str]:
        """What is in the topic, by columns that both formats have."""
        row = self._table(form, topic).selectExpr(*_CHECKSUM).first()
        assert row is not None
        return {key: str(value) for key, value in row.asDict().items()}

    def prepare(self, count: int, size: int, partitions: int) -> int:
        """Rows to write, kept in memory, so that making them is not measured."""
        name = f"{count}-{size}-{partitions}"
        if name not in self._rows:
            text = f"cast(rpad(sha2(cast(id AS string), 512), {size}, 'row ') AS binary)"
            rows = self._spark.range(0, count, 1, partitions).selectExpr(
                "cast(concat('key-', id % 100000) AS binary) AS key", f"{text} AS value"
            )
            self._rows[name] = rows.cache()
        return self._rows[name].count()

    def write(
        self, form: str, topic: str, count: int, size: int, partitions: int, codec: str
    ) -> float:
        """Seconds to write the rows that were prepared."""
        rows = self._rows[f"{count}-{size}-{partitions}"]
        started = time.perf_counter()
        (
            rows.write.format(form)
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("kafka.acks", "1")
            .option("kafka.compression.type", codec)
            .option("topic", topic)
            .mode("append")
            .save()
        )
        return time.perf_counter() - started

    def stream(self, form: str, source: str, target: str) -> bool:
        """Start copying one topic into another, as fast as micro-batches follow one another."""
        stream = (
            self._spark.readStream.format(form)
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        self._query = (
            stream.select("key", "value")
            .writeStream.format(form)
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(self._folder / f"checkpoint-{target}"))
            .start()
        )
        return True

    def stop_stream(self) -> bool:
        problem = self._query.exception()
        if problem is not None:
            raise problem
        self._query.stop()
        return True


def main() -> int:
    bootstrap, folder, jars = sys.argv[1:]
    driver = Driver(bootstrap, Path(folder), jars)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(driver, name)(*arguments)), flush=True)
    driver._spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
