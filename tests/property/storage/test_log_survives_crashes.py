"""The log in its data folder, killed at any write to the disk, and opened again.

A script of appends, rolls, flushes, deletions, checkpoints and restarts, and of the topic being
deleted and made again, is run once to count its operations on the disk. Then it is run again for
each of them, dying there, with the dying write torn at some byte. What was acknowledged before must
be there afterwards, in order and once; at most the one batch that was being written may be there
too, whole. Nothing is handed to the log when it is opened: what it knows of its recovery point and
its start offset has gone through the folder's checkpoints.

Three deaths: kill -9 (the page cache survives), a power cut under `flush.messages=1` (only what was
synced survives, and any part of the rest), and kill -9 of an idempotent producer's broker, after
which the producer sends its last five batches again, having lost the answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId
from ottla.storage.log import Log
from ottla.testing.crashes import dying_runs
from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import FolderBench

pytestmark = pytest.mark.usefixtures("silence")
PRODUCER = 42

Step = tuple[str, int, int]

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 80)),
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 80)),
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 80)),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("delete"), st.just(0), st.integers(0, 100)),
    st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
    st.tuples(st.just("recreate"), st.just(0), st.just(0)),
    st.tuples(st.just("idle"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("epoch"), st.just(0), st.just(0)),
)
# Steps that are worth little apart: the checkpoints must know something of a topic that goes.
phrases = st.sampled_from(
    [
        [("append", 3, 20), ("delete", 0, 100), ("checkpoint", 0, 0), ("recreate", 0, 0)],
        [("append", 3, 20), ("flush", 0, 0), ("checkpoint", 0, 0), ("recreate", 0, 0)],
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


@dataclass
class Run:
    """One run of a script, up to its end or its death."""

    bench: FolderBench
    always_flush: bool = False
    idempotent: bool = False
    generation: int = 1
    start: int = 0
    """The log start is at most here."""
    floor: int = 0
    """The log start is at least here: a checkpoint has been written since it was."""
    acknowledged: list[bytes] = field(default_factory=list)
    in_flight: list[bytes] = field(default_factory=list)
    sent: list[tuple[int, list[bytes]]] = field(default_factory=list)
    epoch: int = 0
    count: int = 0
    sequence: int = 0

    @property
    def topic_id(self) -> TopicId:
        """What the metadata says, which is changed before the folder is."""
        return TopicId(bytes([self.generation]) * 16)

    async def perform(self, script: list[Step]) -> None:  # noqa: C901 - one branch for each kind of step
        bench = self.bench
        log = await bench.open(self.topic_id)
        for kind, count, size in script:
            if kind == "append":
                self.append(log, count, size)
            elif kind == "roll":
                log.roll()
            elif kind == "flush":
                bench.flush(log)
            elif kind == "delete":
                target = log.log_end_offset * size // 100
                self.start = max(self.start, target)
                log.advance_start(target)
                log.delete_old(bench.clock.now_ms())
            elif kind == "checkpoint":
                await bench.directories.write_checkpoints()
                self.floor = log.log_start_offset
            elif kind == "recreate":
                self.forget()
                log = bench.recreate(self.topic_id)
            elif kind == "idle":
                await bench.idle()
            elif kind == "epoch":
                self.epoch += 1
                log.assign_epoch(self.epoch, log.log_end_offset)
            elif size:
                start = log.log_start_offset
                await bench.directories.close()
                log = await bench.open(self.topic_id)
                assert log.log_start_offset == start
                self.floor = start
            else:
                await bench.abandon()
                log = await bench.open(self.topic_id)
        await bench.idle()
        await bench.abandon()

    def forget(self) -> None:
        """The topic is deleted, and there is a new one of the same name."""
        self.generation += 1
        self.start = self.floor = self.epoch = self.sequence = 0
        self.acknowledged.clear()
        self.sent.clear()

    def append(self, log: Log, count: int, size: int) -> None:
        values = [b"%d:" % (self.count + index) + b"x" * size for index in range(count)]
        self.in_flight = values
        self.sent.append((self.sequence, values))
        try:
            self.bench.append(
                log,
                *values,
                epoch=self.epoch,
                producer_id=PRODUCER if self.idempotent else -1,
                producer_epoch=0 if self.idempotent else -1,
                sequence=self.sequence if self.idempotent else -1,
            )
        except KafkaError as error:
            if error.code is not ErrorCode.RECORD_LIST_TOO_LARGE:
                raise
            self.in_flight = []
            self.sent.pop()
            return
        if self.always_flush:
            self.bench.flush(log)
        self.count += count
        self.sequence += count
        self.acknowledged += values
        self.in_flight = []

    async def check(self, bench: FolderBench, *, power_lost: bool = False) -> Log:
        """Open what the crash left and compare it with what was acknowledged."""
        log = await bench.open(self.topic_id)
        contents = bench.contents(log)
        offsets = [offset for offset, _ in contents]
        assert offsets == list(range(log.log_start_offset, log.log_end_offset))
        values = [value for _, value in contents]
        start = log.log_start_offset
        # A power cut may bring deleted segments back, and with them an earlier start.
        assert (0 if power_lost else self.floor) <= start <= self.start
        whole = self.acknowledged + self.in_flight
        assert values in (self.acknowledged[start:], whole[start:])
        return log

    async def goes_on(self, bench: FolderBench, log: Log) -> None:
        """The log takes appends after recovery, and a clean restart keeps everything."""
        before = bench.contents(log)
        info = bench.append(log, b"after", epoch=self.epoch)
        expected = [*before, (info.base_offset, b"after")]
        assert bench.contents(log) == expected
        await bench.directories.close()
        assert bench.contents(await bench.open(self.topic_id)) == expected


def crashes(
    script: list[Step],
    config: TopicConfig,
    seed: int,
    *,
    always_flush: bool = False,
    idempotent: bool = False,
) -> Iterator[Run]:
    """The script's runs, one for each operation on the disk, each dead in that operation."""
    return dying_runs(
        lambda fs: Run(FolderBench(config, fs=fs), always_flush, idempotent),
        lambda run: asyncio.run(run.perform(script)),
        seed=seed,
    )


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_kill_at_every_write_loses_nothing_acknowledged(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    async def verify(run: Run) -> None:
        bench = FolderBench(config, fs=run.bench.fs.killed())
        log = await run.check(bench)
        await run.goes_on(bench, log)

    for run in crashes(script, config, seed):
        asyncio.run(verify(run))


@common
@given(
    script=scripts,
    config=configs,
    seed=st.integers(0, 1000),
    zeros=st.booleans(),
    names=st.booleans(),
)
def test_a_power_cut_at_every_write_loses_nothing_flushed(
    script: list[Step], config: TopicConfig, seed: int, zeros: bool, names: bool
) -> None:
    rng = random.Random(seed)

    async def verify(run: Run) -> None:
        left = run.bench.fs.power_lost(
            survives=lambda _, extra: rng.randint(0, extra), zeros=zeros, names=names
        )
        bench = FolderBench(config, fs=left)
        log = await run.check(bench, power_lost=True)
        await run.goes_on(bench, log)

    for run in crashes(script, config, seed, always_flush=True):
        asyncio.run(verify(run))


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_an_idempotent_producer_that_sends_again_after_a_kill_leaves_no_duplicate(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    # Records that DeleteRecords took cannot be recognised again, so there is none of it here.
    script = [step for step in script if step[0] != "delete"]

    async def verify(run: Run) -> None:
        bench = FolderBench(config, fs=run.bench.fs.killed())
        log = await run.check(bench)
        for sequence, values in run.sent[-5:]:
            info = bench.append(
                log,
                *values,
                epoch=run.epoch,
                producer_id=PRODUCER,
                producer_epoch=0,
                sequence=sequence,
            )
            assert info.base_offset == sequence
        values = [value for _, value in bench.contents(log)]
        assert values == run.acknowledged + run.in_flight

    for run in crashes(script, config, seed, idempotent=True):
        asyncio.run(verify(run))


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_a_kill_during_recovery_changes_nothing(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    async def start(run: Run, fs: MemoryFileSystem) -> None:
        bench = FolderBench(config, fs=fs)
        try:
            await run.check(bench)
            await bench.abandon()
        except Crashed:
            pass

    runs = list(crashes(script, config, seed))
    for run in random.Random(seed).sample(runs, min(5, len(runs))):
        left = run.bench.fs.killed()
        probe = left.killed()
        begin = probe.operations
        asyncio.run(start(run, probe))
        for number in range(begin, probe.operations):
            fs = left.killed()
            fs.crash_at(number, torn=1)
            asyncio.run(start(run, fs))
            asyncio.run(start(run, fs.killed()))
