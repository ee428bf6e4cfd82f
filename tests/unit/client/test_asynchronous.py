from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import confluent_kafka as rd
import pytest

import ottla
from ottla.client.records import Delivery
from ottla.errors import ErrorCode, KafkaError


async def test_awaiting_the_future_gives_where_the_record_is_stored(made: list[Any]) -> None:
    async with ottla.AsyncProducer() as producer:
        future = await producer.send("t", "v", partition=1)
        assert not future.done()
        made[0].decide()
        assert await asyncio.wait_for(future, 60) == Delivery("t", 1, 7, 1234)


async def test_awaiting_the_future_raises_why_it_is_not(made: list[Any]) -> None:
    async with ottla.AsyncProducer() as producer:
        future = await producer.send("t", "v")
        made[0].decide(10)
        with pytest.raises(KafkaError) as caught:
            await asyncio.wait_for(future, 60)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


async def test_all_futures_have_settled_after_flush_and_after_close(made: list[Any]) -> None:
    producer = ottla.AsyncProducer()
    futures = [await producer.send("t", str(number)) for number in range(100)]
    await producer.flush()
    assert all(future.done() for future in futures)
    last = await producer.send("t", "v")
    await producer.close()
    assert last.done()


async def test_a_future_that_nobody_awaits_any_more_disturbs_nobody(made: list[Any]) -> None:
    async with ottla.AsyncProducer() as producer:
        given_up = await producer.send("t", "a")
        given_up.cancel()
        kept = await producer.send("t", "b")
    assert (await kept).offset == 7


async def test_a_full_buffer_makes_send_wait_without_blocking_the_loop(made: list[Any]) -> None:
    async with ottla.AsyncProducer() as producer:
        made[0].room = 1
        await producer.send("t", "a")
        waiting = asyncio.ensure_future(producer.send("t", "b"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        made[0].decide()
        await asyncio.wait_for(waiting, 60)
    assert [record[1] for record in made[0].accepted] == [b"a", b"b"]


async def test_tasks_that_wait_for_room_send_in_the_order_in_which_they_came(
    made: list[Any],
) -> None:
    async with ottla.AsyncProducer() as producer:
        made[0].room = 3

        async def deliver() -> None:
            while len(made[0].accepted) < 40:
                while made[0].undecided:
                    made[0].decide()
                await asyncio.sleep(0)

        served = asyncio.create_task(deliver())
        await asyncio.gather(*(producer.send("t", str(number)) for number in range(40)))
        await served
    assert [record[1] for record in made[0].accepted] == [b"%d" % n for n in range(40)]


async def test_tasks_that_begin_with_a_producer_send_in_the_order_in_which_they_came(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.outbox._SETTLING", 0.01)
    async with ottla.AsyncProducer() as producer:
        await asyncio.gather(*(producer.send("t", str(number)) for number in range(40)))
    assert [record[1] for record in made[0].accepted] == [b"%d" % n for n in range(40)]


async def test_a_buffer_that_stays_full_is_an_error(made: list[Any]) -> None:
    producer = ottla.AsyncProducer(max_block=0.02)
    made[0].room = 1
    await producer.send("t", "a")
    with pytest.raises(KafkaError, match=r"no room for 0.02 s"):
        await producer.send("t", "b")
    await producer.close()


async def test_a_python_partitioner_is_asked_here_too(made: list[Any]) -> None:
    async with ottla.AsyncProducer(partitioner=lambda key, partitions: 1) as producer:
        made[0].partitions["t"] = 2
        for _ in range(2):
            await producer.send("t", "v")
    assert [record[3] for record in made[0].accepted] == [1, 1]


async def test_records_are_iterated_until_the_end(made: list[Any]) -> None:
    async with ottla.AsyncConsumer(value=ottla.JSON) as consumer:
        made[0].topics["t"] = 1
        made[0].ends = {("t", 0): 3}
        await consumer.assign("t", "earliest")
        for offset in range(3):
            made[0].record("t", 0, offset, str(offset).encode())
        assert [record.value async for record in consumer.records(until_end=True)] == [0, 1, 2]
        assert consumer.position(("t", 0)) == 3


async def test_iteration_has_no_end_of_its_own(made: list[Any]) -> None:
    async with ottla.AsyncConsumer() as consumer:
        made[0].record("t", 0, 0)
        made[0].record("t", 0, 1)
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if len(seen) == 2:
                break
        assert seen == [0, 1]
        assert [record async for record in consumer.records(idle=0.01)] == []


async def test_poll_and_take_give_what_is_there(made: list[Any]) -> None:
    async with ottla.AsyncConsumer() as consumer:
        for offset in range(4):
            made[0].record("t", 0, offset)
        record = await consumer.poll()
        assert record is not None
        assert [one.offset for one in await consumer.take(2)] == [1, 2]
        assert [one.offset for one in await consumer.take(2, 0.01)] == [3]
        assert await consumer.poll(0.01) is None


async def test_nothing_is_taken_of_a_partition_that_was_taken_away_meanwhile(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ottla.AsyncConsumer(group="g") as consumer:
        await consumer.subscribe("t")
        made[0].record("t", 0, 5)
        made[0].record("t", 1, 7)
        consume = made[0].consume
        calls = iter(range(9))

        def consume_and_rebalance(most: int, timeout: float) -> Any:
            if next(calls) == 1:
                made[0].callbacks["on_revoke"](made[0], [rd.TopicPartition("t", 0)])
            return consume(most, timeout)

        monkeypatch.setattr(made[0], "consume", consume_and_rebalance)
        assert [one.offset for one in await consumer.take(9, 0)] == [7]


async def test_who_does_not_wait_gets_what_is_there(made: list[Any]) -> None:
    async with ottla.AsyncConsumer() as consumer:
        await consumer.assign([("t", 0)], 0)
        assert await consumer.poll(0) is None
        for offset in range(3):
            made[0].record("t", 0, offset)
        record = await consumer.poll(0)
        assert record is not None
        assert [one.offset for one in await consumer.take(9, 0)] == [1, 2]
        made[0].record("t", 0, 3)
        assert [one.offset for one in await consumer.take(9, 0)] == [3]
        assert await consumer.take(9, 0) == []


async def test_librdkafka_has_its_turn_while_records_wait(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.inbox._TURN", 0.0)
    async with ottla.AsyncConsumer() as consumer:
        await consumer.assign([("t", 0)], 0)
        for offset in range(800):
            made[0].record("t", 0, offset)
        given = [record.offset async for record in consumer.records(limit=100)]
        assert given == [*range(100)]
        assert len(made[0].queue) == 200


def revoke_when_asked(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next time that the consumer asks for records its partition is taken away."""
    consume = fake.consume

    def revoke(most: int, timeout: float) -> Any:
        monkeypatch.setattr(fake, "consume", consume)
        fake.callbacks["on_revoke"](fake, [rd.TopicPartition("t", 0)])
        return []

    monkeypatch.setattr(fake, "consume", revoke)


async def test_a_coroutine_that_is_told_of_partitions_commits_before_they_are_given_up(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    async with ottla.AsyncConsumer(group="g", auto_commit=False) as consumer:

        async def give_up(gone: Any) -> None:
            await asyncio.sleep(0)
            await consumer.commit()
            told.append(gone)

        await consumer.subscribe("t", on_revoke=give_up)
        made[0].record("t", 0, 5)
        assert await consumer.poll(1) is not None
        revoke_when_asked(made[0], monkeypatch)
        assert await consumer.poll(0) is None
        assert told == [(ottla.TopicPartition("t", 0),)]
        assert made[0].committed_offsets == [("t", 0, 6)]


async def test_what_a_coroutine_raises_comes_out_of_the_wait(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ottla.AsyncConsumer(group="g") as consumer:

        async def give_up(_gone: Any) -> None:
            with pytest.raises(RuntimeError, match="cannot ask for records"):
                await consumer.poll(1)
            raise ZeroDivisionError

        await consumer.subscribe("t", on_revoke=give_up)
        revoke_when_asked(made[0], monkeypatch)
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(1)
        assert await consumer.poll(0) is None


async def test_a_cancelled_wait_takes_no_record_with_it(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ottla.AsyncConsumer() as consumer:
        inside, go_on = threading.Event(), threading.Event()

        def poll(timeout: float) -> Any:
            inside.set()
            go_on.wait(60)
            return made[0].queue.popleft() if made[0].queue else None

        monkeypatch.setattr(made[0], "poll", poll)
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.to_thread(inside.wait, 60)
        made[0].record("t", 0, 5)
        waiting.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        record = await consumer.poll(5)
        assert record is not None
        assert record.offset == 5


async def test_a_cancelled_take_keeps_no_records(made: list[Any]) -> None:
    burying, grave = asyncio.Event(), asyncio.Event()

    async def bury(record: ottla.Record[bytes, bytes], error: ottla.RecordDecodeError) -> None:
        burying.set()
        await grave.wait()

    async with ottla.AsyncConsumer(value=ottla.JSON, group="g", on_error=bury) as consumer:
        for offset, value in enumerate([b"1", b"2", b"{", b"3"]):
            made[0].record("t", 0, offset, value)
        taking = asyncio.ensure_future(consumer.take(9))
        await burying.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        grave.set()
        assert [record.value for record in await consumer.take(9)] == [1, 2, 3]
        assert made[0].stored in ([], [("t", 0, 0)])


async def test_a_consumer_can_be_closed_after_a_close_that_was_cancelled(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.AsyncConsumer()
    inside, go_on = threading.Event(), threading.Event()

    def poll(timeout: float) -> Any:
        inside.set()
        go_on.wait(60)

    monkeypatch.setattr(made[0], "poll", poll)
    waiting = asyncio.ensure_future(consumer.poll(0.05))
    await asyncio.to_thread(inside.wait, 60)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    go_on.set()
    assert await waiting is None
    assert not made[0].closed
    await consumer.close()
    assert made[0].closed


async def test_two_tasks_may_close_a_consumer_at_once(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ottla.AsyncConsumer()
    go_on = threading.Event()
    monkeypatch.setattr(made[0], "close", lambda: go_on.wait(60))
    closing = [asyncio.ensure_future(consumer.close()) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*closing)


async def test_a_wait_that_is_cancelled_twice_still_leaves_the_consumer_to_its_thread(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ottla.AsyncConsumer() as consumer:
        inside, go_on = threading.Event(), threading.Event()

        def poll(timeout: float) -> Any:
            inside.set()
            go_on.wait(60)

        monkeypatch.setattr(made[0], "poll", poll)
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.to_thread(inside.wait, 60)
        for _ in range(3):
            waiting.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def iterate_and_fail(consumer: ottla.AsyncConsumer[bytes, bytes]) -> None:
    async with consumer:
        async for record in consumer:
            if record.offset == 6:
                raise ZeroDivisionError


async def take_and_fail(consumer: ottla.AsyncConsumer[bytes, bytes]) -> None:
    async with consumer:
        await consumer.take(1)
        assert len(await consumer.take(2)) == 2
        raise ZeroDivisionError


async def fail_and_close(consumer: ottla.AsyncConsumer[bytes, bytes]) -> None:
    try:
        await consumer.poll()
        await consumer.poll()
        raise ZeroDivisionError
    finally:
        await consumer.close()


async def fail_and_close_in_time(consumer: ottla.AsyncConsumer[bytes, bytes]) -> None:
    try:
        await consumer.poll()
        await consumer.poll()
        raise ZeroDivisionError
    finally:
        await asyncio.wait_for(asyncio.shield(consumer.close()), 60)


@pytest.mark.parametrize(
    "program", [iterate_and_fail, take_and_fail, fail_and_close, fail_and_close_in_time]
)
async def test_an_exception_leaves_what_was_not_finished_for_the_next_start(
    made: list[Any], program: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    consumer = ottla.AsyncConsumer(group="g")
    for offset in (5, 6, 7):
        made[0].record("t", 0, offset)
    with pytest.raises(ZeroDivisionError):
        await program(consumer)
    assert made[0].stored == [("t", 0, 6)]
    assert made[0].closed


async def test_a_cancelled_task_leaves_its_record_for_the_next_start(made: list[Any]) -> None:
    working = asyncio.Event()

    async def work() -> None:
        async with ottla.AsyncConsumer(group="g") as consumer:
            made[0].record("t", 0, 5)
            async for _ in consumer:
                working.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await working.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made[0].stored == []
    assert made[0].closed


async def test_records_that_cannot_be_decoded_stop_or_go_to_a_coroutine(made: list[Any]) -> None:
    dead: list[int] = []

    async def bury(record: ottla.Record[bytes, bytes], error: ottla.RecordDecodeError) -> None:
        await asyncio.sleep(0)
        dead.append(record.offset)

    async with (
        ottla.AsyncConsumer(value=ottla.JSON) as strict,
        ottla.AsyncConsumer(value=ottla.JSON, on_error=bury) as careful,
    ):
        for fake in made:
            for offset, value in enumerate([b"1", b"{", b"2"]):
                fake.record("t", 0, offset, value)
        assert [record.value for record in await strict.take(9)] == [1]
        for _ in range(2):
            with pytest.raises(ottla.RecordDecodeError, match="offset 1"):
                await strict.poll()
        assert [record.value for record in await careful.take(2)] == [1, 2]
        assert dead == [1]


async def test_a_dead_letter_is_stored_before_the_consumer_goes_on(made: list[Any]) -> None:
    dead, blocking = ottla.AsyncProducer(), ottla.Producer()
    handlers: list[Callable[[Any, Any], Any]] = [
        lambda record, error: dead.send("dead", record.value),
        lambda record, error: blocking.send("dead", record.value),
    ]
    for fake, handler in zip(made[:2], handlers, strict=True):
        async with ottla.AsyncConsumer(value=ottla.JSON, group="g", on_error=handler) as consumer:
            made[-1].record("t", 0, 5, b"{")
            waiting = asyncio.ensure_future(consumer.poll())
            while not fake.undecided:
                await asyncio.sleep(0.001)
            fake.decide(rd.KafkaError.TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(ottla.KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await waiting
            assert consumer.position(("t", 0)) is None
        assert made[-1].stored == []
    await dead.close()
    blocking.close()


async def test_the_loop_goes_on_while_a_broker_is_asked(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ottla.AsyncAdmin("127.0.0.1:1") as admin:
        monkeypatch.setattr(admin.admin, "_timeout", 0.3)
        asking = asyncio.ensure_future(admin.list_topics())
        turns = 0
        started = time.monotonic()
        while not asking.done() and time.monotonic() < started + 30:
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(KafkaError):
            await asking
        assert turns > 5


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [(ottla.Admin, ottla.AsyncAdmin), (ottla.Consumer, ottla.AsyncConsumer)],
)
def test_every_method_has_its_asynchronous_namesake(blocking: type, asynchronous: type) -> None:
    # For whoever writes his own loop around a blocking consumer; `records(until_end=True)` here.
    blocking_only = {"end_check"}
    names = {name for name, _ in inspect.getmembers(blocking, callable) if name[0] != "_"}
    missing = {name for name in names - blocking_only if not hasattr(asynchronous, name)}
    assert not missing
