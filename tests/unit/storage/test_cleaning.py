"""What stays of a log when it is compacted, and what the new segments look like."""

from __future__ import annotations

import random
import struct

import pytest

from ottla.config.setting import MAX_LONG
from ottla.config.topic import TopicConfig
from ottla.records import varint
from ottla.records.batch import APPEND_TIME_FLAG
from ottla.records.builder import assemble
from ottla.records.compression import Compression
from ottla.storage.cleanable import Source, groups
from ottla.storage.cleaning import CleaningFailed, Throttle
from ottla.storage.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY
from ottla.storage.log import Log
from ottla.testing.logs import FOLDER, LogBench

DAY_MS = 86_400_000
COMPACT = frozenset({"compact"})


def made(**settings: object) -> tuple[LogBench, Log]:
    config = TopicConfig(
        cleanup_policy=COMPACT,
        internal_segment_bytes=100_000,
        **settings,
    )
    bench = LogBench(config)
    return bench, bench.open()


def kept(bench: LogBench, log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in bench.records(log)]


class TestKeys:
    def test_the_last_value_of_each_key_stays_at_its_offset(self) -> None:
        bench, log = made()
        for value in (b"1", b"2", b"3"):
            bench.put(log, (b"a", value), (b"b", value))
        bench.put(log, (b"c", b"1"))
        log.roll()
        summary = bench.clean(log)
        assert kept(bench, log) == [(4, b"a", b"3"), (5, b"b", b"3"), (6, b"c", b"1")]
        assert summary is not None
        assert (summary.end_offset, summary.records_read, summary.records_kept) == (7, 7, 3)

    def test_the_active_segment_is_left_alone(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"))
        log.roll()
        bench.put(log, (b"a", b"2"))
        bench.put(log, (b"a", b"3"))
        bench.clean(log)
        assert kept(bench, log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]

    def test_records_without_a_key_go(self) -> None:
        bench, log = made()
        log.config = TopicConfig(cleanup_policy=frozenset({"delete"}))
        bench.put(log, (None, b"1"), (b"a", b"2"), (None, b"3"))
        log.roll()
        log.config = bench.config
        bench.clean(log)
        assert kept(bench, log) == [(1, b"a", b"2")]

    @pytest.mark.parametrize("codec", list(Compression))
    def test_compressed_batches_keep_their_codec(self, codec: Compression) -> None:
        bench, log = made()
        bench.put(log, *((b"%d" % (n % 10), b"v" * 100) for n in range(30)), compression=codec)
        bench.put(log, (b"0", b"new"), compression=codec)
        log.roll()
        bench.clean(log)
        assert [offset for offset, _, _ in kept(bench, log)] == [*range(21, 30), 30]
        assert {header.compression for header in bench.batches(log)} == {codec}

    def test_a_second_cleaning_goes_on_where_the_first_ended(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"), (b"b", b"1"))
        log.roll()
        bench.clean(log)
        bench.put(log, (b"a", b"2"))
        log.roll()
        found = log.compaction.assess(bench.clock.now_ms())
        assert found.first_dirty_offset == 2
        bench.clean(log)
        assert kept(bench, log) == [(1, b"b", b"1"), (2, b"a", b"2")]

    def test_a_map_too_small_for_all_keys_takes_several_rounds(self) -> None:
        bench, log = made()
        for n in range(200):
            bench.put(log, (b"%d" % (n % 50), b"%d" % n))
        log.roll()
        ends = []
        while log.compaction.cleaned_to != 200:
            summary = bench.clean(log, map_bytes=24 * 20)
            assert summary is not None
            ends.append(summary.end_offset)
        assert len(ends) > 5
        assert ends == sorted(set(ends))
        assert [offset for offset, _, _ in kept(bench, log)] == list(range(150, 200))

    def test_one_batch_with_more_keys_than_the_map_takes(self) -> None:
        bench, log = made()
        bench.put(log, *((b"%d" % n, b"1") for n in range(50)))
        bench.put(log, *((b"%d" % n, b"2") for n in range(50)))
        log.roll()
        while log.compaction.cleaned_to != 100:
            bench.clean(log, map_bytes=24 * 10)
        assert [offset for offset, _, _ in kept(bench, log)] == list(range(50, 100))

    def test_nothing_beyond_the_high_watermark_supersedes(self) -> None:
        bench, log = made()
        for _ in range(3):
            bench.put(log, (b"a", b"1"))
            log.roll()
        log.high_watermark = 2
        bench.clean(log)
        assert [offset for offset, _, _ in kept(bench, log)] == [1, 2]


class TestTombstones:
    def test_a_tombstone_stays_until_its_horizon_and_goes_after_it(self) -> None:
        bench, log = made(delete_retention_ms=1000)
        bench.put(log, (b"a", b"1"), (b"b", b"1"))
        bench.put(log, (b"a", None))
        log.roll()
        bench.clean(log)
        assert kept(bench, log) == [(1, b"b", b"1"), (2, b"a", None)]
        horizon = bench.clock.now_ms() + 1000
        assert bench.batches(log)[-1].delete_horizon_ms == horizon
        before = bench.records(log)[-1].timestamp

        bench.clock.advance(999)
        bench.put(log, (b"x", b"1"))
        log.roll()
        bench.clean(log)
        assert bench.batches(log)[1].delete_horizon_ms == horizon  # the first cleaning's
        assert bench.records(log)[1].timestamp == before

        bench.clock.advance(1)
        bench.put(log, (b"x", b"2"))
        log.roll()
        bench.clean(log)
        assert kept(bench, log) == [(1, b"b", b"1"), (4, b"x", b"2")]

    def test_a_tombstone_that_is_to_stay_for_ever_stays(self) -> None:
        bench, log = made(delete_retention_ms=MAX_LONG)
        bench.put(log, (b"a", b"1"), (b"b", b"1"))
        bench.put(log, (b"a", None))
        moment = bench.clock.now_ms()
        for _ in range(2):
            log.roll()
            bench.clean(log)
            assert kept(bench, log)[:2] == [(1, b"b", b"1"), (2, b"a", None)]
            assert bench.records(log)[1].timestamp == moment
            bench.clock.advance(1000 * DAY_MS)
            bench.put(log, (b"x", b"1"))

    def test_a_value_after_the_tombstone_counts(self) -> None:
        bench, log = made(delete_retention_ms=0)
        bench.put(log, (b"a", None))
        bench.put(log, (b"a", b"back"))
        log.roll()
        bench.clean(log)
        assert kept(bench, log) == [(1, b"a", b"back")]

    def test_timestamps_survive_the_horizon(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", None))
        bench.clock.advance(5)
        bench.put(log, (b"b", b"1"), (b"c", None))
        moments = [record.timestamp for record in bench.records(log)]
        log.roll()
        bench.clean(log)
        assert [record.timestamp for record in bench.records(log)] == moments

    def test_a_tombstone_in_a_compressed_batch_gets_its_horizon_too(self) -> None:
        bench, log = made(delete_retention_ms=7)
        bench.put(log, (b"a", None), (b"b", b"1"), compression=Compression.ZSTD)
        log.roll()
        bench.clean(log)
        assert bench.batches(log)[0].delete_horizon_ms == bench.clock.now_ms() + 7
        assert kept(bench, log) == [(0, b"a", None), (1, b"b", b"1")]


class TestProducers:
    def test_the_last_batch_of_a_producer_stays_as_a_header(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, sequence=0)
        bench.put(log, (b"a", b"2"), producer_id=7, producer_epoch=0, sequence=1)
        bench.put(log, (b"a", b"3"), producer_id=8, producer_epoch=0, sequence=0)
        log.roll()
        bench.clean(log)
        empty, last = bench.batches(log)
        assert (empty.producer_id, empty.base_sequence, empty.record_count) == (7, 1, 0)
        assert (last.producer_id, last.record_count) == (8, 1)

    def test_duplicates_are_known_after_cleaning_and_a_crash(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"), producer_id=7, producer_epoch=3, sequence=0)
        bench.put(log, (b"a", b"2"))
        log.roll()
        bench.clean(log)
        for path in bench.fs.listdir(FOLDER):
            if path.endswith(".snapshot"):
                bench.fs.remove(f"{FOLDER}/{path}")
        bench = bench.killed()
        log = bench.open()
        again = bench.put(log, (b"a", b"1"), producer_id=7, producer_epoch=3, sequence=0)
        assert again.duplicate
        assert again.base_offset == 0

    def test_an_empty_batch_goes_when_the_producer_has_written_later(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, sequence=0)
        bench.put(log, (b"a", b"2"))
        log.roll()
        bench.clean(log)
        assert len(bench.batches(log)) == 2
        bench.put(log, (b"b", b"3"), producer_id=7, producer_epoch=0, sequence=1)
        log.roll()
        bench.clean(log)
        assert [header.base_offset for header in bench.batches(log)] == [1, 2]


class TestSegments:
    def test_small_segments_become_one(self) -> None:
        bench, log = made()
        for n in range(10):
            bench.put(log, (b"%d" % n, b"v"))
            log.roll()
        bench.clean(log)
        assert log.segment_count == 2  # and the active one
        assert len(bench.records(log)) == 10

    def test_a_group_is_no_larger_than_a_segment(self) -> None:
        bench, log = made()
        for n in range(10):
            bench.put(log, (b"%d" % n, b"v" * 30_000))
            log.roll()
        bench.clean(log)
        assert log.segment_count == 5

    def test_a_segment_whose_records_are_all_gone_keeps_its_last_header(self) -> None:
        bench, log = made(segment_bytes=1 << 20)
        for n in range(4):
            bench.put(log, (b"a", b"%d" % n * 40_000))
            log.roll()
        bench.clean(log)
        headers = bench.batches(log)
        assert [(each.base_offset, each.record_count) for each in headers] == [(1, 0), (3, 1)]
        assert log.log_end_offset == 4

    def test_what_was_read_is_found_again_by_offset_and_time(self) -> None:
        bench, log = made(index_interval_bytes=100)
        for n in range(300):
            bench.put(log, (b"%d" % (n % 100), b"v" * 50))
            bench.clock.advance(1)
        moments = {record.offset: record.timestamp for record in bench.records(log)}
        log.roll()
        bench.clean(log)
        for offset in range(200, 300):
            assert bench.contents(log, offset)[0][0] == offset
            found = log.look_up_time(moments[offset]).run(short=True)
            assert found is not None
            assert found.offset == offset
        assert bench.contents(log, 0)[0][0] == 200

    def test_the_time_index_knows_only_of_records(self) -> None:
        bench, log = made()
        written = bench.clock.now_ms()
        bench.put(log, (b"a", b"1"))
        bench.clock.advance(10)
        bench.put(log, (b"b", b"1"), producer_id=1, producer_epoch=0, sequence=0)
        log.roll()
        bench.put(log, (b"b", b"2" * 99_900))
        log.roll()
        bench.clean(log)
        assert [each.record_count for each in bench.batches(log)] == [1, 0, 1]
        for opened in (log, bench.killed().open()):
            assert opened.compaction._segments[0].time_index.last() == (written, 0)

    def test_the_new_segment_is_as_old_as_the_last_it_replaces(self) -> None:
        bench, log = made()
        moments = []
        for value in (b"1", b"2"):
            bench.clock.advance(1000)
            moments.append(bench.clock.now_ms())
            bench.fs.now_ms = moments[-1]
            bench.put(log, (b"a", value))
            log.roll()
        bench.clock.advance(DAY_MS)
        bench.clean(log)
        assert bench.fs.mtime_ms(f"{FOLDER}/00000000000000000000.log") == moments[-1]

    def test_leader_epochs_stay(self) -> None:
        bench, log = made()
        for epoch in (3, 5):
            log.assign_epoch(epoch, log.log_end_offset)
            bench.put(log, (b"a", b"1"))
        epochs = log.epoch_for(0), log.epoch_for(1)
        log.roll()
        bench.clean(log)
        assert (log.epoch_for(0), log.epoch_for(1)) == epochs

    def test_a_reader_in_an_old_file_reads_to_its_end(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"))
        bench.put(log, (b"a", b"2"))
        log.roll()
        region = log.read(0, 1 << 20, upper=log.log_end_offset).region
        assert region is not None
        before = region.read()
        bench.clean(log)
        assert region.read() == before

    def test_the_folder_opens_again_as_it_was_left(self) -> None:
        bench, log = made(index_interval_bytes=50)
        for n in range(100):
            bench.put(log, (b"%d" % (n % 7), b"%d" % n))
            if n % 20 == 19:
                log.roll()
        bench.clean(log)
        found = kept(bench, log)
        segments = log.segment_count
        bench = bench.killed()
        log = bench.open()
        assert kept(bench, log) == found
        assert log.segment_count == segments


def grouped(
    *sources: tuple[int, int], end: int, limit: int = 1000, index: int = 1000
) -> list[list[int]]:
    listed = [Source(base, size, size // 10, size // 20) for base, size in sources]
    found = groups(listed, end_offset=end, max_bytes=limit, max_index_bytes=index)
    return [[source.base_offset for source in group] for group in found]


class TestGrouping:
    def test_by_size(self) -> None:
        assert grouped((0, 400), (10, 600), (20, 1), end=30) == [[0, 10], [20]]

    def test_a_segment_larger_than_the_limit_is_alone(self) -> None:
        assert grouped((0, 5000), (10, 1), end=30) == [[0], [10]]

    def test_by_the_size_of_indexes(self) -> None:
        assert grouped((0, 400), (10, 300), (20, 300), end=30, index=70) == [[0, 10], [20]]

    def test_offsets_too_far_apart_for_one_index(self) -> None:
        far = MAX_RELATIVE_OFFSET
        assert grouped((0, 1), (far - 5, 1), end=far + 1) == [[0, far - 5]]
        assert grouped((0, 1), (far - 5, 1), end=far + 2) == [[0], [far - 5]]

    def test_empty_segments_are_never_too_far(self) -> None:
        far = MAX_RELATIVE_OFFSET
        assert grouped((0, 1), (far + 10, 0), end=far + 20) == [[0, far + 10]]


def record(time_delta: int, offset_delta: int, key: bytes, value: bytes | None) -> bytes:
    content = b"".join(
        (
            b"\0" + varint.encode(time_delta) + varint.encode(offset_delta),
            varint.encode(len(key)) + key,
            varint.encode(-1) if value is None else varint.encode(len(value)) + value,
            varint.encode(0),
        )
    )
    return varint.encode(len(content)) + content


def batch(
    *records: bytes, base_timestamp: int, max_timestamp: int = -1, attributes: int = 0
) -> bytes:
    return assemble(
        b"".join(records),
        base_offset=0,
        leader_epoch=-1,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(records),
    )


class TestTheLatestTime:
    """A batch without records keeps its time in its header, and is not what is looked for."""

    def emptied(self) -> tuple[LogBench, Log, tuple[int, int]]:
        bench, log = made()
        moment = bench.clock.now_ms()
        bench.put(log, (b"b", b"1"))
        bench.clock.advance(1000)
        bench.put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, sequence=0)
        bench.append_bytes(log, batch(record(0, 0, b"a", b"2"), base_timestamp=moment + 500))
        log.roll()
        bench.clean(log)
        assert [header.record_count for header in bench.batches(log)] == [1, 0, 1]
        return bench, log, (2, moment + 500)

    def latest(self, log: Log) -> tuple[int, int] | None:
        found = log.look_up_time(None).run(short=True)
        return None if found is None else (found.offset, found.timestamp)

    def test_in_the_log_and_in_a_copy(self) -> None:
        bench, log, latest = self.emptied()
        assert self.latest(log) == latest
        region = log.read(0, 1_000_000, upper=3).region
        assert region is not None
        other = LogBench(bench.config)
        copy = other.open()
        copy.append_replicated(memoryview(region.read()), leader_epoch=0)
        assert self.latest(copy) == latest
        copy.roll()
        other.close(copy)
        assert self.latest(other.open(clean=True)) == latest

    def test_when_what_came_after_it_was_cut_off(self) -> None:
        bench, log, _ = self.emptied()
        log.truncate_to(2)
        assert self.latest(log) == (0, bench.clock.now_ms() - 1000)


class TestTimesThatDoNotFit:
    """A producer may say what it likes about times: it cannot end the compaction of a topic."""

    def test_a_tombstone_further_from_the_horizon_than_64_bits(self) -> None:
        bench, log = made()
        moment = bench.clock.now_ms() - MAX_LONG + 5
        bench.append_bytes(log, batch(record(0, 0, b"a", None), base_timestamp=moment))
        log.roll()
        bench.clean(log)
        assert kept(bench, log) == [(0, b"a", None)]
        assert (bench.records(log)[0].timestamp - moment) % 2**64 == 0  # as Java adds

    def test_deltas_of_a_batch_that_gets_append_time(self) -> None:
        bench, log = made(message_timestamp_type="LogAppendTime")
        records = record(0, 0, b"a", b"1"), record(-5, 1, b"a", b"2"), record(-6, 2, b"b", b"1")
        bench.append_bytes(log, batch(*records, base_timestamp=-MAX_LONG - 1))
        log.roll()
        bench.clean(log)
        assert kept(bench, log) == [(1, b"a", b"2"), (2, b"b", b"1")]

    def test_deltas_of_a_batch_that_claims_append_time(self) -> None:
        bench, log = made()
        now = bench.clock.now_ms()
        records = record(0, 0, b"a", b"1"), record(MAX_LONG, 1, b"a", b"2")
        bench.append_bytes(
            log,
            batch(*records, base_timestamp=now, max_timestamp=now, attributes=APPEND_TIME_FLAG),
        )
        log.roll()
        bench.clean(log)
        assert kept(bench, log) == [(1, b"a", b"2")]


class TestTrouble:
    def test_a_damaged_batch_ends_the_cleaning_and_leaves_the_log(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1"))
        bench.put(log, (b"a", b"2"))
        log.roll()
        before = bench.fs.read_bytes(f"{FOLDER}/00000000000000000000.log")
        file = bench.fs.open(f"{FOLDER}/00000000000000000000.log")
        file.pwrite(b"\xff", len(before) - 2)
        with pytest.raises(CleaningFailed, match="is damaged at position 70"):
            bench.clean(log)
        assert log.segment_count == 2

    def test_a_damaged_compressed_batch(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1" * 100), compression=Compression.LZ4)
        log.roll()
        path = f"{FOLDER}/00000000000000000000.log"
        bench.fs.open(path).pwrite(b"\xff", bench.fs.size(path) - 2)
        with pytest.raises(CleaningFailed, match="is damaged at position 0"):
            bench.clean(log)

    @pytest.mark.parametrize("wrong", [77, 2**30, -5, None])
    def test_an_index_that_misleads_is_no_damage(self, wrong: int | None) -> None:
        bench, log = made(index_interval_bytes=200)
        for number in range(50):
            bench.put(log, (b"%d" % (number % 5), b"1" * 100))
        log.roll()
        bench.put(log, (b"4", b"2"))  # supersedes the last record of the first segment
        log.roll()
        path = f"{FOLDER}/00000000000000000000.index"
        file = bench.fs.open(path)
        if wrong is None:
            file.truncate(OFFSET_ENTRY.size)
        else:
            file.pwrite(struct.pack(">i", wrong), file.size() - 4)
        log.config = TopicConfig(cleanup_policy=COMPACT, internal_segment_bytes=1000)
        bench.clean(log)
        assert [offset for offset, _, _ in kept(bench, log)] == [45, 46, 47, 48, 50]
        # The last batch stays, so that the segment says where it ends.
        assert [header.last_offset for header in bench.batches(log)] == [45, 46, 47, 48, 49, 50]

    def test_batches_larger_than_the_buffers(self) -> None:
        bench, log = made()
        bench.put(log, (b"a", b"1" * 300_000))
        bench.put(log, (b"b", random.Random(1).randbytes(90_000)), compression=Compression.GZIP)
        log.roll()
        bench.clean(log)
        assert [offset for offset, _, _ in kept(bench, log)] == [0, 1]


def test_the_throttle_spreads_bytes_over_time() -> None:
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(1000, now=lambda: now, sleep=sleep)
    for _ in range(50):
        throttle.take(100)
    assert sum(slept) == pytest.approx(5.0)
    now += 100
    throttle.take(1)
    assert sum(slept) == pytest.approx(5.0)  # time that was not used is not saved up
