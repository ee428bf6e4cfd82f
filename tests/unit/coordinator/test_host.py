"""The host: loading, appending before applying, answering when it is safe, letting go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from ottla.cluster.registry import ImageChange
from ottla.config.topic import TopicConfig
from ottla.coordinator import host as host_module
from ottla.coordinator import writing as writing_module
from ottla.coordinator.host import Host, Slot
from ottla.coordinator.shard import Answer, Now, Parked, Result, TransactionalProducer, Work
from ottla.coordinator.writing import FEW
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.records.batch import batches
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.control import ControlType, end_marker
from ottla.replication.marker import Marker
from ottla.replication.partition import Partition
from ottla.replication.tenure import Tenure
from ottla.runtime.clock import SystemClock
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

NAME = "__things"
ID = TopicId(b"t" * 16)


class Slate:
    """A shard that remembers keys and values. A command is a function of it."""

    def __init__(self) -> None:
        self.content: dict[bytes, bytes | None] = {}
        self.pending: dict[int, list[bytes]] = {}
        self.parked: list[Parked] = []
        self.due_at: int | None = None
        self.ticks: list[Any] = []
        self.ready: list[Any] = []

    def handle(self, command: Callable[[Slate, Now], Result], now: Now) -> Result:
        return command(self, now)

    def subject(self, command: Callable[[Slate, Now], Result]) -> str | None:
        return getattr(command, "about", None)

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int = -1,
        producer_id: int = -1,
        meaning: Any = None,
    ) -> None:
        if key == b"poison":
            raise RuntimeError("a bug")
        if producer_id >= 0:
            self.pending.setdefault(producer_id, []).append(key)
        else:
            self.content[key] = value

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        for key in self.pending.pop(producer_id, []):
            if committed:
                self.content[key] = b"committed"

    def loaded(self, now: Now) -> Iterable[Any]:
        return self.ready

    @property
    def next_due_ms(self) -> int | None:
        return self.due_at

    def due(self, now: Now) -> list[Any]:
        self.due_at = None
        return self.ticks

    def unload(self, error: KafkaError) -> list[Answer]:
        return [(each, error) for each in self.parked]


class Disk:
    """fsync that ends when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    async def flush(self) -> None:
        while self.waiting:
            self.waiting.pop(0).set_result(None)
            await asyncio.sleep(0)


class Settings:
    load_buffer_bytes = 200
    compression = Compression.NONE
    commit_timeout_ms = 5_000


class Bench:
    """A host over partitions in memory."""

    def __init__(self, config: TopicConfig | None = None, count: int = 2) -> None:
        self.disk = Disk()
        self.partitions = {}
        for index in range(count):
            state = PartitionState(1, 0, 0, (1,), (1,))
            log = LogBench(config or TopicConfig()).open()
            partition = Partition(TopicPartition(NAME, index), ID, log, state, self.disk)
            partition.lead(state)
            self.partitions[index] = partition
        self.workers = Workers(children=1)
        self.settings = Settings()
        self.slates: list[Slate] = []
        self.deaths: asyncio.Queue[str] = asyncio.Queue()
        self.host = Host(
            NAME,
            1,
            partitions=self,
            clock=SystemClock(),
            workers=self.workers,
            tasks=Tasks(lambda what, error: self.deaths.put_nowait(f"{what}: {error}")),
            settings=self.settings,
            make_shard=self._make,
        )
        self.image = ClusterImage()

    def _make(self, index: int, image: ClusterImage) -> Slate:
        self.slates.append(Slate())
        return self.slates[-1]

    def by_name(self, topic: str, index: int) -> Partition:
        return self.partitions[index]

    def lead(self, *leaders: int, epoch: int = 0) -> None:
        """Partition n is led by leaders[n] from now on; the partitions here know it first."""
        states = tuple(PartitionState(leader, epoch, 0, (leader,), (leader,)) for leader in leaders)
        for index, state in enumerate(states):
            if state.leader == 1:
                self.partitions[index].lead(state)
        topics = {NAME: Topic(NAME, ID, states)} if leaders else {}
        before, self.image = self.image, ClusterImage(topics=topics)
        self.host.apply(ImageChange(before, self.image, frozenset({NAME})))

    async def ready(self) -> None:
        self.lead(1, 1)
        await self.host.wait_loaded()

    def slate(self, index: int = 0) -> Slate:
        shard = next(each.shard for each in self.host if each.index == index)
        assert isinstance(shard, Slate)
        return shard

    def slot(self, index: int = 0) -> Slot:
        return next(each for each in self.host if each.index == index)

    def run(self, command: Callable[[Slate, Now], Result]) -> Any:
        return self.host.run(0, command)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    each = Bench()
    yield each
    await each.host.close()
    each.workers.close()


@pytest.fixture
async def slow() -> AsyncIterator[Bench]:
    """With fsync before anything is committed."""
    each = Bench(TopicConfig(flush_messages=1))
    yield each
    await each.host.close()
    each.workers.close()


def write(
    key: bytes,
    value: bytes = b"v",
    reply: Any = "done",
    about: str | None = None,
    **more: Any,
) -> Any:
    return told_of(about, lambda slate, now: Result(reply, [(key, value)], **more))


def look(key: bytes, about: str | None = None) -> Any:
    """A command that only reads."""
    return told_of(about, lambda slate, now: Result(slate.content.get(key)))


def told_of(about: str | None, command: Any) -> Any:
    command.about = about
    return command


async def settled(reply: Any) -> Any:
    return await reply if isinstance(reply, Deferred) else reply


def refused(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


async def test_nobody_is_coordinated_before_the_partition_is_ours(bench: Bench) -> None:
    assert refused(lambda: bench.run(write(b"a"))) is ErrorCode.NOT_COORDINATOR
    bench.lead(1, 2)
    assert refused(lambda: bench.run(write(b"a"))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await bench.host.wait_loaded()
    assert bench.run(write(b"a")) == "done"
    assert refused(lambda: bench.host.run(1, write(b"a"))) is ErrorCode.NOT_COORDINATOR


async def test_records_are_in_the_log_before_they_are_applied(bench: Bench) -> None:
    await bench.ready()
    ends = []

    def noted(error: KafkaError | None, now: Now) -> None:
        ends.append((bench.partitions[0].log.log_end_offset, dict(bench.slate().content)))

    bench.run(write(b"a", after=noted))
    assert ends == [(1, {b"a": b"v"})]


async def test_a_shard_whose_time_stands_still_is_not_kept_quiet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(slate: Slate, now: Now) -> list[Any]:
        raise ValueError("a bug")

    await bench.ready()
    monkeypatch.setattr(Slate, "due", fail)
    bench.slate().due_at = 0
    bench.run(write(b"a"))
    assert await bench.deaths.get() == f"looking for time-outs in {NAME}-0: a bug"


async def test_a_shard_that_cannot_begin_is_not_kept_quiet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(slate: Slate, now: Now) -> list[Any]:
        raise ValueError("a bug")

    monkeypatch.setattr(Slate, "loaded", fail)
    bench.lead(1, 2)
    assert await bench.deaths.get() == f"loading {NAME}-0: a bug"


async def test_retention_may_delete_what_was_to_be_loaded_next() -> None:
    bench = Bench(TopicConfig(cleanup_policy=frozenset({"compact", "delete"})))
    partition = bench.partitions[0]
    for number in range(40):
        batch = bytearray(build_batch([(1, b"%d" % number, b"v", ())]))
        partition.append(memoryview(batch), 1)
    bench.lead(1, 1)
    while not bench.slate().content:
        await asyncio.sleep(0)
    partition.delete_records(39)
    await bench.host.wait_loaded()
    assert bench.slot().active
    assert b"39" in bench.slate().content
    assert len(bench.slate().content) < 40
    await bench.host.close()
    bench.workers.close()


async def test_a_log_is_replayed_in_slices_and_all_of_it(bench: Bench) -> None:
    log = bench.partitions[0].log
    for number in range(50):
        records = [(1, b"%d-%d" % (number, each), b"x" * 20, ()) for each in range(3)]
        batch = bytearray(build_batch(records))
        bench.partitions[0].append(memoryview(batch), 1)
    assert log.size > 10 * bench.settings.load_buffer_bytes
    await bench.ready()
    assert len(bench.slate().content) == 150


async def test_transactions_in_the_log_count_when_they_end(bench: Bench) -> None:
    def append(batch: bytes) -> None:
        bench.partitions[0].log.append_replicated(memoryview(bytearray(batch)), leader_epoch=0)

    for offset, (producer, committed) in enumerate([(7, True), (8, False)]):
        append(
            build_batch(
                [(1, b"%d" % producer, b"v", ())],
                base_offset=2 * offset,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )
        append(
            end_marker(
                ControlType.COMMIT if committed else ControlType.ABORT,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                base_offset=2 * offset + 1,
                timestamp=1,
            )
        )
    await bench.ready()
    assert bench.slate().content == {b"7": b"committed"}


async def test_what_is_to_be_done_first_is_done_after_loading(bench: Bench) -> None:
    original = bench._make

    def make(index: int, image: ClusterImage) -> Slate:
        slate = original(index, image)
        slate.ready.append(write(b"first"))
        return slate

    bench.host.make_shard = make
    await bench.ready()
    assert bench.slate().content == {b"first": b"v"}


async def test_a_failed_append_applies_nothing_and_says_so(bench: Bench) -> None:
    await bench.ready()
    told: list[Any] = []
    parked = Parked()
    huge = b"x" * (2 << 20)

    def after(error: KafkaError | None, now: Now) -> None:
        told.append(error and error.code)

    command = write(b"a", huge, after=after, answers=[(parked, "never")])
    assert refused(lambda: bench.run(command)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert told == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert bench.slate().content == {}
    assert bench.run(write(b"b")) == "done"


async def test_what_comes_after_may_replace_the_reply_and_write_more(bench: Bench) -> None:
    await bench.ready()
    more = write(b"b", reply="better")(bench.slate(), None)
    assert await settled(bench.run(write(b"a", after=lambda error, now: more))) == "better"
    assert bench.slate().content == {b"a": b"v", b"b": b"v"}


async def test_independent_records_are_split_into_batches_that_fit(bench: Bench) -> None:
    await bench.ready()
    records = [(b"%d" % each, b"x" * 300_000) for each in range(10)]
    assert refused(lambda: bench.run(lambda s, n: Result(None, records))) is (
        ErrorCode.UNKNOWN_SERVER_ERROR
    )
    bench.run(lambda slate, now: Result("done", records, atomic=False))
    assert len(bench.slate().content) == 10


async def test_a_parked_reply_is_answered_by_a_later_command(bench: Bench) -> None:
    await bench.ready()
    parked = Parked()
    waiting = bench.run(lambda slate, now: Result(parked))
    assert isinstance(waiting, Deferred)
    assert not waiting.done
    assert bench.run(write(b"a", answers=[(parked, "at last")])) == "done"
    assert not waiting.done, "whoever asked is answered first"
    assert await waiting == "at last"


async def test_a_command_may_answer_itself(bench: Bench) -> None:
    await bench.ready()
    parked = Parked()
    assert bench.run(write(b"a", reply=parked, answers=[(parked, "now")])) == "now"


async def test_nothing_is_told_before_it_is_committed(slow: Bench) -> None:
    await slow.ready()
    first = slow.run(write(b"a"))
    assert isinstance(first, Deferred)
    parked = Parked()
    other = slow.run(lambda slate, now: Result(parked))
    read = slow.run(lambda slate, now: Result(slate.content[b"a"], answers=[(parked, "seen")]))
    await asyncio.sleep(0)
    assert [each.done for each in (first, other, read)] == [False, False, False]
    await slow.disk.flush()
    assert [each.result() for each in (first, other, read)] == ["done", "seen", b"v"]
    assert slow.run(lambda slate, now: Result("at once")) == "at once"


async def test_a_reply_waits_for_no_records_but_those_it_tells_of(slow: Bench) -> None:
    await slow.ready()
    written = slow.run(write(b"a", about="a"))
    assert slow.run(look(b"b", about="b")) is None, "of a it tells nothing"
    asked = [slow.run(look(b"a", about=about)) for about in ("a", None)]
    later = slow.run(write(b"b", about="b"))
    others = slow.run(look(b"a", about="a"))
    await asyncio.sleep(0)
    assert not any(reply.done for reply in (written, *asked, later, others))
    slow.disk.waiting.pop(0).set_result(None)  # the flush that began before b was written
    await asyncio.sleep(0)
    assert [reply.result() for reply in (written, *asked, others)] == ["done", *[b"v"] * 3]
    assert not later.done
    assert slow.run(look(b"a", about="a")) == b"v"
    await slow.disk.flush()
    assert later.result() == "done"


async def test_what_was_loaded_and_is_not_committed_is_not_told(slow: Bench) -> None:
    batch = bytearray(build_batch([(1, b"a", b"v", ())]))
    slow.partitions[0].append(memoryview(batch), 1)
    await slow.ready()
    asked = slow.run(look(b"a", about="a"))
    assert not asked.done
    await slow.disk.flush()
    assert asked.result() == b"v"


async def test_after_a_flush_that_failed_the_next_one_is_waited_for(slow: Bench) -> None:
    await slow.ready()
    lost = slow.run(write(b"a", about="a"))
    shortage = OutOfDescriptors(ErrorCode.KAFKA_STORAGE_ERROR)
    slow.disk.waiting.pop(0).set_exception(shortage)
    with pytest.raises(KafkaError):
        await lost
    asked = slow.run(look(b"a", about="a"))
    assert not asked.done
    await slow.disk.flush()
    assert asked.result() == b"v"


async def test_however_many_have_written_who_has_not_committed_is_known(
    slow: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing_module, "MANY", 2)
    await slow.ready()
    names = [f"{number}" for number in range(20)]
    for name in names[:10]:
        slow.run(write(name.encode(), about=name))
    await asyncio.sleep(0)
    slow.disk.waiting.pop(0).set_result(None)
    await asyncio.sleep(0)
    known = [isinstance(slow.run(look(b"", about=name)), Deferred) for name in names[:10]]
    for name in names[10:]:
        slow.run(write(name.encode(), about=name))
    for name, waits in zip(names, known + [True] * 10, strict=True):
        assert isinstance(slow.run(look(b"", about=name)), Deferred) is waits
    await slow.disk.flush()
    assert not any(isinstance(slow.run(look(b"", about=name)), Deferred) for name in names)


async def test_replicas_that_do_not_follow_make_a_commit_uncertain(slow: Bench) -> None:
    await slow.ready()
    slow.settings.commit_timeout_ms = 1
    waiting = slow.run(write(b"a"))
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_disk_that_fails_ends_the_coordination(slow: Bench) -> None:
    await slow.ready()
    waiting = slow.run(write(b"a"))
    slow.disk.waiting.pop().set_exception(OSError("no more"))
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_when_the_partition_is_led_elsewhere_everybody_is_sent_away(slow: Bench) -> None:
    await slow.ready()
    parked = Parked()
    slow.slate().parked.append(parked)
    waiting = [slow.run(lambda slate, now: Result(parked)), slow.run(write(b"a"))]
    slow.lead(2, 1)
    for each in waiting:
        with pytest.raises(KafkaError) as caught:
            each.result()
        assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert refused(lambda: slow.run(write(b"b"))) is ErrorCode.NOT_COORDINATOR


async def test_answers_on_their_way_out_are_taken_back(bench: Bench) -> None:
    await bench.ready()
    parked = Parked()
    waiting = bench.run(lambda slate, now: Result(parked))
    bench.run(write(b"a", answers=[(parked, "too late")]))
    bench.lead(2, 1)
    with pytest.raises(KafkaError) as caught:
        waiting.result()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_when_it_comes_back_it_is_loaded_anew(bench: Bench) -> None:
    await bench.ready()
    bench.run(write(b"a"))
    bench.lead(2, 1)
    bench.lead(1, 1)
    await bench.host.wait_loaded()
    assert bench.slate().content == {b"a": b"v"}
    assert len(bench.slates) == 3


async def test_an_image_with_the_same_leader_and_epoch_changes_nothing(bench: Bench) -> None:
    await bench.ready()
    before = bench.slate()
    bench.lead(1, 1)
    assert bench.slate() is before
    assert bench.run(write(b"a")) == "done"


async def test_a_new_epoch_of_the_same_leader_loads_anew(bench: Bench) -> None:
    """Between two images another broker may have led, and written."""
    await bench.ready()
    bench.run(write(b"a", b"ours"))
    bench.slate().content[b"c"] = b"in memory only"
    meanwhile = build_batch([(1, b"b", b"theirs", ())], base_offset=1, leader_epoch=4)
    bench.partitions[0].log.append_replicated(memoryview(bytearray(meanwhile)), leader_epoch=4)
    bench.lead(1, 1, epoch=5)
    assert refused(lambda: bench.run(write(b"c"))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await bench.host.wait_loaded()
    assert bench.slate().content == {b"a": b"ours", b"b": b"theirs"}


async def test_a_log_is_loaded_when_its_truncation_is_over(bench: Bench) -> None:
    """Who is elected while it still truncates, as a follower, leads when that is done."""
    await bench.ready()
    bench.run(write(b"a", b"stays"))
    bench.run(write(b"b", b"goes"))
    partition = bench.partitions[0]
    bench.lead(2, 1, epoch=1)
    partition.follow(PartitionState(2, 1, 1, (2,), (2,)))
    partition.begin_truncation()
    bench.lead(1, 1, epoch=2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.slate().content == {}
    partition.log.truncate_to(1)
    partition.end_truncation()
    await bench.host.wait_loaded()
    assert bench.slate().content == {b"a": b"stays"}
    assert bench.run(write(b"c")) == "done"


async def test_whoever_waits_when_the_epoch_changes_asks_again(slow: Bench) -> None:
    await slow.ready()
    parked = Parked()
    slow.slate().parked.append(parked)
    waiting = [slow.run(lambda slate, now: Result(parked)), slow.run(write(b"a"))]
    slow.lead(1, 1, epoch=1)
    for reply in waiting:
        with pytest.raises(KafkaError) as caught:
            reply.result()
        assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_records_carry_the_epoch_for_which_the_shard_was_loaded(bench: Bench) -> None:
    await bench.ready()
    bench.run(write(b"a"))
    bench.lead(1, 1, epoch=5)
    await bench.host.wait_loaded()
    replies = [bench.run(write(b"%d" % number)) for number in range(FEW + 2)]
    assert [await settled(reply) for reply in replies] == ["done"] * (FEW + 2)
    log = bench.partitions[0].log
    region = log.read(0, 1 << 20, upper=log.log_end_offset).region
    assert region is not None
    epochs = [header.leader_epoch for _, header in batches(region.read())]
    assert (epochs[0], set(epochs[1:])) == (0, {5})


async def test_a_shard_of_an_earlier_epoch_writes_nothing(bench: Bench) -> None:
    await bench.ready()
    bench.run(write(b"a"))
    gathered = [bench.run(write(b"b")) for _ in range(FEW)]
    bench.partitions[0].lead(PartitionState(1, 1, 0, (1,), (1,)))
    for reply in gathered:
        with pytest.raises(KafkaError) as caught:
            await reply
        assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert refused(lambda: bench.host.run(0, write(b"c"))) is ErrorCode.NOT_COORDINATOR
    bench.partitions[1].lead(PartitionState(1, 1, 0, (1,), (1,)))
    assert refused(lambda: bench.host.run(1, write(b"c"))) is ErrorCode.NOT_COORDINATOR
    ends = [partition.log.log_end_offset for partition in bench.partitions.values()]
    assert ends == [1, 0]
    bench.lead(1, 1, epoch=1)
    await bench.host.wait_loaded()
    assert bench.slate().content == {b"a": b"v"}
    assert bench.run(write(b"c")) == "done"


async def test_what_happened_while_loading_is_not_lost_when_the_epoch_changes(
    bench: Bench,
) -> None:
    bench.lead(1, 2)
    bench.host.notify(write(b"meanwhile"))
    bench.lead(1, 2, epoch=1)
    await bench.host.wait_loaded()
    assert bench.slate().content == {b"meanwhile": b"v"}


async def test_a_shard_that_was_given_up_does_not_take_its_successor_with_it(
    bench: Bench,
) -> None:
    await bench.ready()
    bench.partitions[0].lead(PartitionState(1, 1, 0, (1,), (1,)))
    assert refused(lambda: bench.run(write(b"a"))) is ErrorCode.NOT_COORDINATOR
    bench.lead(1, 1, epoch=1)  # in the same turn of the loop
    await bench.host.wait_loaded()
    assert bench.run(write(b"c")) == "done"


async def test_a_topic_that_is_gone_is_not_coordinated(bench: Bench) -> None:
    await bench.ready()
    bench.lead()
    assert refused(lambda: bench.run(write(b"a"))) is ErrorCode.NOT_COORDINATOR


async def test_losing_it_while_loading_stops_the_loading(bench: Bench) -> None:
    bench.lead(1, 1)
    bench.lead(2, 2)
    await bench.host.wait_loaded()
    assert list(bench.host) == []


async def test_what_happens_while_a_shard_is_loaded_it_is_told_afterwards(bench: Bench) -> None:
    bench.lead(1, 2)
    await bench.host.wait_loaded()
    for number in range(50):
        await settled(bench.run(write(b"%d" % number)))
    bench.host.reload(0)

    def seen(value: bytes) -> Any:
        def command(slate: Slate, now: Now) -> Result:
            assert len(slate.content) >= 50, "before everything was there"
            order = (slate.content.get(b"order") or b"") + value
            return Result(records=[(b"order", order)])

        return command

    bench.slate().ready.append(seen(b"first, "))
    bench.host.notify(seen(b"then this, "))
    bench.host.notify(seen(b"then that"))
    await bench.host.wait_loaded()
    assert bench.slate().content[b"order"] == b"first, then this, then that"


async def test_a_shard_that_could_not_be_loaded_is_told_nothing(bench: Bench) -> None:
    told: list[Slate] = []

    def command(slate: Slate, now: Now) -> Result:
        told.append(slate)
        return Result()

    await bench.ready()
    bench.run(write(b"x"))
    bench.host.reload(0)
    bench.host.notify(command)
    bench.lead(2, 1)
    await bench.host.wait_loaded()
    assert told == [bench.slate(1)]


async def test_without_a_descriptor_it_is_loaded_a_moment_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "SHORTAGE_SECONDS", 0)
    await bench.ready()
    bench.run(write(b"x", b"kept"))
    log, failures = bench.slot().partition.log, [1, 2, 3]
    read = log.read

    def short(*args: Any, **kwargs: Any) -> Any:
        if failures:
            failures.pop()
            raise OutOfDescriptors(ErrorCode.KAFKA_STORAGE_ERROR)
        return read(*args, **kwargs)

    monkeypatch.setattr(log, "read", short)
    bench.host.reload(0)
    bench.host.notify(write(b"meanwhile", b"too"))
    while failures or not bench.slot().active:
        await asyncio.sleep(0)
        await bench.host.wait_loaded()
    assert bench.slate().content[b"x"] == b"kept"
    assert bench.slate().content[b"meanwhile"] == b"too"


async def test_a_state_that_cannot_be_trusted_is_made_anew(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.ready()
    before = bench.slate()
    assert refused(lambda: bench.run(write(b"poison"))) is ErrorCode.UNKNOWN_SERVER_ERROR
    await asyncio.sleep(0)
    await bench.host.wait_loaded()
    # what is in the log cannot be applied now either: the shard is given up, and said to be
    assert all(each.shard is not before for each in bench.host)
    assert "cannot be loaded" in caplog.text


async def test_a_state_that_is_ahead_of_the_log_is_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ready()
    for _ in range(FEW):
        assert bench.run(write(b"a")) == "done"
    lost = bench.run(write(b"b"))
    assert b"b" in bench.slate().content
    with monkeypatch.context() as refusing:

        def append(*_: object, **__: object) -> None:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

        refusing.setattr(Partition, "append", append)
        with pytest.raises(KafkaError) as caught:
            await lost
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refused(lambda: bench.run(write(b"c"))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await asyncio.sleep(0)
    await bench.host.wait_loaded()
    assert bench.slate().content == {b"a": b"v"}


async def test_whoever_is_heard_before_the_end_is_written_and_answered(bench: Bench) -> None:
    await bench.ready()
    for _ in range(FEW):
        assert bench.run(write(b"a")) == "done"
    last = bench.run(write(b"b"))
    await bench.host.close()
    assert last.result() == "done"
    assert bench.partitions[0].log.log_end_offset == FEW + 1


async def test_time_outs_come_as_commands(bench: Bench) -> None:
    await bench.ready()
    came = asyncio.Event()

    def tick(slate: Slate, now: Now) -> Result:
        came.set()
        return Result(None, [(b"tick", b"")])

    def arm(slate: Slate, now: Now) -> Result:
        slate.ticks, slate.due_at = [tick], now.ms + 1
        return Result("armed")

    assert bench.run(arm) == "armed"
    await asyncio.wait_for(came.wait(), 60)
    assert b"tick" in bench.slate().content


async def test_work_is_done_elsewhere_and_comes_back_as_a_command(bench: Bench) -> None:
    await bench.ready()
    came = asyncio.Event()
    outcomes: list[Any] = []
    starts: list[int] = []

    def back(value: Any, error: Exception | None) -> Any:
        def command(slate: Slate, now: Now) -> Result:
            outcomes.append((value, error))
            came.set()
            return Result()

        return command

    def work() -> int:
        starts.append(1)
        return 42

    for _ in range(2):  # the second has the key of one under way
        bench.run(lambda slate, now: Result(work=[Work("k", work, back)]))
    await asyncio.wait_for(came.wait(), 60)
    assert (outcomes, len(starts)) == ([(42, None)], 1)


async def test_work_that_fails_comes_back_with_its_error(bench: Bench) -> None:
    await bench.ready()
    came = asyncio.Event()
    outcomes: list[Any] = []

    def back(value: Any, error: Exception | None) -> Any:
        outcomes.append(type(error))
        came.set()
        return lambda slate, now: Result()

    bench.run(lambda slate, now: Result(work=[Work("k", lambda: 1 // 0, back)]))
    await asyncio.wait_for(came.wait(), 60)
    assert outcomes == [ZeroDivisionError]


async def test_a_command_for_all_reaches_each_loaded_shard(bench: Bench) -> None:
    await bench.ready()
    bench.host.notify(write(b"all"))
    assert [each.content for each in bench.slates] == [{b"all": b"v"}] * 2
    replies = bench.host.run_everywhere(lambda: write(b"b"))
    assert [await settled(each) for each in replies] == ["done", "done"]
    bench.lead(2, 1)
    bench.lead(1, 1)
    assert refused(lambda: bench.host.run_everywhere(lambda: write(b"c")) and None) is (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )


class Lease:
    """What partitions say about other leaders, as a test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.certain = True
        self.looks = 0
        self.succeeded = True
        monkeypatch.setattr(Tenure, "certain", property(lambda _: self._look()))
        monkeypatch.setattr(Tenure, "unrivalled", property(lambda _: self._look()))
        monkeypatch.setattr(Tenure, "has_succeeded", property(lambda _: self.succeeded))
        monkeypatch.setattr(host_module, "WATCH_PAUSE", 0.0)

    def _look(self) -> bool:
        self.looks += 1
        return self.certain


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> Lease:
    return Lease(monkeypatch)


async def test_a_question_waits_for_certainty(bench: Bench, lease: Lease) -> None:
    await bench.ready()
    bench.run(write(b"a"))
    assert bench.host.run_certainly(0, look(b"a")) == b"v"
    lease.certain = False
    assert bench.run(look(b"a")) == b"v", "only who asks for it waits"
    waiting = bench.host.run_certainly(0, look(b"a"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done
    bench.run(write(b"a", b"newer"))
    lease.certain = True
    assert await settled(waiting) == b"newer"


async def test_who_asks_is_sent_elsewhere_when_doubt_remains(
    bench: Bench, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ready()
    lease.certain = False
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 0.0)
    waiting = bench.host.run_certainly(0, look(b"a"))
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_sign_of_life_counts_at_once_and_is_confirmed_with_certainty(
    bench: Bench, lease: Lease
) -> None:
    await bench.ready()
    bench.run(write(b"a"))
    assert bench.host.run_and_confirm(0, look(b"a")) == b"v"
    lease.certain = False
    waiting = bench.host.run_and_confirm(0, look(b"a"))
    bench.run(write(b"a", b"newer"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done
    lease.certain = True
    assert await settled(waiting) == b"v", "it was heard before"


async def test_nobody_is_confirmed_nor_refused_when_doubt_remains(
    bench: Bench, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ready()
    bench.run(write(b"a"))
    lease.certain = False
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 0.0)

    def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    confirmed = bench.host.run_and_confirm(0, look(b"a"))
    slot = bench.host.slot(0)
    assert slot is not None
    monkeypatch.setattr(slot.shard, "handle", refuse)
    refused = bench.host.run_and_confirm(0, look(b"a"))
    for waiting in (confirmed, refused):
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_COORDINATOR
    lease.certain = False
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 60.0)
    refused = bench.host.run_and_confirm(0, look(b"a"))
    lease.certain = True
    with pytest.raises(KafkaError) as caught:
        await refused
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_however_many_are_in_doubt_it_is_looked_at_once(
    bench: Bench, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of members may wait, and it is looked at again and again for a second."""
    await bench.ready()
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 60.0)
    lease.certain = False
    waiting = [bench.host.run_and_confirm(0, look(b"a")) for _ in range(50)]
    waiting += [bench.host.run_certainly(0, look(b"a")) for _ in range(50)]
    slot = bench.host.slot(0)
    assert slot is not None
    lease.looks = 0
    slot.look()
    assert lease.looks == 2
    lease.certain = True
    for each in waiting:
        assert await settled(each) is None


async def test_who_waits_for_others_is_sent_elsewhere_when_doubt_comes_up_and_stays(
    bench: Bench, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have gone there. What they bring here later is told nobody any more."""
    await bench.ready()
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 0.0)
    parked, later = Parked(), Parked()
    waiting = bench.host.run_together(0, lambda slate, now: Result(parked))
    await turns()
    assert not waiting.done
    lease.certain = False
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    bench.run(write(b"a", answers=[(parked, "yours")]))
    lease.certain = True
    again = bench.host.run_together(0, lambda slate, now: Result(later))
    await turns()
    bench.run(write(b"a", answers=[(later, "yours")]))
    assert await settled(again) == "yours"


async def test_who_waits_for_others_goes_on_when_doubt_passes(
    bench: Bench, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ready()
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 0.0)
    parked = Parked()
    waiting = bench.host.run_together(0, lambda slate, now: Result(parked))
    await turns()
    monkeypatch.setattr(host_module, "DOUBT_SECONDS", 60.0)
    lease.certain = False
    await turns()
    lease.certain = True
    await turns()
    assert not waiting.done
    bench.run(write(b"a", answers=[(parked, "yours")]))
    assert await settled(waiting) == "yours"


async def test_who_waits_for_certainty_is_told_when_the_shard_goes_elsewhere(
    bench: Bench, lease: Lease
) -> None:
    await bench.ready()
    lease.certain = False
    waiting = bench.host.run_certainly(0, look(b"a"))
    bench.lead(2, 2)
    with pytest.raises(KafkaError) as caught:
        waiting.result()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_new_leader_tells_what_it_found_at_once_and_what_it_wrote_when_it_has_succeeded(
    bench: Bench, lease: Lease
) -> None:
    await bench.ready()
    bench.run(write(b"old"))
    lease.succeeded = False
    bench.lead(1, 1, epoch=1)
    await bench.host.wait_loaded()
    assert bench.run(look(b"old", about="x")) == b"v"
    commit = bench.run(write(b"new", about="x"))
    question = bench.run(look(b"new", about="x"))
    another = bench.run(look(b"old", about="y"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not commit.done
    assert not question.done, "it depends on what must not be known yet"
    assert another == b"v"
    lease.succeeded = True
    assert await settled(commit) == "done"
    assert await settled(question) == b"v"
    assert bench.run(write(b"newer")) == "done"


async def test_a_new_leader_that_nobody_follows_tells_what_it_found_when_it_has_known_it_long(
    bench: Bench, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ready()
    bench.run(write(b"old"))
    lease.succeeded = False
    known = 0
    monkeypatch.setattr(Tenure, "told_below", property(lambda _: known))
    bench.lead(1, 1, epoch=1)
    await bench.host.wait_loaded()
    question = bench.run(look(b"old"))
    await turns()
    assert not question.done
    known = 1
    assert await settled(question) == b"v"
    assert bench.run(look(b"old")) == b"v"


async def turns() -> None:
    """Let everything happen that waits for nothing else."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestEffects:
    """What happens outside of the shard, because of what is in its log."""

    @staticmethod
    def passed_on(bench: Bench) -> list[Any]:
        effects: list[Any] = []
        bench.host.on_effect = lambda slot, effect: effects.append(effect)
        return effects

    async def test_they_wait_for_the_commit_of_the_record(self, slow: Bench) -> None:
        effects = self.passed_on(slow)
        await slow.ready()
        slow.run(write(b"a", effects=["markers"]))
        await turns()
        assert not effects
        await slow.disk.flush()
        await turns()
        assert effects == ["markers"]

    async def test_of_a_record_that_is_committed_they_come_before_the_answer(
        self, bench: Bench
    ) -> None:
        effects = self.passed_on(bench)
        await bench.ready()
        assert bench.run(write(b"a", effects=["markers"])) == "done"
        assert effects == ["markers"], "or the next request could be there first"
        await turns()
        assert effects == ["markers"]

    async def test_what_they_lead_to_is_known_to_the_next_command(self, bench: Bench) -> None:
        await bench.ready()
        replies: list[Any] = []
        bench.host.on_effect = lambda slot, effect: replies.append(slot.run(write(effect)))
        assert bench.run(write(b"a", effects=[b"b"])) == "done"
        assert await settled(bench.run(look(b"b"))) == b"v"
        assert await settled(replies[0]) == "done"

    async def test_they_wait_longer_than_any_client(self, slow: Bench) -> None:
        slow.settings.commit_timeout_ms = 1
        effects = self.passed_on(slow)
        await slow.ready()
        reply = slow.run(write(b"a", effects=["markers"]))
        with pytest.raises(KafkaError):
            await settled(reply)
        assert not effects
        await slow.disk.flush()
        async with asyncio.timeout(60):
            while not effects:
                await asyncio.sleep(0.01)
        assert effects == ["markers"]

    async def test_a_write_that_fails_has_none(self, bench: Bench) -> None:
        effects = self.passed_on(bench)
        await bench.ready()
        bench.partitions[0].leading = False
        refused(lambda: bench.run(write(b"a", effects=["markers"])))
        await turns()
        assert not effects

    async def test_they_do_not_outlive_the_leadership(self, slow: Bench) -> None:
        effects = self.passed_on(slow)
        await slow.ready()
        slow.run(write(b"a", effects=["markers"]))
        slow.lead(2, 2, epoch=1)
        await slow.disk.flush()
        await turns()
        assert not effects


class TestTransactionsInAShardsLog:
    PRODUCER = 7

    @classmethod
    def in_transaction(cls, bench: Bench, key: bytes) -> Any:
        guard = bench.partitions[0].log.begin_verification(cls.PRODUCER, 0, -1)
        return write(key, producer=TransactionalProducer(cls.PRODUCER, 0, guard))

    @classmethod
    def marker(cls, *, committed: bool) -> Marker:
        return Marker(cls.PRODUCER, 0, committed, 1, False)

    @pytest.mark.parametrize("committed", [True, False])
    async def test_records_count_with_their_marker(self, bench: Bench, committed: bool) -> None:
        await bench.ready()
        bench.run(self.in_transaction(bench, b"a"))
        assert bench.slate().content == {}
        bench.slot().end_transaction(self.marker(committed=committed))
        expected = {b"a": b"committed"} if committed else {}
        assert bench.slate().content == expected
        bench.lead(1, 1, epoch=1)
        await bench.host.wait_loaded()
        assert bench.slate().content == expected

    async def test_they_are_never_gathered_with_others(self, bench: Bench) -> None:
        await bench.ready()
        bench.run(write(b"first"))
        for key in (b"b", b"c"):
            bench.run(write(key))
        bench.run(self.in_transaction(bench, b"a"))
        bench.run(write(b"d"))
        bench.slot().end_transaction(self.marker(committed=True))
        await turns()
        log = bench.partitions[0].log
        region = log.read(0, 1 << 20, upper=log.log_end_offset).region
        assert region is not None
        producers = [header.producer_id for _, header in batches(region.read())]
        assert producers.count(self.PRODUCER) == 2
        assert bench.slate().content.keys() == {b"first", b"a", b"b", b"c", b"d"}

    async def test_without_the_coordinators_word_nothing_is_written(self, bench: Bench) -> None:
        await bench.ready()
        command = write(b"a", producer=TransactionalProducer(self.PRODUCER, 0))
        assert refused(lambda: bench.run(command)) is ErrorCode.INVALID_TXN_STATE
        assert bench.partitions[0].log.log_end_offset == 0

    async def test_what_a_marker_makes_visible_is_told_when_it_is_committed(
        self, slow: Bench
    ) -> None:
        await slow.ready()
        slow.run(self.in_transaction(slow, b"a"))
        await slow.disk.flush()
        slow.slot().end_transaction(self.marker(committed=True))
        reply = slow.run(look(b"a", about="anything"))
        assert isinstance(reply, Deferred)
        assert not reply.done
        await slow.disk.flush()
        assert await settled(reply) == b"committed"

    async def test_no_marker_is_taken_while_the_log_is_loaded(self, bench: Bench) -> None:
        bench.lead(1, 1)
        slot = bench.slot()
        assert refused(lambda: slot.end_transaction(self.marker(committed=True))) is (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
        await bench.host.wait_loaded()
        assert bench.partitions[0].log.log_end_offset == 0
