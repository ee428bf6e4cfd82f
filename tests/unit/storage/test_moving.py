"""Moving a log to another data folder: what arrives, what comes in between, what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.storage import copying, moving, paths
from ottla.storage.directory import LogDirectories
from ottla.storage.log import Log
from ottla.storage.txn_index import AbortedTxn
from ottla.testing.clock import ManualClock
from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import PARTITION, Bench, InlineWorkers

HERE, THERE = "/d1", "/d2"
TOPIC, OTHER_TOPIC = TopicId(bytes(15) + b"\1"), TopicId(bytes(15) + b"\2")
CONFIG = TopicConfig(internal_segment_bytes=400, retention_ms=-1)
MOST_TURNS = 5_000


class Folders(Bench):
    """Two data folders with the log of `t-0` in the first."""

    directories: LogDirectories

    async def start(self, *, moving: bool = True) -> Log:
        self.directories = LogDirectories(
            self.fs,
            [HERE, THERE],
            clock=self.clock,
            workers=InlineWorkers(),
            rng=random.Random(1),
        )
        self.directories.open_folders()
        self.directories.identify(1, "AAAAAAAAAAAAAAAAAAAAAQ")
        await self.directories.load(lambda _: self.config, topic_ids={"t": TOPIC})
        self.directories.prefer(PARTITION, HERE)
        log = self.directories.create(PARTITION, TOPIC, self.config)
        if moving:
            self.directories.moves.start()
        return log

    @property
    def log(self) -> Log:
        log = self.directories.find(PARTITION)
        assert log is not None
        return log

    @property
    def values(self) -> list[bytes]:
        return [value.rstrip(b".") for _, value in self.contents(self.log)]

    def fill(self, *numbers: int, epoch: int = 0) -> None:
        for number in numbers:
            self.append(self.log, b"%d" % number + b"." * 60, epoch=epoch)

    async def request(self, to: str = THERE) -> None:
        await self.directories.moves.request(PARTITION, to)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(MOST_TURNS):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")

    async def until_moved(self, to: str = THERE) -> None:
        """Until the log is there, and nothing of the move is left."""
        await self.until(
            lambda: self.log.folder == f"{to}/t-0" and not self.fs.exists(f"{to}/t-0/{paths.MOVED}")
        )

    async def end(self) -> None:
        """End everything, as kill -9 does."""
        current = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.directories.release()

    async def restarted(self, fs: MemoryFileSystem, *, moving: bool = True) -> Folders:
        await self.end()
        other = Folders(self.config, fs=fs, clock=self.clock)
        await other.start(moving=moving)
        return other

    def folders(self) -> list[str]:
        """The partition's folders, without those that are being removed."""
        return [
            f"{folder}/{name}"
            for folder in (HERE, THERE)
            for name in self.fs.listdir(folder)
            if name.startswith("t-0") and not paths.is_delete_dir(name)
        ]


def new_disk() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    for folder in (HERE, THERE):
        fs.makedirs(folder)
    fs.sync_dir("/")
    return fs


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few records are as much to these moves as megabytes are to others."""
    for name in ("_FIRST_CHUNK", "_LEAST_CHUNK", "_MOST_CHUNK"):
        monkeypatch.setattr(copying, name, 300)
    for module in (copying, moving):
        monkeypatch.setattr(module, "_PAUSE", 0)


@pytest.fixture
async def folders() -> AsyncIterator[Folders]:
    made = Folders(CONFIG, fs=new_disk(), clock=ManualClock(1_000_000))
    await made.start()
    yield made
    await made.end()


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


async def test_a_log_is_moved_with_all_its_records(folders: Folders) -> None:
    folders.fill(*range(20))
    await folders.request()
    await folders.until_moved()
    assert folders.values == numbers(*range(20))
    assert folders.folders() == [f"{THERE}/t-0"]
    assert folders.directories.moves.statistics() == moving.MoveStatistics(
        running=0, finished=1, given_up=0, bytes_copied=folders.log.size, lag=0
    )
    folders.fill(20)
    assert folders.values == numbers(*range(21))


async def test_what_is_appended_meanwhile_is_there(folders: Folders) -> None:
    folders.fill(*range(20))
    await folders.request()
    for number in range(20, 60):
        folders.fill(number)
        await asyncio.sleep(0)
    await folders.until_moved()
    assert folders.values == numbers(*range(60))


async def test_an_empty_log_is_moved(folders: Folders) -> None:
    await folders.request()
    await folders.until_moved()
    folders.fill(0)
    assert folders.values == numbers(0)


async def test_it_can_be_moved_back(folders: Folders) -> None:
    folders.fill(*range(5))
    await folders.request()
    await folders.until(lambda: folders.log.folder.startswith(THERE))
    await folders.request(HERE)  # waits until the first move is settled
    await folders.until_moved(HERE)
    assert folders.values == numbers(*range(5))
    assert folders.folders() == [f"{HERE}/t-0"]


async def test_a_mark_of_an_earlier_move_does_not_come_back(folders: Folders) -> None:
    """With the newer one it would be two, and nobody knows which log is older."""
    folders.fill(*range(5))
    await folders.request()
    await folders.until_moved()
    await folders.request(HERE)
    folders.fs.fail(THERE, errno.EMFILE, operations=("sync_dir",))  # as if it took long
    await folders.until(lambda: folders.log.folder.startswith(HERE))
    folders.fill(5)
    await folders.directories.group_commit.wait_flushed(folders.log, 6)
    again = await folders.restarted(folders.fs.power_lost(), moving=False)
    assert again.values == numbers(*range(6))
    await again.end()


async def test_naming_the_present_folder_cancels_a_move(folders: Folders) -> None:
    folders.fill(*range(20))
    await folders.request()
    await folders.request(HERE)
    assert list(folders.directories.moves) == []
    assert folders.folders() == [f"{HERE}/t-0"]
    assert folders.log.compaction.paused is False
    await folders.request(HERE)  # where it is: nothing is to be done
    assert folders.values == numbers(*range(20))


async def test_what_the_log_knows_besides_its_records_goes_with_it(folders: Folders) -> None:
    log = folders.log
    folders.append(log, b"a", producer_id=7, producer_epoch=0, sequence=0, epoch=3)
    folders.append(log, b"b", epoch=3)
    log.begin_epoch(5)
    log.high_watermark = 1
    log.compaction.cleaned_to = 1
    guard = log.begin_verification(8, 0, 0)
    log.lost_records = True
    await folders.request()
    await folders.until_moved()
    moved = folders.log
    assert moved is not log
    assert moved.latest_epoch == 5
    assert moved.epoch_end_offset(3) == (3, 2)
    assert moved.high_watermark == 1
    assert moved.compaction.cleaned_to == 1
    assert moved.topic_id == TOPIC
    assert moved.begin_verification(8, 0, 0) is guard
    assert moved.lost_records
    assert folders.fs.exists(f"{THERE}/t-0/{paths.LOST_RECORDS}")
    again = folders.append(moved, b"a", producer_id=7, producer_epoch=0, sequence=0, epoch=5)
    assert again.duplicate
    assert again.base_offset == 0


async def test_producers_whose_records_are_deleted_are_known_there(folders: Folders) -> None:
    folders.append(folders.log, b"x" * 300, producer_id=7, producer_epoch=0, sequence=0)
    folders.fill(*range(10))
    folders.log.advance_start(5)
    folders.log.delete_old(folders.clock.now_ms())
    await folders.request()
    await folders.until_moved()
    assert [each.producer_id for each in folders.log.producers()] == [7]
    await folders.directories.close()
    again = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    await again.start()
    assert [each.producer_id for each in again.log.producers()] == [7]
    await again.end()


async def test_the_start_offset_may_lie_inside_of_a_batch(folders: Folders) -> None:
    folders.append(folders.log, b"a", b"b", b"c", b"d")
    folders.log.advance_start(2)
    await folders.request()
    await folders.until_moved()
    assert folders.contents(folders.log) == [(2, b"c"), (3, b"d")]
    again = await folders.restarted(folders.fs.power_lost())
    assert again.contents(again.log) == [(2, b"c"), (3, b"d")]
    await again.end()


async def test_deleted_records_do_not_come_back_with_the_power(folders: Folders) -> None:
    folders.fill(*range(20))
    folders.log.advance_start(17)
    await folders.request()
    await folders.until_moved()
    again = await folders.restarted(folders.fs.power_lost())
    assert again.values == numbers(17, 18, 19)
    await again.end()


async def test_aborted_transactions_are_known_there(folders: Folders) -> None:
    log = folders.log
    folders.append(log, b"a", producer_id=9, producer_epoch=0, sequence=0, transactional=True)
    folders.end_transaction(log, 9, commit=False)
    await folders.request()
    await folders.until_moved()
    assert [(each.producer_id, each.first_offset) for each in aborted(folders.log)] == [(9, 0)]
    assert folders.log.last_stable_offset(2) == 2


def aborted(log: Log) -> list[AbortedTxn]:
    return log.aborted_transactions(0, log.log_end_offset)


class Throttled:
    """Copies go on when they are let."""

    exceeded = True

    def __init__(self) -> None:
        self.copied = 0

    def record(self, size: int) -> None:
        self.copied += size


@pytest.fixture
async def held(folders: Folders) -> Throttled:
    """A move that has copied its first part and waits for more time."""
    folders.directories.moves.copying.pace = throttled = Throttled()
    folders.fill(*range(20))
    await folders.request()
    await folders.until(lambda: throttled.copied > 0)
    return throttled


async def test_copies_wait_when_they_were_too_fast(folders: Folders, held: Throttled) -> None:
    await asyncio.sleep(0)
    copied = held.copied
    for _ in range(100):
        await asyncio.sleep(0)
    assert held.copied == copied
    [move] = folders.directories.moves.into(THERE)
    assert move.lag == 20 - move.log.log_end_offset > 0
    held.exceeded = False
    await folders.until_moved()
    assert folders.values == numbers(*range(20))


async def test_where_the_log_is_truncated_the_copy_is(folders: Folders, held: Throttled) -> None:
    [move] = folders.directories.moves
    held.exceeded = False
    await folders.until(lambda: move.log.log_end_offset >= 12)
    held.exceeded = True
    await folders.directories.truncate({PARTITION: 8})
    folders.fill(*range(100, 110), epoch=1)
    held.exceeded = False
    await folders.until_moved()
    assert folders.values == numbers(*range(8), *range(100, 110))
    assert folders.log.epoch_end_offset(0) == (0, 8)


async def test_a_log_that_begins_anew_is_followed(folders: Folders, held: Throttled) -> None:
    await folders.directories.truncate_fully_and_start_at(PARTITION, 500)
    held.exceeded = False
    folders.fill(1, 2)
    await folders.until_moved()
    assert folders.values == numbers(1, 2)
    assert folders.log.log_start_offset == 500


async def test_what_retention_takes_is_not_copied(folders: Folders, held: Throttled) -> None:
    folders.log.advance_start(15)
    folders.log.delete_old(folders.clock.now_ms())
    held.exceeded = False
    await folders.until_moved()
    assert folders.values == numbers(*range(15, 20))
    assert held.copied < 20 * 100


async def test_a_log_is_not_compacted_while_it_is_copied(folders: Folders, held: Throttled) -> None:
    compact = TopicConfig(cleanup_policy=frozenset({"compact"}), internal_segment_bytes=400)
    folders.log.config = compact
    assert not folders.log.compaction.wanted
    held.exceeded = False
    await folders.until_moved()
    assert folders.log.compaction.wanted
    assert folders.log.config is compact


async def test_a_deleted_topic_takes_its_copy_with_it(folders: Folders, held: Throttled) -> None:
    folders.directories.delete(PARTITION)
    assert folders.folders() == []
    assert list(folders.directories.moves) == []
    log = folders.directories.create(PARTITION, OTHER_TOPIC, CONFIG)
    folders.fill(1)
    held.exceeded = False
    for _ in range(100):
        await asyncio.sleep(0)
    assert folders.log is log
    assert folders.values == numbers(1)


async def test_a_topic_deleted_as_its_log_arrives_leaves_nothing(folders: Folders) -> None:
    folders.fill(*range(3))
    await folders.request()
    await folders.until(lambda: folders.log.folder.startswith(THERE))
    folders.directories.delete(PARTITION)
    assert folders.folders() == []
    for _ in range(100):
        await asyncio.sleep(0)
    assert folders.directories.create(PARTITION, OTHER_TOPIC, CONFIG).is_pristine
    assert not folders.directories.offline_folders


@pytest.mark.parametrize("named", [False, True])
async def test_a_topic_made_anew_as_a_move_begins_keeps_its_log(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Also in the folder that the log of the topic before was to go to."""
    directories, path = folders.directories, f"{THERE}/t-0"
    folders.fill(0)

    async def slowly(function: Callable[..., object], *args: object) -> object:
        done = function(*args)
        if folders.fs.exists(path) is named and folders.log.topic_id == TOPIC:
            directories.delete(PARTITION)
            directories.prefer(PARTITION, THERE)
            directories.create(PARTITION, OTHER_TOPIC, CONFIG)
            folders.fill(1)
        return done

    monkeypatch.setattr(directories.moves._workers, "run_to_end", slowly)
    with pytest.raises(KafkaError):
        await folders.request()
    assert folders.log.topic_id == OTHER_TOPIC
    assert folders.values == numbers(1)
    assert folders.folders() == [path]
    assert not folders.fs.exists(f"{path}/{paths.MOVING}")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_ends_the_move_and_nothing_else(
    folders: Folders, held: Throttled, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    folders.fs.fail(f"{THERE}/t-0/*.log", code, operations=("append",))
    held.exceeded = False
    await folders.until(lambda: not list(folders.directories.moves))
    assert folders.directories.folders == (HERE, THERE)
    assert folders.values == numbers(*range(20))
    assert folders.folders() == [f"{HERE}/t-0"]
    assert "the move of t-0 from /d1 to /d2 is given up, it stays where it is" in caplog.text
    assert folders.directories.moves.statistics().given_up == 1
    assert not folders.log.compaction.paused
    folders.fs.heal()
    await folders.request()
    await folders.until_moved()


async def test_a_failed_target_ends_the_move_and_the_folder(
    folders: Folders, held: Throttled, caplog: pytest.LogCaptureFixture
) -> None:
    folders.fs.fail(f"{THERE}/*", errno.EIO)
    held.exceeded = False
    await folders.until(lambda: not list(folders.directories.moves))
    assert folders.directories.folders == (HERE,)
    assert folders.values == numbers(*range(20))
    folders.fill(20)
    assert "is given up" in caplog.text
    again = await folders.restarted(folders.fs.killed())
    await again.until_moved()  # the disk is well again, and the move goes on
    assert again.values == numbers(*range(21))
    await again.end()


async def test_of_a_failed_source_the_copy_is_kept_aside(
    folders: Folders, held: Throttled, caplog: pytest.LogCaptureFixture
) -> None:
    folders.fs.fail(f"{HERE}/*", errno.EIO)
    with pytest.raises(KafkaError):
        folders.fill(20)
    assert folders.directories.folders == (THERE,)
    assert list(folders.directories.moves) == []
    [kept] = [each for each in folders.folders() if each.startswith(THERE)]
    assert kept.endswith("-stray")
    assert f"the unfinished copy was kept in {kept}" in caplog.text
    with pytest.raises(KafkaError, match="Input/output error"):
        folders.directories.create(PARTITION, TOPIC, CONFIG)


async def test_what_a_log_has_left_is_kept_aside_if_its_new_folder_fails_at_once(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    """It lacks the last record: it is not the log, and it may be all that is left."""
    folders.fill(*range(5))
    await folders.request()
    await folders.until(lambda: folders.log.folder.startswith(THERE))
    folders.fill(5)
    folders.fs.fail(f"{THERE}/*", errno.EIO)
    await folders.until(lambda: folders.directories.folders == (HERE,))
    [kept] = [each for each in folders.folders() if each.startswith(HERE)]
    assert kept.endswith("-stray")
    assert f"the older one that it had just left was kept in {kept}" in caplog.text
    await folders.directories.close()
    again = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    with pytest.raises(KafkaError, match="/d2 are offline"):
        await again.start()
    again.directories.release()
    folders.fs.heal()
    last = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    await last.start()
    assert last.values == numbers(*range(6))
    await last.end()


async def test_a_move_that_could_not_begin_can_be_asked_for_again(folders: Folders) -> None:
    folders.fill(0)
    folders.fs.fail(THERE, errno.EMFILE, operations=("sync_dir",), times=1)
    with pytest.raises(KafkaError, match="beginning to move t-0 to /d2 failed"):
        await folders.request()
    assert folders.folders() == [f"{HERE}/t-0"]
    await folders.request()
    await folders.until_moved()


async def test_what_lies_in_the_way_is_not_touched(folders: Folders) -> None:
    folders.fs.makedirs(f"{THERE}/t-0")
    with pytest.raises(KafkaError, match="/d2/t-0 exists") as refused:
        await folders.request()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert folders.directories.folders == (HERE, THERE)


async def test_after_a_clean_stop_a_move_goes_on(folders: Folders, held: Throttled) -> None:
    [move] = folders.directories.moves
    copied = move.log.log_end_offset
    await folders.directories.close()
    again = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    await again.start(moving=False)
    [resumed] = again.directories.moves
    assert resumed.log.log_end_offset == copied > 0
    again.directories.moves.start()
    await again.until_moved()
    assert again.values == numbers(*range(20))
    await again.end()


async def test_what_a_stopped_broker_had_not_removed_is_not_taken_for_a_whole_log(
    folders: Folders,
) -> None:
    """Not even if the folder that the log was moved to is away at the next start."""
    folders.fill(*range(5))
    await folders.request()
    await folders.until(lambda: folders.log.folder.startswith(THERE))
    folders.fill(5)
    await folders.directories.close()
    assert folders.fs.exists(f"{HERE}/t-0")
    folders.fs.fail(f"{THERE}/*", errno.EIO)
    again = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    await again.start()
    assert again.directories.may_be_cut(PARTITION)
    await again.end()


async def test_a_copy_that_could_not_be_flushed_is_begun_anew(
    folders: Folders, held: Throttled
) -> None:
    """What it has may never reach the disk, though the next process reads it."""
    [move] = folders.directories.moves
    held.exceeded = False
    await folders.until(lambda: move.log.log_end_offset >= 5)
    held.exceeded = True
    folders.fs.fail(f"{THERE}/t-0/*.log", errno.ENOSPC, operations=("sync",))
    await folders.directories.close()
    folders.fs.heal()
    again = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    await again.start()
    await again.until_moved()
    await again.directories.group_commit.wait_flushed(again.log, 20)
    last = await again.restarted(again.fs.power_lost())
    assert last.values == numbers(*range(20))
    await last.end()


async def test_a_copy_that_has_other_records_is_begun_anew(
    folders: Folders, held: Throttled
) -> None:
    await folders.directories.close()
    again = Folders(CONFIG, fs=folders.fs, clock=folders.clock)
    await again.start(moving=False)
    again.log.truncate_to(1)
    again.fill(*range(100, 140), epoch=1)
    for move in again.directories.moves:  # as if it had not been there for that
        move.source.truncations.clear()
    await again.directories.close()
    last = Folders(CONFIG, fs=again.fs, clock=again.clock)
    await last.start()
    await last.until_moved()
    assert last.values == numbers(0, *range(100, 140))
    await last.end()


async def test_what_is_compacted_while_the_copy_is_away_does_not_come_back(
    folders: Folders,
) -> None:
    folders.directories.moves.copying.pace = throttled = Throttled()
    folders.config = folders.log.config = TopicConfig(
        cleanup_policy=frozenset({"compact"}), internal_segment_bytes=400, delete_retention_ms=0
    )
    for number in range(6):
        folders.put(folders.log, (b"%d" % number, b"." * 60))
    await folders.request()
    await folders.until(lambda: throttled.copied > 0)
    await folders.directories.close()
    folders.fs.fail(f"{THERE}/*", errno.EIO)  # as if it was not mounted
    alone = Folders(folders.config, fs=folders.fs, clock=folders.clock)
    log = await alone.start()
    alone.put(log, (b"0", None))
    for _ in range(3):  # the second cleaning takes the tombstone
        alone.put(log, (b"x", b"." * 300))
        log.roll()
        alone.flush(log)
        alone.clean(log)
        alone.clock.advance(1_000)
    left = [(record.offset, record.key) for record in alone.records(log)]
    assert b"0" not in [key for _, key in left]
    await alone.directories.close()
    folders.fs.heal()
    again = Folders(folders.config, fs=folders.fs, clock=folders.clock)
    await again.start()
    await again.until_moved()
    assert [(record.offset, record.key) for record in again.records(again.log)] == left
    await again.end()


async def test_after_a_crash_a_move_begins_anew(folders: Folders, held: Throttled) -> None:
    again = await folders.restarted(folders.fs.killed())
    assert again.log.folder.startswith(HERE)
    await again.until_moved()
    assert again.values == numbers(*range(20))
    await again.end()


async def test_a_move_that_is_to_begin_anew_can_be_seen_and_cancelled(
    folders: Folders, held: Throttled
) -> None:
    again = await folders.restarted(folders.fs.killed(), moving=False)
    moves = again.directories.moves
    assert moves.waiting_for(THERE) == [again.log]
    assert moves.waiting_for(HERE) == []
    await again.request(HERE)
    assert moves.waiting_for(THERE) == []
    moves.start()
    await again.until(lambda: not moves._tasks)
    assert again.folders() == [f"{HERE}/t-0"]
    await again.end()


async def test_a_move_is_not_forgotten_when_the_broker_dies_as_it_begins_anew(
    folders: Folders, held: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = await folders.restarted(folders.fs.killed(), moving=False)
    then: list[MemoryFileSystem] = []
    make_marked = moving.make_marked

    def made(*arguments: Any) -> str:
        path = make_marked(*arguments)
        then.append(again.fs.killed())
        return path

    monkeypatch.setattr(moving, "make_marked", made)
    again.directories.moves.start()
    await again.until_moved()
    last = await again.restarted(then[0])
    await last.until_moved()
    assert last.values == numbers(*range(20))
    await last.end()


async def test_a_move_does_not_begin_anew_into_a_folder_that_is_offline(
    folders: Folders, held: Throttled, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk may work again by then; nobody looks for a log there before the next start."""
    again = await folders.restarted(folders.fs.killed(), moving=False)
    failure = OSError(errno.EIO, "Input/output error")
    again.directories.file_failed(THERE, failure, "writing", THERE)
    caplog.set_level(logging.WARNING)
    moves = again.directories.moves
    moves.start()
    await again.until(lambda: not moves._tasks)
    assert again.log.folder == f"{HERE}/t-0"
    assert "t-0 is not moved to /d2: the data folder /d2 is offline" in caplog.text
    await again.end()


async def test_a_folder_that_fails_as_a_move_into_it_begins_gets_no_log(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories, sync_dir = folders.directories, folders.fs.sync_dir

    def fail_then(path: str) -> None:
        sync_dir(path)
        if path == THERE:
            directories.file_failed(THERE, OSError(errno.EIO, "broken"), "writing", THERE)

    monkeypatch.setattr(folders.fs, "sync_dir", fail_then)
    with pytest.raises(KafkaError, match="the data folder /d2 is offline"):
        await folders.request()
    assert not [*directories.moves]
    assert folders.log.folder == f"{HERE}/t-0"


async def test_a_deleted_topic_takes_a_move_with_it_that_is_to_begin_anew(
    folders: Folders, held: Throttled
) -> None:
    again = await folders.restarted(folders.fs.killed(), moving=False)
    again.directories.delete(PARTITION)
    assert again.folders() == []
    again.directories.moves.start()
    await again.until(lambda: not again.directories.moves._tasks)
    assert again.folders() == []
    await again.end()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_move_that_was_to_begin_anew_is_not_forgotten_at_the_next_start(
    folders: Folders, held: Throttled, killed: bool
) -> None:
    """Thousands take a while to begin: the broker may stop, or die, before."""
    again = await folders.restarted(folders.fs.killed(), moving=False)
    again.fill(*range(20, 25))
    if killed:
        last = await again.restarted(again.fs.killed())
    else:
        await again.directories.close()
        last = Folders(CONFIG, fs=again.fs, clock=again.clock)
        await last.start()
    await last.until_moved()
    assert last.values == numbers(*range(25))
    await last.end()


async def test_a_copy_without_its_log_is_set_aside(
    folders: Folders, held: Throttled, caplog: pytest.LogCaptureFixture
) -> None:
    await folders.end()
    fs = folders.fs.killed()
    fs.remove_tree(f"{HERE}/t-0")
    again = Folders(CONFIG, fs=fs, clock=folders.clock)
    caplog.set_level(logging.WARNING)
    log = await again.start()
    assert log.is_pristine
    assert "its log cannot be used: the unfinished copy was kept in /d2/t-0." in caplog.text
    await again.end()


async def test_flushes_wait_while_the_copy_takes_over(folders: Folders) -> None:
    """Whoever waited for the old log's flush is told when the copy's has made it durable."""
    folders.fill(*range(5))
    await folders.request()
    commit = folders.directories.group_commit
    waiting: list[tuple[int, asyncio.Future[None]]] = []
    number = 5
    while folders.log.folder.startswith(HERE):
        folders.fill(number)
        waiting.append((number, commit.wait_flushed(folders.log, number + 1)))
        number += 1
        await asyncio.sleep(0)
        done = [each for each, future in waiting if future.done()]
        assert len(folders.values) == number
        if done:
            lost = Folders(CONFIG, fs=folders.fs.power_lost(), clock=folders.clock)
            await lost.start(moving=False)
            assert lost.values[: done[-1] + 1] == numbers(*range(done[-1] + 1))
    await asyncio.gather(*(future for _, future in waiting))
    assert folders.log.recovery_point == number


class Script:
    """A move under load: what was acknowledged, and what was to be durable."""

    def __init__(self, fs: MemoryFileSystem) -> None:
        self.folders = Folders(CONFIG, fs=fs, clock=ManualClock(1_000_000))
        self.begun = 0
        self.acked: list[int] = []
        self.durable: list[int] = []

    async def run(self) -> None:
        folders = self.folders
        await folders.start()
        for number in range(12):
            self.append(number)
        await self.flush()
        self.begun = folders.fs.operations
        await folders.request()
        number = 12
        while True:
            self.append(number)
            number += 1
            if number % 3 == 0:
                await self.flush()
            for _ in range(2):
                await asyncio.sleep(0)
            if folders.fs.crashed:
                raise Crashed
            if folders.log.folder.startswith(THERE) and number > 60:
                break
        await folders.until_moved()
        self.append(number)

    def append(self, number: int) -> None:
        self.folders.fill(number)
        self.acked.append(number)

    async def flush(self) -> None:
        folders = self.folders
        upto = list(self.acked)
        flushed = folders.directories.group_commit.wait_flushed(
            folders.log, folders.log.log_end_offset
        )
        while not flushed.done() and not folders.fs.crashed:
            await asyncio.sleep(0)
        if not folders.fs.crashed:
            assert flushed.exception() is None
        if flushed.done() and not flushed.cancelled() and flushed.exception() is None:
            self.durable = upto


async def test_death_at_any_moment_costs_nothing() -> None:
    whole = Script(new_disk())
    await whole.run()
    assert whole.begun < whole.folders.fs.operations
    await whole.folders.end()
    names = {"rename", "remove", "sync_dir", "mkdir"}
    journal = whole.folders.fs.journal
    for number in range(whole.begun, len(journal)):
        if journal[number].kind not in names and number % 7:
            continue
        fs = new_disk()
        script = Script(fs)
        fs.crash_at(number, torn=number % 3)
        with suppress(Crashed):
            await script.run()
        assert fs.crashed
        await script.folders.end()
        await check(fs.killed(), script.acked, script)
        for named in (False, True):
            await check(fs.power_lost(names=named), script.durable, script)


async def check(fs: MemoryFileSystem, promised: list[int], script: Script) -> None:
    again = Folders(CONFIG, fs=fs, clock=script.folders.clock)
    await again.start()
    assert again.directories.offline_partitions == {}
    values = again.values
    assert values[: len(promised)] == numbers(*promised)
    assert values == numbers(*range(len(values)))  # each once, in order
    target = again.log.folder
    begun = target.startswith(THERE) or list(again.directories.moves) or len(again.folders()) > 1
    if begun:
        await again.until_moved()
    again.fill(len(values))
    assert again.values == numbers(*range(len(values) + 1))
    await again.end()


async def arrived_beside_its_source(folders: Folders) -> MemoryFileSystem:
    """A disk as it is when the broker dies just after the copy has become the log."""
    folders.fill(*range(5))
    folders.fs.fail(f"{THERE}/t-0", errno.ENOENT, operations=("sync_dir",), after=50)
    await folders.request()
    await folders.until(lambda: folders.log.folder.startswith(THERE))
    folders.fill(5)
    await folders.end()
    fs = folders.fs.killed()
    assert fs.exists(f"{HERE}/t-0")
    assert fs.exists(f"{THERE}/t-0/{paths.MOVED}")
    return fs


async def test_damage_to_what_was_moved_away_is_nobodys_concern(folders: Folders) -> None:
    fs = await arrived_beside_its_source(folders)
    file = fs.open(f"{HERE}/t-0/{paths.log_name(3)}")
    file.pwrite(b"damage", 70)
    again = Folders(CONFIG, fs=fs, clock=folders.clock)
    await again.start()
    assert again.values == numbers(*range(6))
    assert again.folders() == [f"{THERE}/t-0"]
    await again.end()


@pytest.mark.parametrize("damaged", [(THERE,), (HERE, THERE)])
async def test_what_was_moved_away_does_not_stand_in_for_a_damaged_log(
    folders: Folders, damaged: tuple[str, ...]
) -> None:
    fs = await arrived_beside_its_source(folders)
    for folder in damaged:
        fs.open(f"{folder}/t-0/{paths.log_name(3)}").pwrite(b"damage", 70)
    again = Folders(CONFIG, fs=fs, clock=folders.clock)
    with pytest.raises(KafkaError, match=r"/d2/t-0/.* is damaged"):
        await again.start()
    assert again.folders() == [f"{HERE}/t-0", f"{THERE}/t-0"]
    await again.end()


async def test_a_mark_stays_while_the_old_folder_is_offline(folders: Folders) -> None:
    fs = await arrived_beside_its_source(folders)
    fs.fail(f"{HERE}/*", errno.EIO)
    again = Folders(CONFIG, fs=fs, clock=folders.clock)
    await again.start()
    assert again.values == numbers(*range(6))
    with pytest.raises(KafkaError, match="offline"):
        await again.request(HERE)
    await again.end()
    fs = again.fs.killed()
    last = Folders(CONFIG, fs=fs, clock=folders.clock)
    await last.start()
    assert last.values == numbers(*range(6))
    assert last.folders() == [f"{THERE}/t-0"]
    assert not fs.exists(f"{THERE}/t-0/{paths.MOVED}")
    await last.end()


async def test_a_compacted_log_keeps_its_gaps(folders: Folders) -> None:
    folders.config = folders.log.config = TopicConfig(
        cleanup_policy=frozenset({"compact"}), internal_segment_bytes=400, segment_ms=1
    )
    log = folders.log
    for number in range(12):
        folders.put(log, (b"%d" % (number % 3), b"%d" % number + b"." * 60))
    log.roll()
    folders.flush(log)
    assert folders.clean(log) is not None
    before = folders.contents(log)
    assert 3 <= len(before) < 12
    await folders.request()
    await folders.until_moved()
    assert folders.contents(folders.log) == before
    assert folders.log.log_end_offset == 12
    assert folders.log.compaction.cleaned_to == log.compaction.cleaned_to


async def test_a_log_may_end_with_a_gap(folders: Folders) -> None:
    folders.append(folders.log, b"a", b"b")
    folders.append(folders.log, b"c", b"d", b"e")
    await folders.directories.truncate({PARTITION: 4})  # takes the whole of the second batch
    await folders.request()
    await folders.until_moved()
    assert folders.append(folders.log, b"f").base_offset == 4
    assert folders.contents(folders.log) == [(0, b"a"), (1, b"b"), (4, b"f")]


async def test_only_so_many_logs_are_copied_at_once(folders: Folders) -> None:
    moves = folders.directories.moves
    moves.at_once = lambda: 1
    moves.copying.pace = throttled = Throttled()
    names = [TopicPartition("t", index) for index in range(3)]
    for name in names:
        folders.directories.prefer(name, HERE)
        log = folders.directories.create(name, TOPIC, CONFIG)
        for number in range(20):
            folders.append(log, b"%d" % number + b"." * 60)
        await moves.request(name, THERE)
    await folders.until(lambda: throttled.copied > 0)
    assert [move.running for move in moves] == [True, False, False]
    assert [move.lag for move in moves][1:] == [20, 20]
    throttled.exceeded = False
    await folders.until(lambda: moves.statistics().finished == 3)
    assert {folders.directories.logs[name].folder for name in names} == {
        f"{THERE}/t-{index}" for index in range(3)
    }


async def test_small_batches_are_copied_in_small_chunks(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_LEAST_CHUNK", 150)
    monkeypatch.setattr(copying, "_MOST_CHUNK", 900)
    folders.fill(*range(60))
    await folders.request()
    [move] = folders.directories.moves
    await folders.until(lambda: move.chunk == 900)  # on a clock that stands still all is quick
    append = move.log.append_replicated

    def slowly(*args: object, **kwargs: object) -> object:
        folders.clock.advance(10)
        return append(*args, **kwargs)

    monkeypatch.setattr(move.log, "append_replicated", slowly)
    monkeypatch.setattr(copying, "_REST", 0)
    await folders.until(lambda: move.chunk < 900)
    await folders.until_moved()
    assert folders.values == numbers(*range(60))


async def test_a_want_of_descriptors_only_delays_a_move(folders: Folders, held: Throttled) -> None:
    folders.fs.fail(f"{THERE}/t-0/*.log", errno.EMFILE, operations=("create",), times=2)
    held.exceeded = False
    await folders.until_moved()
    assert folders.values == numbers(*range(20))
    assert folders.directories.moves.statistics().given_up == 0


@pytest.mark.parametrize("folder", [f"{THERE}/t-0", HERE])
async def test_a_want_of_descriptors_only_delays_the_end_of_a_move(
    folders: Folders, folder: str
) -> None:
    folders.fill(*range(5))
    await folders.request()
    await folders.until(lambda: folders.log.folder.startswith(THERE))
    folders.fs.fail(folder, errno.EMFILE, operations=("sync_dir",), times=3)
    await folders.until_moved()
    assert folders.folders() == [f"{THERE}/t-0"]
    await folders.request(HERE)
    await folders.until_moved(HERE)


async def test_who_writes_checkpoints_at_the_same_time_is_not_in_the_way(folders: Folders) -> None:
    """As a truncation and a move may; a truncation failed then."""
    folders.fill(*range(5))
    write = folders.directories.write_checkpoints
    assert await asyncio.gather(*(write() for _ in range(3))) == [True, True, True]


async def test_a_copy_that_cannot_take_over_changes_nothing(
    folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    folders.append(folders.log, b"a", producer_id=7, producer_epoch=0, sequence=0)
    folders.fs.fail(f"{THERE}/t-0/{paths.MOVING}", errno.EMFILE, operations=("rename",))
    await folders.request()
    await folders.until(lambda: not list(folders.directories.moves))
    assert "is given up" in caplog.text
    assert folders.folders() == [f"{HERE}/t-0"]
    folders.append(folders.log, b"b", producer_id=7, producer_epoch=0, sequence=1)
    assert folders.contents(folders.log) == [(0, b"a"), (1, b"b")]
