"""What a crash, an operator or a bad disk can leave in a folder, and what becomes of it."""

from __future__ import annotations

import errno
import logging
import pickle
import struct
from dataclasses import dataclass

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, end_marker
from ottla.storage.check import check_segment, find_batch
from ottla.storage.log import Log
from ottla.storage.paths import LOST_RECORDS
from ottla.storage.producers import Origin
from ottla.storage.recovery import LogCorrupted
from ottla.storage.repair import repair
from ottla.testing.logs import FOLDER, LogBench

FIRST = f"{FOLDER}/00000000000000000000"


@dataclass
class Written:
    bench: LogBench
    log: Log
    sizes: list[int]

    def position(self, number: int) -> int:
        return sum(self.sizes[:number])


def written(count: int = 6, *, rolls: tuple[int, ...] = (), interval: int = 200) -> Written:
    """A log with one record a batch; nothing flushed, nothing closed."""
    bench = LogBench(TopicConfig(index_interval_bytes=interval))
    log = bench.open()
    sizes = []
    for number in range(count):
        if number in rolls:
            log.roll()
        bench.clock.advance(1)
        sizes.append(bench.append(log, b"%d" % number + b"x" * 60).bytes)
    return Written(bench, log, sizes)


def spoil(bench: LogBench, path: str, position: int, data: bytes) -> None:
    file = bench.fs.open(path)
    file.pwrite(data, position)
    file.close()


def cut(bench: LogBench, path: str, size: int) -> None:
    file = bench.fs.open(path)
    file.truncate(size)
    file.close()


def offsets(bench: LogBench, log: Log) -> list[int]:
    return [offset for offset, _ in bench.contents(log)]


class TestTornTail:
    @pytest.mark.parametrize("missing", [1, 30, 60, 90])
    def test_an_unfinished_batch_is_cut_off_and_said(
        self, missing: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written()
        size = made.log.size
        cut(made.bench, f"{FIRST}.log", size - missing)
        with caplog.at_level(logging.WARNING):
            log = made.bench.open()
        assert offsets(made.bench, log) == [0, 1, 2, 3, 4]
        assert made.bench.fs.size(f"{FIRST}.log") == made.position(5)
        assert len(caplog.records) == 1
        line = caplog.text
        assert f"{FIRST}.log: cut off the last {made.sizes[5] - missing} bytes" in line
        assert f"from position {made.position(5)} on" in line
        assert "the log ends at offset 5" in line

    def test_a_wrong_checksum_in_the_last_batch_is_a_torn_write(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", made.log.size - 3, b"\xff")
        log = made.bench.open()
        assert offsets(made.bench, log) == [0, 1, 2, 3, 4]
        assert made.bench.append(log, b"again").base_offset == 5

    def test_an_allocation_without_its_data_is_unused_space(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written()
        size = made.log.size
        spoil(made.bench, f"{FIRST}.log", size, bytes(10_000))
        with caplog.at_level(logging.WARNING):
            log = made.bench.open()
        assert log.size == size
        assert "10000 bytes of unused space" in caplog.text

    def test_an_empty_segment_after_the_torn_one_goes_with_the_tail(self) -> None:
        made = written(rolls=(3,))
        made.log.roll()
        cut(made.bench, f"{FOLDER}/00000000000000000003.log", made.position(1) + 5)
        log = made.bench.open()
        assert offsets(made.bench, log) == [0, 1, 2, 3]
        assert log.segment_count == 2
        assert not made.bench.fs.exists(f"{FOLDER}/00000000000000000006.log")

    def test_a_log_of_nothing_but_a_torn_batch_is_empty(self) -> None:
        made = written(1)
        cut(made.bench, f"{FIRST}.log", 40)
        log = made.bench.open()
        assert (log.log_end_offset, log.size) == (0, 0)


class TestLostRecords:
    """Whatever is cut off may have been acknowledged: others count on it."""

    @pytest.mark.parametrize("missing", [1, 30, 60, 90])
    def test_a_file_that_was_cut_looks_like_an_interrupted_write(self, missing: int) -> None:
        made = written()
        cut(made.bench, f"{FIRST}.log", made.log.size - missing)
        assert made.bench.open().lost_records
        assert made.bench.fs.exists(f"{FOLDER}/{LOST_RECORDS}")
        assert made.bench.open().lost_records, "the next start knows it too"

    @pytest.mark.parametrize("case", ["checksum", "two", "length", "magic", "zeros", "offset"])
    def test_whatever_is_cut_off_may_be_a_loss(self, case: str) -> None:
        made = written()
        path, last = f"{FIRST}.log", made.position(5)
        if case == "checksum":
            spoil(made.bench, path, made.log.size - 3, b"\xff")
        elif case == "two":
            spoil(made.bench, path, last - 3, b"\xff")
            cut(made.bench, path, made.log.size - 1)
        elif case == "length":
            spoil(made.bench, path, last + 8, struct.pack(">i", 100_000))
        elif case == "magic":
            spoil(made.bench, path, last + 16, b"\x07")
        elif case == "zeros":
            spoil(made.bench, path, last, bytes(made.sizes[5]))
        elif case == "offset":
            spoil(made.bench, path, last, struct.pack(">q", 1))
            cut(made.bench, path, made.log.size - 1)
        log = made.bench.open()
        assert log.log_end_offset == (4 if case == "two" else 5)
        assert log.lost_records
        assert made.bench.open().lost_records, "the next start knows it too"

    def test_it_is_marked_before_anything_is_cut(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", made.log.size - 3, b"\xff")
        size = made.bench.fs.size(f"{FIRST}.log")
        made.bench.fs.fail(f"{FOLDER}/{LOST_RECORDS}", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            made.bench.open()
        assert made.bench.fs.size(f"{FIRST}.log") == size

    def test_a_log_that_ends_below_what_was_flushed_has_lost_records(self) -> None:
        made = written()
        cut(made.bench, f"{FIRST}.log", made.position(4))
        assert made.bench.open(clean=True, recovery_point=6).lost_records

    def test_a_segment_of_which_only_the_index_is_left_is_a_loss(self) -> None:
        made = written(rolls=(3,))
        made.log.roll()
        made.bench.fs.remove(f"{FOLDER}/00000000000000000003.log")
        assert made.bench.open().has_gap
        assert made.bench.open().has_gap

    def test_a_repair_is_a_loss(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", 70, b"\xff")
        assert repair(made.bench.fs, FOLDER, dry_run=True)
        assert not made.bench.fs.exists(f"{FOLDER}/{LOST_RECORDS}")
        assert repair(made.bench.fs, FOLDER)
        log = made.bench.open()
        assert (log.lost_records, log.has_gap) == (True, True)
        assert made.bench.open().has_gap

    def test_a_repair_that_ends_the_log_leaves_no_gap(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", 70, b"\xff")
        assert repair(made.bench.fs, FOLDER, truncate=True)
        log = made.bench.open()
        assert (log.lost_records, log.has_gap) == (True, False)


class TestEpochs:
    def test_an_epoch_that_has_written_nothing_is_dropped_where_all_was_deleted(self) -> None:
        bench = LogBench(TopicConfig())
        log = bench.open()
        bench.append(log, b"a", epoch=3)
        log.advance_start(1)
        log.assign_epoch(5, 1)  # killed before the first batch under it was written
        log = bench.killed().open(log_start_offset=1)
        assert (log.latest_epoch, log.epoch_end_offset(3)) == (3, (3, 1))

    def test_a_log_that_begins_anew_has_no_epochs_without_records(self) -> None:
        bench = LogBench(TopicConfig())
        log = bench.open()
        log.truncate_fully_and_start_at(7)
        log.assign_epoch(5, 7)
        assert bench.killed().open().latest_epoch is None


class TestDamagedMiddle:
    def refused(self, bench: LogBench, *, recovery_point: int = 0) -> LogCorrupted:
        with pytest.raises(LogCorrupted) as caught:
            bench.open(recovery_point=recovery_point)
        return caught.value

    def test_a_spoiled_batch_with_whole_ones_behind_it_is_refused(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", made.position(2) + 70, b"\xff\xff")
        before = made.bench.fs.read_bytes(f"{FIRST}.log")
        error = self.refused(made.bench)
        assert (error.path, error.position, error.offset) == (
            f"{FIRST}.log",
            made.position(2),
            2,
        )
        assert f"whole batches follow from position {made.position(3)}" in error.problem
        assert f"ottla log repair {FOLDER}" in str(error)
        assert made.bench.fs.read_bytes(f"{FIRST}.log") == before

    def test_also_when_the_header_itself_is_unreadable(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", made.position(2), b"\xee" * 61)
        assert self.refused(made.bench).position == made.position(2)

    def test_damage_in_a_segment_with_later_records_is_refused(self) -> None:
        made = written(rolls=(3,))
        cut(made.bench, f"{FIRST}.log", made.position(3) - 5)
        error = self.refused(made.bench)
        assert "later segments hold records" in error.problem

    def test_damage_below_the_recovery_point_is_refused(self) -> None:
        made = written()
        cut(made.bench, f"{FIRST}.log", made.log.size - 5)
        error = self.refused(made.bench, recovery_point=6)
        assert "were flushed (up to 6)" in error.problem

    def test_damage_found_after_a_clean_stop_is_refused(self) -> None:
        made = written()
        made.bench.close(made.log)
        cut(made.bench, f"{FIRST}.log", made.log.size - 5)
        with pytest.raises(LogCorrupted):
            made.bench.open(clean=True, recovery_point=6)

    def test_offsets_that_go_back_are_damage(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", made.position(3), struct.pack(">q", 1))
        assert "offset 1 to 1 where 3 is next" in self.refused(made.bench).problem

    def test_the_old_message_formats_are_named(self) -> None:
        made = written()
        spoil(made.bench, f"{FIRST}.log", made.position(1) + 16, b"\x01")
        assert "Kafka before 0.11" in self.refused(made.bench).problem

    def test_the_refusal_survives_the_way_out_of_a_child_process(self) -> None:
        error = LogCorrupted("/x/0.log", 5, 7, "why")
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)


class TestIndexes:
    @pytest.mark.parametrize("batches", [1.5, 2, 3])
    def test_rebuilding_gives_the_bytes_that_appending_gave(self, batches: float) -> None:
        size = written(1).sizes[0]
        made = written(40, rolls=(10, 25), interval=int(size * batches))
        made.bench.close(made.log)
        before = {
            name: made.bench.fs.read_bytes(f"{FOLDER}/{name}")
            for name in made.bench.fs.listdir(FOLDER)
            if name.endswith("index")
        }
        assert len(before) == 6
        for name in before:
            made.bench.fs.remove(f"{FOLDER}/{name}")
        made.bench.open()
        assert before == {
            name: made.bench.fs.read_bytes(f"{FOLDER}/{name}")
            for name in made.bench.fs.listdir(FOLDER)
            if name.endswith("index")
        }

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize("damage", ["missing", "padded", "torn"])
    def test_an_index_of_a_flushed_segment_is_rebuilt_even_after_a_clean_stop(
        self, suffix: str, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written(20, rolls=(10,))
        made.bench.close(made.log)
        path = FIRST + suffix
        before = made.bench.fs.read_bytes(path)
        if damage == "missing":
            made.bench.fs.remove(path)
        elif damage == "padded":
            spoil(made.bench, path, len(before), bytes(1200))
        else:
            cut(made.bench, path, len(before) - 3)
        with caplog.at_level(logging.WARNING):
            log = made.bench.open(clean=True, recovery_point=20)
        assert made.bench.fs.read_bytes(path) == before
        assert offsets(made.bench, log) == list(range(20))
        assert path in caplog.text
        assert "rebuilt" in caplog.text

    def test_unfinished_indexes_after_a_kill_are_nothing_to_talk_about(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written(20)
        spoil_path = f"{FIRST}.index"
        made.bench.fs.open(spoil_path, create=True).append(bytes(8000))
        with caplog.at_level(logging.WARNING):
            made.bench.open()
        assert caplog.text == ""

    def test_the_aborted_transactions_are_found_again(self) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"t", producer_id=5, producer_epoch=0, sequence=0, transactional=True)
        marker = end_marker(
            ControlType.ABORT,
            producer_id=5,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=bench.clock.now_ms(),
        )
        log.append(
            memoryview(bytearray(marker)),
            leader_epoch=0,
            now_ms=bench.clock.now_ms(),
            origin=Origin.COORDINATOR,
        )
        before = bench.fs.read_bytes(f"{FIRST}.txnindex")
        for content in (None, before + b"torn", b"\xff" * 34):
            bench.fs.remove(f"{FIRST}.txnindex")
            if content is not None:
                bench.fs.write_atomic(f"{FIRST}.txnindex", content)
            assert len(bench.open().aborted_transactions(0, 2)) == 1
            assert bench.fs.read_bytes(f"{FIRST}.txnindex") == before


class TestMissingFiles:
    def test_a_segment_file_that_is_gone_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        made = written(9, rolls=(3, 6))
        made.bench.close(made.log)
        made.bench.fs.remove(f"{FOLDER}/00000000000000000003.log")
        with caplog.at_level(logging.WARNING):
            log = made.bench.open()
        assert "00000000000000000003.log is missing" in caplog.text
        assert "offsets 3 to 5 are missing between" in caplog.text
        assert offsets(made.bench, log) == [0, 1, 2, 6, 7, 8]

    def test_files_cut_from_outside_below_the_recovery_point_are_said(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written()
        cut(made.bench, f"{FIRST}.log", made.position(4))
        with caplog.at_level(logging.WARNING):
            log = made.bench.open(recovery_point=6)
        assert log.log_end_offset == 4
        assert "records up to 6 were flushed" in caplog.text

    def test_a_log_that_ends_before_its_start_goes_on_empty(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written()
        with caplog.at_level(logging.WARNING):
            log = made.bench.open(log_start_offset=100)
        assert (log.log_start_offset, log.log_end_offset, log.size) == (100, 100, 0)
        assert "before its start offset 100" in caplog.text
        assert made.bench.append(log, b"on").base_offset == 100

    def test_a_folder_without_files_becomes_an_empty_log(self) -> None:
        bench = LogBench()
        bench.fs.makedirs(FOLDER)
        assert bench.open(log_start_offset=7).log_end_offset == 7


class TestPowerCutAfterAKill:
    def test_what_the_dead_process_had_not_synced_is_synced_by_the_next(self) -> None:
        bench = LogBench()
        bench.fs.makedirs("/data")
        bench.fs.sync_dir("/")
        log = bench.open()
        log.set_topic_id(TopicId(b"\x07" * 16))
        bench.append(log, b"a", epoch=2)
        bench = bench.killed()
        log = bench.open()
        bench.append(log, b"b", epoch=2)
        bench.flush(log)
        bench = bench.power_lost()
        log = bench.open(recovery_point=2)
        assert offsets(bench, log) == [0, 1]
        assert (log.latest_epoch, log.topic_id) == (2, b"\x07" * 16)


class TestSmallFiles:
    def test_unreadable_epochs_are_taken_from_the_records(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"a", epoch=1)
        log.roll()
        bench.append(log, b"b", epoch=3)
        bench.close(log)
        bench.fs.write_atomic(f"{FOLDER}/leader-epoch-checkpoint", b"0\nrubbish\n")
        with caplog.at_level(logging.WARNING):
            again = bench.open(clean=True, recovery_point=2)
        assert again.epoch_end_offset(1) == (1, 1)
        assert again.latest_epoch == 3
        assert "epochs are taken from the records" in caplog.text

    @pytest.mark.parametrize("content", [None, b"", b"0\n", b"0\n0\n", b"0\n2\n1 0\n3 1"])
    @pytest.mark.parametrize("clean", [True, False])
    def test_epochs_that_are_gone_are_taken_from_the_records(
        self, clean: bool, content: bytes | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"a", epoch=1)
        log.roll()
        bench.append(log, b"b", epoch=3)
        bench.append(log, b"c", epoch=3)
        bench.close(log)
        path = f"{FOLDER}/leader-epoch-checkpoint"
        bench.fs.remove(path)
        if content is not None:
            bench.fs.write_atomic(path, content)
        with caplog.at_level(logging.WARNING):
            again = bench.open(clean=clean, recovery_point=3)
        assert again.epoch_end_offset(1) == (1, 1)
        assert again.epoch_end_offset(3) == (3, 3)
        assert path in caplog.text
        caplog.clear()
        assert bench.open(clean=clean, recovery_point=3).latest_epoch == 3
        assert not caplog.text, "once is enough"

    def test_an_epoch_file_emptied_by_a_power_cut_is_made_again(self) -> None:
        bench = LogBench()
        bench.fs.makedirs("/data")
        bench.fs.sync_dir("/")
        log = bench.open()
        bench.append(log, b"a", epoch=1)
        bench.flush(log)
        log.assign_epoch(2, 1)  # replaces the file; its name reaches the disk, its content does not
        bench = bench.power_lost(names=True)
        assert bench.fs.size(f"{FOLDER}/leader-epoch-checkpoint") == 0
        again = bench.open(recovery_point=1)
        assert again.epoch_end_offset(1) == (1, 1)

    def test_a_log_without_records_needs_no_epochs(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = LogBench()
        bench.close(bench.open())
        bench.fs.write_atomic(f"{FOLDER}/leader-epoch-checkpoint", b"")
        with caplog.at_level(logging.WARNING):
            assert bench.open(clean=True).latest_epoch is None
        assert not caplog.text

    def test_damage_in_flushed_records_is_no_torn_write_because_the_epochs_are_gone(self) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"a" * 50, epoch=1)
        bench.close(log)
        bench.fs.remove(f"{FOLDER}/leader-epoch-checkpoint")
        bench.fs.open(f"{FOLDER}/00000000000000000000.log").pwrite(b"\xff", 80)
        with pytest.raises(LogCorrupted, match="flushed"):
            bench.open(clean=True, recovery_point=1)

    def test_an_epoch_that_was_not_written_down_is_found_in_the_records(self) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"a", epoch=4)
        bench.fs.remove(f"{FOLDER}/leader-epoch-checkpoint")
        assert bench.open().latest_epoch == 4

    def test_an_unreadable_topic_id_is_no_topic_id(self, caplog: pytest.LogCaptureFixture) -> None:
        made = written(1)
        made.bench.fs.write_atomic(f"{FOLDER}/partition.metadata", b"\x00\x00")
        with caplog.at_level(logging.WARNING):
            assert made.bench.open().topic_id == ZERO_TOPIC_ID
        assert "partition.metadata" in caplog.text

    def test_a_torn_snapshot_is_passed_over(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = LogBench()
        log = bench.open()
        for sequence in range(3):
            bench.append(log, b"x", producer_id=1, producer_epoch=0, sequence=sequence)
            log.roll()
        bench.close(log)
        cut(bench, f"{FOLDER}/00000000000000000003.snapshot", 12)
        with caplog.at_level(logging.WARNING):
            again = bench.open(clean=True, recovery_point=3)
        assert "older snapshot" in caplog.text
        assert [each.last_sequence for each in again.producers()] == [2]


class TestLeftovers:
    def test_files_on_their_way_out_are_removed(self) -> None:
        made = written()
        for name in (
            "00000000000000000099.log.deleted",
            "x.tmp",
            "00000000000000000000.log.cleaned",
        ):
            made.bench.fs.write_atomic(f"{FOLDER}/{name}", b"old")
        made.bench.open()
        names = made.bench.fs.listdir(FOLDER)
        assert not [name for name in names if name.endswith((".deleted", ".tmp", ".cleaned"))]

    def test_a_finished_swap_replaces_the_segments_in_its_range(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = written(9, rolls=(3, 6))
        compacted = build_batch([(1, None, b"only", ())], base_offset=5)
        made.bench.fs.write_atomic(f"{FIRST}.log.swap", compacted)
        with caplog.at_level(logging.WARNING):
            log = made.bench.open()
        assert offsets(made.bench, log) == [5, 6, 7, 8]
        assert "compaction" in caplog.text

    def test_an_unfinished_swap_is_undone(self) -> None:
        made = written(4, rolls=(2,))
        compacted = build_batch([(1, None, b"only", ())], base_offset=2)
        made.bench.fs.write_atomic(f"{FOLDER}/00000000000000000002.log.swap", compacted)
        made.bench.fs.write_atomic(f"{FIRST}.log.cleaned", compacted)
        assert offsets(made.bench, made.bench.open()) == [0, 1, 2, 3]


class TestProducers:
    def test_the_window_of_five_survives_a_kill_right_after_a_roll(self) -> None:
        bench = LogBench()
        log = bench.open()
        for sequence in range(7):
            bench.append(log, b"x", producer_id=1, producer_epoch=0, sequence=sequence)
        log.roll()
        bench = bench.killed()
        log = bench.open()
        for sequence in range(2, 7):
            info = bench.append(log, b"x", producer_id=1, producer_epoch=0, sequence=sequence)
            assert (info.duplicate, info.base_offset) == (True, sequence)

    def test_and_a_clean_stop(self) -> None:
        bench = LogBench()
        log = bench.open()
        for sequence in range(7):
            bench.append(log, b"x", producer_id=1, producer_epoch=0, sequence=sequence)
            bench.append(log, b"y", producer_id=2, producer_epoch=0, sequence=sequence)
        bench.close(log)
        log = bench.open(clean=True, recovery_point=14)
        for producer in (1, 2):
            for sequence in range(2, 7):
                info = bench.append(
                    log, b"x", producer_id=producer, producer_epoch=0, sequence=sequence
                )
                assert (info.duplicate, info.base_offset) == (True, 2 * sequence + producer - 1)
            assert not bench.append(
                log, b"new", producer_id=producer, producer_epoch=0, sequence=7
            ).duplicate

    def test_batches_of_an_older_epoch_do_not_come_back(self) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"x", producer_id=1, producer_epoch=0, sequence=0)
        bench.append(log, b"x", producer_id=1, producer_epoch=1, sequence=0)
        bench.close(log)
        log = bench.open(clean=True, recovery_point=2)
        assert [(each.producer_epoch, each.last_sequence) for each in log.producers()] == [(1, 0)]

    def test_a_transaction_that_had_ended_is_not_open_again(self) -> None:
        bench = LogBench()
        log = bench.open()
        bench.append(log, b"t", producer_id=5, producer_epoch=0, sequence=0, transactional=True)
        now = bench.clock.now_ms()
        marker = end_marker(
            ControlType.COMMIT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp=now
        )
        log.append(
            memoryview(bytearray(marker)), leader_epoch=0, now_ms=now, origin=Origin.COORDINATOR
        )
        bench.close(log)
        log = bench.open(clean=True, recovery_point=2)
        assert log.last_stable_offset(2) == 2
        assert [each.txn_start_offset for each in log.producers()] == [-1]


class TestRepair:
    def test_only_the_damage_goes_and_the_rest_keeps_its_offsets(self) -> None:
        made = written(9, rolls=(6,))
        spoil(made.bench, f"{FIRST}.log", made.position(1) + 70, b"\xff")
        spoil(made.bench, f"{FIRST}.log", made.position(3), b"\xee" * 100)
        size = made.sizes[0]
        dry = repair(made.bench.fs, FOLDER, dry_run=True)
        assert [(loss.position, loss.first_offset, loss.end_offset) for loss in dry] == [
            (size, 1, 2),
            (3 * size, 3, 4),
        ]
        assert made.bench.fs.size(f"{FIRST}.log") == 6 * size
        assert repair(made.bench.fs, FOLDER) == dry
        assert "offsets 1 to 1 are gone" in str(dry[0])
        log = made.bench.open(recovery_point=9)
        assert offsets(made.bench, log) == [0, 2, 4, 5, 6, 7, 8]
        assert repair(made.bench.fs, FOLDER) == []

    def test_truncating_ends_the_log_at_the_damage(self) -> None:
        made = written(9, rolls=(3, 6))
        made.bench.close(made.log)
        spoil(made.bench, f"{FOLDER}/00000000000000000003.log", made.sizes[0] + 70, b"\xff")
        losses = repair(made.bench.fs, FOLDER, truncate=True)
        assert [(loss.first_offset, loss.end_offset) for loss in losses] == [(4, None), (6, None)]
        assert "the log ends there" in str(losses[0])
        log = made.bench.open(recovery_point=4)
        assert offsets(made.bench, log) == [0, 1, 2, 3]

    def test_a_torn_end_before_later_segments_is_cut(self) -> None:
        made = written(6, rolls=(3,))
        cut(made.bench, f"{FIRST}.log", made.position(3) - 9)
        losses = repair(made.bench.fs, FOLDER)
        assert [(loss.first_offset, loss.end_offset) for loss in losses] == [(2, 3)]
        assert offsets(made.bench, made.bench.open()) == [0, 1, 3, 4, 5]

    def test_snapshots_that_know_the_lost_records_go(self) -> None:
        bench = LogBench()
        log = bench.open()
        for sequence in range(3):
            bench.append(log, b"x", producer_id=1, producer_epoch=0, sequence=sequence)
        bench.close(log)
        cut(bench, f"{FIRST}.log", log.size - 4)
        repair(bench.fs, FOLDER)
        again = bench.open(clean=True, recovery_point=2)
        assert [each.last_sequence for each in again.producers()] == [1]


class TestChecking:
    def test_batches_larger_than_a_chunk_are_read_whole(self) -> None:
        bench = LogBench(TopicConfig(max_message_bytes=20_000_000))
        log = bench.open()
        bench.append(log, b"a")
        bench.append(log, bytes(9_000_000))
        bench.append(log, b"b")
        file = bench.fs.open(f"{FIRST}.log")
        checked = check_segment(file, 0, log.size, index_interval=4096)
        assert (checked.end_offset, checked.size, checked.damage) == (3, log.size, None)

    def test_a_batch_is_found_across_the_chunks_it_is_searched_in(self) -> None:
        bench = LogBench()
        batch = build_batch([(1, None, b"v", ())], base_offset=9)
        bench.fs.makedirs("/")
        file = bench.fs.open("/x", create=True)
        file.append(b"\xab" * (4 * 1024 * 1024 - 20))
        file.append(batch)
        assert find_batch(file, 0, file.size(), 5) == 4 * 1024 * 1024 - 20
        assert find_batch(file, 0, file.size(), 10) is None
        assert find_batch(file, 0, file.size() - 1, 5) is None

    def test_offsets_above_four_billion_are_found_too(self) -> None:
        bench = LogBench()
        for base in (2**32 - 1, 2**32, 5 * 2**40):
            path = f"/x{base}"
            file = bench.fs.open(path, create=True)
            file.append(b"junk" + build_batch([(1, None, b"v", ())], base_offset=base))
            assert find_batch(file, 0, file.size(), base - 3) == 4


def test_a_log_that_begins_anew_believes_no_snapshot_of_an_earlier_one() -> None:
    """Of a young folder a power cut, or a hand, may have left just that."""
    bench = LogBench(TopicConfig(retention_ms=-1))
    log = bench.open()
    for number in range(4):
        bench.append(log, b"old", producer_id=7, producer_epoch=0, sequence=number)
    bench.close(log)
    for name in bench.fs.listdir(FOLDER):
        if not name.endswith(".snapshot"):
            bench.fs.remove(f"{FOLDER}/{name}")
    log = bench.open()
    for number in range(4):
        bench.append(log, b"new", producer_id=9, producer_epoch=0, sequence=number)
    bench.close(log)
    log = bench.open(clean=True)
    assert [state.producer_id for state in log.producers()] == [9]
    sent_again = bench.append(log, b"new", producer_id=9, producer_epoch=0, sequence=3)
    assert sent_again.duplicate
    assert log.log_end_offset == 4
