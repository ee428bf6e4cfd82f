"""The log, killed at every single write to the disk, and opened again.

A script of appends, rolls, flushes, deletions and restarts is run once to count its operations on
the disk. Then it is run again for each of them, dying there, with the dying write torn at some
byte. What was acknowledged before must be there afterwards, in order and once; at most the one
batch that was being written may be there too, whole.

Three deaths: kill -9 (the page cache survives), a power cut under `flush.messages=1` (only what was
synced survives, and any part of the rest), and kill -9 of an idempotent producer's broker, after
which the producer sends its last five batches again, having lost the answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.storage.log import Log
from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import LogBench

PRODUCER = 42

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 80)),
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 80)),
    st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 80)),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("delete"), st.just(0), st.integers(0, 100)),
    st.tuples(st.just("restart"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("epoch"), st.just(0), st.just(0)),
)
scripts = st.lists(steps, min_size=1, max_size=9)
configs = st.builds(
    TopicConfig,
    segment_bytes=st.sampled_from([250, 600, 10_000]),
    index_interval_bytes=st.sampled_from([0, 150]),
    retention_ms=st.just(-1),
)
common = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass
class Run:
    """One run of a script, up to its end or its death."""

    bench: LogBench
    always_flush: bool = False
    idempotent: bool = False
    log: Log | None = None
    start: int = 0
    flushed: int = 0
    acknowledged: list[bytes] = field(default_factory=list)
    in_flight: list[bytes] = field(default_factory=list)
    sent: list[tuple[int, list[bytes]]] = field(default_factory=list)
    epoch: int = 0
    count: int = 0
    sequence: int = 0

    def opened(self, *, clean: bool = False) -> Log:
        log = self.bench.open(clean=clean, recovery_point=self.flushed, log_start_offset=self.start)
        self.log = log
        return log

    def perform(self, script: list[tuple[str, int, int]]) -> None:
        log = self.opened()
        for kind, count, size in script:
            if kind == "append":
                self.append(log, count, size)
            elif kind == "roll":
                log.roll()
            elif kind == "flush":
                self.flush(log)
            elif kind == "delete":
                target = log.log_end_offset * size // 100
                log.advance_start(target)
                # The log start is checkpointed by the data folder: here it is known at once.
                self.start = log.log_start_offset
                log.delete_old(self.bench.clock.now_ms())
                self.start = log.log_start_offset
            elif kind == "epoch":
                self.epoch += 1
                log.assign_epoch(self.epoch, log.log_end_offset)
            else:
                if size:
                    self.bench.close(log)
                    self.flushed = log.recovery_point
                log.close_files()
                log = self.opened(clean=bool(size))

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
            self.flush(log)
        self.count += count
        self.sequence += count
        self.acknowledged += values
        self.in_flight = []

    def flush(self, log: Log) -> None:
        self.bench.flush(log)
        self.flushed = log.recovery_point


def prepared_disk() -> MemoryFileSystem:
    """A disk whose data folder was there before: only the log's own changes are at stake."""
    fs = MemoryFileSystem()
    fs.makedirs("/data")
    fs.sync_dir("/")
    return fs


def check(run: Run, bench: LogBench) -> Log:
    """Open what the crash left and compare it with what was acknowledged."""
    log = bench.open(recovery_point=run.flushed, log_start_offset=run.start)
    contents = bench.contents(log)
    offsets = [offset for offset, _ in contents]
    assert offsets == list(range(log.log_start_offset, log.log_end_offset))
    values = [value for _, value in contents]
    start = log.log_start_offset
    assert start <= max(run.start, len(run.acknowledged))
    whole = run.acknowledged + run.in_flight
    assert values in (run.acknowledged[start:], whole[start:])
    return log


def goes_on(run: Run, bench: LogBench, log: Log) -> None:
    """The log takes appends after recovery, and a clean restart keeps everything."""
    before = bench.contents(log)
    info = bench.append(log, b"after", epoch=run.epoch)
    expected = [*before, (info.base_offset, b"after")]
    assert bench.contents(log) == expected
    bench.close(log)
    again = bench.open(clean=True, recovery_point=log.recovery_point, log_start_offset=run.start)
    assert bench.contents(again) == expected


def crashes(
    script: list[tuple[str, int, int]],
    config: TopicConfig,
    seed: int,
    *,
    always_flush: bool = False,
    idempotent: bool = False,
) -> list[Run]:
    """The script's runs, one for each operation on the disk, each dead in that operation."""
    first = Run(LogBench(config, fs=prepared_disk()), always_flush, idempotent)
    begin = first.bench.fs.operations
    first.perform(script)
    dice = random.Random(seed)
    runs = []
    for number in range(begin, first.bench.fs.operations):
        run = Run(LogBench(config, fs=prepared_disk()), always_flush, idempotent)
        size = first.bench.fs.journal[number].size
        run.bench.fs.crash_at(number, torn=dice.choice((0, 1, size // 2, max(0, size - 1), size)))
        try:
            run.perform(script)
        except Crashed:
            runs.append(run)
        else:
            raise AssertionError(f"operation {number} did not happen in the second run")
    return runs


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_kill_at_every_write_loses_nothing_acknowledged(
    script: list[tuple[str, int, int]], config: TopicConfig, seed: int
) -> None:
    for run in crashes(script, config, seed):
        bench = run.bench.killed()
        log = check(run, bench)
        goes_on(run, bench, log)


@common
@given(
    script=scripts,
    config=configs,
    seed=st.integers(0, 1000),
    zeros=st.booleans(),
    names=st.booleans(),
)
def test_a_power_cut_at_every_write_loses_nothing_flushed(
    script: list[tuple[str, int, int]], config: TopicConfig, seed: int, zeros: bool, names: bool
) -> None:
    dice = random.Random(seed)
    for run in crashes(script, config, seed, always_flush=True):
        bench = run.bench.power_lost(
            survives=lambda _, extra: dice.randint(0, extra), zeros=zeros, names=names
        )
        log = check(run, bench)
        goes_on(run, bench, log)


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_an_idempotent_producer_that_sends_again_after_a_kill_leaves_no_duplicate(
    script: list[tuple[str, int, int]], config: TopicConfig, seed: int
) -> None:
    # Records that DeleteRecords took cannot be recognised again, so there is none of it here.
    script = [step for step in script if step[0] != "delete"]
    for run in crashes(script, config, seed, idempotent=True):
        bench = run.bench.killed()
        log = check(run, bench)
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


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_a_kill_during_recovery_changes_nothing(
    script: list[tuple[str, int, int]], config: TopicConfig, seed: int
) -> None:
    runs = crashes(script, config, seed)
    for run in random.Random(seed).sample(runs, min(5, len(runs))):
        left = run.bench.fs.killed()
        probe = left.killed()
        begin = probe.operations
        check(run, LogBench(config, fs=probe))
        for number in range(begin, probe.operations):
            fs = left.killed()
            fs.crash_at(number, torn=1)
            try:
                LogBench(config, fs=fs).open(recovery_point=run.flushed, log_start_offset=run.start)
            except Crashed:
                pass
            check(run, LogBench(config, fs=fs.killed()))
