"""The log against the simplest model there is, a list of records.

Any sequence of appends, rolls, truncations, deletions, flushes and restarts must leave the log
readable exactly like the list: every offset, at every size limit, below every upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.records.batch import batches
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

START_MS = 1_700_000_000_000


@dataclass
class Batch:
    base: int
    values: list[bytes]
    timestamp: int
    size: int

    @property
    def last(self) -> int:
        return self.base + len(self.values) - 1


@dataclass
class Model:
    """What the log should hold."""

    start: int = 0
    end: int = 0
    batches: list[Batch] = field(default_factory=list)

    def records(self) -> list[tuple[int, bytes]]:
        return [
            (batch.base + index, value)
            for batch in self.batches
            for index, value in enumerate(batch.values)
            if batch.base + index >= self.start
        ]

    def live(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.last >= self.start]

    def truncate(self, offset: int) -> None:
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.last < offset]
            self.end = offset
            self.start = min(self.start, offset)

    def from_offset(self, offset: int, upper: int) -> list[Batch]:
        found = [batch for batch in self.batches if batch.last >= offset]
        kept: list[Batch] = []
        for batch in found:
            if batch.last >= upper:
                break
            kept.append(batch)
        return kept


values = st.lists(st.binary(max_size=60), min_size=1, max_size=4)


class LogMachine(RuleBasedStateMachine):
    bench: LogBench
    log: Log
    model: Model
    small: TopicConfig

    @initialize(
        segment_bytes=st.sampled_from([200, 400, 1000, 100_000]),
        interval=st.sampled_from([0, 100, 4096]),
    )
    def begin(self, segment_bytes: int, interval: int) -> None:
        config = TopicConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            message_timestamp_after_max_ms=2**63 - 1,
            retention_ms=-1,
        )
        self.small = TopicConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            message_timestamp_after_max_ms=2**63 - 1,
            retention_ms=-1,
            retention_bytes=500,
        )
        self.bench = LogBench(config)
        self.log = self.bench.open()
        self.model = Model()

    @rule(values=values, step=st.integers(-5, 20))
    def append(self, values: list[bytes], step: int) -> None:
        self.bench.clock.advance(3)
        stamp = self.bench.clock.now_ms() + step
        try:
            info = self.bench.append(self.log, *values, timestamp=stamp)
        except KafkaError as error:
            if error.code is not ErrorCode.RECORD_LIST_TOO_LARGE:
                raise
            return
        assert info.base_offset == self.model.end
        assert info.last_offset == self.model.end + len(values) - 1
        self.model.batches.append(Batch(self.model.end, values, stamp, info.bytes))
        self.model.end += len(values)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.bench.flush(self.log)
        assert self.log.recovery_point == self.model.end

    @precondition(lambda self: self.model.end > self.model.start)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.model.start + int((self.model.end - self.model.start) * share)
        self.log.truncate_to(offset)
        self.model.truncate(offset)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.model.start + int((self.model.end - self.model.start) * share)
        self.log.advance_start(offset)
        self.model.start = max(self.model.start, offset)

    @rule()
    def delete_old_segments(self) -> None:
        self.log.delete_old(self.bench.clock.now_ms())

    @rule()
    def shrink(self) -> None:
        self.log.config = self.small
        self.log.delete_old(self.bench.clock.now_ms())
        self.log.config = self.bench.config
        assert self.log.log_start_offset >= self.model.start
        self.model.start = self.log.log_start_offset

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        start, point = self.log.log_start_offset, self.log.recovery_point
        if clean:
            self.bench.close(self.log)
            point = self.model.end
        self.bench = self.bench.killed()
        self.log = self.bench.open(clean=clean, recovery_point=point, log_start_offset=start)
        # An end that was moved by truncation into a batch shows only once something is written.
        last = self.model.batches[-1].last + 1 if self.model.batches else self.log.log_end_offset
        if self.log.log_end_offset < self.model.end:
            assert self.log.log_end_offset >= min(last, self.model.end)
            self.model.end = self.log.log_end_offset

    @invariant()
    def same_records(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.model.end
        assert self.log.log_start_offset == self.model.start
        assert self.bench.contents(self.log) == self.model.records()

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def read_anywhere(self, data: st.DataObject) -> None:
        model = self.model
        offset = data.draw(st.integers(model.start, model.end), "offset")
        upper = data.draw(st.integers(model.start, model.end), "upper")
        limit = data.draw(st.integers(0, 600), "max bytes")
        region = self.log.read(offset, limit, upper=upper, min_one=data.draw(st.booleans())).region
        expected = model.from_offset(offset, upper) if offset < upper else []
        if region is None:
            assert not expected or expected[0].size > limit
            return
        assert len(region) <= max(limit, expected[0].size)
        got = [(header.base_offset, header.size) for _, header in batches(region.read())]
        assert got == [(batch.base, batch.size) for batch in expected[: len(got)]]
        assert got or len(region) < expected[0].size

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def estimate_bytes(self, data: st.DataObject) -> None:
        model = self.model
        offset = data.draw(st.integers(model.start, model.end))
        upper = data.draw(st.integers(offset, model.end))
        expected = [b for b in model.from_offset(offset, model.end + 1) if b.base < upper]
        whole = sum(b.size for b in expected if b.last < upper)
        assert whole <= self.log.bytes_from(offset, upper) <= sum(b.size for b in expected)

    @precondition(lambda self: self.model.live())
    @rule()
    def find_latest(self) -> None:
        newest = max(batch.timestamp for batch in self.model.live())
        found = self.log.look_up_time(None).run(short=True)
        # Segments below the log start are still there until retention has come by.
        assert found is not None
        assert found.timestamp >= newest
        if found.timestamp == newest and found.offset >= self.model.start:
            first = next(b for b in self.model.batches if b.timestamp == newest)
            assert found.offset == first.base or first.last < self.model.start

    @precondition(lambda self: self.model.live())
    @rule(data=st.data())
    def find_by_time(self, data: st.DataObject) -> None:
        live = self.model.live()
        moment = data.draw(st.sampled_from([b.timestamp for b in live]))
        found = self.log.look_up_time(moment).run(short=True)
        late = [b for b in live if b.timestamp >= moment]
        assert found is not None
        assert found.timestamp == late[0].timestamp
        assert found.offset == max(late[0].base, self.model.start)


LogMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogAgainstAList = LogMachine.TestCase
