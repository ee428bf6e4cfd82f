"""A fetcher, with a leader that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication import follower as following
from ottla.replication.follower import EARLIEST, LATEST, Fetched, Fetcher, Unreachable, Wanted
from ottla.replication.isr import Rules
from ottla.replication.partition import Partition
from ottla.runtime.tasks import Tasks
from ottla.storage.log import Log
from ottla.storage.truncation import Cut
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000
STATE = PartitionState(leader=2, leader_epoch=9, partition_epoch=0, replicas=(1, 2), isr=(1, 2))
NOTHING = memoryview(b"")


class Alone:
    """The cluster, for partitions that nobody else asks about."""

    node_id = 1
    max_lag_ms = 1_000.0

    def now_ms(self) -> float:
        return 0.0

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return False

    def propose_isr(self, partition: Partition, isr: tuple[int, ...], lost: object = ()) -> None:
        raise AssertionError("a follower proposes nothing")


def batches(first: int, *runs: tuple[int, int]) -> memoryview:
    """Batches with so many records each, under these epochs, from an offset on."""
    parts = []
    for epoch, count in runs:
        records = [(NOW, None, b"%d" % (first + each), ()) for each in range(count)]
        parts.append(build_batch(records, base_offset=first, leader_epoch=epoch))
        first += count
    return memoryview(b"".join(parts))


def follower(
    index: int,
    *runs: tuple[int, int],
    topic: int = 0,
    disk: Disk | None = None,
    **settings: int,
) -> Partition:
    """Broker 1's replica, with so many records under each epoch."""
    log = LogBench(TopicConfig(**settings)).open()
    if runs:
        log.append_replicated(batches(0, *runs), leader_epoch=9)
    partition = Partition(
        TopicPartition("t", index), TopicId(bytes([topic]) * 16), log, STATE, disk, Alone()
    )
    partition.follow(STATE)
    return partition


@dataclass
class Request:
    """One fetch: what it asked for, and the way to answer it."""

    wanted: dict[Partition, Wanted]
    forgotten: list[Partition]
    answer: asyncio.Future[list[Fetched]]

    def offsets(self) -> dict[Partition, tuple[int, int]]:
        return {each: (want.offset, want.last_epoch) for each, want in self.wanted.items()}


class ScriptedLeader:
    """Holds every request until the test answers it."""

    remembers = True

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.ends: dict[int, int] = {}  # of its log: EARLIEST, LATEST
        self.resets = 0

    async def fetch(
        self, wanted: Collection[Wanted], forgotten: Collection[Partition]
    ) -> list[Fetched]:
        answer: asyncio.Future[list[Fetched]] = asyncio.get_running_loop().create_future()
        by_partition = {want.partition: want for want in wanted}
        self.requests.put_nowait(Request(by_partition, list(forgotten), answer))
        return await answer

    async def offset(self, partition: Partition, which: int) -> int:
        return self.ends[which]

    def reset(self) -> None:
        self.resets += 1

    def close(self) -> None:
        pass


class Cutter:
    """Truncates on the spot, or, if it is held, when it is let go."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.cuts: list[Cut] = []
        self.free = asyncio.Event()
        self.free.set()
        self.failure: KafkaError | None = None

    async def truncate(self, cuts: Sequence[Cut]) -> None:
        self.cuts += cuts
        await self.free.wait()
        if self.failure is not None:
            raise self.failure
        for cut in cuts:
            log = self.partitions[cut.partition].log
            if cut.fully:
                log.truncate_fully_and_start_at(cut.offset)
            else:
                log.truncate_to(cut.offset)


class Bench:
    """A fetcher, its leader, and its partitions."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.cutter = Cutter()
        self.leader, self.fetcher = self.another()

    def another(self, backoff_ms: int = 1) -> tuple[ScriptedLeader, Fetcher]:
        leader = ScriptedLeader()
        config = BrokerConfig(replica_fetch_backoff_ms=backoff_ms)
        fetcher = Fetcher(2, leader, lambda: config, self.cutter.truncate)
        fetcher.start(self.tasks)
        return leader, fetcher

    def follow(self, partition: Partition, fetcher: Fetcher | None = None) -> Partition:
        self.cutter.partitions[partition.id] = partition
        (self.fetcher if fetcher is None else fetcher).add(partition)
        return partition

    async def request(self) -> Request:
        async with asyncio.timeout(60):
            return await self.leader.requests.get()

    async def exchange(self, *answers: Fetched) -> Request:
        """Answer the next request; returns the one after it."""
        (await self.request()).answer.set_result(list(answers))
        return await self.request()


def sent(partition: Partition, records: memoryview = NOTHING, high_watermark: int = 0) -> Fetched:
    return Fetched(partition, ErrorCode.NONE, records, high_watermark, 0)


def failed(partition: Partition, error: ErrorCode) -> Fetched:
    return Fetched(partition, error, NOTHING, -1, -1)


def diverging(partition: Partition, epoch: int, end: int) -> Fetched:
    return Fetched(partition, ErrorCode.NONE, NOTHING, 0, 0, epoch, end)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    fatal: list[BaseException] = []
    tasks = Tasks(lambda name, error: fatal.append(error))
    made = Bench(tasks)
    yield made
    made.fetcher.stop()
    await made.fetcher.stopped()
    assert not fatal


async def test_what_comes_is_appended_and_the_next_request_says_so(bench: Bench) -> None:
    one = bench.follow(follower(0))
    request = await bench.exchange(sent(one, batches(0, (9, 3)), high_watermark=2))
    assert request.offsets() == {one: (3, 9)}
    assert one.high_watermark == 2


async def test_what_has_not_changed_is_not_named_again(bench: Bench) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    first = await bench.request()
    assert set(first.wanted) == {one, two}
    first.answer.set_result([sent(one, batches(0, (9, 1)))])
    assert set((await bench.request()).wanted) == {one}


class Disk:
    """Syncs when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Log, int, asyncio.Future[None]]] = []

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((log, offset, future))
        return future

    def sync(self, error: KafkaError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for log, offset, future in waiting:
            if error is not None:
                future.set_exception(error)
            else:
                log.recovery_point = offset
                future.set_result(None)


async def test_the_leader_hears_of_records_when_they_are_synced_where_a_topic_asks_for_that(
    bench: Bench,
) -> None:
    disk = Disk()
    one = bench.follow(follower(0, (3, 2), disk=disk, flush_messages=1))
    two = bench.follow(follower(1))
    await until(lambda: disk.waiting)
    assert bench.leader.requests.empty(), "what was there at the start may not be synced either"
    disk.sync()
    (await bench.request()).answer.set_result([sent(one, batches(2, (9, 3))), sent(two)])
    await until(lambda: disk.waiting)
    assert bench.leader.requests.empty()
    assert one.written == 2
    disk.sync(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now"))
    request = await bench.request()
    assert one not in request.wanted
    request.answer.set_result([sent(two)])
    await until(lambda: disk.waiting)
    disk.sync()
    request = await bench.request()
    while one not in request.wanted:
        request.answer.set_result([sent(two)])
        request = await bench.request()
    assert request.wanted[one].offset == one.written == 5


async def test_a_log_that_has_gone_apart_is_cut_where_the_leader_says(bench: Bench) -> None:
    one = bench.follow(follower(0, (3, 10), (5, 4)))
    request = await bench.exchange(diverging(one, 5, 12))
    assert bench.cutter.cuts == [Cut(one.id, 12)]
    assert request.offsets() == {one: (12, 5)}


async def test_epochs_that_the_leader_does_not_know_are_cut_one_by_one(bench: Bench) -> None:
    """The leader has epochs 3 and 6; here are 3, 4 and 5: what it says of 4 ends with 3."""
    one = bench.follow(follower(0, (3, 10), (4, 4), (5, 4)))
    assert (await bench.request()).answer.set_result([diverging(one, 4, 16)]) is None
    request = await bench.request()
    assert request.offsets() == {one: (14, 4)}, "its own epoch 4 ends at 14"
    request.answer.set_result([diverging(one, 3, 20)])
    request = await bench.request()
    assert request.offsets() == {one: (10, 3)}, "its own epoch 3 ends at 10"


async def test_an_epoch_of_the_leader_that_is_unknown_here_ends_with_the_one_before_it(
    bench: Bench,
) -> None:
    one = bench.follow(follower(0, (3, 10), (5, 4)))
    request = await bench.exchange(diverging(one, 4, 30))
    assert request.offsets() == {one: (10, 3)}


async def test_an_epoch_begun_without_a_record_is_forgotten(bench: Bench) -> None:
    """Whoever led and wrote nothing would else be told of a divergence for ever."""
    one = follower(0, (3, 10))
    one.lead(replace(STATE, leader=1, leader_epoch=7), Rules(1))
    one.follow(STATE)
    bench.follow(one)
    first = await bench.request()
    assert first.offsets() == {one: (10, 7)}
    first.answer.set_result([diverging(one, 3, 10)])
    assert (await bench.request()).offsets() == {one: (10, 3)}
    assert one.log.log_end_offset == 10


async def test_a_log_longer_than_the_leaders_is_cut_to_its_end(bench: Bench) -> None:
    one = bench.follow(follower(0, (3, 10)))
    bench.leader.ends = {LATEST: 6, EARLIEST: 0}
    request = await bench.exchange(failed(one, ErrorCode.OFFSET_OUT_OF_RANGE))
    assert request.offsets() == {one: (6, 3)}


async def test_a_log_that_ends_before_the_leaders_begins_anew_there(bench: Bench) -> None:
    one = bench.follow(follower(0, (3, 10)))
    bench.leader.ends = {LATEST: 90, EARLIEST: 40}
    request = await bench.exchange(failed(one, ErrorCode.OFFSET_OUT_OF_RANGE))
    assert request.offsets() == {one: (40, -1)}
    assert one.log.log_start_offset == 40


async def test_who_cannot_take_what_comes_says_so_once_and_tries_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    spoilt = bytearray(batches(0, (9, 1)))
    spoilt[-1] ^= 0xFF
    for _ in range(3):
        request = await bench.request()
        while one not in request.wanted:
            request.answer.set_result([sent(two)])
            request = await bench.request()
        request.answer.set_result([sent(one, memoryview(spoilt)), sent(two)])
    await bench.request()
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("t-0: cannot follow broker 2, and tries again: CORRUPT_MESSAGE")
    assert one.log.log_end_offset == 0


async def test_a_partition_with_an_error_rests_is_forgotten_and_comes_back(bench: Bench) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    request = await bench.exchange(failed(one, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    forgotten = list(request.forgotten)
    while one not in request.wanted:
        request.answer.set_result([sent(two)])
        request = await bench.request()
        forgotten += request.forgotten
    assert forgotten == [one]


async def test_a_new_partition_does_not_wait_for_the_rest_of_another(bench: Bench) -> None:
    bench.fetcher.stop()
    bench.leader, bench.fetcher = bench.another(backoff_ms=60_000)
    one = bench.follow(follower(0))
    (await bench.request()).answer.set_result([failed(one, ErrorCode.NOT_LEADER_OR_FOLLOWER)])
    await turns()
    two = bench.follow(follower(1))
    assert set((await bench.request()).wanted) == {two}


async def test_a_leader_that_leads_anew_is_asked_at_once_though_it_was_out_of_reach(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fetcher.stop()
    monkeypatch.setattr(following, "FIRST_PAUSE", 60.0)
    bench.leader, bench.fetcher = bench.another()
    one = bench.follow(follower(0))
    (await bench.request()).answer.set_exception(Unreachable("gone"))
    await turns()
    assert bench.leader.requests.empty()
    bench.follow(one)
    request = await bench.request()
    two = bench.follow(follower(1))
    request.answer.set_exception(Unreachable("gone"))
    assert set((await bench.request()).wanted) == {one, two}, "it has come meanwhile"


async def test_many_new_partitions_do_not_knock_at_a_leader_out_of_reach_once_for_each(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made one after the other; and each time all of them are looked at."""
    monkeypatch.setattr(following, "LEAST_PAUSE", 60.0)
    bench.follow(follower(0))
    (await bench.request()).answer.set_exception(Unreachable("gone"))
    for index in range(1, 5):
        await turns()
        bench.follow(follower(index))
    await turns()
    assert bench.leader.requests.empty()


async def test_who_is_removed_and_followed_again_at_once_is_wanted_and_not_forgotten(
    bench: Bench,
) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    request = await bench.request()
    bench.fetcher.remove(one)
    bench.fetcher.add(one)
    request.answer.set_result([sent(two)])
    request = await bench.request()
    assert set(request.wanted) == {one}
    assert not request.forgotten


async def test_a_topic_made_again_under_its_name_is_another_one(bench: Bench) -> None:
    """The old one is forgotten by the leader's session: it would answer with errors for ever."""
    one, two = bench.follow(follower(0, topic=1)), bench.follow(follower(1))
    request = await bench.request()
    bench.fetcher.remove(one)
    again = bench.follow(follower(0, topic=2))
    request.answer.set_result([sent(two)])
    request = await bench.request()
    assert set(request.wanted) == {again}
    assert request.forgotten == [one]


async def test_an_answer_from_before_a_new_epoch_is_not_taken(bench: Bench) -> None:
    one = bench.follow(follower(0))
    request = await bench.request()
    one.follow(replace(STATE, leader_epoch=10))
    bench.fetcher.add(one)
    request.answer.set_result([sent(one, batches(0, (9, 3)))])
    request = await bench.request()
    assert one.log.log_end_offset == 0
    assert request.wanted[one].leader_epoch == 10


async def test_an_answer_for_who_leads_now_is_not_taken(bench: Bench) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    request = await bench.request()
    bench.fetcher.remove(one)
    one.lead(replace(STATE, leader=1, leader_epoch=10), Rules(1))
    request.answer.set_result([sent(one, batches(0, (9, 3))), sent(two, batches(0, (9, 1)))])
    request = await bench.request()
    assert request.forgotten == [one]
    assert one.log.log_end_offset == 0
    assert two.log.log_end_offset == 1


async def test_who_is_elected_while_its_log_is_cut_leads_what_is_left(bench: Bench) -> None:
    one = bench.follow(follower(0, (3, 10)))
    bench.cutter.free.clear()
    (await bench.request()).answer.set_result([diverging(one, 3, 6)])
    await until(lambda: one.truncating)
    bench.fetcher.remove(one)
    one.lead(replace(STATE, leader=1, leader_epoch=10), Rules(1))
    assert not one.leading
    bench.cutter.free.set()
    await until(lambda: one.leading)
    assert one.log.log_end_offset == 6
    assert one.log.epoch_end_offset(10) == (10, 6)


async def test_nothing_is_asked_of_a_new_leader_while_the_log_is_cut_for_the_old_one(
    bench: Bench,
) -> None:
    """The new leader would count what is cut off a moment later."""
    one = bench.follow(follower(0, (3, 10)))
    bench.cutter.free.clear()
    (await bench.request()).answer.set_result([diverging(one, 3, 6)])
    await until(lambda: one.truncating)
    bench.fetcher.remove(one)
    one.follow(replace(STATE, leader=3, leader_epoch=10))
    leader, fetcher = bench.another()
    bench.follow(one, fetcher)
    two = bench.follow(follower(1), fetcher)
    async with asyncio.timeout(60):
        request = await leader.requests.get()
        assert set(request.wanted) == {two}
        bench.cutter.free.set()
        while one not in request.wanted:
            request.answer.set_result([sent(two)])
            request = await leader.requests.get()
    assert request.offsets()[one] == (6, 3)
    fetcher.stop()
    await fetcher.stopped()


async def test_a_cut_that_fails_is_tried_again(bench: Bench) -> None:
    one = bench.follow(follower(0, (3, 10)))
    bench.cutter.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no")
    request = await bench.exchange(diverging(one, 3, 6))
    assert request.offsets() == {one: (10, 3)}
    bench.cutter.failure = None
    request.answer.set_result([diverging(one, 3, 6)])
    assert (await bench.request()).offsets() == {one: (6, 3)}


async def test_a_leader_out_of_reach_is_asked_again_for_everything(bench: Bench) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    request = await bench.exchange(sent(one, batches(0, (9, 1))))
    assert set(request.wanted) == {one}
    request.answer.set_exception(Unreachable("gone"))
    request = await bench.request()
    assert set(request.wanted) == {one, two}
    assert bench.leader.resets == 1


async def test_a_damaged_answer_leaves_the_others_alone(bench: Bench) -> None:
    one, two = bench.follow(follower(0)), bench.follow(follower(1))
    damaged = bytearray(batches(0, (9, 1)))
    damaged[-1] ^= 1
    request = await bench.exchange(sent(one, memoryview(damaged)), sent(two, batches(0, (9, 2))))
    assert two in request.wanted
    assert one.log.log_end_offset == 0
    assert two.log.log_end_offset == 2


async def turns() -> None:
    """Let everything happen that waits for nothing else."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)
