"""A follower's log in its data folder, killed at any write to the disk, and opened again.

The script is a follower's life: batches as leaders wrote them, with gaps, idempotent producers and
transactions; new leaders, for whom the log's end is cut off or all of it is dropped; elections of
this broker itself. It is run once to count its operations on the disk, then again for each of them,
dying there. The model is a list of batches. Whatever is found afterwards must be the list up to
some batch: nothing missing in between, nothing that was truncated in front of what came instead.
And all that is derived from batches must fit those that are there: leader epochs, aborted
transactions, producers, the last stable offset.

Two deaths: kill -9, and a power cut where each batch was flushed before the next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId
from ottla.records.batch import BatchHeader, read_header, set_offset_and_epoch
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, end_marker, read_end_marker
from ottla.storage.log import Log
from ottla.storage.producers import ProducerState, ProducerStates
from ottla.testing.crashes import dying_runs
from ottla.testing.logs import PARTITION, FolderBench

pytestmark = pytest.mark.usefixtures("silence")
EPOCHS = range(-1, 30)
TOPIC = TopicId(bytes(15) + b"\1")

Step = tuple[str, int, int]
fetch = st.tuples(st.just("fetch"), st.integers(1, 5), st.integers(0, 80))
steps = st.one_of(
    fetch,
    fetch,
    fetch,
    st.tuples(st.just("truncate"), st.just(0), st.integers(0, 100)),
    st.tuples(st.just("truncate"), st.just(0), st.integers(0, 100)),
    st.tuples(st.just("restart"), st.just(0), st.integers(0, 200)),
    st.tuples(st.just("elected"), st.just(0), st.just(0)),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
    st.tuples(st.just("idle"), st.just(0), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0), st.integers(0, 1)),
)
# The order that does the most harm: a recovery point above the cut, and new records behind it.
phrases = st.sampled_from(
    [
        [("fetch", 5, 40), ("flush", 0, 0), ("checkpoint", 0, 0), ("truncate", 0, 40)],
        [("fetch", 5, 40), ("roll", 0, 0), ("truncate", 0, 60), ("fetch", 5, 40), ("flush", 0, 0)],
        [("fetch", 4, 10), ("flush", 0, 0), ("checkpoint", 0, 0), ("restart", 0, 10)],
    ]
)
scripts = st.lists(
    st.one_of(steps.map(lambda step: [step]), steps.map(lambda step: [step]), phrases),
    min_size=1,
    max_size=7,
).map(lambda parts: [step for part in parts for step in part])
configs = st.builds(
    TopicConfig,
    segment_bytes=st.sampled_from([250, 600, 10_000]),
    index_interval_bytes=st.sampled_from([0, 150]),
    retention_ms=st.just(-1),
)
common = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Batch(NamedTuple):
    header: BatchHeader
    data: bytes


class Allowed(NamedTuple):
    """What may be in the log: the first batches of a list, so many of them at least."""

    batches: list[Batch]
    least: int


def derived(batches: list[Batch], end: int) -> tuple[list[object], list[ProducerState]]:
    """What a log of these batches must know: epochs, aborted transactions, the last stable offset,
    and the producers."""
    epochs: list[tuple[int, int]] = []
    states = ProducerStates(PARTITION)
    aborted = []
    for header, data in batches:
        if not epochs or epochs[-1][0] < header.leader_epoch:
            epochs.append((header.leader_epoch, header.base_offset))
        marker = read_end_marker(data, header) if header.is_control else None
        completed = states.update(header, header.base_offset, marker)
        if completed is not None and completed.aborted:
            aborted.append((completed.producer_id, completed.first_offset, completed.last_offset))
    answers = [end_of_epoch(epoch, epochs, end) for epoch in EPOCHS]
    return [answers, aborted, states.last_stable_offset(end)], states.statistics()


def end_of_epoch(epoch: int, epochs: list[tuple[int, int]], end: int) -> tuple[int, int]:
    """Kafka's rule: the largest epoch not above the one asked for, and where the next begins."""
    later = [start for each, start in epochs if each > epoch]
    if epochs and epochs[-1][0] == epoch:
        later = [end]
    if epoch < 0 or not later:
        return -1, -1
    return max((each for each, _ in epochs if each <= epoch), default=epoch), later[0]


def known(log: Log) -> tuple[list[object], list[ProducerState]]:
    end = log.log_end_offset
    aborted = [
        (txn.producer_id, txn.first_offset, txn.last_offset)
        for txn in log.aborted_transactions(log.log_start_offset, end)
    ]
    answers = [log.epoch_end_offset(epoch) for epoch in EPOCHS]
    return [answers, aborted, log.last_stable_offset(end)], log.producers()


@dataclass
class Run:
    """One run of a script, up to its end or its death."""

    bench: FolderBench
    always_flush: bool = False
    held: list[Batch] = field(default_factory=list)
    end: int = 0
    flushed: int = 0
    """How many of the batches no power cut can take."""
    epoch: int = 0
    count: int = 0
    elected: bool = False
    in_flight: list[Allowed] = field(default_factory=list)
    """What else may be found, if the run dies in what it is doing."""
    sequences: dict[int, int] = field(default_factory=dict)

    async def perform(self, script: list[Step]) -> None:  # noqa: C901, PLR0912 - one branch for each kind of step
        bench = self.bench
        log = await bench.open(TOPIC)
        for kind, count, size in script:
            if kind == "fetch" and self.always_flush:
                for _ in range(count):
                    self.fetch(log, 1, size)
                    bench.flush(log)
                    self.flushed = len(self.held)
            elif kind == "fetch":
                self.fetch(log, count, size)
            elif kind == "truncate":
                await self.truncate(log, size)
            elif kind == "restart":
                await self.start_at(log, size)
            elif kind == "elected":
                self.epoch += 1
                log.begin_epoch(self.epoch)
                self.elected = True
            elif kind == "roll":
                log.roll()
            elif kind == "flush":
                bench.flush(log)
                self.flushed = len(self.held)
            elif kind == "checkpoint":
                await bench.directories.write_checkpoints()
            elif kind == "idle":
                await bench.idle()
            elif size:
                await bench.directories.close()
                self.flushed = len(self.held)
                log = await bench.open(TOPIC)
                self.end = log.log_end_offset
            else:
                await bench.abandon()
                log = await bench.open(TOPIC)
                self.end = log.log_end_offset
        await bench.idle()
        await bench.abandon()

    # --- what a leader would have written -----------------------------------------------------

    def batch(self, offset: int, size: int) -> Batch:
        self.count += 1
        rng = random.Random(self.count)
        producer = rng.choice((-1, 1, 2, 3))
        moment = self.bench.clock.now_ms()
        if producer == 3 and rng.random() < 0.4:
            data = bytearray(
                end_marker(
                    rng.choice((ControlType.COMMIT, ControlType.ABORT)),
                    producer_id=producer,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp=moment,
                )
            )
        else:
            sequence = self.sequences.get(producer, 0)
            values = [b"%d" % self.count + b"x" * size] * rng.randint(1, 3)
            self.sequences[producer] = sequence + len(values)
            data = bytearray(
                build_batch(
                    [(moment, None, value, ()) for value in values],
                    producer_id=producer,
                    producer_epoch=-1 if producer < 0 else 0,
                    base_sequence=-1 if producer < 0 else sequence,
                    transactional=producer == 3,
                )
            )
        # Compaction may have taken something on the leader; nothing, if that is this broker.
        gap = 0 if self.elected else rng.choice((0, 0, 0, 2))
        self.elected = False
        set_offset_and_epoch(data, 0, offset + gap, self.epoch)
        return Batch(read_header(data), bytes(data))

    def fetch(self, log: Log, count: int, size: int) -> None:
        offset = self.end
        new: list[Batch] = []
        for _ in range(count):
            batch = self.batch(offset, size)
            new.append(batch)
            offset = batch.header.next_offset
        data = b"".join(batch.data for batch in new)
        self.in_flight = [Allowed(self.held + new, len(self.held))]
        log.append_replicated(memoryview(bytearray(data)), leader_epoch=self.epoch)
        self.in_flight = []
        self.held += new
        self.end = offset

    async def truncate(self, log: Log, percent: int) -> None:
        kept = self.held[: len(self.held) * percent // 100]
        target = kept[-1].header.next_offset if kept else log.log_start_offset
        if len(kept) == len(self.held):
            target = self.end
        self.epoch += 1
        self.in_flight = [Allowed(self.held, min(self.flushed, len(kept)))]
        await self.bench.directories.truncate({PARTITION: target})
        self.in_flight = []
        if target < self.end:
            self.held, self.end, self.flushed = kept, target, len(kept)
        assert log.log_end_offset == self.end
        assert known(log) == derived(self.held, self.end)

    async def start_at(self, log: Log, offset: int) -> None:
        self.epoch += 1
        self.in_flight = [Allowed(self.held, 0)]
        await self.bench.directories.truncate_fully_and_start_at(PARTITION, offset)
        self.in_flight = []
        self.held, self.end, self.flushed = [], offset, 0
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
        assert known(log) == derived([], offset)

    # --- afterwards ---------------------------------------------------------------------------

    def allowed(self, *, power_lost: bool) -> list[Allowed]:
        if power_lost:
            shorter = [
                Allowed(each.batches, min(each.least, self.flushed)) for each in self.in_flight
            ]
            return shorter or [Allowed(self.held, self.flushed)]
        return self.in_flight or [Allowed(self.held, len(self.held))]

    async def check(self, bench: FolderBench, *, power_lost: bool = False) -> None:
        """Open what the crash left, compare it with the model, and go on with it."""
        log = await bench.open(TOPIC)
        found = bench.batches(log)
        for batches, least in self.allowed(power_lost=power_lost):
            if least <= len(found) and found == [each.header for each in batches[: len(found)]]:
                self.held, lost = batches[: len(found)], batches[len(found) :]
                break
        else:
            raise AssertionError((found, self.allowed(power_lost=power_lost)))
        self.end = log.log_end_offset
        if self.held and self.end != self.held[-1].header.next_offset:
            # A segment was begun for the batch after a gap that the leader has, too.
            assert self.end == lost[0].header.base_offset
        assert known(log) == derived(self.held, self.end)
        # The leader of a new epoch has something else from here on, and the follower takes it.
        self.bench, self.in_flight = bench, []
        await self.truncate(log, 70)
        self.fetch(log, 3, 30)
        assert known(log) == derived(self.held, self.end)
        await bench.directories.close()
        log = await bench.open(TOPIC)
        assert bench.batches(log) == [batch.header for batch in self.held]
        assert known(log) == derived(self.held, self.end)
        for batch in self.held:
            region = log.read(batch.header.base_offset, 1, upper=self.end).region
            assert region is not None
            assert region.read() == batch.data
        await bench.abandon()


def crashes(
    script: list[Step], config: TopicConfig, seed: int, *, always_flush: bool = False
) -> Iterator[Run]:
    """The script's runs, one for each operation on the disk, each dead in that operation."""
    return dying_runs(
        lambda fs: Run(FolderBench(config, fs=fs), always_flush),
        lambda run: asyncio.run(run.perform(script)),
        seed=seed,
    )


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_a_kill_at_every_write_leaves_a_prefix(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    for run in crashes(script, config, seed):
        asyncio.run(run.check(FolderBench(config, fs=run.bench.fs.killed())))


@common
@given(
    script=scripts,
    config=configs,
    seed=st.integers(0, 1000),
    zeros=st.booleans(),
    names=st.booleans(),
)
def test_a_power_cut_at_every_write_leaves_a_prefix(
    script: list[Step], config: TopicConfig, seed: int, zeros: bool, names: bool
) -> None:
    rng = random.Random(seed)
    for run in crashes(script, config, seed, always_flush=True):
        left = run.bench.fs.power_lost(
            survives=lambda _, extra: rng.randint(0, extra), zeros=zeros, names=names
        )
        asyncio.run(run.check(FolderBench(config, fs=left), power_lost=True))
