"""A reader of a range against a broker that does what it is told, on a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.topology import Leader
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import DataLossError
from ottla.pipelines.source.decoder import Piece, decode
from ottla.pipelines.source.fetcher import Answer, LeaderSource, Reader, ahead
from ottla.pipelines.source.loss import Cause, Loss, LossPolicy
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.task import FetchSettings
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.records.builder import build_batch

ID = bytes(range(16))
SETTINGS = FetchSettings(loss=LossPolicy(), bootstrap="", patience=60.0)


def batch(first: int, count: int) -> bytes:
    return build_batch(
        [(0, None, b"%d" % n, ()) for n in range(first, first + count)], base_offset=first
    )


class Broker:
    """Answers with what it was given: an Answer, an error, or what a function makes of it."""

    def __init__(
        self,
        *answers: Any,
        loss: Callable[[int], Loss | None] = lambda _: None,
        compacted: bool = False,
    ) -> None:
        self.answers = list(answers)
        self.compacted = compacted
        self.asked: list[tuple[int, int]] = []
        self.forgotten = 0
        self.closed = 0
        self.now = 0.0
        self._loss = loss

    def fetch(self, position: int, size: int) -> Answer:
        self.asked.append((position, size))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if callable(answer):
            answer = answer(position, size)
        if isinstance(answer, ErrorCode):
            raise KafkaError(answer)
        if isinstance(answer, bytes):
            return Answer(memoryview(answer), 1_000)
        assert isinstance(answer, Answer)
        self.now += 0.5 if not answer.records else 0.0  # the broker waits for records
        return answer

    def forget(self) -> None:
        self.forgotten += 1

    def loss(self, position: int) -> Loss | None:
        return self._loss(position)

    def is_compacted(self) -> bool:
        return self.compacted

    def close(self) -> None:
        self.closed += 1

    def pause(self, seconds: float) -> None:
        self.now += seconds


def offsets(broker: Broker, start: int, end: int, **changes: Any) -> list[int]:
    part = Range("orders", ID, 3, start, end)
    settings = replace(SETTINGS, **changes)
    reader = Reader(part, settings, broker, clock=lambda: broker.now, pause=broker.pause)
    found = decode(reader.pieces(), part, settings)
    return [offset for each in found for offset in each.column("offset").to_pylist()]


def loss(cause: Cause, *, resume: int | None) -> Callable[[int], Loss]:
    return lambda position: Loss("orders", 3, cause, position, 50, "so it is", resume, resume)


EMPTY = Answer(memoryview(b""), 1_000)


def test_a_range_is_put_together_from_several_answers() -> None:
    broker = Broker(batch(0, 10) + batch(10, 10), batch(20, 10), batch(30, 10))
    assert offsets(broker, 0, 40) == list(range(40))
    assert [position for position, _ in broker.asked] == [0, 20, 30]
    assert broker.closed


def test_ends_inside_of_batches_are_kept_to() -> None:
    broker = Broker(batch(0, 10), batch(10, 10))
    assert offsets(broker, 3, 17) == list(range(3, 17))


def test_nobody_is_asked_for_an_empty_range() -> None:
    broker = Broker(EMPTY)
    assert offsets(broker, 7, 7) == []
    assert broker.asked == []


def test_a_batch_cut_off_at_the_end_of_an_answer_is_asked_for_again() -> None:
    broker = Broker(batch(0, 10) + batch(10, 10)[:-5], batch(10, 10))
    assert offsets(broker, 0, 20) == list(range(20))
    assert [position for position, _ in broker.asked] == [0, 10]


def test_an_answer_too_small_for_a_batch_is_followed_by_a_larger_question() -> None:
    whole = build_batch([(0, None, bytes(300_000), ())], base_offset=0)
    broker = Broker(lambda _, size: whole[:size])
    assert offsets(broker, 0, 1, max_partition_bytes=70_000) == [0]
    assert [size for _, size in broker.asked] == sorted({size for _, size in broker.asked})


def test_the_last_question_asks_for_little_more_than_is_left() -> None:
    body = [(0, None, bytes(1_000), ()) for _ in range(1_000)]
    broker = Broker(lambda position, _: build_batch(body, base_offset=position // 1_000 * 1_000))
    offsets(broker, 0, 3_010, max_partition_bytes=1 << 20)
    assert broker.asked[1][1] == 1 << 20
    assert broker.asked[-1][1] < 100_000


def test_offsets_that_were_compacted_away_are_passed_over() -> None:
    broker = Broker(batch(0, 10), batch(25, 5), batch(90, 5))
    assert offsets(broker, 0, 40) == [*range(10), *range(25, 30)]


def test_a_compacted_log_without_batches_up_to_its_end_is_a_gap_once_it_was_said_twice() -> None:
    broker = Broker(batch(0, 10), EMPTY, compacted=True)
    assert offsets(broker, 0, 40) == list(range(10))
    assert len(broker.asked) == 3


def test_an_error_between_two_empty_answers_begins_the_count_anew() -> None:
    broker = Broker(EMPTY, ErrorCode.NOT_LEADER_OR_FOLLOWER, EMPTY, batch(0, 10), compacted=True)
    assert offsets(broker, 0, 10) == list(range(10))


def test_empty_answers_of_a_log_that_is_not_compacted_are_a_loss_and_no_gap() -> None:
    broker = Broker(batch(0, 10), EMPTY)
    with pytest.raises(DataLossError, match=r"Offsets 10 to 39 .*the leader sends none"):
        offsets(broker, 0, 40)
    assert broker.now >= SETTINGS.log_end_patience
    assert offsets(Broker(batch(0, 10), EMPTY), 0, 40, loss=LossPolicy.parse("false")) == list(
        range(10)
    )


def test_records_that_come_after_empty_answers_are_read() -> None:
    broker = Broker(batch(0, 10), *[EMPTY] * 5, batch(10, 10))
    assert offsets(broker, 0, 20) == list(range(20))


def test_a_follower_without_records_proves_nothing() -> None:
    behind = Answer(memoryview(b""), 1_000, from_leader=False)
    broker = Broker(*[behind] * 4, batch(0, 10), compacted=True)
    assert offsets(broker, 0, 10) == list(range(10))
    assert broker.forgotten == 4


def test_an_answer_that_is_empty_for_want_of_quota_is_no_gap() -> None:
    held_back = Answer(memoryview(b""), 1_000, throttled=4.0)
    broker = Broker(*[held_back] * 5, batch(0, 10))
    assert offsets(broker, 0, 10) == list(range(10))
    assert broker.now >= 20


def test_a_log_that_ends_too_early_is_waited_for_and_may_yet_grow() -> None:
    short = Answer(memoryview(b""), 10)
    broker = Broker(batch(0, 10), *[short] * 15, batch(10, 10))
    assert offsets(broker, 0, 20, log_end_patience=10) == list(range(20))


def test_a_log_that_stays_too_short_was_truncated() -> None:
    broker = Broker(
        batch(0, 10),
        Answer(memoryview(b""), 10),
        loss=lambda position: Loss("orders", 3, Cause.TRUNCATED, 10, position, "so it is", 10, 0),
    )
    with pytest.raises(DataLossError, match="Offsets 10 to 19 of partition 3 of topic orders"):
        offsets(broker, 0, 20, log_end_patience=10)
    assert broker.now >= 10


def test_what_was_truncated_is_left_out_when_the_policy_says_so() -> None:
    broker = Broker(
        batch(0, 10),
        Answer(memoryview(b""), 10),
        loss=lambda position: Loss("orders", 3, Cause.TRUNCATED, 10, position, "so it is", 10, 0),
    )
    policy = LossPolicy.parse("truncated=skip")
    assert offsets(broker, 0, 20, loss=policy) == list(range(10))


def test_a_log_that_is_only_undecided_for_too_long_is_a_failure_but_no_loss() -> None:
    broker = Broker(batch(0, 10), Answer(memoryview(b""), 10))
    with pytest.raises(KafkaError, match="only offsets below 10 can be read, not 20 as planned"):
        offsets(broker, 0, 20, patience=30)


def test_a_leader_that_moves_is_looked_for_and_reading_goes_on() -> None:
    broker = Broker(
        batch(0, 10),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        batch(10, 10),
    )
    assert offsets(broker, 0, 20) == list(range(20))
    assert broker.forgotten == 3


def test_pauses_between_attempts_grow_up_to_their_limit() -> None:
    broker = Broker(*[ErrorCode.LEADER_NOT_AVAILABLE] * 6, batch(0, 10))
    offsets(broker, 0, 10, retry_backoff=0.1, retry_backoff_max=0.5)
    assert broker.now == pytest.approx(0.1 + 0.2 + 0.4 + 0.5 * 3)


def test_patience_ends_with_the_place_and_the_reason() -> None:
    broker = Broker(batch(0, 10), ErrorCode.BROKER_NOT_AVAILABLE)
    with pytest.raises(KafkaError, match=r"partition 3 of topic orders, offset 10.*for 60 s"):
        offsets(broker, 0, 20)
    assert 60 <= broker.now < 65


def test_a_stream_waits_for_ever() -> None:
    broker = Broker(*[ErrorCode.BROKER_NOT_AVAILABLE] * 5_000, batch(0, 10))
    assert offsets(broker, 0, 10, patience=None) == list(range(10))


def test_what_does_not_pass_is_raised_at_once() -> None:
    broker = Broker(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError, match="partition 3 of topic orders, offset 0: topic auth"):
        offsets(broker, 0, 10)
    assert len(broker.asked) == 1


def test_records_that_aged_out_fail_the_task() -> None:
    broker = Broker(ErrorCode.OFFSET_OUT_OF_RANGE, loss=loss(Cause.AGED_OUT, resume=50))
    with pytest.raises(DataLossError, match="aged_out=skip"):
        offsets(broker, 0, 60)
    assert broker.now == 0


@pytest.mark.parametrize("action", ["skip", "rewind"])
def test_reading_goes_on_where_the_log_starts_when_the_policy_says_so(action: str) -> None:
    broker = Broker(
        ErrorCode.OFFSET_OUT_OF_RANGE, batch(50, 10), loss=loss(Cause.AGED_OUT, resume=50)
    )
    policy = LossPolicy.parse(f"aged_out={action}")
    assert offsets(broker, 0, 60, loss=policy) == list(range(50, 60))


def test_what_a_log_no_longer_has_of_a_batch_is_not_read() -> None:
    broker = Broker(ErrorCode.OFFSET_OUT_OF_RANGE, batch(0, 10), loss=loss(Cause.DELETED, resume=4))
    policy = LossPolicy.parse("deleted=skip")
    assert offsets(broker, 2, 10, loss=policy) == list(range(4, 10))


def test_a_topic_must_be_another_one_for_a_while_before_it_is_believed() -> None:
    broker = Broker(
        *[ErrorCode.UNKNOWN_TOPIC_ID] * 3, batch(0, 10), loss=loss(Cause.RECREATED, resume=0)
    )
    assert offsets(broker, 0, 10) == list(range(10))
    assert broker.now < 2


@pytest.mark.parametrize("action", ["skip", "rewind"])
def test_a_topic_of_the_same_name_is_never_read_in_its_place(action: str) -> None:
    broker = Broker(batch(0, 10), ErrorCode.UNKNOWN_TOPIC_ID, loss=loss(Cause.RECREATED, resume=0))
    policy = LossPolicy.parse(f"recreated={action}")
    assert offsets(broker, 0, 20, loss=policy) == list(range(10))


def test_a_topic_that_is_gone_has_nothing_more() -> None:
    broker = Broker(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, loss=loss(Cause.DELETED, resume=None))
    with pytest.raises(DataLossError):
        offsets(broker, 0, 20)
    assert broker.now >= 2
    assert offsets(broker, 0, 20, loss=LossPolicy.parse("deleted=skip")) == []


def test_batches_of_the_past_do_not_keep_the_reader_busy_for_ever() -> None:
    broker = Broker(batch(0, 10))
    with pytest.raises(KafkaError, match="offset 10: the broker sends batches of the past"):
        offsets(broker, 0, 20)


# ---------------------------------------------------------------------- ahead


def piece(size: int) -> Piece:
    return Piece(bytes(size), None, 0)


def test_the_thread_stays_within_its_limit(eventually: Any) -> None:
    made: list[int] = []

    def pieces() -> Generator[Piece]:
        for number in range(10):
            made.append(number)
            yield piece(100)

    source = ahead(pieces(), 250, lambda: None)
    assert next(source).size == 100
    eventually(lambda: len(made) == 5)  # one taken, three waiting, one that has to wait for room
    assert len(list(source)) == 9
    assert len(made) == 10


def test_a_piece_larger_than_the_limit_comes_alone() -> None:
    pieces = (piece(size) for size in (1_000, 2_000, 3_000))
    assert [each.size for each in ahead(pieces, 10, lambda: None)] == [1_000, 2_000, 3_000]


def test_what_the_thread_raises_comes_after_what_it_made() -> None:
    def pieces() -> Generator[Piece]:
        yield piece(1)
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "on purpose")

    source = ahead(pieces(), 100, lambda: None)
    assert next(source).size == 1
    with pytest.raises(KafkaError, match="on purpose"):
        next(source)


def test_a_consumer_that_stops_early_ends_the_thread(eventually: Any) -> None:
    stopped = threading.Event()
    ended = threading.Event()

    def pieces() -> Generator[Piece]:
        try:
            while True:
                yield piece(1)
        finally:
            ended.set()

    source = ahead(pieces(), 10, stopped.set)
    next(source)
    source.close()
    assert stopped.is_set()
    eventually(ended.is_set)


class Cluster:
    """In place of Router: a leader that sends readers to a follower near them, and that one."""

    LEADER, FOLLOWER = 1, 2

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked: list[int] = []
        self.follower_dies_after = 1_000

    @property
    def topology(self) -> Cluster:
        return self

    def topic_id(self, _topic: str) -> bytes:
        return ID

    def leader(self, _tp: TopicPartition) -> Leader:
        return Leader(self.LEADER, 7)

    def forget(self, _partitions: list[TopicPartition]) -> None: ...

    def node(self, number: int) -> Any:
        cluster = self

        class Node:
            def ask(self, request: FetchRequest) -> FetchResponse:
                return cluster.answer(number, request)

        return Node()

    def answer(self, number: int, request: FetchRequest) -> FetchResponse:
        self.asked.append(number)
        [wanted] = request.topics[0].partitions
        found = PartitionData(
            partition_index=3, high_watermark=100, last_stable_offset=100, records=None
        )
        if number == self.LEADER and request.rack_id:
            found.preferred_read_replica = self.FOLLOWER
        elif number == self.FOLLOWER and self.follower_dies_after == 0:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "it is dead")
        else:
            self.follower_dies_after -= 1
            found.records = batch(wanted.fetch_offset, 10)
        return FetchResponse(responses=[FetchableTopicResponse(partitions=[found])])

    def close(self) -> None: ...


def test_a_follower_that_dies_while_it_is_read_takes_no_rows_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.follower_dies_after = 3
    monkeypatch.setattr("ottla.pipelines.source.fetcher.Router", lambda *_, **__: cluster)
    part = Range("orders", ID, 3, 0, 100)
    settings = replace(SETTINGS, rack="near")
    reader = Reader(part, settings, LeaderSource(part, settings), pause=lambda _: None)
    found = decode(reader.pieces(), part, settings)
    assert [at for each in found for at in each.column("offset").to_pylist()] == list(range(100))
    # Sent on once, read three times, then everything from the leader itself.
    assert cluster.asked == [1, 2, 2, 2, 2, *[1] * 7]
