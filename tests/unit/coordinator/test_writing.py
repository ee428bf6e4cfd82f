"""Writing in a crowd: what several commands of one loop turn bring goes into the log together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any, Literal

import pytest

from ottla.config.topic import TopicConfig
from ottla.coordinator.errors import as_coordinator
from ottla.coordinator.shard import Now, Record, Result
from ottla.coordinator.writing import CROWD, FEW, Turn, Writer
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.batch import batches, checksum_ok, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.reader import iter_records
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

NOW = Now(1_700_000_000_000, 1_000)


class Notebook:
    """A shard that notes what it is told, and where the log has it."""

    def __init__(self) -> None:
        self.notes: dict[int, tuple[bytes, bytes | None]] = {}

    def subject(self, command: str | None) -> str | None:
        return command

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
        self.notes[offset] = (key, value)


class Settings:
    compression = Compression.NONE
    commit_timeout_ms = 5_000


class Durability:
    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        raise AssertionError("nobody asked for fsync")


class Desk:
    """A writer, its shard and its log."""

    def __init__(self, turn: Turn | None = None, config: TopicConfig | None = None) -> None:
        state = PartitionState(1, 0, 0, (1,), (1,))
        log = LogBench(config or TopicConfig()).open()
        place = TopicPartition("__things", 0)
        self.partition = Partition(place, TopicId(b"t" * 16), log, state, Durability())
        self.shard = Notebook()
        self.broken: list[ErrorCode] = []
        shard: Any = self.shard
        self.writer = Writer(
            self.partition,
            state.leader_epoch,
            shard,
            turn or Turn(),
            Settings(),
            lambda error: self.broken.append(error.code),
        )

    def command(self, key: bytes, value: bytes = b"v", *, about: str | None = None) -> Any:
        """Write one record; the key is the reply."""
        return self.run([(key, value)], key, about=about)

    def run(
        self, records: list[Record], reply: Any, *, atomic: bool = True, about: str | None = None
    ) -> Any:
        try:
            self.writer.record(Result(reply, records, atomic=atomic), about, NOW)
        except KafkaError as error:
            reply = error
        return self.writer.reply(reply, about)

    def crowd(self) -> None:
        """The first few of the turn have been."""
        for _ in range(FEW):
            assert self.command(b"a") == b"a"

    async def warm(self) -> None:
        """A first write, which is never gathered; and the end of its turn."""
        assert self.command(b"warm") == b"warm"
        await asyncio.sleep(0)

    def batches(self) -> list[list[bytes | None]]:
        """The keys of each batch in the log."""
        log = self.partition.log
        region = log.read(0, 1 << 30, upper=log.log_end_offset).region
        data = b"" if region is None else region.read()
        return [
            [each.key for each in iter_records(memoryview(data)[at : at + header.size], header)]
            for at, header in batches(data)
        ]


@pytest.fixture
async def desk() -> Desk:
    each = Desk()
    await each.warm()
    return each


def pending(reply: Any) -> Deferred[Any]:
    assert isinstance(reply, Deferred)
    assert not reply.done
    return reply


async def failure(reply: Deferred[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await reply
    return caught.value.code


def refuse(monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    def append(*_: object, **__: object) -> None:
        raise KafkaError(code)

    monkeypatch.setattr(Partition, "append", append)


async def test_the_first_few_of_a_turn_are_written_at_once_and_the_others_together(
    desk: Desk,
) -> None:
    desk.crowd()
    later = [pending(desk.command(key)) for key in (b"b", b"c", b"d")]
    assert desk.batches() == [[b"warm"], *[[b"a"]] * FEW]
    assert [key for key, _ in desk.shard.notes.values()] == [
        b"warm",
        *[b"a"] * FEW,
        b"b",
        b"c",
        b"d",
    ]
    assert [await each for each in later] == [b"b", b"c", b"d"]
    assert desk.batches() == [[b"warm"], *[[b"a"]] * FEW, [b"b", b"c", b"d"]]


async def test_the_shard_is_told_the_offsets_that_the_log_then_gives(desk: Desk) -> None:
    desk.crowd()
    desk.run([(b"b", b"1"), (b"c", None)], None)
    await desk.run([(b"d", b"2")], None)
    keys = [key for batch in desk.batches() for key in batch]
    assert [desk.shard.notes[offset][0] for offset in range(len(keys))] == keys


async def test_the_next_turn_begins_anew(desk: Desk) -> None:
    desk.crowd()
    await pending(desk.command(b"b"))
    assert desk.command(b"c") == b"c"


async def test_nobody_is_told_of_what_is_not_written(desk: Desk) -> None:
    desk.crowd()
    written = pending(desk.command(b"b"))
    asked = pending(desk.writer.reply("what b has changed", None))
    refused = pending(desk.writer.reply(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), None))
    waiting: Deferred[Any] = Deferred()
    desk.writer.answer(waiting, "an answer to somebody else", None)
    assert not waiting.done
    await written
    assert asked.result() == "what b has changed"
    assert await failure(refused) is ErrorCode.UNKNOWN_MEMBER_ID
    assert waiting.result() == "an answer to somebody else"


async def test_whoever_asks_about_something_else_does_not_wait_for_the_write(desk: Desk) -> None:
    desk.crowd()
    written = pending(desk.command(b"b", about="b"))
    assert desk.writer.reply("nothing new", "c") == "nothing new"
    with pytest.raises(KafkaError):
        desk.writer.reply(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), "c")
    asked = [pending(desk.writer.reply("what b has changed", about)) for about in ("b", None)]
    assert await written == b"b"
    assert [reply.result() for reply in asked] == ["what b has changed"] * 2


async def test_what_is_about_everything_is_waited_for_by_everybody(desk: Desk) -> None:
    desk.crowd()
    written = pending(desk.command(b"all"))
    asked = pending(desk.writer.reply("what all have", "c"))
    assert await written == b"all"
    assert asked.result() == "what all have"


async def test_an_answer_to_somebody_else_comes_at_the_end_of_the_turn(desk: Desk) -> None:
    waiting: Deferred[Any] = Deferred()
    desk.writer.answer(waiting, "at last", "b")
    assert not waiting.done
    await asyncio.sleep(0)
    assert waiting.result() == "at last"


async def test_a_failed_write_is_told_to_those_alone_who_depend_on_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.crowd()
    before: Deferred[Any] = Deferred()
    desk.writer.answer(before, "was written", "b")
    lost = pending(desk.command(b"c", about="c"))
    meanwhile: Deferred[Any] = Deferred()
    desk.writer.answer(meanwhile, "has nothing to do with it", "d")
    refuse(monkeypatch, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert await failure(lost) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert before.result() == "was written"
    assert meanwhile.result() == "has nothing to do with it"


async def test_a_record_of_somebody_else_is_not_taken_for_what_is_still_to_be_written(
    desk: Desk,
) -> None:
    """The foreign record moves the high watermark over the offset that b is meant to get."""
    desk.crowd()
    gathered = [pending(desk.command(b"b", about="b"))]
    batch = bytearray(build_batch([(1, b"foreign", b"v", ())] * 3))
    desk.partition.append(memoryview(batch), NOW.wall_ms)
    gathered.append(pending(desk.writer.reply("what b has changed", "b")))
    gathered.append(pending(desk.command(b"c", about="c")))
    gathered.append(pending(desk.writer.reply("what c has changed", "c")))
    answers = [b"b", "what b has changed", b"c", "what c has changed"]
    assert [await reply for reply in gathered] == answers


async def test_a_refusal_leaves_nothing_to_the_garbage_collector(desk: Desk) -> None:
    class Refusal(KafkaError):
        """One that can be watched."""

    refusal = Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
    with contextlib.suppress(Refusal):
        desk.writer.reply(refusal, None)
    gone = weakref.ref(refusal)
    gc.disable()
    try:
        del refusal
        assert gone() is None
    finally:
        gc.enable()


async def test_a_large_crowd_is_written_in_portions(desk: Desk) -> None:
    desk.crowd()
    replies = [desk.command(b"%d" % number) for number in range(3 * CROWD)]
    answered = [not isinstance(each, Deferred) or each.done for each in replies]
    assert answered[0], "before the turn has ended"
    assert not answered[-1]
    sizes = [len(batch) for batch in desk.batches()[1 + FEW :]]
    assert sizes == [CROWD + 1] * 2
    await replies[-1]
    assert sum(map(len, desk.batches()[1 + FEW :])) == 3 * CROWD


async def test_no_batch_becomes_larger_than_the_topic_allows(desk: Desk) -> None:
    desk.crowd()
    replies = [desk.command(b"%d" % number, b"x" * 300_000) for number in range(7)]
    await replies[-1]
    assert [len(batch) for batch in desk.batches()[1 + FEW :]] == [3, 3, 1]


async def test_what_is_too_large_is_refused_and_harms_nobody(desk: Desk) -> None:
    desk.crowd()
    small = pending(desk.command(b"b"))
    with pytest.raises(KafkaError) as caught:
        desk.command(b"huge", b"x" * (2 << 20))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert await small == b"b"
    assert (desk.broken, desk.batches()) == ([], [[b"warm"], *[[b"a"]] * FEW, [b"b"]])
    assert b"huge" not in dict(desk.shard.notes.values())


async def test_what_must_fit_is_written_though_it_is_too_large(desk: Desk) -> None:
    desk.crowd()
    small = pending(desk.command(b"b"))
    record = (b"huge", b"x" * (2 << 20))
    desk.writer.record(Result(None, [record], must_fit=True), None, NOW)
    assert await small == b"b"
    assert (desk.broken, desk.batches()[1 + FEW :]) == ([], [[b"b"], [b"huge"]])
    assert record in desk.shard.notes.values()


async def test_independent_records_come_after_what_was_gathered(desk: Desk) -> None:
    desk.crowd()
    desk.command(b"b")
    desk.run([(b"%d" % each, b"x" * 300_000) for each in range(5)], None, atomic=False)
    assert desk.batches()[1 + FEW :] == [[b"b"], [b"0", b"1", b"2"], [b"3", b"4"]]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_when_it_cannot_be_written_everybody_is_told_and_the_state_is_broken(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: ErrorCode,
    told: ErrorCode,
) -> None:
    desk.crowd()
    written = pending(desk.command(b"b"))
    asked = pending(desk.writer.reply("what b has changed", None))
    refuse(monkeypatch, code)
    assert [await failure(each) for each in (written, asked)] == [told, told]
    assert (desk.writer.broken, desk.broken) == (True, [told])
    assert "could not be written" in caplog.text


def test_the_want_of_a_descriptor_does_not_send_clients_elsewhere() -> None:
    told = as_coordinator(OutOfDescriptors(ErrorCode.KAFKA_STORAGE_ERROR, "no descriptor"))
    assert told.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_what_comes_when_the_state_has_just_broken_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.crowd()
    first = pending(desk.command(b"b", b"x" * 700_000))
    refuse(monkeypatch, ErrorCode.NOT_ENOUGH_REPLICAS)
    with pytest.raises(KafkaError) as caught:
        desk.command(b"c", b"x" * 700_000)
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert await failure(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_log_that_takes_nothing_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    with monkeypatch.context() as broken:
        refuse(broken, ErrorCode.NOT_ENOUGH_REPLICAS)
        for key in (b"a", b"b", b"c"):
            with pytest.raises(KafkaError) as caught:
                desk.command(key)
            assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (desk.writer.broken, desk.shard.notes) == (False, {})
    assert desk.command(b"d") == b"d", "the first that goes well is not gathered"
    assert await pending(desk.command(b"e")) == b"e"


async def test_a_change_that_cannot_be_applied_is_not_written(desk: Desk) -> None:
    desk.crowd()
    good = pending(desk.command(b"b"))
    bad = pending(desk.command(b"poison"))
    assert desk.broken == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert await good == b"b"
    assert await failure(bad) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert desk.batches()[1 + FEW :] == [[b"b"]]


async def test_what_is_not_written_when_the_partition_is_lost_is_answered_so(desk: Desk) -> None:
    desk.crowd()
    waiting = pending(desk.command(b"b"))
    desk.writer.close(KafkaError(ErrorCode.NOT_COORDINATOR))
    assert await failure(waiting) is ErrorCode.NOT_COORDINATOR
    await asyncio.sleep(0)
    assert desk.batches() == [[b"warm"], *[[b"a"]] * FEW]


async def test_when_somebody_else_writes_in_between_the_state_is_broken(desk: Desk) -> None:
    desk.crowd()
    waiting = pending(desk.command(b"b"))
    batch = bytearray(build_batch([(1, b"foreign", b"v", ())]))
    desk.partition.append(memoryview(batch), NOW.wall_ms)
    assert await waiting == b"b"
    assert desk.broken == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert desk.batches()[1 + FEW :] == [[b"foreign"], [b"b"]]


async def test_a_crowd_on_one_partition_delays_nobody_on_another() -> None:
    turn = Turn()
    desks = [Desk(turn), Desk(turn)]
    for each in desks:
        await each.warm()
    desks[0].crowd()
    later = pending(desks[0].command(b"b"))
    desks[1].crowd()
    too = pending(desks[1].command(b"b"))
    assert [await later, await too] == [b"b", b"b"], "the turn ends for all writers of a host"


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
async def test_one_record_is_a_batch_like_any_other(
    stamp: Literal["CreateTime", "LogAppendTime"],
) -> None:
    desk = Desk(config=TopicConfig(message_timestamp_type=stamp))
    desk.command(b"key", b"x" * 200)
    region = desk.partition.log.read(0, 1 << 20, upper=1).region
    assert region is not None
    header = read_header(region.read())
    assert checksum_ok(region.read(), 0, header)
    assert (header.base_offset, header.leader_epoch, header.timestamp_type.name) == (
        0,
        0,
        {"CreateTime": "CREATE_TIME", "LogAppendTime": "LOG_APPEND_TIME"}[stamp],
    )


async def test_what_is_gathered_fits_into_a_segment() -> None:
    desk = Desk(config=TopicConfig(segment_bytes=1_000))
    await desk.warm()
    replies = [desk.command(b"key %d" % number, b"v" * 100) for number in range(20)]
    for number, reply in enumerate(replies):
        told = await reply if isinstance(reply, Deferred) else reply
        assert told == b"key %d" % number
    assert desk.broken == []
    assert len(desk.shard.notes) == 21
