"""`python -m bench.spark.avro`: Avro with Confluent's framing into Spark's columns, with two tasks.

Records of 8 fields and about 100 bytes are written into a topic of two partitions. What is measured
reads them from there or from a parquet file, decodes every record as a pipeline does
(`formats/reading.py`) and throws the columns away. In turns with that, the same is done with each
record by itself, as it is where a schema has arrays or maps. The registry is the one of the test
kit. The first round warms Spark up and does not count. It wants a machine with two cores of its
own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench import machine, maven, table
from bench.processes import cpu_seconds, descendants, wait_port
from bench.spark import topics
from bench.systems import Ottla, new_node
from ottla.pipelines import spark_session
from ottla.pipelines.connectors.formats import columns, writing
from ottla.pipelines.connectors.formats.avro import Avro, FramedReader
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.reading import Reading
from ottla.pipelines.connectors.formats.schema_file import failure_kind
from ottla.testing import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

FLOOR = 200_000
TASKS = 2
TOPIC = "orders"
_DOCUMENT = maven.ROOT / "docs" / "performance.md"
_START_PATIENCE = 60.0
_ROWS = """
    select 1000000000 + id as id, concat('customer-', lpad(id % 100000, 6, '0')) as customer,
      id * 0.25D as amount, cast(id % 100 as int) as quantity,
      concat('sku-', lpad(id % 1000000, 8, '0'), '-abcdefghijkl') as sku, id % 2 = 0 as paid,
      timestamp_millis(1700000000000 + id) as at,
      concat('a note about order ', lpad(id % 10000, 4, '0')) as note
    from range(0, {rows}, 1, {tasks})
"""


class OneByOne(Avro):
    """The same format without the way to read many records at once."""

    __slots__ = ()

    def column(self, data: Column, schema: StructType) -> Column:
        kind = failure_kind(self.evolution)
        return columns.decoded(data, schema, _one_by_one, self.registry, self._reader(schema), kind)


def _one_by_one(*arguments: Any) -> Callable[[bytes], Any]:
    return FramedReader(*arguments).__call__


def prepare(spark: Any, form: Any, folder: Path, bootstrap: str, rows: int) -> None:
    """Records in a file of as many parts as there are tasks, and in as many partitions."""
    frame = spark.sql(_ROWS.format(rows=rows, tasks=TASKS))
    value = writing.encoded_value(form, frame, frame.schema)
    frame.select(value.alias("value")).write.parquet(str(folder))
    written = spark.read.parquet(str(folder))
    size = written.selectExpr("avg(length(value))").collect()[0][0]
    print(f"{rows:,} records of {size:.0f} bytes", flush=True)
    topics.create(bootstrap, TOPIC, TASKS)
    numbered = written.selectExpr("value", "cast(spark_partition_id() as int) as partition")
    given = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC}
    numbered.write.format("ottla").options(**given).mode("append").save()


class Pass(NamedTuple):
    """Rows a second, and seconds of processors for a million rows."""

    rate: float
    cpu: float


def measure(batch: Any, reading: Reading, rows: int) -> Pass:
    """One pass. The processors' time is that of Spark, its Python workers and the broker."""
    used, begin = _used(), time.perf_counter()
    frame = reading.decoded(batch, "value", "_decoded")
    parted = frame.select("_decoded.value.*", frame["_decoded.error"].alias("error"))
    parted.where("error is null").drop("error").write.format("noop").mode("append").save()
    seconds = time.perf_counter() - begin
    return Pass(rows / seconds, (_used() - used) / rows * 1e6)


def _used() -> float:
    found = 0.0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += cpu_seconds(pid)
    return found


def compare(home: Path, bootstrap: str, rows: int, rounds: int) -> dict[tuple[str, str], Pass]:
    """Medians, by where records come from and how they are decoded."""
    found: dict[tuple[str, str], list[Pass]] = {}
    with SchemaRegistry() as registry:
        spark = spark_session(
            "avro",
            master=f"local[{TASKS}]",
            config={"spark.ui.enabled": "false", "spark.local.dir": str(home / "local")},
        )
        spark.sparkContext.setLogLevel("ERROR")
        # One split a file: two files, two tasks, however large the machine.
        spark.conf.set("spark.sql.files.maxPartitionBytes", "4g")
        spark.conf.set("spark.sql.files.openCostInBytes", "4g")
        form = read_format({"avro": {"registry": registry.url}}).bound(TOPIC, "value")
        assert isinstance(form, Avro)
        alone = OneByOne(form.place, form.evolution, form.registry, form.subject, form.name)
        prepare(spark, form, home / "records", bootstrap, rows)
        given = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC}
        batches = {
            "a parquet file": spark.read.parquet(str(home / "records")),
            "a topic": spark.read.format("ottla").options(**given, columns="value").load(),
        }
        readings = {"one by one": Reading(alone), "at once": Reading(form)}
        for reading in readings.values():
            reading.learn([])  # the registry tells, once in a pipeline's life
        for number in range(rounds + 1):
            for name, batch in batches.items():
                for way, reading in readings.items():
                    one = measure(batch, reading, rows)
                    warming = "" if number else " (warming up)"
                    told = f"{one.rate:,.0f} rows/s, {one.cpu:.2f} s of processors for a million"
                    print(f"{name}, {way}: {told}{warming}", flush=True)
                    if number:
                        found.setdefault((name, way), []).append(one)
        spark.stop()
    return {
        key: Pass(median(one.rate for one in passes), median(one.cpu for one in passes))
        for key, passes in found.items()
    }


def markdown(found: dict[tuple[str, str], Pass]) -> str:
    lines = [
        "| figure | unit | one by one | at once | ratio | to reach | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys(name for name, _way in found):
        before, after = found[name, "one by one"], found[name, "at once"]
        verdict = "reached" if after.rate >= FLOOR else "not reached"
        lines += [
            f"| Avro from {name} into columns | M rows/s | {table.figure(before.rate / 1e6)} "
            f"| {table.figure(after.rate / 1e6)} | {after.rate / before.rate:.2f} "
            f"| at once >= {FLOOR / 1e6} | {verdict} |",
            f"| … processor time for a million rows | s | {table.figure(before.cpu)} "
            f"| {table.figure(after.cpu)} | {after.cpu / before.cpu:.2f} | | |",
        ]
    return "\n".join(lines)


def main() -> int:
    """The medians of the rounds, and whether they are enough."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.avro", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="write it into docs/performance.md")
    chosen = parser.parse_args()
    # Leaving by SystemExit lets every context end the processes it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        home = Path(folder)
        described = machine.describe(home)
        system, node = Ottla(), new_node(home / "broker")
        system.prepare(node, {})
        with system.start(node) as broker:
            wait_port(node.port, broker, _START_PATIENCE)
            found = compare(home, node.bootstrap, chosen.rows, chosen.rounds)
    text = markdown(found)
    print(text)
    if chosen.record:
        head = f"{chosen.rows:,} records, {chosen.rounds} rounds. {described.sentence()}"
        content = f"{head}\n\n{text}"
        _DOCUMENT.write_text(table.replace_between(_DOCUMENT.read_text(), "avro", content))
        print(f"written to {_DOCUMENT.relative_to(maven.ROOT)}")
    return 0 if all(found[key].rate >= FLOOR for key in found if key[1] == "at once") else 1


if __name__ == "__main__":
    sys.exit(main())
