"""A coordinator's log, loaded in slices of which only the last record of each key is replayed: the
table of keys is the one that every record, replayed one after the other, would have given."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.coordinator.loading import last_of_each_key, replay_log
from ottla.records.batch import batches
from ottla.records.compression import Compression
from ottla.records.reader import iter_records
from ottla.runtime.clock import SystemClock
from ottla.runtime.workers import Workers
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

PRODUCERS = (7, 8)


class Table:
    """A shard that keeps the last value of each key, as that of groups keeps committed offsets."""

    def __init__(self) -> None:
        self.rows: dict[bytes, tuple[int, bytes]] = {}
        self.pending: dict[int, dict[bytes, tuple[int, bytes]]] = {}
        self.replayed: list[int] = []

    def replay(
        self, key: bytes, value: bytes | None, *, offset: int = -1, producer_id: int = -1
    ) -> None:
        self.replayed.append(offset)
        if value is None:
            self.rows.pop(key, None)
            for pending in self.pending.values():
                pending.pop(key, None)
        elif producer_id == -1:
            self.rows[key] = offset, value
        else:
            self.pending.setdefault(producer_id, {})[key] = offset, value

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        for key, row in self.pending.pop(producer_id, {}).items():
            if committed and row[0] > self.rows.get(key, (-1, b""))[0]:
                self.rows[key] = row


class Batch(NamedTuple):
    records: list[tuple[bytes | None, bytes | None]]
    compression: Compression
    producer_id: int


class Marker(NamedTuple):
    producer_id: int
    commit: bool


keys = st.sampled_from([b"a", b"b", b"c", b"d"])
values = st.none() | st.sampled_from([b"1", b"22", b"3" * 40])
plain = st.builds(
    Batch,
    st.lists(st.tuples(st.none() | keys, values), min_size=1, max_size=4),
    st.sampled_from([Compression.NONE, Compression.NONE, Compression.NONE, Compression.GZIP]),
    st.just(-1),
)
of_transactions = st.builds(
    Batch,
    st.lists(st.tuples(keys, values.filter(bool)), min_size=1, max_size=2),
    st.just(Compression.NONE),
    st.sampled_from(PRODUCERS),
)
markers = st.builds(Marker, st.sampled_from(PRODUCERS), st.booleans())


def written(steps: list[Batch | Marker], segment_bytes: int = 700) -> Log:
    # Not compacted, so that records without a key can come in: loading must survive them.
    bench = LogBench(TopicConfig(internal_segment_bytes=segment_bytes))
    log = bench.open()
    sequences = dict.fromkeys(PRODUCERS, 0)
    for step in steps:
        bench.clock.advance(1_000)
        if isinstance(step, Marker):
            bench.end_transaction(log, step.producer_id, commit=step.commit)
        elif step.producer_id == -1:
            bench.put(log, *step.records, compression=step.compression)
        else:
            bench.put(
                log,
                *step.records,
                producer_id=step.producer_id,
                producer_epoch=0,
                sequence=sequences[step.producer_id],
                transactional=True,
            )
            sequences[step.producer_id] += len(step.records)
    return log


def load(log: Log, slice_bytes: int) -> tuple[int, Table]:
    table = Table()

    async def run() -> int:
        workers = Workers()
        try:
            shard: Any = table
            return await replay_log(
                SimpleNamespace(log=log),
                shard,
                slice_bytes=slice_bytes,
                clock=SystemClock(),
                workers=workers,
            )
        finally:
            workers.close()

    return asyncio.run(run()), table


def one_by_one(steps: list[Batch | Marker]) -> Table:
    table, offset = Table(), 0
    for step in steps:
        if isinstance(step, Marker):
            table.end_transaction(step.producer_id, committed=step.commit)
            offset += 1
            continue
        for key, value in step.records:
            if key is not None:
                table.replay(key, value, offset=offset, producer_id=step.producer_id)
            offset += 1
    return table


DELETED_AND_COMMITTED_AGAIN: list[Batch | Marker] = [
    Batch([(b"a", b"1")], Compression.NONE, 7),
    Batch([(b"a", None)], Compression.NONE, -1),
    Batch([(b"a", b"22")], Compression.NONE, -1),
]


@example(DELETED_AND_COMMITTED_AGAIN, 3_000)
@given(st.lists(plain | plain | of_transactions | markers, max_size=30), st.integers(80, 3_000))
def test_loading_gives_what_every_record_would_give(
    steps: list[Batch | Marker], slice_bytes: int
) -> None:
    _, table = load(written(steps), slice_bytes)
    expected = one_by_one(steps)
    assert table.rows == expected.rows
    assert table.pending == expected.pending


@given(st.lists(plain, min_size=1, max_size=20))
def test_of_plain_batches_the_last_record_of_each_key_is_left(steps: list[Batch]) -> None:
    steps = [each._replace(compression=Compression.NONE) for each in steps]
    log = written(list(steps), segment_bytes=1 << 20)
    region = log.read(0, 1 << 20, upper=log.log_end_offset).region
    assert region is not None
    thin, left_out = last_of_each_key(region.read())
    left = [
        (record.key, record.offset)
        for position, header in batches(thin)
        for record in iter_records(memoryview(thin)[position : position + header.size], header)
    ]
    every = [key for step in steps for key, _ in step.records]
    last = {key: offset for offset, key in enumerate(every) if key is not None}
    assert left == sorted(last.items(), key=lambda each: each[1])
    assert left_out == len(every) - len(last)
