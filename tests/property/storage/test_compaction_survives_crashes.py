"""A compacted log against a dict of last values, killed at every single write to the disk.

A script of writes, tombstones, rolls, cleanings, deletions and restarts is run once to count its
operations on the disk, then again for each of them, dying there, with the dying write torn. However
often and wherever it died, and whatever the cleaner has done until then:

- what is left of the log are records that were written, unchanged, at their offsets;
- for each key the last one written is there, but for tombstones whose time is over;
- a producer that sends its last batch again is told that it is there already;
- another cleaning leaves each key once, and another restart changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.records.compression import Compression
from ottla.storage.log import Log
from ottla.testing.crashes import dying_runs
from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import FOLDER, LogBench

RETENTION_MS = 100
_RUNS = 60

Step = tuple[str, int, int]

puts = st.lists(
    st.tuples(st.just("put"), st.integers(0, 3), st.integers(0, 99)), min_size=2, max_size=5
)
others = st.one_of(
    st.just(("roll", 0, 0)),
    st.tuples(st.just("wait"), st.integers(1, 120), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 100), st.just(0)),
    st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
)
cleanings = st.tuples(st.just("clean"), st.integers(0, 1), st.just(0))
rounds = st.builds(
    lambda first, other, clean: [*first, other, ("roll", 0, 0), clean], puts, others, cleanings
)
scripts: st.SearchStrategy[list[Step]] = st.lists(rounds, min_size=1, max_size=3).map(
    lambda parts: [step for part in parts for step in part]
)
configs = st.builds(
    TopicConfig,
    cleanup_policy=st.just(frozenset({"compact"})),
    internal_segment_bytes=st.sampled_from([200, 500, 10_000]),
    index_interval_bytes=st.sampled_from([0, 150]),
    delete_retention_ms=st.just(RETENTION_MS),
    retention_ms=st.just(-1),
)
common = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Written:
    """A record, and when and by whom it was written."""

    offset: int
    key: bytes
    value: bytes | None
    moment: int
    producer: int
    sequence: int


@dataclass
class Run:
    """One run of a script, up to its end or its death."""

    bench: LogBench
    always_flush: bool = False
    start: int = 0
    flushed: int = 0
    cleaned_to: int | None = None
    written: list[Written] = field(default_factory=list)
    in_flight: Written | None = None
    sequences: dict[int, int] = field(default_factory=dict)

    def opened(self, bench: LogBench, *, clean: bool = False) -> Log:
        log = bench.open(clean=clean, recovery_point=self.flushed, log_start_offset=self.start)
        # As `LogDirectories` takes it from the checkpoint.
        if self.cleaned_to is not None and self.cleaned_to <= log.log_end_offset:
            log.compaction.cleaned_to = self.cleaned_to
        return log

    def perform(self, script: list[Step]) -> None:
        bench = self.bench
        log = self.opened(bench)
        for kind, number, detail in script:
            if kind == "put":
                self.put(log, number, detail)
            elif kind == "clean":
                bench.clean(log, map_bytes=24 * 4 if number else 1 << 16)
                self.cleaned_to = log.compaction.cleaned_to
            elif kind == "roll":
                log.roll()
            elif kind == "wait":
                bench.clock.advance(number)
            elif kind == "delete":
                log.advance_start(log.log_end_offset * number // 100)
                self.start = log.log_start_offset
                log.delete_old(bench.clock.now_ms())
            else:
                if number:
                    bench.close(log)
                    self.flushed = log.recovery_point
                log.close_files()
                log = self.opened(bench, clean=bool(number))

    def put(self, log: Log, key: int, detail: int) -> None:
        value = None if detail % 4 == 0 else b"%d" % detail * (1 + detail % 9)
        producer = detail % 3 - 1  # none, or one of two
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        now_ms = self.bench.clock.now_ms()
        name = b"%d" % key
        self.in_flight = Written(log.log_end_offset, name, value, now_ms, producer, sequence)
        self.bench.put(
            log,
            (name, value),
            compression=Compression.GZIP if detail % 5 == 0 else Compression.NONE,
            producer_id=producer,
            producer_epoch=min(producer, 0),
            sequence=sequence,
        )
        if self.always_flush:
            self.bench.flush(log)
            self.flushed = log.recovery_point
        self.written.append(self.in_flight)
        self.sequences[producer] = sequence + 1
        self.in_flight = None


def check(run: Run, bench: LogBench) -> Log:
    """Open what the crash left and compare it with what was written."""
    log = run.opened(bench)
    assert not [name for name in bench.fs.listdir(FOLDER) if name.endswith((".cleaned", ".swap"))]
    written = list(run.written)
    if run.in_flight is not None and log.log_end_offset > run.in_flight.offset:
        written.append(run.in_flight)
    assert log.log_end_offset == max(len(written), log.log_start_offset)
    assert log.log_start_offset <= max(run.start, log.first_base_offset)
    compare(written, bench, log)
    return log


def compare(written: list[Written], bench: LogBench, log: Log) -> None:
    start = log.log_start_offset
    records = bench.records(log)
    for record in records:
        original = written[record.offset]
        assert (record.key, record.value, record.timestamp) == (
            original.key,
            original.value,
            original.moment,
        )
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    present = {record.offset for record in records if record.offset >= start}
    for offset in present:
        assert bench.contents(log, offset)[0][0] == offset
    for original in {each.key: each for each in written}.values():
        if original.offset < start or original.offset in present:
            continue
        assert original.value is None
        assert original.moment + RETENTION_MS <= bench.clock.now_ms()


def sends_again(run: Run, bench: LogBench, log: Log) -> None:
    """Each producer repeats its last batch, having lost the answer."""
    last = {each.producer: each for each in run.written if each.producer >= 0}
    for each in last.values():
        info = bench.put(
            log,
            (each.key, each.value),
            producer_id=each.producer,
            producer_epoch=0,
            sequence=each.sequence,
        )
        assert info.duplicate
        assert info.base_offset == each.offset


def goes_on(run: Run, bench: LogBench, log: Log) -> None:
    """The log can be cleaned and opened again."""
    written = list(run.written)
    if log.log_end_offset > len(written) and run.in_flight is not None:
        written.append(run.in_flight)
    log.roll()
    bench.flush(log)
    while log.compaction.assess(bench.clock.now_ms()).cleanable_bytes:
        bench.clean(log)
    compare(written, bench, log)
    keys = [record.key for record in bench.records(log) if record.offset >= log.log_start_offset]
    assert len(keys) == len(set(keys))
    before = bench.records(log)
    bench = bench.killed()
    again = bench.open(recovery_point=run.flushed, log_start_offset=run.start)
    assert bench.records(again) == before
    assert again.log_end_offset == log.log_end_offset


def crashes(
    script: list[Step], config: TopicConfig, seed: int, *, always_flush: bool = False
) -> Iterator[Run]:
    """The script's runs, one for each operation on the disk, each dead in that operation; of long
    scripts some of them, others for each seed."""
    return dying_runs(
        lambda fs: Run(LogBench(config, fs=fs), always_flush),
        lambda run: run.perform(script),
        seed=seed,
        most=_RUNS,
    )


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_kill_at_every_write_keeps_the_last_value_of_every_key(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    for run in crashes(script, config, seed):
        bench = run.bench.killed()
        goes_on(run, bench, check(run, bench))


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_producers_are_known_from_what_the_cleaner_left_of_their_records(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    # Records that DeleteRecords took cannot be recognised again, so there is none of it here.
    script = [step for step in script if step[0] != "delete"]
    for run in crashes(script, config, seed):
        bench = run.bench.killed()
        if bench.fs.exists(FOLDER):
            for name in bench.fs.listdir(FOLDER):
                if name.endswith(".snapshot"):
                    bench.fs.remove(f"{FOLDER}/{name}")
        sends_again(run, bench, check(run, bench))


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000), names=st.booleans())
def test_a_power_cut_at_every_write_keeps_the_last_value_of_every_key(
    script: list[Step], config: TopicConfig, seed: int, names: bool
) -> None:
    rng = random.Random(seed)
    for run in crashes(script, config, seed, always_flush=True):
        bench = run.bench.power_lost(survives=lambda _, extra: rng.randint(0, extra), names=names)
        goes_on(run, bench, check(run, bench))


@common
@given(script=scripts, config=configs, seed=st.integers(0, 1000))
def test_a_kill_while_a_start_finishes_a_swap_changes_nothing(
    script: list[Step], config: TopicConfig, seed: int
) -> None:
    # Flushed, so that the indexes of old segments are trusted and not built anew.
    interrupted = [
        run
        for run in crashes(script, config, seed, always_flush=True)
        if any(name.endswith((".swap", ".cleaned")) for name in _names(run.bench.fs))
    ]
    for run in random.Random(seed).sample(interrupted, min(6, len(interrupted))):
        left = run.bench.fs.killed()
        probe = LogBench(config, fs=left.killed(), clock=run.bench.clock)
        begin = probe.fs.operations
        check(run, probe)
        for number in range(begin, probe.fs.operations):
            fs = left.killed()
            fs.crash_at(number, torn=1)
            try:
                run.opened(LogBench(config, fs=fs, clock=run.bench.clock))
            except Crashed:
                pass
            check(run, LogBench(config, fs=fs.killed(), clock=run.bench.clock))


def _names(fs: MemoryFileSystem) -> list[str]:
    left = fs.killed()
    return left.listdir(FOLDER) if left.exists(FOLDER) else []
