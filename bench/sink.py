"""`python -m bench.sink`: the same rows through Spark's sink, `ottla.Producer` and confluent-kafka.

Without Spark: Arrow batches as Spark hands them to a task, in one process, the sides in turns on
one broker. What is compared is the processor time of that process for each record (the broker has
its own), and records a second. Everybody waits for acks=all, idempotent, with batches of up to a
megabyte. The figures of decision 21 are from here.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pyarrow as pa

import ottla
from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.pipelines.sink.options import WriteOptions
from ottla.pipelines.sink.writer import write_rows
from ottla.testing.process import BrokerProcess

TOPIC = "rows"
PARTITIONS = 6
ROWS_PER_BATCH = 10_000
BATCH_BYTES = 1_000_000


def arrow_batches(count: int, size: int) -> list[pa.RecordBatch]:
    """Rows with a key of their own and a value of `size` bytes."""
    return [
        pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"%08d" % n for n in range(first, first + ROWS_PER_BATCH)]),
                "value": pa.array([b"x" * size] * ROWS_PER_BATCH, pa.binary()),
            }
        )
        for first in range(0, count, ROWS_PER_BATCH)
    ]


def rows(batches: list[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes]]:
    for batch in batches:
        yield from zip(
            batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
        )


def through_the_sink(bootstrap: str, batches: list[pa.RecordBatch]) -> None:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": TOPIC,
        "kafka.batch.size": str(BATCH_BYTES),
    }
    write_rows(iter(batches), WriteOptions.parse(options))


def through_ottla_producer(bootstrap: str, batches: list[pa.RecordBatch]) -> None:
    config = {"batch.size": BATCH_BYTES, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    with ottla.Producer(bootstrap, config=config) as producer:
        for key, value in rows(batches):
            producer.post(TOPIC, value, key=key)


def through_confluent_kafka(bootstrap: str, batches: list[pa.RecordBatch]) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "batch.size": BATCH_BYTES,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, (key, value) in enumerate(rows(batches)):
        while True:
            try:
                producer.produce(TOPIC, value, key)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


SIDES: dict[str, Callable[[str, list[pa.RecordBatch]], None]] = {
    "the sink": through_the_sink,
    "ottla.Producer": through_ottla_producer,
    "confluent-kafka": through_confluent_kafka,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    batches = arrow_batches(given.rows, given.size)
    count = sum(batch.num_rows for batch in batches)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder)) as broker,
    ):
        broker.start()
        with DirectAdmin(broker.bootstrap) as admin:
            admin.create_topic(NewTopic(TOPIC, PARTITIONS, 1))
        for _ in range(given.rounds + 1):  # the first round warms up
            for name, write in SIDES.items():
                began, cpu = time.perf_counter(), time.process_time()
                write(broker.bootstrap, batches)
                spent[name].append((time.process_time() - cpu, time.perf_counter() - began))
    print(f"{count:,} rows of {given.size} bytes, {given.rounds} rounds; medians")
    for name, figures in spent.items():
        cpu, wall = (statistics.median(column) for column in zip(*figures[1:], strict=True))
        print(f"{name:16} {1e6 * cpu / count:8.2f} us CPU a record {count / wall:12,.0f} records/s")


if __name__ == "__main__":
    main()
