"""The rows of the comparison with Spark's connector, and how large a run is."""

from __future__ import annotations

from dataclasses import dataclass

from bench.figures import Better, Row

CONNECTOR, OURS = "kafka", "ottla"
"""The two formats, in the order in which a round takes them."""


@dataclass(frozen=True, slots=True)
class Table:
    """A topic to read: how large its records are, over how many partitions, how compressed."""

    size: int
    partitions: int
    codec: str

    @property
    def name(self) -> str:
        return f"{self.size}b-{self.partitions}p-{self.codec}"

    @property
    def title(self) -> str:
        size = "1 KB" if self.size == 1000 else f"{self.size} B"
        spread = "one partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"{size}, {spread}, {'plain' if self.codec == 'none' else self.codec}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is read and written; `megabytes` is what a topic holds."""

    megabytes: int
    written_rows: int
    latency_records: int
    rounds: int


FULL = Sizes(megabytes=300, written_rows=1_000_000, latency_records=150, rounds=3)
QUICK = Sizes(megabytes=40, written_rows=100_000, latency_records=30, rounds=1)

TABLES = tuple(
    Table(size, partitions, codec)
    for size in (100, 1000)
    for partitions in (1, 4)
    for codec in ("none", "zstd")
)
WRITTEN = (Table(100, 1, "none"), Table(100, 4, "none"), Table(1000, 4, "zstd"))

ROWS = (
    *(
        Row(f"read-{each.name}", f"batch read, {each.title}", "M rows/s", Better.HIGHER, 1.5)
        for each in TABLES
    ),
    *(
        Row(f"write-{each.name}", f"batch write, {each.title}", "M rows/s", Better.HIGHER, 1.0)
        for each in WRITTEN
    ),
    Row("latency-p50", "topic to topic, micro-batches, p50", "ms", Better.LOWER, 1.0),
    Row("latency-p99", "topic to topic, micro-batches, p99", "ms", Better.LOWER, None),
    Row("cold", "first query of a fresh session", "s", Better.LOWER, 1.0),
)
