"""A compacted log with transactions, as a consumer of committed records sees it, against a list.

Producers write, in transactions and without, commit and abort; the log is rolled, cleaned with maps
that are too small, killed, stopped, and copied as a follower or a move to another folder would.
After each step, wherever a consumer begins, and however little it fetches at a time:

- it gets records that were written and are committed, unchanged, in order, each once;
- for each key the last of them is there, but for tombstones;
- nobody waits for a transaction that has ended.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.records.batch import batches
from ottla.records.compression import Compression
from ottla.records.control import read_end_marker
from ottla.records.reader import iter_records
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

Found = tuple[int, bytes | None, bytes | None]

STEPS = 60
PLAIN, IDEMPOTENT, TRANSACTIONAL = -1, 1, (2, 3)


def config(rng: random.Random) -> TopicConfig:
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        internal_segment_bytes=rng.choice([200, 400, 1000, 5000]),
        index_interval_bytes=rng.choice([1, 100, 1000]),
        delete_retention_ms=rng.choice([0, 10, 50]),
    )


def consumed(log: Log, offset: int, max_bytes: int) -> Iterator[Found]:
    """What a consumer of committed records gets from `offset` on, by the rules of Kafka's."""
    stable = log.last_stable_offset(log.log_end_offset)
    while offset < stable:
        result = log.read(offset, max_bytes, upper=stable)
        if result.region is None:
            return
        found = log.aborted_transactions(offset, log.end_of(result))
        waiting = sorted((txn.first_offset, txn.producer_id) for txn in found)
        aborted: set[int] = set()
        data = result.region.read()
        first = offset
        for position, header in batches(data):
            batch = data[position : position + header.size]
            while waiting and waiting[0][0] <= header.last_offset:
                aborted.add(waiting.pop(0)[1])
            if header.is_control:
                marker = read_end_marker(batch, header) if header.record_count else None
                if marker is not None and marker.aborted:
                    aborted.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborted:
                for record in iter_records(batch, header):
                    if record.offset >= first:
                        yield record.offset, record.key, record.value
            offset = header.next_offset
        assert offset > first


@dataclass
class Model:
    """What was written, and what became of it."""

    committed: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    open: dict[int, dict[int, tuple[bytes, bytes | None]]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def state(self, stable: int) -> dict[bytes | None, tuple[int, bytes]]:
        below = ((at, key, value) for at, (key, value) in self.committed.items() if at < stable)
        return last_values(sorted(below, key=lambda each: each[0]))


def last_values(found: list[Found]) -> dict[bytes | None, tuple[int, bytes]]:
    last = {key: (offset, value) for offset, key, value in found}
    return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}


class Life:
    """A log and what is done to it, by chance."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bench = LogBench(config(rng))
        self.log = self.bench.open()
        self.model = Model()

    def put(self) -> None:
        rng, model = self.rng, self.model
        producer = rng.choice([PLAIN, PLAIN, IDEMPOTENT, *TRANSACTIONAL])
        records = [
            (b"k%d" % rng.randrange(5), rng.choice([None, b"%d" % rng.randrange(1000), b"v", b"w"]))
            for _ in range(rng.randrange(1, 4))
        ]
        sequence = model.sequences.get(producer, 0)
        info = self.bench.put(
            self.log,
            *records,
            compression=rng.choice([Compression.NONE, Compression.NONE, Compression.LZ4]),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            sequence=sequence if producer >= 0 else -1,
            transactional=producer in TRANSACTIONAL,
        )
        assert not info.duplicate
        model.sequences[producer] = sequence + len(records)
        placed = dict(enumerate(records, info.base_offset))
        known = model.committed
        if producer in TRANSACTIONAL:
            known = model.open.setdefault(producer, {})
        known.update(placed)

    def end(self) -> None:
        if not self.model.open:
            return
        producer = self.rng.choice(sorted(self.model.open))
        commit = self.rng.random() < 0.5
        self.bench.end_transaction(self.log, producer, commit=commit)
        ended = self.model.open.pop(producer)
        if commit:
            self.model.committed.update(ended)

    def roll(self) -> None:
        self.log.roll()

    def clean(self) -> None:
        self.bench.clean(self.log, map_bytes=self.rng.choice([24 * 2, 24 * 4, 1 << 16]))

    def wait(self) -> None:
        self.bench.clock.advance(self.rng.choice([1, 20, 100]))

    def kill(self) -> None:
        known = self.rng.choice([None, self.log.compaction.cleaned_to])
        point = self.rng.choice([0, self.log.recovery_point])
        self.bench = self.bench.killed()
        self.log = self.bench.open(recovery_point=point)
        self.log.compaction.cleaned_to = known

    def stop(self) -> None:
        known, end = self.log.compaction.cleaned_to, self.log.log_end_offset
        self.bench.close(self.log)
        self.log = self.bench.open(clean=True, recovery_point=end)
        self.log.compaction.cleaned_to = known

    def copy(self) -> None:
        """To another disk, with segments of another size; go on there."""
        other = LogBench(config(self.rng), clock=self.bench.clock)
        copy, end = other.open(), self.log.log_end_offset
        while region := self.log.read(copy.log_end_offset, 500, upper=end).region:
            copy.append_replicated(memoryview(region.read()), leader_epoch=0)
        copy.compaction.cleaned_to = self.log.compaction.cleaned_to
        self.bench, self.log = other, copy

    def check(self) -> None:
        log, model, rng = self.log, self.model, self.rng
        stable = log.last_stable_offset(log.log_end_offset)
        assert stable == min([log.log_end_offset, *map(min, model.open.values())])
        everything = list(consumed(log, 0, rng.choice([80, 300, 100_000])))
        assert [offset for offset, *_ in everything] == sorted({each[0] for each in everything})
        for offset, *record in everything:
            assert model.committed.get(offset) == tuple(record)
        assert last_values(everything) == model.state(stable)
        start = rng.randrange(log.log_end_offset + 1)
        later = list(consumed(log, start, rng.choice([80, 300, 100_000])))
        assert later == [each for each in everything if each[0] >= start]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_a_consumer_sees_the_last_committed_value_of_each_key(seed: int) -> None:
    rng = random.Random(seed)
    life = Life(rng)
    actions = [life.put] * 10 + [life.end] * 4 + [life.roll] * 2 + [life.clean] * 4
    actions += [life.wait, life.kill, life.stop, life.copy]
    for _ in range(STEPS):
        rng.choice(actions)()
        life.check()
