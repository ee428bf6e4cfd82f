"""Every row of the table with the ratio to reach, in the order of the table."""

from __future__ import annotations

from dataclasses import dataclass

from bench.commands import COMMANDS
from bench.figures import Better, Part, Row

_UP, _DOWN = Better.HIGHER, Better.LOWER
_RECORDS, _MB, _REQUESTS = "M records/s", "MB/s", "requests/s"

_BROKER_ROWS = (
    Row("produce-100b-1p", "produce 100 B, acks=1, one partition", _RECORDS, _UP, 1.1),
    Row("produce-100b-16p", "produce 100 B, acks=1, 16 partitions", _RECORDS, _UP, 1.1),
    Row("produce-1k-1p", "produce 1 KB, acks=1, one partition", _MB, _UP, 1.1),
    Row("produce-1k-16p", "produce 1 KB, acks=1, 16 partitions", _MB, _UP, 1.1),
    Row("produce-compact", "produce 100 B to a compacted topic", _RECORDS, _UP, 1.0),
    Row("produce-compact-zstd", "… with zstd", _RECORDS, _UP, 1.0),
    Row("produce-recent", "produce 100 B where old timestamps are refused", _RECORDS, _UP, 1.0),
    Row("produce-own-codec", "produce 100 B to a topic with its own codec", _RECORDS, _UP, 1.0),
    Row("consume-100b", "consume 100 B", _RECORDS, _UP, 0.95),
    Row("consume-1k", "consume 1 KB", _MB, _UP, 0.95),
    Row("java-produce-100b", "produce 100 B with the Java client", _RECORDS, _UP, None),
    Row("requests-1", "one-record requests, one in flight", _REQUESTS, _UP, 1.5),
    Row("requests-64", "… on 64 connections", _REQUESTS, _UP, 1.0),
    Row("requests-64-raw", "… on 64 bare sockets (no client library)", _REQUESTS, _UP, None),
    Row("latency-p50", "end to end at 1,000/s, p50", "ms", _DOWN, 0.8),
    Row("latency-p99", "end to end at 1,000/s, p99", "ms", _DOWN, 0.7),
    Row("latency-p999", "end to end at 1,000/s, p99.9", "ms", _DOWN, 0.7),
    Row("start", "process start to first acknowledged record", "s", _DOWN, 0.15),
    Row("memory-fresh", "resident memory, fresh", "MB", _DOWN, 0.15),
    Row("memory-loaded", "resident memory, after the load", "MB", _DOWN, 0.15),
    Row("cold-produce-p99", "produce p99 during a read of evicted data", "ms", _DOWN, 1.0),
    Row("cold-consume-p99", "tail-consume p99 during a read of evicted data", "ms", _DOWN, 1.0),
    Row(
        "partitions-2000", "produce rate kept with 2,000 partitions", "of the plain rate", _UP, 1.0
    ),
    Row(
        "idle-1000", "produce rate kept with 1,000 idle connections", "of the plain rate", _UP, 1.0
    ),
    Row("cpu-produce", "broker CPU per GB produced (1 KB)", "s", _DOWN, 1.0),
    Row("cpu-consume", "broker CPU per GB consumed (1 KB)", "s", _DOWN, 1.0),
    Row("cli-list", "listing topics from the command line", "s", _DOWN, 0.5),
)


def _group_rows(protocol: str) -> tuple[Row, ...]:
    def row(key: str, title: str, target: float | None = 1.0) -> Row:
        title = f"{title}, {protocol} protocol"
        return Row(f"group-{key}-{protocol}", title, "ms", _DOWN, target, Part.GROUPS)

    return (
        row("first-record", "subscribe to first record, new group"),
        row("rebalance", "a fifth member joins four (librdkafka)"),
        row("large", "a 500th member joins, 1,000 partitions"),
        row("one", "a third member joins one of 1,000 groups"),
        row("many", "a third member joins all 1,000 groups at once"),
        Row(
            f"group-heartbeats-{protocol}",
            f"broker CPU, heartbeats of 3,000 members, {protocol} protocol",
            "cores",
            _DOWN,
            None,
            Part.GROUPS,
            limit=0.1,
        ),
    )


ROWS: tuple[Row, ...] = (
    *_BROKER_ROWS,
    *_group_rows("classic"),
    *_group_rows("consumer"),
    Row("group-commits-1", "offset commits, one in flight", "commits/s", _UP, 1.0, Part.GROUPS),
    Row("group-commits-16", "… on 16 connections", "commits/s", _UP, 1.0, Part.GROUPS),
    *(Row(it.key, it.title, "s", _DOWN, 0.5, Part.COMMANDS) for it in COMMANDS),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything one session does."""

    small_records: int
    large_records: int
    loss_records: int
    java_records: int
    repeats: int
    request_seconds: float
    latency_seconds: float
    latency_rate: int
    cold_bytes: int
    cold_record_bytes: int
    many_partitions: int
    idle_connections: int
    warm_records: int
    warm_seconds: float
    group_repeats: int
    large_group: int
    large_partitions: int
    many_groups: int
    heartbeat_seconds: float
    command_runs: int


FULL = Sizes(
    small_records=3_000_000,
    large_records=600_000,
    loss_records=2_000_000,
    java_records=1_000_000,
    repeats=2,
    request_seconds=3.0,
    latency_seconds=15.0,
    latency_rate=1_000,
    cold_bytes=5_000_000_000,
    cold_record_bytes=10_000,
    many_partitions=2_000,
    idle_connections=1_000,
    warm_records=2_000_000,
    warm_seconds=3.0,
    group_repeats=5,
    large_group=500,
    large_partitions=1_000,
    many_groups=1_000,
    heartbeat_seconds=15.0,
    command_runs=2,
)
QUICK = Sizes(
    small_records=500_000,
    large_records=100_000,
    loss_records=300_000,
    java_records=200_000,
    repeats=1,
    request_seconds=1.0,
    latency_seconds=4.0,
    latency_rate=1_000,
    cold_bytes=300_000_000,
    cold_record_bytes=10_000,
    many_partitions=200,
    idle_connections=200,
    warm_records=300_000,
    warm_seconds=1.0,
    group_repeats=3,
    large_group=100,
    large_partitions=200,
    many_groups=100,
    heartbeat_seconds=3.0,
    command_runs=1,
)
