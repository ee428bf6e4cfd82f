from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any

import pytest

import ottla
from ottla.client.records import Delivery
from ottla.errors import ErrorCode, KafkaError


async def test_awaiting_the_future_gives_where_the_record_is_stored(made: list[Any]) -> None:
    async with ottla.AsyncProducer() as producer:
        future = await producer.send("t", "v", partition=1)
        assert not future.done()
        made[0].decide()
        assert await asyncio.wait_for(future, 10) == Delivery("t", 1, 7, 1234)


async def test_awaiting_the_future_raises_why_it_is_not(made: list[Any]) -> None:
    async with ottla.AsyncProducer() as producer:
        future = await producer.send("t", "v")
        made[0].decide(10)
        with pytest.raises(KafkaError) as caught:
            await asyncio.wait_for(future, 10)
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
        await asyncio.wait_for(waiting, 10)
    assert [record[1] for record in made[0].accepted] == [b"a", b"b"]


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


async def test_a_cancelled_wait_takes_no_record_with_it(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ottla.AsyncConsumer() as consumer:
        inside, go_on = threading.Event(), threading.Event()

        def poll(timeout: float) -> Any:
            inside.set()
            go_on.wait(10)
            return made[0].queue.popleft() if made[0].queue else None

        monkeypatch.setattr(made[0], "poll", poll)
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.to_thread(inside.wait, 10)
        made[0].record("t", 0, 5)
        waiting.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        record = await consumer.poll(5)
        assert record is not None
        assert record.offset == 5


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
    inner = {"ready", "fill", "end_check"}  # what the asynchronous consumer is built on
    names = {name for name, _ in inspect.getmembers(blocking, callable) if name[0] != "_"}
    missing = {name for name in names - inner if not hasattr(asynchronous, name)}
    assert not missing
