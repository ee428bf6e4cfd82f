"""Every row of the table with the ratio to reach, in the order of the table."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.commands import COMMANDS
from bench.figures import Better, Part, Row
from bench.split import GROUPS, KEPT, PROCESSES, kept_key, key_of
from bench.walked import WALKED

_UP, _DOWN = Better.HIGHER, Better.LOWER
Rows = tuple[Row, ...]
_RECORDS, _MB, _REQUESTS = "M records/s", "MB/s", "requests/s"

_BROKER_ROWS = (
    Row("produce-100b-1p", "produce 100 B, acks=1, one partition", _RECORDS, _UP, 1.1),
    Row("produce-100b-16p", "produce 100 B, acks=1, 16 partitions", _RECORDS, _UP, 1.1),
    Row("produce-1k-1p", "produce 1 KB, acks=1, one partition", _MB, _UP, 1.1),
    Row("produce-1k-16p", "produce 1 KB, acks=1, 16 partitions", _MB, _UP, 1.1),
    Row("consume-100b", "consume 100 B", _RECORDS, _UP, 0.95),
    Row("consume-1k", "consume 1 KB", _MB, _UP, 0.95),
    Row("java-produce-100b", "produce 100 B with the Java client", _RECORDS, _UP, None),
    Row("requests-1", "one-record requests, one in flight", _REQUESTS, _UP, 1.5),
    Row("requests-64", "… on 64 connections", _REQUESTS, _UP, 1.0),
    Row("requests-64-raw", "… on 64 bare sockets (no client library)", _REQUESTS, _UP, None),
    Row("cpu-requests-64-raw", "… broker CPU a request", "µs", _DOWN, 0.8),
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


_GROWTH_KEPT = (0.15, 0.15, 0.15, 0.15)
_COMPACTION_ROWS = (
    Row("compaction-time", "compaction of 5 GB beside a full produce load", "s", _DOWN, 1.5),
    Row("compaction-kept", "produce rate kept beside it", "of the plain rate", _UP, 1.0),
    Row("compaction-produce", "… as a rate, 100 B", _RECORDS, _UP, None),
    Row("compaction-p99", "end to end at 1,000/s beside a compaction, p99", "ms", _DOWN, 1.0),
    Row("compaction-time-paced", "… how long it takes then", "s", _DOWN, None),
)
_OFFSETS_ROWS = (
    Row("offsets-load", "start until 10,000 groups answer, 4 million commits", "s", _DOWN, None),
    Row("offsets-load-compacted", "… after a compaction", "s", _DOWN, None),
)
_CLUSTER_ROWS = (
    Row("cluster-produce-100b", "produce 100 B, one partition", _RECORDS, _UP, 1.0),
    Row("cluster-produce-1k", "produce 1 KB, one partition", _MB, _UP, 1.0),
    Row("cluster-cpu-produce", "… CPU of the whole cluster per GB", "s", _DOWN, None),
    Row("cluster-requests-1", "one-record requests, one in flight", _REQUESTS, _UP, 1.5),
    Row("cluster-requests-64", "… on 64 connections", _REQUESTS, _UP, 1.0),
    Row("cluster-cpu-requests-64", "… CPU of the whole cluster a request", "µs", _DOWN, None),
    Row("cluster-latency-p50", "end to end at 1,000/s, p50", "ms", _DOWN, 1.0),
    Row("cluster-latency-p99", "end to end at 1,000/s, p99", "ms", _DOWN, 1.0),
    Row("cluster-memory", "resident memory of each broker, after the load", "MB", _DOWN, 0.2),
    Row("cluster-catch-up", "a follower that was down catches up", "s", _DOWN, 1.0),
    Row("cluster-pause-leader", "longest pause, leader killed with -9", "s", _DOWN, 0.25),
    Row("cluster-pause-controller", "longest pause, controller killed with -9", "s", _DOWN, 0.25),
    Row("cluster-start", "from nothing to the first replicated record", "s", _DOWN, 0.6),
    Row("cluster-start-lent", "… with the lent store, no ZooKeeper", "s", _DOWN, None),
)


def _transaction_rows(key: str, part: Part) -> Rows:
    whose = "the broker's CPU" if part is Part.TRANSACTIONS else "CPU of the whole cluster"
    rows = (
        Row("1", "transactions of one record", "transactions/s", _UP, 1.0),
        Row("cpu", f"… {whose} for one", "µs", _DOWN, None),
        Row("100", "transactions of 100 records", "transactions/s", _UP, 1.0),
        Row("produce", "produce 100 B in transactions of 10,000", _RECORDS, _UP, 1.0),
        Row("latency-p50", "end to end, `read_committed`, p50", "ms", _DOWN, 1.0),
        Row("latency-p99", "end to end, `read_committed`, p99", "ms", _DOWN, 1.0),
        Row("transform", "consume, transform, produce, 500 at a time", "k records/s", _UP, 1.0),
    )
    return tuple(replace(row, key=f"{key}-{row.key}", part=part) for row in rows)


def _split_rows() -> Rows:
    """What some processes serve, and what that costs compared with one."""
    requests = ("one-record requests on 64 bare sockets", _REQUESTS, "100,000 requests")
    commits = ("offset commits on 16 connections", "commits/s", "100,000 commits")
    rows = []
    for figure, (title, unit, many) in zip(KEPT, (requests, commits), strict=True):
        for count in PROCESSES:
            named = "one process" if count == 1 else f"`--processes {count}`"
            rows += [
                Row(key_of(count, figure), f"{title}, {named}", unit, _UP, None),
                Row(key_of(count, f"cpu-{figure}"), f"… broker CPU for {many}", "s", _DOWN, None),
            ]
        kept = f"… CPU with two processes for {many}"
        rows.append(Row(kept_key(figure), kept, "of one process", _DOWN, None, limit=1.1))
    for figure in GROUPS:
        protocol = figure.removeprefix("groups-")
        title = f"a third member joins all 1,000 groups at once, {protocol} protocol"
        for count in PROCESSES:
            named = "one process" if count == 1 else f"`--processes {count}`"
            rows.append(Row(key_of(count, figure), f"{title}, {named}", "ms", _DOWN, None))
    return tuple(replace(row, part=Part.PROCESSES) for row in rows)


def _growth_rows(key: str, partitions: int, part: Part, targets: tuple[float | None, ...]) -> Rows:
    first, memory, stopped, killed = targets
    count = f"{partitions:,} partitions"
    return (
        Row(f"{key}-first", f"create {count}, a record into each", "s", _DOWN, first, part),
        Row(f"{key}-memory", f"resident memory, {count}", "MB", _DOWN, memory, part),
        Row(f"{key}-stopped", f"start after a clean stop, {count}", "s", _DOWN, stopped, part),
        Row(f"{key}-killed", f"start after kill -9, {count}", "s", _DOWN, killed, part),
    )


def large_growth_rows(partitions: int) -> Rows:
    """What is shown of a broker with so many partitions."""
    return _growth_rows("growth-20k", partitions, Part.LARGE_GROWTH, (None,) * 4)


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
    *(Row(each.key, each.title, _RECORDS, _UP, 1.0, Part.RECORDS) for each in WALKED),
    *(replace(row, part=Part.COMPACTION) for row in _COMPACTION_ROWS),
    *_growth_rows("growth-5k", 5_000, Part.GROWTH, _GROWTH_KEPT),
    *large_growth_rows(20_000),
    *_group_rows("classic"),
    *_group_rows("consumer"),
    Row("group-commits-1", "offset commits, one in flight", "commits/s", _UP, 1.0, Part.GROUPS),
    Row("group-commits-16", "… on 16 connections", "commits/s", _UP, 1.0, Part.GROUPS),
    Row("cpu-commits-16", "… broker CPU a commit", "µs", _DOWN, None, Part.GROUPS),
    *(replace(row, part=Part.OFFSETS) for row in _OFFSETS_ROWS),
    *_transaction_rows("txn", Part.TRANSACTIONS),
    *(Row(each.key, each.title, "s", _DOWN, 0.5, Part.COMMANDS) for each in COMMANDS),
    *(replace(row, part=Part.CLUSTER) for row in _CLUSTER_ROWS),
    *_transaction_rows("cluster-txn", Part.CLUSTER_TRANSACTIONS),
    *_split_rows(),
)


def rows_for(sizes: Sizes) -> Rows:
    """All rows, in whose titles the number of partitions is the one that was asked for."""
    large = {row.key: row for row in large_growth_rows(sizes.large_growth_partitions)}
    return tuple(large.get(row.key, row) for row in ROWS)


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
    crowd_warm_seconds: float
    walked_records: int
    growth_partitions: int
    large_growth_partitions: int
    compacted_bytes: int
    flood_seconds: float
    restarted_groups: int
    restarted_commits: int
    catch_up_bytes: int
    pause_seconds: float
    transaction_records: int


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
    crowd_warm_seconds=6.0,
    walked_records=2_000_000,
    growth_partitions=5_000,
    large_growth_partitions=20_000,
    compacted_bytes=5_040_000_000,
    flood_seconds=10.0,
    restarted_groups=10_000,
    restarted_commits=40,
    catch_up_bytes=2_000_000_000,
    pause_seconds=15.0,
    transaction_records=1_000_000,
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
    crowd_warm_seconds=2.0,
    walked_records=300_000,
    growth_partitions=500,
    large_growth_partitions=2_000,
    compacted_bytes=250_000_000,
    flood_seconds=3.0,
    restarted_groups=1_000,
    restarted_commits=150,
    catch_up_bytes=100_000_000,
    pause_seconds=12.0,
    transaction_records=200_000,
)
