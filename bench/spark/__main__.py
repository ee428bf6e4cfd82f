"""`python -m bench.spark`: Spark's Kafka connector and `format("ottla")` in turns on one broker."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import machine, maven, table
from bench.figures import Outcome, percentile
from bench.load import settings
from bench.processes import BenchError, die_with_parent, wait_port
from bench.spark import topics
from bench.spark.rows import CONNECTOR, FULL, OURS, QUICK, ROWS, TABLES, WRITTEN, Sizes
from bench.systems import Ottla, new_node

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_PATIENCE = 60.0
_PACE = 0.1
_SIDES = ("Spark's connector", "Ottla")
_DOCUMENT = maven.ROOT / "docs" / "performance.md"


class Spark:
    """A driver process; every attribute is one of its commands."""

    def __init__(self, bootstrap: str, folder: Path, jars: str) -> None:
        folder.mkdir()
        self._log = (folder / "spark.err").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.spark.driver", bootstrap, str(folder), jars],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=maven.ROOT,
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock is taken
        )
        self._answer()

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: object) -> Any:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
            self._process.stdin.flush()
            return self._answer()

        return ask

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            said = Path(self._log.name).read_text(errors="replace").splitlines()[-30:]
            raise BenchError("the Spark driver ended:\n" + "\n".join(said))
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


class Comparison:
    """One broker, and the rounds against it."""

    def __init__(self, home: Path, bootstrap: str, sizes: Sizes, rounds: int, wanted: str) -> None:
        self._home = home
        self._bootstrap = bootstrap
        self._sizes = sizes
        self._rounds = rounds
        self._wanted = wanted
        libraries = maven.fetch(maven.SPARK_CONNECTOR)
        self._jars = ",".join(str(jar) for jar in sorted(libraries.folder.glob("*.jar")))
        self.samples: dict[tuple[str, str], list[float]] = {}
        self._drivers = 0

    def run(self) -> None:
        tables = [each for each in TABLES if self._wants(f"read-{each.name}")]
        for each in tables:
            topics.fill(
                self._bootstrap,
                each.name,
                each.partitions,
                each.size,
                each.codec,
                self._count(each.size),
            )
        if self._wants("cold"):
            self._cold()
        with self._spark() as spark:
            for each in tables:
                self._read(spark, each.name, self._count(each.size))
            for each in WRITTEN:
                if self._wants(f"write-{each.name}"):
                    self._write(spark, each.name, each.size, each.partitions, each.codec)
            if self._wants("latency-p50"):
                self._latency(spark)

    @contextmanager
    def _spark(self) -> Iterator[Spark]:
        self._drivers += 1
        spark = Spark(self._bootstrap, self._home / f"spark-{self._drivers}", self._jars)
        try:
            yield spark
        finally:
            spark.close()

    def _wants(self, key: str) -> bool:
        return fnmatchcase(key, self._wanted)

    def _count(self, size: int) -> int:
        return self._sizes.megabytes * 1_000_000 // size

    def _take(self, key: str, side: str, value: float) -> None:
        self.samples.setdefault((key, side), []).append(value)
        print(f"{side:6} {key:22} {table.figure(value)}", flush=True)

    def _cold(self) -> None:
        """A process for each: the first query pays for all that loads.

        Once for each side before it counts: what is loaded, and compiled the first time on a
        machine, is then in memory and on disk for both.
        """
        name = "cold"
        topics.fill(self._bootstrap, name, 1, 100, "none", 10_000)
        for turn in range(-1, self._rounds):
            for side in (CONNECTOR, OURS):
                with self._spark() as spark:
                    found = spark.count(side, name)
                if found["rows"] != 10_000:
                    raise BenchError(f"{side} counted {found['rows']:.0f} rows of 10,000")
                if turn >= 0:
                    self._take("cold", side, found["seconds"])

    def _read(self, spark: Spark, name: str, count: int) -> None:
        sums = {side: spark.checksum(side, name) for side in (CONNECTOR, OURS)}
        if sums[CONNECTOR] != sums[OURS]:
            raise BenchError(f"the checksums of {name} differ: {sums}")
        for _ in range(self._rounds):
            for side in (CONNECTOR, OURS):
                self._take(f"read-{name}", side, count / spark.read(side, name) / 1e6)
        if name.endswith("1p-none"):
            rate = topics.consume(self._bootstrap, name, count)
            print(f"a bare confluent-kafka loop over {name}: {rate / 1e6:.2f} M records/s")

    def _write(self, spark: Spark, name: str, size: int, partitions: int, codec: str) -> None:
        count = self._sizes.written_rows
        spark.prepare(count, size, partitions)
        for turn in range(self._rounds + 1):
            sums = []
            for side in (CONNECTOR, OURS):
                topic = f"written-{name}-{side}-{turn}"
                topics.create(self._bootstrap, topic, partitions)
                seconds = spark.write(side, topic, count, size, partitions, codec)
                if turn:  # the first is for both to warm up
                    self._take(f"write-{name}", side, count / seconds / 1e6)
                found = spark.checksum(OURS, topic)
                sums.append({key: found[key] for key in ("rows", "keys", "values")})
            if sums[0] != sums[1] or sums[0]["rows"] != str(count):
                raise BenchError(f"what was written to {name} differs: {sums}")

    def _latency(self, spark: Spark) -> None:
        for turn in range(self._rounds):
            for side in (CONNECTOR, OURS):
                source, target = f"in-{side}-{turn}", f"out-{side}-{turn}"
                topics.create(self._bootstrap, source, 1)
                topics.create(self._bootstrap, target, 1)
                spark.stream(side, source, target)
                times = sorted(self._pace(source, target))
                spark.stop_stream()
                self._take("latency-p50", side, percentile(times, 0.5) * 1e3)
                self._take("latency-p99", side, percentile(times, 0.99) * 1e3)

    def _pace(self, source: str, target: str) -> list[float]:
        """Seconds from sending a record to seeing it in the other topic, one after another."""
        consumer = Consumer(settings.consumer(self._bootstrap))
        consumer.assign([TopicPartition(target, 0, 0)])
        producer = Producer(settings.prompt_producer(self._bootstrap))
        taken = []
        warm = 5
        for number in range(self._sizes.latency_records + warm):
            begun = time.perf_counter()
            producer.produce(source, b"%d" % number, partition=0)
            producer.flush(_START_PATIENCE)
            message = consumer.poll(_START_PATIENCE)
            if message is None or message.error() or message.value() != b"%d" % number:
                raise BenchError(f"record {number} of {source} did not reach {target}")
            if number >= warm:
                taken.append(time.perf_counter() - begun)
            # Not in step with the micro-batches: the next one comes at any moment of theirs.
            time.sleep(_PACE * (number % 7) / 7)
        consumer.close()
        return taken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", default="*", metavar="GLOB", help="only these rows")
    parser.add_argument("--rounds", type=int, help="alternations")
    parser.add_argument("--quick", action="store_true", help="small sizes, a look, not a claim")
    parser.add_argument("--record", action="store_true", help="write a partial run down, too")
    chosen = parser.parse_args()
    sizes = QUICK if chosen.quick else FULL
    rounds = chosen.rounds or sizes.rounds
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
            home = Path(folder)
            described = machine.describe(home)
            print(described.sentence(), flush=True)
            system = Ottla()
            node = new_node(home / "broker")
            system.prepare(node, {})
            with system.start(node) as broker:
                wait_port(node.port, broker, _START_PATIENCE)
                comparison = Comparison(home, node.bootstrap, sizes, rounds, chosen.rows)
                comparison.run()
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    outcomes = [
        Outcome(
            row,
            tuple(comparison.samples.get((row.key, CONNECTOR), ())),
            tuple(comparison.samples.get((row.key, OURS), ())),
        )
        for row in ROWS
        if fnmatchcase(row.key, chosen.rows)
    ]
    print("\n" + table.text(outcomes, _SIDES))
    if chosen.record or (chosen.rows == "*" and not chosen.quick):
        minutes = (time.monotonic() - started) / 60
        head = f"{rounds} alternating rounds, {minutes:.0f} minutes. {described.sentence()}"
        content = f"{head}\n\n{table.markdown(outcomes, _SIDES)}"
        _DOCUMENT.write_text(table.replace_between(_DOCUMENT.read_text(), "spark", content))
        print(f"written to {_DOCUMENT.relative_to(maven.ROOT)}")
    return 0 if all(outcome.measured for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
