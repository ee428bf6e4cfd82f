from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import confluent_kafka as rd
import pytest

import ottla
from ottla.client.consumer_options import ConsumerOptions
from ottla.client.errors import Damage
from ottla.client.options import options_of
from ottla.client.producer import ProducerOptions
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


@pytest.fixture
def consumer(made: list[Any]) -> ottla.Consumer[bytes, bytes]:
    return ottla.Consumer()


@pytest.fixture
def client(made: list[Any], consumer: ottla.Consumer[bytes, bytes]) -> Any:
    made[0].topics["t"] = 2
    made[0].begins = {("t", 0): 10, ("t", 1): 0}
    made[0].ends = {("t", 0): 20, ("t", 1): 0}
    return made[0]


def assigned(client: Any) -> list[tuple[str, int, int]]:
    return [(tp.topic, tp.partition, tp.offset) for tp in client.assigned]


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("earliest", [10, 0]),
        ("latest", [20, 0]),
        (15, [15, 15]),
        (-3, [17, 0]),
        (-100, [10, 0]),
        (datetime.fromtimestamp(0.012, UTC), [12, 0]),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), [0, 0]),
        (datetime.fromtimestamp(9, UTC), [20, 0]),
    ],
)
def test_assign_resolves_a_start_to_offsets(
    consumer: ottla.Consumer[bytes, bytes], client: Any, start: Any, offsets: list[int]
) -> None:
    assert consumer.assign("t", start) == (T0, T1)
    assert assigned(client) == [("t", 0, offsets[0]), ("t", 1, offsets[1])]


def test_assign_takes_pairs_and_a_start_for_each(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign([("t", 1)], 3)
    assert assigned(client) == [("t", 1, 3)]
    consumer.assign({T0: "latest", T1: 5})
    assert assigned(client) == [("t", 0, 20), ("t", 1, 5)]


def test_partitions_come_and_go_while_others_are_read(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign([T0], 5)
    client.record("t", 0, 5)
    client.record("t", 0, 6)
    assert consumer.poll(1) is not None
    assert consumer.incremental_assign([T1], 3) == (T1,)
    assert assigned(client) == [("t", 0, 5), ("t", 1, 3)]
    assert (consumer.position(T0), consumer.position(T1)) == (6, 3)
    client.record("t", 1, 3)
    consumer.incremental_unassign([T0])
    assert [(record.partition, record.offset) for record in consumer.take(9)] == [(1, 3)]
    with pytest.raises(ValueError, match="t-1 is assigned already"):
        consumer.incremental_assign([T1], 0)
    with pytest.raises(ValueError, match="t-0 is not assigned"):
        consumer.incremental_unassign([T0])


def test_explicit_offsets_ask_no_broker(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign([T0, T1], 3)
    assert client.lookups == []


def test_a_topic_that_does_not_exist_is_an_error(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    with pytest.raises(KafkaError, match="there is no topic 'nosuch'") as caught:
        consumer.assign("nosuch")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("partition", ["t", ("t",), ("t", -1), ("", 0), (0, "t"), ("t", None)])
def test_what_is_no_partition_is_refused(
    consumer: ottla.Consumer[bytes, bytes], client: Any, partition: Any
) -> None:
    with pytest.raises(TypeError, match=r"given as \(topic, number\), such as \('orders', 0\)"):
        consumer.seek(partition, 0)


@pytest.mark.parametrize("position", ["first", 1.5, None, True])
def test_what_is_no_position_is_refused(
    consumer: ottla.Consumer[bytes, bytes], client: Any, position: Any
) -> None:
    with pytest.raises(ValueError, match='a datetime, "earliest" or "latest"'):
        consumer.assign("t", position)


def test_records_come_in_order_with_everything_they_have(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    client.queue.append(
        rd.Message(
            topic="t",
            partition=1,
            offset=4,
            key=b"k",
            value=b"v",
            headers=[("h", b"1"), ("h", None)],
            timestamp=(2, 99),
            leader_epoch=3,
        )
    )
    client.record("t", 0, 7)
    first, second = islice(consumer, 2)
    assert first == ottla.Record("t", 1, 4, 99, "append", b"k", b"v", (("h", b"1"), ("h", None)), 3)
    assert (second.partition, second.offset, second.timestamp_type) == (0, 7, "create")
    assert second.headers == ()


def test_null_keys_and_values_do_not_meet_the_deserializer(made: list[Any]) -> None:
    consumer = ottla.Consumer(key=ottla.STRING, value=ottla.JSON)
    made[0].queue.append(rd.Message(topic="t", partition=0, offset=0, timestamp=(1, 1)))
    record = consumer.poll(1)
    assert record is not None
    assert (record.key, record.value) == (None, None)


def test_a_value_that_cannot_be_decoded_stops_the_consumer_every_time(made: list[Any]) -> None:
    consumer = ottla.Consumer(value=ottla.JSON, group="g")
    made[0].record("t", 0, 2, b"{}")
    made[0].record("t", 0, 3, b"{")
    made[0].record("t", 0, 4, b"{}")
    assert [record.offset for record in consumer.take(9)] == [2]
    for _ in range(3):
        with pytest.raises(ottla.RecordDecodeError, match="the value of t-0 at offset 3") as caught:
            consumer.poll(1)
    with pytest.raises(ottla.RecordDecodeError):
        consumer.take(2)
    with pytest.raises(ottla.RecordDecodeError):
        next(iter(consumer))
    assert isinstance(caught.value, KafkaError)
    assert (caught.value.part, caught.value.offset) == ("value", 3)
    assert caught.value.record.value == b"{"
    assert "seek(('t', 0), 4)" in str(caught.value)
    assert consumer.position(T0) == 3
    consumer.close()
    assert made[0].stored == [("t", 0, 3)]


def test_a_record_that_cannot_be_decoded_is_left_behind_by_seek(made: list[Any]) -> None:
    consumer = ottla.Consumer(value=ottla.JSON)
    consumer.assign([T0], 3)
    made[0].record("t", 0, 3, b"{")
    with pytest.raises(ottla.RecordDecodeError) as caught:
        consumer.poll(1)
    consumer.seek((caught.value.topic, caught.value.partition), caught.value.offset + 1)
    made[0].record("t", 0, 4, b"{}")
    assert [record.offset for record in consumer.take(9)] == [4]


def test_records_that_cannot_be_decoded_are_skipped_on_demand(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ottla.client")
    consumer = ottla.Consumer(key=ottla.STRING, value=ottla.JSON, on_error="skip", group="g")
    for offset, value in enumerate([b"{", b"1", b"{", b"{"]):
        made[0].record("t", 0, offset, value)
    assert [record.offset for record in consumer.take(9)] == [1]
    assert "skipped: the value of t-0 at offset 2" in caplog.text
    assert consumer.position(T0) == 4
    assert consumer.poll() is None
    assert made[0].stored == [("t", 0, 4)]


def test_a_function_gets_the_stored_record_and_the_consumer_goes_on(made: list[Any]) -> None:
    dead: list[Any] = []

    def bury(record: ottla.Record[bytes, bytes], error: ottla.RecordDecodeError) -> None:
        dead.append((record.offset, record.value, error.part))

    consumer = ottla.Consumer(value=ottla.JSON, on_error=bury)
    for offset, value in enumerate([b"{", b"1"]):
        made[0].record("t", 0, offset, value)
    assert [record.value for record in consumer.records(limit=1)] == [1]
    assert dead == [(0, b"{", "value")]


def test_a_function_that_fails_leaves_the_consumer_at_the_record(made: list[Any]) -> None:
    failing = True

    def bury(record: ottla.Record[bytes, bytes], error: ottla.RecordDecodeError) -> None:
        if failing:
            raise OSError("no broker for the dead")

    consumer = ottla.Consumer(value=ottla.JSON, on_error=bury)
    for offset, value in enumerate([b"{", b"1"]):
        made[0].record("t", 0, offset, value)
    for _ in range(2):
        with pytest.raises(OSError, match="no broker"):
            consumer.poll(1)
    failing = False
    record = consumer.poll(1)
    assert record is not None
    assert record.offset == 1


def test_a_dead_letter_that_is_not_stored_leaves_the_consumer_at_the_record(
    made: list[Any],
) -> None:
    dead: Future[ottla.Delivery] = Future()
    dead.set_exception(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    with ottla.Consumer(value=ottla.JSON, group="g", on_error=lambda *_: dead) as consumer:
        made[0].record("t", 0, 5, b"{")
        for _ in range(2):
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
                consumer.poll()
        dead = Future()
        dead.set_result(ottla.Delivery("dead", 0, 0, 0))
        made[0].record("t", 0, 6, b"7")
        record = consumer.poll()
        assert record is not None
        assert record.offset == 6
        assert made[0].stored == []


def test_a_coroutine_is_no_error_handler_of_a_blocking_consumer(made: list[Any]) -> None:
    async def bury(record: object, error: object) -> None: ...

    with ottla.Consumer(value=ottla.JSON, on_error=bury) as consumer:
        made[0].record("t", 0, 5, b"{")
        for _ in range(2):
            with pytest.raises(TypeError, match="plain function"):
                consumer.poll()


def test_a_coroutine_is_no_rebalance_callback_of_a_blocking_consumer(made: list[Any]) -> None:
    async def give_up(partitions: Any) -> None:
        pass

    consumer = ottla.Consumer(group="g")
    consumer.subscribe("t", on_assign=give_up, on_revoke=give_up)
    for name in ("on_assign", "on_revoke", "on_lost"):
        with pytest.raises(TypeError, match=f"{name}= of a Consumer cannot be awaited"):
            made[0].callbacks[name](made[0], [rd.TopicPartition("t", 0)])


def test_a_broker_that_does_not_answer_is_no_reason_to_fail(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.inbox._QUIET", 0.0)
    consumer = ottla.Consumer(group="g", reset="earliest")
    asked: list[TopicPartition] = []

    def position(_self: Any, tp: TopicPartition) -> int:
        asked.append(tp)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr("ottla.client.lookout.Outside.problems", lambda *_given: {})
    monkeypatch.setattr("ottla.client.lookout.Outside.position", position)
    consumer.subscribe("t")
    made[0].assigned = [rd.TopicPartition("t", number) for number in range(50)]
    made[0].record("t", 50, 0)
    assert consumer.poll() is not None  # contact there is
    while not asked:
        assert consumer.poll(0.01) is None
    assert set(asked) == {T0}  # the others would not answer either


def test_nobody_waits_for_a_look_at_a_broker_that_does_not_answer(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.inbox._QUIET", 0.0)
    asked, answer = threading.Event(), threading.Event()

    def look(_self: Any, tp: TopicPartition, offset: int) -> Damage | None:
        asked.set()
        answer.wait()
        return Damage(offset, "no batch", 9) if offset == 6 else None

    monkeypatch.setattr("ottla.client.lookout.Outside.problems", lambda *_given: {})
    monkeypatch.setattr("ottla.client.lookout.Outside.look", look)
    consumer = ottla.Consumer()
    made[0].topics["t"] = 1
    consumer.assign([T0], 5)
    made[0].assigned = [rd.TopicPartition("t", 0)]
    made[0].record("t", 0, 5)
    assert consumer.poll() is not None  # contact there is
    while not asked.is_set():
        assert consumer.poll(0.001) is None
    assert consumer.poll(0.001) is None
    made[0].record("t", 0, 6)
    record = consumer.poll(0.001)
    assert record is not None
    assert record.offset == 6
    answer.set()
    # What was looked at is behind us by now: nothing is wrong there.
    for _ in range(100):
        assert consumer.poll(0.001) is None


def test_damage_that_a_look_has_found_is_raised_where_the_reader_waits(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.inbox._QUIET", 0.0)
    monkeypatch.setattr("ottla.client.lookout.Outside.problems", lambda *_given: {})
    monkeypatch.setattr(
        "ottla.client.lookout.Outside.look", lambda _self, tp, offset: Damage(offset, "no batch", 9)
    )
    consumer = ottla.Consumer()
    made[0].topics["t"] = 1
    consumer.assign([T0], 5)
    made[0].assigned = [rd.TopicPartition("t", 0)]
    made[0].record("t", 0, 5)
    assert consumer.poll() is not None
    with pytest.raises(ottla.DamagedRecordsError) as caught:
        consumer.poll(60)
    assert (caught.value.offset, caught.value.next_offset) == (6, 9)


def test_damage_found_before_a_partition_was_taken_away_is_of_no_interest_when_it_is_back(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def look(_self: object, tp: TopicPartition, offset: int) -> Damage:
        looking.set()
        go_on.wait(60)
        return Damage(offset, "no batch", 9)

    monkeypatch.setattr("ottla.client.inbox._QUIET", 0.0)
    monkeypatch.setattr("ottla.client.lookout.Outside.problems", lambda *_given: {})
    monkeypatch.setattr("ottla.client.lookout.Outside.look", look)
    with ottla.Consumer(group="g") as consumer:
        client = made[0]
        consumer.subscribe("t")
        client.assigned = [rd.TopicPartition("t", 0)]
        client.callbacks["on_assign"](client, client.assigned)
        client.record("t", 0, 5)
        assert consumer.poll() is not None
        while not looking.is_set():
            consumer.poll(0.01)
        client.callbacks["on_revoke"](client, client.assigned)
        client.callbacks["on_assign"](client, client.assigned)  # committed by another member: 20
        monkeypatch.setattr("ottla.client.inbox._QUIET", 60.0)
        consumer._inbox._quiet = 60.0
        go_on.set()
        while consumer._inbox._lookout.busy:
            assert consumer.poll(0.01) is None
        client.record("t", 0, 20)
        record = consumer.poll()
        assert record is not None
        assert record.offset == 20
        assert client.sought == []


@pytest.mark.parametrize("jump", ["records", "end"])
def test_behind_damage_librdkafka_is_put_back_when_it_goes_too_far(
    made: list[Any], monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    whole = [9, 10, 30]  # of 6 to 8 nothing can be read, and 11 to 29 compaction has removed
    monkeypatch.setattr(
        "ottla.client.lookout.Outside.examine",
        lambda _self, tp, offset: Damage(6, "no batch", 9) if offset <= 8 else None,
    )
    monkeypatch.setattr(
        "ottla.client.lookout.Outside.first_offset",
        lambda _self, tp, offset: next((each for each in whole if each >= offset), None),
    )
    consumer = ottla.Consumer(on_error="skip")
    client = made[0]
    client.topics["t"] = 1
    consumer.assign([T0], 6)
    client.failure(rd.KafkaError._BAD_MSG, "t", 0, 6)

    def seek(partition: rd.TopicPartition) -> None:
        """The first time that it is to go behind the damage, librdkafka goes to the end."""
        client.sought.append((partition.topic, partition.partition, partition.offset))
        if partition.offset == 9 and client.sought.count(("t", 0, 9)) == 1:
            if jump == "records":
                client.record("t", 0, 31)
            else:
                client.failure(rd.KafkaError._PARTITION_EOF, "t", 0, 31)
        elif partition.offset == 9:
            for offset in whole:
                client.record("t", 0, offset)

    monkeypatch.setattr(client, "seek", seek)
    assert [record.offset for record in consumer.records(limit=3)] == whole
    assert client.sought == [("t", 0, 6), ("t", 0, 9), ("t", 0, 9)]


def test_a_take_that_fails_behind_skipped_damage_keeps_no_records(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ottla.client.lookout.Outside.examine",
        lambda _self, tp, offset: Damage(6, "no batch", 9) if 5 < offset < 9 else None,
    )
    monkeypatch.setattr("ottla.client.lookout.Outside.first_offset", lambda *_given: 9)
    consumer = ottla.Consumer(on_error="skip")
    client = made[0]
    consumer.assign([T0], 4)
    client.record("t", 0, 4)
    client.record("t", 0, 5)
    client.failure(rd.KafkaError._BAD_MSG, "t", 0, 6)

    def stopped(partition: rd.TopicPartition) -> None:
        if partition.offset == 9:
            monkeypatch.setattr(client, "consume", fail)

    def fail(most: int, timeout: float) -> list[rd.Message]:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "seek", stopped)
    with pytest.raises(KeyboardInterrupt):
        consumer.take(9, 1)
    assert [record.offset for record in consumer.take(2)] == [4, 5]


def test_an_interrupted_deserializer_takes_no_record_with_it(made: list[Any]) -> None:
    outcomes: Any = iter([KeyboardInterrupt(), None, None])

    def decode(data: bytes) -> bytes:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return data

    consumer = ottla.Consumer(value=decode)
    made[0].record("t", 0, 5)
    made[0].record("t", 0, 6)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(1)
    assert [record.offset for record in consumer.take(2)] == [5, 6]


def interrupted(call: Callable[[], Any], at: int) -> Any:
    """What `call` returns when Ctrl-C comes at its line number `at` inside the client; None if it
    raises that, "whole" in front if it has fewer lines."""
    lines = 0

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal lines
        if "/ottla/client/" not in frame.f_code.co_filename:
            return None
        # Python looks for signals where something is called, which `records` is done with then.
        if event == "line" and frame.f_code.co_name != "records":
            lines += 1
            if lines == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)
    return result, lines < at


@pytest.mark.parametrize("method", ["poll", "take", "records"])
def test_ctrl_c_at_any_line_takes_no_record_with_it(made: list[Any], method: str) -> None:
    for at in range(1, 1_000):
        consumer = ottla.Consumer(group="g")
        for offset in range(4):
            made[-1].record("t", 0, offset)
        call: Callable[[], list[Any]] = {
            "poll": lambda c=consumer: [c.poll()],
            "take": lambda c=consumer: c.take(3),
            "records": lambda c=consumer: [next(c.records())],
        }[method]
        first = consumer.poll()  # the others wait in the client from now on
        assert first is not None
        seen = [first.offset]
        outcome = interrupted(call, at)
        if outcome is not None:
            seen += [record.offset for record in outcome[0]]
        while record := consumer.poll():
            seen.append(record.offset)
        assert seen == [0, 1, 2, 3], at
        if outcome is not None and outcome[1]:
            return
    raise AssertionError("the call has no end")


def test_what_an_interrupted_call_was_about_to_return_is_read_again(
    consumer: ottla.Consumer[bytes, bytes], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.assign("t", 5)
    client.record("t", 0, 5)
    assert consumer.poll() is not None
    client.positions = {("t", 0): 9}

    def stopped(timeout: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(client, "poll", stopped)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1)
    assert consumer.poll() is None
    assert client.sought == [("t", 0, 6)]
    assert consumer.poll() is None
    assert client.sought == [("t", 0, 6)]


def test_poll_gives_nothing_when_there_is_nothing(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    assert consumer.poll() is None
    assert consumer.poll(0.01) is None


def test_take_gives_what_is_there_up_to_a_number(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    for offset in range(5):
        client.record("t", 0, offset)
    assert [record.offset for record in consumer.take(3)] == [0, 1, 2]
    assert [record.offset for record in consumer.take(3)] == [3, 4]
    assert consumer.take(3) == []


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_a_take_that_fails_keeps_no_records(made: list[Any], failure: type[BaseException]) -> None:
    outcomes: Any = iter([failure, None])

    def bury(record: ottla.Record[bytes, bytes], error: ottla.RecordDecodeError) -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    consumer = ottla.Consumer(value=ottla.JSON, group="g", on_error=bury)
    made[0].record("t", 0, 4, b"4")
    assert len(consumer.take(1)) == 1
    for partition, offset, value in [(0, 5, b"5"), (1, 9, b"9"), (0, 6, b"6"), (1, 10, b"{")]:
        made[0].record("t", partition, offset, value)
    with pytest.raises(failure):
        consumer.take(9)
    assert consumer.position(T0) == 5
    made[0].record("t", 1, 11, b"11")
    assert [record.value for record in consumer.take(9)] == [5, 9, 6, 11]
    assert set(made[0].stored) == {("t", 0, 5), ("t", 1, 9)}


def test_an_error_behind_records_that_were_taken_is_raised_next(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    client.record("t", 0, 5)
    client.failure(rd.KafkaError._AUTO_OFFSET_RESET, "t", 1)
    client.record("t", 0, 6)
    assert [record.offset for record in consumer.take(9)] == [5]
    with pytest.raises(KafkaError, match="it failed"):
        consumer.take(9)
    assert [record.offset for record in consumer.take(9)] == [6]


def test_records_stops_at_its_limit_and_when_nothing_comes(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    for offset in range(5):
        client.record("t", 0, offset)
    assert [record.offset for record in consumer.records(limit=2)] == [0, 1]
    assert [record.offset for record in consumer.records(idle=0.01)] == [2, 3, 4]
    assert list(consumer.records(limit=0)) == []


def test_idle_begins_when_the_group_has_given_us_partitions(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.Consumer(group="g")
    consumer.subscribe("t")
    polls = iter(range(100))
    now = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def poll(timeout: float) -> Any:
        # Joining takes longer than `idle`.
        if next(polls) == 5:
            made[0].callbacks["on_assign"](made[0], [rd.TopicPartition("t", 0)])
            made[0].record("t", 0, 5)
            return made[0].queue.popleft()
        now[0] += timeout
        return None

    monkeypatch.setattr(made[0], "poll", poll)
    assert [record.offset for record in consumer.records(idle=0.01)] == [5]


def test_until_end_stops_where_the_partitions_ended(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign("t", 18)
    client.record("t", 0, 18)
    client.record("t", 0, 19)
    client.failure(rd.KafkaError._PARTITION_EOF, "t", 1, 18)
    assert [record.offset for record in consumer.records(until_end=True)] == [18, 19]


def test_until_end_stops_at_once_when_everything_is_read_or_empty(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign("t", "latest")
    assert list(consumer.records(until_end=True)) == []


def test_until_end_believes_librdkafka_about_invisible_records_at_the_end(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign([T0], 18)
    client.record("t", 0, 18)  # 19 is a transaction's marker
    client.failure(rd.KafkaError._PARTITION_EOF, "t", 0, 20)
    assert [record.offset for record in consumer.records(until_end=True)] == [18]


def test_until_end_does_not_believe_what_librdkafka_said_of_an_older_end(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign([T0], 20)
    client.failure(rd.KafkaError._PARTITION_EOF, "t", 0, 20)
    assert consumer.poll() is None
    client.record("t", 0, 20)
    client.ends[T0] = 21
    assert [record.offset for record in consumer.records(until_end=True)] == [20]


def test_an_error_of_a_partition_is_raised(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    client.failure(rd.KafkaError.TOPIC_AUTHORIZATION_FAILED, "t")
    with pytest.raises(KafkaError) as caught:
        consumer.poll(1)
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_consumer_without_a_group_does_not_care_about_its_coordinator(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    client.failure(rd.KafkaError.GROUP_AUTHORIZATION_FAILED)
    client.record("t", 0, 1)
    record = consumer.poll(1)
    assert record is not None
    assert record.offset == 1


def test_a_consumer_with_a_group_does(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    made[0].failure(rd.KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaError) as caught:
        consumer.poll(1)
    assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_hopeless_failure_is_raised_by_whoever_waits(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    client.config["error_cb"](rd.KafkaError(rd.KafkaError._ALL_BROKERS_DOWN))
    assert consumer.poll() is None
    client.config["error_cb"](rd.KafkaError(rd.KafkaError._AUTHENTICATION, "wrong password"))
    with pytest.raises(KafkaError, match="wrong password") as caught:
        consumer.poll(1)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_seek_drops_what_was_fetched_from_the_old_place(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign("t", 5)
    for offset in (5, 6):
        client.record("t", 0, offset)
    client.record("t", 1, 5)
    assert consumer.poll(1) is not None
    assert consumer.seek(T0, -1) == 19
    assert client.sought == [("t", 0, 19)]
    record = consumer.poll(1)
    assert record is not None
    assert (record.partition, record.offset) == (1, 5)
    assert consumer.poll() is None


def test_seek_moves_only_within_what_is_assigned(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign([T0], 0)
    with pytest.raises(ValueError, match="t-1 is not assigned"):
        consumer.seek(T1, 0)


def test_seek_waits_until_the_assignment_has_taken_effect(
    consumer: ottla.Consumer[bytes, bytes], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.assign([T0], 0)
    refusals = iter([rd.KafkaException(rd.KafkaError(rd.KafkaError._STATE))] * 2)

    def seek(partition: rd.TopicPartition) -> None:
        for refusal in refusals:
            raise refusal
        client.sought.append(partition.offset)

    monkeypatch.setattr(client, "seek", seek)
    consumer.seek(T0, 12)
    assert client.sought == [12]


def test_the_position_is_the_next_offset(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    assert consumer.position(T0) is None
    consumer.assign([T0], 5)
    assert consumer.position(T0) == 5
    client.record("t", 0, 5)
    client.record("t", 0, 6)
    consumer.poll(1)
    assert consumer.position(T0) == 6


def test_a_paused_partition_gives_nothing_and_then_goes_on_where_it_was(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    consumer.assign("t", 0)
    for offset in range(3):
        client.record("t", 0, offset)
    client.record("t", 1, 0)
    assert consumer.poll(1) is not None
    consumer.pause(T0)
    assert [record.partition for record in consumer.take(10)] == [1]
    client.record("t", 0, 3)
    consumer.resume(T0)
    assert [record.offset for record in consumer.take(10)] == [1, 2, 3]


def test_offsets_are_looked_up_without_moving(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    assert consumer.offsets("t", "earliest") == {T0: 10, T1: 0}
    assert consumer.offsets_for_times({T0: 12, T1: 12}) == {T0: 12, T1: None}
    assert client.assigned == []


def test_a_record_counts_as_processed_when_the_next_is_asked_for(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    made[0].record("t", 0, 5)
    made[0].record("t", 0, 6)
    consumer.poll(1)
    assert made[0].stored == []
    consumer.poll(1)
    assert made[0].stored == [("t", 0, 6)]
    consumer.close()
    assert made[0].stored == [("t", 0, 6), ("t", 0, 7)]
    assert made[0].closed


def iterate_and_fail(consumer: ottla.Consumer[bytes, bytes]) -> None:
    with consumer:
        for record in consumer:
            if record.offset == 6:
                raise ZeroDivisionError


def poll_and_fail(consumer: ottla.Consumer[bytes, bytes]) -> None:
    with consumer:
        consumer.poll(1)
        consumer.poll(1)
        raise ZeroDivisionError


def take_and_fail(consumer: ottla.Consumer[bytes, bytes]) -> None:
    with consumer:
        consumer.take(1)
        assert len(consumer.take(2)) == 2
        raise ZeroDivisionError


def fail_and_close(consumer: ottla.Consumer[bytes, bytes]) -> None:
    try:
        consumer.poll(1)
        consumer.poll(1)
        raise ZeroDivisionError
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "program", [iterate_and_fail, poll_and_fail, take_and_fail, fail_and_close]
)
def test_an_exception_leaves_what_was_not_finished_for_the_next_start(
    made: list[Any], program: Callable[[ottla.Consumer[bytes, bytes]], None]
) -> None:
    consumer = ottla.Consumer(group="g")
    for offset in (5, 6, 7):
        made[0].record("t", 0, offset)
    with pytest.raises(ZeroDivisionError):
        program(consumer)
    assert made[0].stored == [("t", 0, 6)]
    assert made[0].closed


def test_leaving_the_block_in_peace_finishes_what_was_given(made: list[Any]) -> None:
    with ottla.Consumer(group="g") as consumer:
        for offset in (5, 6):
            made[0].record("t", 0, offset)
        assert len(list(consumer.records(limit=2))) == 2
    assert made[0].stored[-1] == ("t", 0, 7)


def test_a_rebalance_in_the_middle_of_take_finishes_nothing(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.Consumer(group="g")
    consumer.subscribe("t")
    made[0].record("t", 0, 5)
    consume = made[0].consume
    calls = iter(range(9))

    def consume_and_rebalance(most: int, timeout: float) -> Any:
        if next(calls) == 1:
            made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
        return consume(most, timeout)

    monkeypatch.setattr(made[0], "consume", consume_and_rebalance)
    assert consumer.take(9) == []  # the partition's next owner reads it
    assert consumer.take(9) == []
    assert made[0].stored == []


def test_take_gives_nothing_of_a_partition_that_was_taken_away_meanwhile(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.Consumer(group="g")
    consumer.subscribe("t")
    for partition in (0, 1, 0):
        made[0].record("t", partition, 5 + len(made[0].queue))
    consume = made[0].consume
    calls = iter(range(9))

    def consume_and_rebalance(most: int, timeout: float) -> Any:
        if next(calls) == 1:
            made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
        return consume(most, timeout)

    monkeypatch.setattr(made[0], "consume", consume_and_rebalance)
    assert [(record.partition, record.offset) for record in consumer.take(9)] == [(1, 6)]
    consumer.take(9)
    assert made[0].stored == [("t", 1, 7)]


def test_take_gives_records_once_of_a_partition_that_was_taken_away_and_given_back_meanwhile(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.Consumer(group="g")
    consumer.subscribe("t")
    for partition, offset in ((0, 5), (1, 7)):
        made[0].record("t", partition, offset)
    consume = made[0].consume
    calls = iter(range(9))

    def consume_and_rebalance(most: int, timeout: float) -> Any:
        if next(calls) == 1:
            made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
            made[0].callbacks["on_assign"](made[0], [rd.TopicPartition("t", 0)])
            made[0].record("t", 0, 5)
        return consume(most, timeout)

    monkeypatch.setattr(made[0], "consume", consume_and_rebalance)
    assert [(each.partition, each.offset) for each in consumer.take(9)] == [(1, 7), (0, 5)]


def test_without_a_group_nothing_is_stored(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    client.record("t", 0, 5)
    consumer.poll(1)
    consumer.poll()
    assert client.stored == []


def test_commit_commits_what_was_given_or_up_to_a_record(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    made[0].record("t", 0, 5)
    made[0].record("t", 0, 6)
    first = consumer.poll(1)
    consumer.poll(1)
    consumer.commit(first)
    assert made[0].committed_offsets == [("t", 0, 6)]
    consumer.commit()
    assert made[0].committed_offsets == [("t", 0, 6), ("t", 0, 7)]


def test_commit_takes_offsets_of_your_own(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    consumer.commit({T0: 12, T1: 0})
    assert made[0].committed_offsets == [("t", 0, 12), ("t", 1, 0)]
    for wrong in (-1, "5", True):
        with pytest.raises(ValueError, match="a number from 0 on"):
            consumer.commit({T0: wrong})
    assert len(made[0].committed_offsets) == 2


def test_a_commit_by_an_error_handler_is_not_of_what_take_is_about_to_give(
    made: list[Any],
) -> None:
    def give_up(record: Any, error: Any) -> None:
        consumer.commit()
        raise ZeroDivisionError

    consumer = ottla.Consumer(group="g", value=ottla.JSON, on_error=give_up)
    consumer.subscribe("t")
    for offset, value in enumerate((b"0", b"1", b"2", b"{")):
        made[0].record("t", 0, offset, value)
    assert consumer.poll() is not None
    with pytest.raises(ZeroDivisionError):
        consumer.take(9)
    assert made[0].committed_offsets == [("t", 0, 1)]
    assert [record.offset for record in consumer.take(2)] == [1, 2]
    consumer.commit()
    assert made[0].committed_offsets[-1] == ("t", 0, 3)


def test_a_commit_that_nobody_waits_for_and_that_fails_is_logged(
    made: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ottla.client")
    ottla.Consumer(group="g")
    told = made[0].config["on_commit"]
    told(None, [rd.TopicPartition("t", 0, 5)])
    told(rd.KafkaError(rd.KafkaError._NO_OFFSET), [])
    assert not caplog.records
    told(rd.KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), [rd.TopicPartition("t", 0, 5)])
    assert "offsets were not committed (t-0 at 5): Unknown member" in caplog.text


def test_a_commit_that_nobody_waits_for_counts_when_the_broker_has_answered(
    made: list[Any],
) -> None:
    consumer = ottla.Consumer(group="g", auto_commit=False)
    answer = made[0].config["on_commit"]
    tp = ottla.TopicPartition("t", 0)

    def give(offset: int) -> None:
        made[0].assigned = [rd.TopicPartition("t", 0)]
        made[0].record("t", 0, offset)
        assert consumer.poll(1) is not None

    give(5)
    consumer.commit(wait=False)
    assert consumer.rewind() == {tp: 5}, "nobody knows whether it is committed"
    give(5)
    answer(None, [rd.TopicPartition("t", 0, 6)])
    assert consumer.rewind() == {tp: 5}, "an answer from before the rewind does not count"
    give(5)
    consumer.commit(wait=False)
    answer(rd.KafkaError(ErrorCode.REBALANCE_IN_PROGRESS), [rd.TopicPartition("t", 0, 6)])
    assert consumer.rewind() == {tp: 5}
    give(5)
    consumer.commit(wait=False)
    give(6)
    answer(None, [rd.TopicPartition("t", 0, 6)])
    assert consumer.rewind() == {tp: 6}
    give(6)
    consumer.commit(wait=False)
    consumer.commit()
    answer(None, [rd.TopicPartition("t", 0, 7)])
    assert consumer.rewind() == {}


def test_who_is_told_of_commits_himself_changes_nothing_of_what_counts(made: list[Any]) -> None:
    told: list[Any] = []
    config = {"on_commit": lambda error, partitions: told.append((error, partitions))}
    consumer = ottla.Consumer(group="g", auto_commit=False, config=config)
    made[0].assigned = [rd.TopicPartition("t", 0)]
    made[0].record("t", 0, 5)
    assert consumer.poll(1) is not None
    consumer.commit(wait=False)
    answer = [rd.TopicPartition("t", 0, 6)]
    made[0].config["on_commit"](None, answer)
    assert told == [(None, answer)]
    assert consumer.rewind() == {}


def test_an_explicit_commit_is_not_undone_by_an_automatic_one(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    for offset in (5, 6):
        made[0].record("t", 0, offset)
    consumer.poll(1)
    second = consumer.poll(1)  # librdkafka was told that 5 is done
    consumer.commit(second)
    assert made[0].stored[-1] == ("t", 0, 7), "what it commits at the end"


def test_partitions_that_are_taken_away_take_their_records_along(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    lost: list[Any] = []
    consumer.subscribe("t", on_revoke=lost.append)
    for offset in (5, 6):
        made[0].record("t", 0, offset)
    made[0].record("t", 1, 1)
    consumer.poll(1)
    made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
    assert lost == [(T0,)]
    assert made[0].stored == []
    assert [record.partition for record in consumer.take(9)] == [1]


def test_librdkafka_has_its_turn_while_records_wait(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever is slow is thrown out of the group, or keeps partitions from it."""
    consumer = ottla.Consumer(group="g")
    consumer.subscribe("t")
    for offset in range(800):
        made[0].record("t", 0, offset)
    assert [record.offset for record in consumer.records(limit=3)] == [0, 1, 2]
    assert len(made[0].queue) == 300
    monkeypatch.setattr("ottla.client.inbox._TURN", 0.0)
    assert [record.offset for record in consumer.records(limit=100)] == [*range(3, 103)]
    assert len(made[0].queue) == 200, "what waits in memory does not grow"
    consume = made[0].consume

    def rebalance(most: int, timeout: float) -> Any:
        made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
        return consume(0, timeout)

    monkeypatch.setattr(made[0], "consume", rebalance)
    assert consumer.poll() is None


def test_what_a_turn_of_librdkafka_was_about_to_return_is_read_again(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.Consumer()
    consumer.assign([("t", 0)], 0)
    for offset in range(3):
        made[0].record("t", 0, offset)
    assert consumer.poll()
    monkeypatch.setattr("ottla.client.inbox._TURN", 0.0)
    made[0].positions["t", 0] = 4
    consume = made[0].consume

    def lose_one(most: int, timeout: float) -> Any:
        monkeypatch.setattr(made[0], "consume", consume)
        raise KeyboardInterrupt

    monkeypatch.setattr(made[0], "consume", lose_one)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll()
    assert consumer.poll()
    assert made[0].sought == [("t", 0, 3)]


def test_a_commit_in_on_revoke_is_of_what_was_processed(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g", auto_commit=False)
    consumer.subscribe("t", on_revoke=lambda _gone: consumer.commit())
    for offset in (5, 6):
        made[0].record("t", 0, offset)
    assert consumer.poll(1) is not None
    assert consumer.poll(1) is not None  # 5 is processed by now, 6 is not
    made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
    assert made[0].committed_offsets == [("t", 0, 6)]
    consumer.commit()
    assert made[0].committed_offsets == [("t", 0, 6)]  # it is another's now


def test_a_commit_in_on_revoke_is_not_of_what_take_is_about_to_give(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.Consumer(group="g", auto_commit=False)
    consumer.subscribe("t", on_revoke=lambda _gone: consumer.commit())
    made[0].record("t", 0, 5)
    assert len(consumer.take(1)) == 1
    made[0].record("t", 0, 6)
    consume = made[0].consume
    calls = iter(range(9))

    def consume_and_rebalance(most: int, timeout: float) -> Any:
        if next(calls) == 1:
            made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
        return consume(most, timeout)

    monkeypatch.setattr(made[0], "consume", consume_and_rebalance)
    assert consumer.take(9) == []
    assert made[0].committed_offsets == [("t", 0, 6)]


def test_an_error_in_on_revoke_does_not_keep_what_was_taken_away(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")

    def fail(_gone: Any) -> None:
        raise ZeroDivisionError

    consumer.subscribe("t", on_revoke=fail)
    for offset in (5, 6):
        made[0].record("t", 0, offset)
    consumer.poll(1)
    with pytest.raises(ZeroDivisionError):
        made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
    assert consumer.poll() is None


def test_partitions_that_were_lost_are_told_apart_from_those_given_up(made: list[Any]) -> None:
    consumer = ottla.Consumer(group="g")
    told: list[Any] = []
    consumer.subscribe(
        "t",
        on_revoke=lambda gone: told.append(("revoked", gone)),
        on_lost=lambda gone: told.append(("lost", gone)),
    )
    made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
    made[0].callbacks["on_lost"](made[0], [rd.TopicPartition("t", 1)])
    consumer.subscribe("t", on_revoke=lambda gone: told.append(("revoked", gone)))
    made[0].callbacks["on_lost"](made[0], [rd.TopicPartition("t", 1)])
    assert told == [("revoked", (T0,)), ("lost", (T1,)), ("revoked", (T1,))]


def test_statistics_are_given_as_a_dictionary(made: list[Any]) -> None:
    seen: list[Any] = []
    ottla.Consumer(on_statistics=seen.append, config={"statistics.interval.ms": 50})
    ottla.Producer(on_statistics=seen.append)
    for fake in made:
        fake.config["stats_cb"]('{"rxmsgs": 7}')
    assert seen == [{"rxmsgs": 7}, {"rxmsgs": 7}]
    assert [fake.config["statistics.interval.ms"] for fake in made] == [50, 5000]


@pytest.mark.parametrize("kind", [ottla.Consumer, ottla.Producer])
def test_help_shows_every_option_with_its_type_and_default(kind: type) -> None:
    shown = inspect.getdoc(kind) or ""
    for option in options_of(ConsumerOptions if kind is ottla.Consumer else ProducerOptions):
        assert f"\n{option.name}: {option.kind} = {option.default}\n" in shown


@pytest.mark.parametrize("method", ["subscribe", "commit", "committed"])
def test_what_needs_a_group_says_so(
    consumer: ottla.Consumer[bytes, bytes], client: Any, method: str
) -> None:
    arguments = [] if method == "commit" else ["t"] if method == "subscribe" else [T0]
    with pytest.raises(ValueError, match=rf"{method}\(\) needs a group: Consumer\(group='name'\)"):
        getattr(consumer, method)(*arguments)


def test_a_closed_consumer_reads_nothing_and_closes_again_in_silence(
    consumer: ottla.Consumer[bytes, bytes], client: Any
) -> None:
    with consumer:
        pass
    consumer.close()
    assert client.closed
    assert list(consumer) == []
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll()


@pytest.mark.parametrize(
    ("options", "kind", "complaint"),
    [
        ({"on_error": "ignore"}, ValueError, 'on_error is "raise", "skip" or a function'),
        ({"reset": "none"}, ValueError, 'reset is "earliest", "latest" or "error"'),
        ({"grup": "g"}, TypeError, "no option 'grup'; did you mean 'group'"),
        ({"config": {"group.id": "g"}}, ValueError, "config may not set 'group.id': use group="),
        ({"value": 7}, TypeError, "value= takes a Serde"),
    ],
)
def test_wrong_arguments_are_refused_with_the_right_ones(
    made: list[Any], options: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        ottla.Consumer(**options)


def test_a_property_that_librdkafka_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match=r"No such configuration property.*foo\.bar"):
        ottla.Consumer(config={"foo.bar": 1})
