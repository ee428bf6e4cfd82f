"""One partition's log as its users see it."""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId
from ottla.records.batch import batches, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.control import ControlType, end_marker
from ottla.storage.following import UnexpectedOffset
from ottla.storage.log import Log
from ottla.storage.producers import Origin
from ottla.storage.reads import NeedsLongLookUp
from ottla.storage.validate import TakesLong, prepare
from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import FOLDER, PARTITION, LogBench

EVERYTHING = 2**31 - 1
LOG_FILE = f"{FOLDER}/00000000000000000000.log"


@dataclass
class Ready:
    bench: LogBench
    log: Log


@pytest.fixture
def ready() -> Ready:
    bench = LogBench()
    return Ready(bench, bench.open())


def codes(function: object, *args: object, **kwargs: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        function(*args, **kwargs)
    return caught.value.code


class TestAppend:
    def test_offsets_and_epoch_are_patched_into_the_callers_buffer(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", b"b")
        records = [(ready.bench.clock.now_ms(), None, b"c", ())]
        buffer = bytearray(build_batch(records))
        info = ready.log.append(
            memoryview(buffer), leader_epoch=7, now_ms=ready.bench.clock.now_ms()
        )
        assert (info.base_offset, info.last_offset) == (2, 2)
        header = read_header(buffer)
        assert (header.base_offset, header.leader_epoch) == (2, 7)
        assert ready.bench.fs.read_bytes(LOG_FILE).endswith(buffer)

    def test_one_append_is_one_write_and_nothing_else(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        before = ready.bench.fs.operations
        ready.bench.append(ready.log, b"b")
        new = ready.bench.fs.journal[before:]
        assert [(each.kind, each.path) for each in new] == [("append", LOG_FILE)]

    def test_the_answer_says_what_happened(self, ready: Ready) -> None:
        info = ready.bench.append(ready.log, b"a", b"b", b"c")
        assert info._asdict() == {
            "base_offset": 0,
            "last_offset": 2,
            "append_time_ms": -1,
            "log_start_offset": 0,
            "duplicate": False,
            "bytes": ready.log.size,
        }

    def test_append_time_is_the_brokers(self) -> None:
        bench = LogBench(TopicConfig(message_timestamp_type="LogAppendTime"))
        log = bench.open()
        info = bench.append(log, b"a", timestamp=5)
        assert info.append_time_ms == bench.clock.now_ms()
        found = log.look_up_time(None).run(short=True)
        assert found is not None
        assert found.timestamp == bench.clock.now_ms()

    def test_a_refused_batch_changes_nothing(self, ready: Ready) -> None:
        batch = bytearray(build_batch([(0, None, b"v", ())]))
        batch[-1] ^= 1
        code = codes(ready.bench.append_bytes, ready.log, bytes(batch))
        assert code is ErrorCode.CORRUPT_MESSAGE
        assert (ready.log.log_end_offset, ready.log.size) == (0, 0)

    def test_a_batch_larger_than_a_segment_is_refused(self) -> None:
        bench = LogBench(TopicConfig(segment_bytes=100))
        code = codes(bench.append, bench.open(), b"x" * 200)
        assert code is ErrorCode.RECORD_LIST_TOO_LARGE

    def test_a_full_segment_is_followed_by_the_next(self) -> None:
        bench = LogBench(TopicConfig(segment_bytes=300))
        log = bench.open()
        for number in range(5):
            bench.append(log, b"%d" % number * 50)
        assert log.segment_count == 3
        assert [name for name in bench.fs.listdir(FOLDER) if name.endswith(".log")] == [
            "00000000000000000000.log",
            "00000000000000000002.log",
            "00000000000000000004.log",
        ]
        assert bench.host.flushes_wanted == 2

    def test_a_duplicate_is_answered_with_its_offset(self, ready: Ready) -> None:
        bench, log = ready.bench, ready.log
        bench.append(log, b"other")
        for sequence in range(5):
            bench.append(log, b"x", producer_id=9, producer_epoch=0, sequence=sequence)
        size = log.size
        again = bench.append(log, b"x", producer_id=9, producer_epoch=0, sequence=1)
        assert (again.base_offset, again.last_offset, again.duplicate) == (2, 2, True)
        assert log.size == size

    def test_a_gap_in_the_sequence_is_refused(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"x", producer_id=9, producer_epoch=0, sequence=0)
        code = codes(
            ready.bench.append, ready.log, b"x", producer_id=9, producer_epoch=0, sequence=2
        )
        assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_batch_that_takes_long_is_prepared_elsewhere(self) -> None:
        bench = LogBench(TopicConfig(compression_type="zstd"))
        log = bench.open()
        now = bench.clock.now_ms()
        large = build_batch([(now, b"k", b"v" * 500_000, ())])
        with pytest.raises(TakesLong):
            log.append(memoryview(bytearray(large)), leader_epoch=0, now_ms=now)
        assert (log.log_end_offset, log.size) == (0, 0)
        done = prepare(large, log.config, now, partition=PARTITION)
        buffer = memoryview(bytearray(done))
        log.append(buffer, leader_epoch=0, now_ms=now, prepared=True)
        assert bench.contents(log) == [(0, b"v" * 500_000)]


class TestReplicated:
    def batch(self, offset: int, epoch: int = 3, value: bytes = b"v") -> bytes:
        return build_batch([(100, None, value, ())], base_offset=offset, leader_epoch=epoch)

    def test_offsets_and_epochs_are_taken_as_they_come(self, ready: Ready) -> None:
        data = self.batch(5) + self.batch(9, epoch=4)
        info = ready.log.append_replicated(memoryview(data), leader_epoch=4)
        assert (info.base_offset, info.last_offset, info.bytes) == (5, 9, len(data))
        assert ready.log.log_end_offset == 10
        assert ready.bench.contents(ready.log) == [(5, b"v"), (9, b"v")]
        assert ready.log.epoch_end_offset(3) == (3, 9)

    def test_a_cut_last_batch_is_left_out(self, ready: Ready) -> None:
        whole = self.batch(0)
        ready.log.append_replicated(memoryview(whole + self.batch(1)[:30]), leader_epoch=4)
        assert ready.log.log_end_offset == 1
        assert (
            ready.log.append_replicated(memoryview(self.batch(1)[:30]), leader_epoch=4).bytes == 0
        )

    def test_offsets_that_go_back_are_refused(self, ready: Ready) -> None:
        ready.log.append_replicated(memoryview(self.batch(5)), leader_epoch=4)
        with pytest.raises(KafkaError, match="First offset 4 is less than the next offset 6"):
            ready.log.append_replicated(memoryview(self.batch(4)), leader_epoch=4)

    def test_what_was_refused_is_named(self, ready: Ready) -> None:
        ready.log.append_replicated(memoryview(self.batch(5)), leader_epoch=4)
        data = self.batch(4) + self.batch(7)
        with pytest.raises(UnexpectedOffset) as caught:
            ready.log.append_replicated(memoryview(data), leader_epoch=4)
        assert (caught.value.first_offset, caught.value.last_offset) == (4, 7)
        assert ready.bench.contents(ready.log) == [(5, b"v")]

    def test_what_comes_from_a_later_epoch_than_the_leaders_is_left_out(self, ready: Ready) -> None:
        data = self.batch(0) + self.batch(1, epoch=5) + self.batch(2, epoch=5)
        ready.log.append_replicated(memoryview(data), leader_epoch=4)
        assert ready.bench.contents(ready.log) == [(0, b"v")]
        assert ready.log.latest_epoch == 3

    def test_all_that_fits_into_a_segment_is_one_write(self) -> None:
        bench = LogBench(TopicConfig(segment_bytes=400))
        log = bench.open()
        log.append_replicated(memoryview(self.batch(0)), leader_epoch=4)
        data = b"".join(self.batch(offset) for offset in range(1, 12))
        before = len(bench.fs.journal)
        log.append_replicated(memoryview(data), leader_epoch=4)
        assert [offset for offset, _ in bench.contents(log)] == list(range(12))
        writes = [
            each.path
            for each in bench.fs.journal[before:]
            if each.kind == "append" and each.path.endswith(".log")
        ]
        assert len(writes) == len(set(writes)) == log.segment_count > 2
        again = bench.killed()
        assert [offset for offset, _ in again.contents(again.open())] == list(range(12))

    def test_the_epoch_of_an_election_that_was_lost_makes_way(self, ready: Ready) -> None:
        ready.log.append_replicated(memoryview(self.batch(0)), leader_epoch=3)
        ready.log.begin_epoch(7)
        ready.log.append_replicated(memoryview(self.batch(1)), leader_epoch=8)
        assert ready.log.latest_epoch == 3
        assert [ready.log.epoch_end_offset(epoch) for epoch in (3, 7)] == [(3, 2), (-1, -1)]

    def test_a_far_offset_begins_a_new_segment(self, ready: Ready) -> None:
        ready.log.append_replicated(memoryview(self.batch(0)), leader_epoch=4)
        far = 2**31 + 10
        ready.log.append_replicated(memoryview(self.batch(far)), leader_epoch=4)
        assert ready.log.segment_count == 2
        assert ready.bench.contents(ready.log) == [(0, b"v"), (far, b"v")]


class TestRead:
    def test_at_the_end_there_is_nothing_and_no_error(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        assert ready.log.read(1, 100, upper=1).region is None

    @pytest.mark.parametrize("offset", [-1, 2])
    def test_outside_of_the_log_is_an_error(self, ready: Ready, offset: int) -> None:
        ready.bench.append(ready.log, b"a")
        code = codes(ready.log.read, offset, 100, upper=1)
        assert code is ErrorCode.OFFSET_OUT_OF_RANGE

    def test_below_the_log_start_is_an_error(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", b"b")
        ready.log.advance_start(1)
        assert codes(ready.log.read, 0, 100, upper=2) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert ready.bench.contents(ready.log) == [(1, b"b")]

    def test_the_first_batch_is_whole_even_when_it_is_too_large(self, ready: Ready) -> None:
        size = ready.bench.append(ready.log, b"a" * 500).bytes
        region = ready.log.read(0, 10, upper=1).region
        assert region is not None
        assert len(region) == size
        assert ready.log.read(0, 10, upper=1, min_one=False).region is None

    def test_the_last_batch_may_be_cut(self, ready: Ready) -> None:
        size = ready.bench.append(ready.log, b"a").bytes
        ready.bench.append(ready.log, b"b")
        region = ready.log.read(0, size + 5, upper=2).region
        assert region is not None
        assert len(region) == size + 5

    def test_nothing_from_the_upper_bound_on(self, ready: Ready) -> None:
        size = ready.bench.append(ready.log, b"a", b"b").bytes
        ready.bench.append(ready.log, b"c")
        region = ready.log.read(1, EVERYTHING, upper=2).region
        assert region is not None
        assert (region.position, len(region)) == (0, size)
        assert ready.log.read(2, EVERYTHING, upper=2).region is None
        assert ready.log.read(0, EVERYTHING, upper=1).region is None

    def test_an_old_segment_is_read_to_its_end(self, ready: Ready) -> None:
        size = ready.bench.append(ready.log, b"a").bytes
        ready.log.roll()
        ready.bench.append(ready.log, b"b")
        region = ready.log.read(0, EVERYTHING, upper=2).region
        assert region is not None
        assert len(region) == size
        assert ready.log.read(0, EVERYTHING, upper=1).region is not None

    def test_a_tail_read_touches_no_file(self, ready: Ready) -> None:
        for number in range(20):
            ready.bench.append(ready.log, b"%d" % number)
        ready.bench.fs.fail("*", errno.EIO, operations=["read", "open"])
        region = ready.log.read(19, EVERYTHING, upper=20).region
        assert region is not None

    def test_bytes_from_counts_what_a_reader_could_get(self, ready: Ready) -> None:
        sizes = []
        for number in range(6):
            if number in (2, 4):
                ready.log.roll()
            sizes.append(ready.bench.append(ready.log, b"x" * number * 10).bytes)
        for start in range(6):
            for end in range(start, 7):
                assert ready.log.bytes_from(start, end) == sum(sizes[start:end])
        assert ready.log.bytes_from(0, 99) == ready.log.size


class TestTime:
    @pytest.fixture
    def timed(self, ready: Ready) -> Ready:
        start = ready.bench.clock.now_ms()
        for number in range(9):
            if number in (3, 6):
                ready.log.roll()
            batch = build_batch(
                [(start + 100 * number + 10 * index, None, b"v", ()) for index in range(3)]
            )
            ready.bench.append_bytes(ready.log, batch, epoch=number // 4)
        ready.bench.clock.advance(10_000)
        return ready

    def test_the_first_record_at_or_after_the_moment(self, timed: Ready) -> None:
        start = timed.bench.clock.now_ms() - 10_000
        for moment, offset in ((0, 0), (1, 1), (10, 1), (20, 2), (21, 3), (399, 12), (820, 26)):
            found = timed.log.look_up_time(start + moment).run(short=True)
            assert found is not None
            assert found.offset == offset
            assert found.leader_epoch == offset // 12
        assert timed.log.look_up_time(start + 821).run(short=True) is None

    def test_what_was_found_in_a_log_that_was_cut_meanwhile_is_not_believed(
        self, timed: Ready
    ) -> None:
        start = timed.bench.clock.now_ms() - 10_000
        by_time, latest = timed.log.look_up_time(start + 820), timed.log.look_up_time(None)
        assert by_time.run(short=True) == latest.run(short=True)
        assert by_time.is_current
        assert latest.is_current
        timed.log.truncate_to(20)
        assert not by_time.is_current
        assert not latest.is_current

    def test_neither_is_a_file_that_retention_took(self, timed: Ready) -> None:
        start = timed.bench.clock.now_ms() - 10_000
        look_up = timed.log.look_up_time(start)
        timed.log.advance_start(12)
        timed.bench.clock.advance(1)
        assert timed.log.delete_old(timed.bench.clock.now_ms())
        with pytest.raises(FileNotFoundError):
            look_up.run(short=True)
        assert not look_up.is_current

    def test_appends_and_rolls_meanwhile_do_no_harm(self, timed: Ready) -> None:
        start = timed.bench.clock.now_ms() - 10_000
        look_up = timed.log.look_up_time(start + 800)
        timed.bench.append(timed.log, b"new")
        timed.log.roll()
        timed.bench.append(timed.log, b"newer")
        found = look_up.run(short=True)
        assert found is not None
        assert found.offset == 24
        assert look_up.is_current

    def test_a_batch_that_is_too_large_for_a_short_look_up_takes_a_long_one(
        self, ready: Ready
    ) -> None:
        now = ready.bench.clock.now_ms()
        records = [(now, None, bytes(1 << 20), ()) for _ in range(5)]
        zstd = build_batch(records, compression=Compression.ZSTD)
        ready.bench.append_bytes(ready.log, zstd)
        look_up = ready.log.look_up_time(now)
        with pytest.raises(NeedsLongLookUp):
            look_up.run(short=True)
        found = look_up.run(short=False)
        assert found is not None
        assert (found.offset, found.timestamp) == (0, now)

    def test_the_log_start_is_respected(self, timed: Ready) -> None:
        timed.log.advance_start(13)
        found = timed.log.look_up_time(0).run(short=True)
        assert found is not None
        assert found.offset == 13

    def test_the_latest_timestamp_is_looked_for_inside_the_batch(self, timed: Ready) -> None:
        now = timed.bench.clock.now_ms()
        batch = build_batch([(now - 5, None, b"", ()), (now, None, b"", ()), (now, None, b"", ())])
        timed.bench.append_bytes(timed.log, batch)
        timed.bench.append(timed.log, b"earlier", timestamp=now - 1)
        found = timed.log.look_up_time(None).run(short=True)
        assert found == (28, now, 0)

    def test_an_empty_log_has_neither(self, ready: Ready) -> None:
        assert ready.log.look_up_time(None).run(short=True) is None
        assert ready.log.look_up_time(0).run(short=True) is None


class TestTransactions:
    def send(self, ready: Ready, producer: int, sequence: int) -> int:
        return ready.bench.append(
            ready.log,
            b"t",
            producer_id=producer,
            producer_epoch=0,
            sequence=sequence,
            transactional=True,
        ).base_offset

    def end(self, ready: Ready, producer: int, kind: ControlType) -> None:
        marker = end_marker(
            kind,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=ready.bench.clock.now_ms(),
        )
        ready.log.append(
            memoryview(bytearray(marker)),
            leader_epoch=0,
            now_ms=ready.bench.clock.now_ms(),
            origin=Origin.COORDINATOR,
        )

    def test_nothing_after_an_open_transaction_is_stable(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"plain")
        first = self.send(ready, 1, 0)
        ready.bench.append(ready.log, b"plain")
        assert ready.log.last_stable_offset(ready.log.log_end_offset) == first
        self.end(ready, 1, ControlType.COMMIT)
        assert ready.log.last_stable_offset(ready.log.log_end_offset) == 4

    def test_aborted_transactions_are_found_by_range(self, ready: Ready) -> None:
        self.send(ready, 1, 0)
        self.end(ready, 1, ControlType.ABORT)
        ready.log.roll()
        self.send(ready, 1, 1)
        self.end(ready, 1, ControlType.COMMIT)
        self.send(ready, 2, 0)
        self.end(ready, 2, ControlType.ABORT)
        both = ready.log.aborted_transactions(0, ready.log.log_end_offset)
        assert [(each.producer_id, each.first_offset) for each in both] == [(1, 0), (2, 4)]
        assert [each.producer_id for each in ready.log.aborted_transactions(2, 6)] == [2]
        assert ready.log.aborted_transactions(2, 4) == []

    def test_a_region_has_an_end_that_bounds_the_search(self, ready: Ready) -> None:
        for _ in range(3):
            ready.bench.append(ready.log, b"x" * 5000)
        ready.log.roll()
        ready.bench.append(ready.log, b"y")
        assert ready.log.end_of(ready.log.read(0, 5100, upper=4)) in (1, 2, 3)
        assert ready.log.end_of(ready.log.read(0, EVERYTHING, upper=4)) == 3
        assert ready.log.end_of(ready.log.read(3, EVERYTHING, upper=4)) == 4
        assert ready.log.end_of(ready.log.read(4, EVERYTHING, upper=4)) == 0

    def test_open_transactions_survive_a_kill(self, ready: Ready) -> None:
        self.send(ready, 1, 0)
        self.end(ready, 1, ControlType.ABORT)
        first = self.send(ready, 2, 0)
        bench = ready.bench.killed()
        log = bench.open()
        assert log.last_stable_offset(log.log_end_offset) == first
        assert len(log.aborted_transactions(0, 9)) == 1
        assert [each.producer_id for each in log.producers()] == [1, 2]

    def test_silent_producers_are_forgotten(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"x", producer_id=9, producer_epoch=0, sequence=0)
        now = ready.bench.clock.now_ms()
        assert ready.log.expire_producers(now + 86_399_999) == 0
        assert ready.log.expire_producers(now + 86_400_000) == 1
        assert ready.log.producers() == []


class TestEpochs:
    def test_an_epoch_begins_with_its_first_batch(self, ready: Ready) -> None:
        assert ready.log.latest_epoch is None
        ready.bench.append(ready.log, b"a", epoch=2)
        ready.bench.append(ready.log, b"b", epoch=2)
        ready.bench.append(ready.log, b"c", epoch=5)
        assert ready.log.latest_epoch == 5
        assert ready.log.epoch_end_offset(2) == (2, 2)
        assert ready.log.epoch_end_offset(4) == (2, 2)
        assert ready.log.epoch_end_offset(5) == (5, 3)
        assert [ready.log.epoch_for(offset) for offset in range(3)] == [2, 2, 5]

    def test_noting_an_epoch_never_waits_for_the_disk(self, ready: Ready) -> None:
        before = ready.bench.fs.operations
        ready.log.assign_epoch(1, 0)
        kinds = {each.kind for each in ready.bench.fs.journal[before:]}
        assert not kinds & {"sync", "sync_dir"}

    def test_the_next_flush_makes_it_durable(self, ready: Ready) -> None:
        ready.bench.fs.makedirs("/data")
        ready.bench.fs.sync_dir("/")
        ready.log.assign_epoch(3, 0)
        ready.bench.append(ready.log, b"a", epoch=3)
        ready.bench.flush(ready.log)
        assert ready.bench.power_lost().open().latest_epoch == 3


class TestTruncate:
    def test_epochs_and_producers_go_back_too(self, ready: Ready) -> None:
        bench, log = ready.bench, ready.log
        bench.append(log, b"a", epoch=0, producer_id=9, producer_epoch=0, sequence=0)
        bench.append(log, b"b", epoch=1, producer_id=9, producer_epoch=0, sequence=1)
        log.roll()
        bench.append(log, b"c", epoch=1, producer_id=9, producer_epoch=0, sequence=2)
        assert log.truncate_to(1)
        assert log.latest_epoch == 0
        assert log.segment_count == 1
        assert [each.last_sequence for each in log.producers()] == [0]
        bench.append(log, b"B", epoch=2, producer_id=9, producer_epoch=0, sequence=1)
        assert bench.contents(log) == [(0, b"a"), (1, b"B")]

    def test_at_or_above_the_end_it_only_drops_an_empty_epoch(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", epoch=0)
        ready.log.assign_epoch(4, 1)
        assert not ready.log.truncate_to(1)
        assert ready.log.latest_epoch == 0

    def test_the_recovery_point_never_stays_above_the_end(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.append(ready.log, b"b")
        ready.bench.flush(ready.log)
        job = None
        ready.bench.append(ready.log, b"c")
        job = ready.log.begin_flush()
        ready.log.truncate_to(1)
        assert ready.log.recovery_point == 1
        assert job is not None
        ready.log.finish_flush(job, 0)
        assert ready.log.recovery_point == 1

    def test_a_flush_that_ends_after_a_truncation_vouches_for_nothing_appended_since(
        self, ready: Ready
    ) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.append(ready.log, b"b")
        job = ready.log.begin_flush()
        assert job is not None
        job.run(ready.bench.fs)
        ready.log.truncate_to(1)
        ready.bench.append(ready.log, b"c")
        ready.bench.append(ready.log, b"d")
        ready.log.finish_flush(job, 0)
        assert ready.log.recovery_point == 1
        ready.bench.flush(ready.log)
        assert ready.log.recovery_point == 3

    def test_a_flush_that_ends_after_starting_over_vouches_for_nothing(self, ready: Ready) -> None:
        for _ in range(5):
            ready.bench.append(ready.log, b"a")
        job = ready.log.begin_flush()
        assert job is not None
        ready.log.truncate_fully_and_start_at(2)
        ready.bench.append(ready.log, b"b")
        ready.log.finish_flush(job, 0)
        assert ready.log.recovery_point == 2

    def test_a_flush_that_began_before_a_truncation_counts_only_up_to_there(
        self, ready: Ready
    ) -> None:
        for value in (b"a", b"b", b"c"):
            ready.bench.append(ready.log, value)
        early = ready.log.begin_flush()
        ready.log.truncate_to(1)
        ready.bench.append(ready.log, b"d")
        ready.bench.append(ready.log, b"e")
        late = ready.log.begin_flush()
        assert early is not None
        assert late is not None
        early.run(ready.bench.fs)
        ready.log.finish_flush(early, 0)
        assert ready.log.recovery_point == 1
        assert ready.log.has_unsynced_truncation
        ready.log.finish_flush(late, 0)
        assert ready.log.recovery_point == 3
        assert not ready.log.has_unsynced_truncation

    def test_the_names_that_went_are_synced_before_the_file_that_was_cut(self) -> None:
        bench = LogBench(TopicConfig(segment_bytes=150))
        log = bench.open()
        for _ in range(4):
            bench.append(log, b"x" * 60)
        bench.flush(log)
        log.truncate_to(1)
        before = len(bench.fs.journal)
        bench.flush(log)
        synced = [each.path for each in bench.fs.journal[before:] if "sync" in each.kind]
        assert synced.index(FOLDER) < synced.index(f"{FOLDER}/{1:020d}.log")

    def test_the_high_watermark_goes_back_with_the_end(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.append(ready.log, b"b")
        ready.log.truncate_to(1)
        assert ready.log.high_watermark == -1
        ready.log.high_watermark = 1
        ready.log.truncate_to(0)
        assert ready.log.high_watermark == 0
        ready.log.truncate_fully_and_start_at(50)
        assert ready.log.high_watermark == 50

    def test_a_kill_during_a_truncation_leaves_no_gap(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def filled() -> tuple[LogBench, Log]:
            bench = LogBench(TopicConfig(segment_bytes=150))
            log = bench.open()
            for _ in range(6):
                bench.append(log, b"x" * 60)
            return bench, log

        bench, log = filled()
        begin = bench.fs.operations
        log.truncate_to(1)
        end = bench.fs.operations
        assert end - begin > 10
        for number in range(begin, end):
            bench, log = filled()
            bench.fs.crash_at(number)
            with pytest.raises(Crashed):
                log.truncate_to(1)
            bench = bench.killed()
            caplog.clear()
            again = bench.open()
            assert "records of that segment are gone" not in caplog.text
            assert [offset for offset, _ in bench.contents(again)] == list(
                range(again.log_end_offset)
            )
            assert again.log_end_offset >= 1

    def test_below_the_first_segment_the_log_starts_over(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", b"b")
        ready.log.roll()
        ready.bench.append(ready.log, b"c")
        ready.log.advance_start(2)
        ready.log.delete_old(ready.bench.clock.now_ms())
        assert ready.log.truncate_to(1)
        assert (ready.log.log_start_offset, ready.log.log_end_offset) == (1, 1)
        assert ready.bench.append(ready.log, b"d").base_offset == 1

    def test_starting_over_forgets_everything(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", producer_id=9, producer_epoch=0, sequence=0)
        ready.log.truncate_fully_and_start_at(100)
        assert (ready.log.log_start_offset, ready.log.log_end_offset, ready.log.size) == (
            100,
            100,
            0,
        )
        assert ready.log.producers() == []
        assert ready.log.latest_epoch is None
        assert ready.bench.append(ready.log, b"b").base_offset == 100


class TestStartOffset:
    def test_it_cannot_pass_the_high_watermark(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", b"b")
        ready.log.high_watermark = 1
        assert codes(ready.log.advance_start, 2) is ErrorCode.OFFSET_OUT_OF_RANGE
        ready.log.advance_start(1)
        ready.log.advance_start(0)
        assert ready.log.log_start_offset == 1


class TestFlush:
    def test_flush_messages_asks_for_a_flush(self) -> None:
        bench = LogBench(TopicConfig(flush_messages=3))
        log = bench.open()
        bench.append(log, b"a", b"b")
        assert not log.flush_due
        bench.append(log, b"c")
        assert log.flush_due
        bench.flush(log)
        assert not log.flush_due
        assert log.unflushed_messages == 0

    def test_a_second_flush_has_nothing_to_do(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.flush(ready.log)
        assert ready.log.begin_flush() is None

    def test_in_steady_state_a_flush_is_one_sync(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.flush(ready.log)
        ready.bench.append(ready.log, b"b")
        before = ready.bench.fs.operations
        ready.bench.flush(ready.log)
        new = ready.bench.fs.journal[before:]
        assert [(each.kind, each.path) for each in new] == [("sync", LOG_FILE)]

    def test_rolled_segments_are_flushed_with_their_indexes(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.log.roll()
        ready.bench.append(ready.log, b"b")
        before = ready.bench.fs.operations
        ready.bench.flush(ready.log)
        synced = {each.path.rpartition("/")[2] for each in ready.bench.fs.journal[before:]}
        assert {
            "00000000000000000000.log",
            "00000000000000000000.index",
            "00000000000000000000.timeindex",
            "00000000000000000001.snapshot",
            "00000000000000000001.log",
            "t-0",
        } <= synced

    def test_the_topic_id_is_written_and_read_again(self, ready: Ready) -> None:
        topic_id = TopicId(bytes(range(16)))
        ready.log.set_topic_id(topic_id)
        assert ready.bench.killed().open().topic_id == topic_id


class TestClose:
    def test_a_clean_stop_leaves_complete_indexes_and_a_snapshot(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a", producer_id=9, producer_epoch=0, sequence=0)
        ready.bench.close(ready.log)
        names = ready.bench.fs.listdir(FOLDER)
        assert names == [
            "00000000000000000000.index",
            "00000000000000000000.log",
            "00000000000000000000.timeindex",
            "00000000000000000001.snapshot",
            "leader-epoch-checkpoint",
        ]
        assert ready.bench.fs.open_files == 0

    def test_closing_twice_does_nothing(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.close(ready.log)
        before = ready.bench.fs.operations
        ready.bench.close(ready.log)
        assert ready.bench.fs.operations == before

    def test_an_untouched_log_writes_nothing_when_closed(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.close(ready.log)
        again = ready.bench.open(clean=True)
        before = ready.bench.fs.operations
        ready.bench.close(again)
        assert ready.bench.fs.operations == before


class TestConfig:
    def test_a_change_takes_effect_with_the_next_append(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a" * 100)
        ready.log.config = TopicConfig(segment_bytes=200)
        ready.bench.append(ready.log, b"b" * 100)
        assert ready.log.segment_count == 2

    def test_jitter_spreads_the_rolling(self) -> None:
        bench = LogBench(TopicConfig(segment_ms=1000, segment_jitter_ms=500))
        log = bench.open()
        rolls = set()
        for _ in range(30):
            bench.append(log, b"a")
            before = log.segment_count
            waited = 0
            while log.segment_count == before:
                bench.clock.advance(50)
                waited += 50
                bench.append(log, b"b")
            rolls.add(waited)
        assert len(rolls) > 3
        assert min(rolls) >= 500
        assert max(rolls) <= 1050


class TestFailure:
    def test_a_full_disk_takes_the_folder_offline_and_keeps_what_was_there(
        self, ready: Ready
    ) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.fs.fail("*.log", errno.ENOSPC, operations=["append"], torn=20)
        with pytest.raises(KafkaError) as caught:
            ready.bench.append(ready.log, b"b")
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert str(caught.value.message) == (
            f"appending failed in {LOG_FILE}: No space left on device; the disk is full: free "
            f"some space, then restart the broker"
        )
        assert [doing for doing, _ in ready.bench.host.failures] == ["appending"]
        bench = ready.bench.killed()
        assert bench.contents(bench.open()) == [(0, b"a")]

    def test_an_offline_log_answers_nothing_else_and_fails_only_once(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.fs.fail("*", errno.EIO, operations=["append"])
        log = ready.log
        for _ in range(3):
            assert codes(ready.bench.append, log, b"b") is ErrorCode.KAFKA_STORAGE_ERROR
        for call in (
            lambda: log.read(0, 100, upper=1),
            log.roll,
            lambda: log.look_up_time(0).run(short=True),
            lambda: log.truncate_to(0),
            lambda: log.advance_start(0),
            lambda: log.delete_old(0),
            lambda: log.bytes_from(0, 1),
            lambda: log.append_replicated(memoryview(b""), leader_epoch=4),
        ):
            assert codes(call) is ErrorCode.KAFKA_STORAGE_ERROR
        assert len(ready.bench.host.failures) == 1
        log.close()

    def test_a_read_error_is_a_storage_error(self, ready: Ready) -> None:
        for _ in range(2):
            ready.bench.append(ready.log, b"a")
            ready.log.roll()
        ready.bench.fs.fail("*.index", errno.EIO, operations=["open"])
        ready.bench.fs.fail("*.log", errno.EIO, operations=["read"])
        code = codes(ready.log.read, 0, 100, upper=2)
        assert code is ErrorCode.KAFKA_STORAGE_ERROR

    def test_failing_to_roll_is_a_storage_error(self) -> None:
        bench = LogBench(TopicConfig(segment_bytes=200))
        log = bench.open()
        bench.append(log, b"a" * 100)
        bench.fs.fail("*", errno.EROFS, operations=["create"])
        assert codes(bench.append, log, b"b" * 100) is ErrorCode.KAFKA_STORAGE_ERROR
        assert "read-only" in (log.failure or "")

    def test_closing_a_log_on_a_failed_disk_raises_nothing(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.bench.fs.fail("*", errno.EIO)
        ready.log.close()
        assert ready.log.failure is not None

    def test_a_deleted_log_refuses_everything(self, ready: Ready) -> None:
        ready.bench.append(ready.log, b"a")
        ready.log.deleted("/data/t-0.abc-delete")
        assert codes(ready.bench.append, ready.log, b"b") is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_missing_segment_file_is_said_when_retention_comes_by(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = LogBench(TopicConfig(retention_ms=1))
    log = bench.open()
    bench.append(log, b"a")
    log.roll()
    bench.fs.remove(LOG_FILE)
    bench.clock.advance(1000)
    with caplog.at_level(logging.WARNING):
        log.delete_old(bench.clock.now_ms())
    assert "gone already" in caplog.text
    assert log.segment_count == 1


def test_whole_batches_can_be_walked_in_what_is_read() -> None:
    bench = LogBench(fs=MemoryFileSystem())
    log = bench.open()
    for number in range(4):
        bench.append(log, b"%d" % number)
    region = log.read(1, EVERYTHING, upper=4).region
    assert region is not None
    assert [header.base_offset for _, header in batches(region.read())] == [1, 2, 3]
