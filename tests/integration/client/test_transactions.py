"""Transactions of `ottla.Producer` and `AsyncProducer` with a broker, each error for real."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ottla
from ottla import TopicPartition
from ottla.client.interrupts import undisturbed
from ottla.errors import ErrorCode, KafkaError
from ottla.testing import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "message.max.bytes": 100_000,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "transaction.state.log.num.partitions": 1,
}
TOPICS = {"in": 2, "out": 1}
TIMEOUT = 60.0
Eventually = Callable[..., None]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics=TOPICS, config=SETTINGS) as made:
        yield made


@pytest.fixture
def producer(broker: Broker) -> Iterator[ottla.Producer[bytes | str, bytes | str]]:
    with ottla.Producer(broker.bootstrap, transactional_id="mover", linger=0) as made:
        yield made


def committed(broker: Broker, topic: str = "out") -> list[str]:
    with ottla.Consumer(broker.bootstrap, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        return [record.value or "" for record in consumer.records(until_end=True)]


def member(broker: Broker, **config: object) -> ottla.Consumer[bytes, str]:
    consumer = ottla.Consumer(
        broker.bootstrap,
        value=ottla.STRING,
        group="movers",
        reset="earliest",
        auto_commit=False,
        config=config,
    )
    consumer.subscribe("in")
    return consumer


def wait_no_longer(
    producer: ottla.Producer[bytes | str, bytes | str], patience: float = 0.5
) -> None:
    """From now on; what was before could take as long as this machine takes."""
    assert producer._transactions is not None
    producer._transactions._patience = patience


def position(broker: Broker, group: str = "movers") -> int:
    """How many records a group has behind it."""
    with ottla.Admin(broker.bootstrap) as admin:
        return sum(each.offset for each in admin.group_offsets(group).values())


# -- all or nothing ------------------------------------------------------------------------------


def test_a_block_commits_and_an_exception_aborts(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    for number in range(4):
        try:
            with producer.transaction() as txn:
                first = txn.send("out", f"{number}a")
                txn.post("out", f"{number}b")
                if number % 2:
                    assert first.result(TIMEOUT).offset >= 0, "stored, and still aborted"
                    raise ZeroDivisionError
        except ZeroDivisionError:
            continue
    assert committed(broker) == ["0a", "0b", "2a", "2b"]
    seen = [record.value for record in broker.consume("out")]
    assert seen == [b"0a", b"0b", b"2a", b"2b"], "the test kit reads what a consumer does"


def test_what_was_posted_and_aborted_is_no_failure(
    producer: ottla.Producer[bytes | str, bytes | str],
) -> None:
    with producer.transaction() as txn:
        for number in range(1000):
            txn.post("out", str(number))
        txn.abort()
        with pytest.raises(RuntimeError, match="the transaction is aborted"):
            txn.post("out", "more")
    producer.flush()
    assert len(producer) == 0


def test_ctrl_c_aborts(broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        with producer.transaction() as txn:
            txn.send("out", "lost").result(TIMEOUT)
            signal.raise_signal(signal.SIGINT)
    with producer.transaction() as txn:
        txn.send("out", "kept")
    assert committed(broker) == ["kept"]


def test_ctrl_c_does_not_tear_a_commit(
    broker: Broker,
    producer: ottla.Producer[bytes | str, bytes | str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[float] = []

    def interrupted(call: Callable[[float], Any], timeout: float) -> Any:
        calls.append(timeout)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        elif len(calls) == 2:
            broker.start()
        return undisturbed(call, timeout)

    with pytest.raises(KeyboardInterrupt):
        with producer.transaction() as txn:
            txn.send("out", "kept").result(TIMEOUT)
            broker.stop()
            monkeypatch.setattr("ottla.client.transactions.undisturbed", interrupted)
    with producer.transaction() as txn:
        txn.send("out", "too")
    assert committed(broker) == ["kept", "too"]


def test_an_empty_transaction(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    with producer.transaction():
        pass
    with pytest.raises(ZeroDivisionError), producer.transaction():
        raise ZeroDivisionError
    with producer.transaction() as txn:
        txn.send("out", "one")
    assert committed(broker) == ["one"]


def test_closing_the_producer_aborts(broker: Broker) -> None:
    producer = ottla.Producer(broker.bootstrap, transactional_id="mover")
    with producer.transaction() as txn:
        txn.send("out", "lost").result(TIMEOUT)
        producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            txn.send("out", "more")
        txn.abort()
    with ottla.Producer(broker.bootstrap, transactional_id="mover") as successor:
        with successor.transaction() as txn:
            txn.send("out", "kept")
    assert committed(broker) == ["kept"]


# -- misuse --------------------------------------------------------------------------------------


def test_misuse_is_told(producer: ottla.Producer[bytes | str, bytes | str]) -> None:
    for send in (producer.send, producer.post):
        with pytest.raises(RuntimeError, match=r"with producer.transaction\(\) as txn"):
            send("out", "outside")
    unused = producer.transaction()
    with pytest.raises(RuntimeError, match="a transaction begins with"):
        unused.send("out", "too early")
    with producer.transaction() as txn:
        with pytest.raises(RuntimeError, match="has an open transaction"):
            with producer.transaction():
                pass
        txn.send("out", "fine")
    with pytest.raises(RuntimeError, match="the transaction is committed"):
        txn.send("out", "too late")
    with pytest.raises(RuntimeError, match="used once"), txn:
        pass


def test_offsets_need_a_consumer_that_leaves_them_to_us(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    with (
        ottla.Consumer(broker.bootstrap, group="g") as automatic,
        ottla.Consumer(broker.bootstrap) as alone,
        producer.transaction() as txn,
    ):
        with pytest.raises(ValueError, match="auto_commit=False"):
            txn.commit_offsets(automatic)
        with pytest.raises(ValueError, match="a group"):
            txn.commit_offsets(alone)
        with pytest.raises(ValueError, match="needs the offsets"):
            txn.commit_offsets("g")
        with pytest.raises(ValueError, match="auto_commit=False"):
            automatic.rewind()


# -- offsets -------------------------------------------------------------------------------------


def test_offsets_are_committed_with_the_records_only(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    broker.produce("in", "1", "2", "3", partition=0)
    with member(broker) as consumer:
        batch = list(consumer.records(limit=2))
        with pytest.raises(ZeroDivisionError), producer.transaction() as txn:
            txn.commit_offsets(consumer)
            raise ZeroDivisionError
        assert consumer.rewind() == {TopicPartition("in", 0): 0}
        again = list(consumer.records(limit=2))
        assert [record.value for record in again] == [record.value for record in batch]
        with producer.transaction() as txn:
            for record in again:
                txn.send("out", f"{record.value}!")
            txn.commit_offsets(consumer)
        assert consumer.rewind() == {}
        assert [record.value for record in consumer.records(limit=1)] == ["3"]
    assert committed(broker) == ["1!", "2!"]
    assert position(broker) == 2


def test_a_batch_in_hand_can_be_sent_again(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    broker.produce("in", "1", partition=0)
    with member(broker) as consumer:
        [record] = consumer.records(limit=1)
        for works in (False, True):
            try:
                with producer.transaction() as txn:
                    txn.send("out", record.value)
                    txn.commit_offsets(consumer)
                    if not works:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
    assert committed(broker) == ["1"]
    assert position(broker) == 1


def test_an_abort_without_going_back_is_noticed(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    broker.produce("in", "1", "2", partition=0)
    with member(broker) as consumer:
        next(consumer.records(limit=1))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            raise ZeroDivisionError
        next(consumer.records(limit=1))
        with pytest.raises(ottla.AbortableTransactionError, match="would be skipped"):
            with producer.transaction() as txn:
                txn.commit_offsets(consumer)
        consumer.rewind()
        with producer.transaction() as txn:
            for record in consumer.records(limit=2):
                txn.send("out", record.value)
            txn.commit_offsets(consumer)
    assert committed(broker) == ["1", "2"]


@pytest.mark.parametrize("failing", ["in the block", "at its end"])
def test_a_new_producer_knows_what_the_one_before_has_aborted(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str], failing: str
) -> None:
    broker.produce("in", "1", "2", partition=0)
    with (
        member(broker) as consumer,
        ottla.Producer(broker.bootstrap, transactional_id="mover") as successor,
    ):
        next(consumer.records(limit=1))
        with pytest.raises(ottla.ProducerFencedError), producer.transaction() as txn:
            txn.send("out", "lost").result(TIMEOUT)
            if failing == "at its end":
                txn.commit_offsets(consumer)
            successor.init_transactions()
            if failing == "in the block":
                txn.commit_offsets(consumer)
        next(consumer.records(limit=1))
        with pytest.raises(ottla.AbortableTransactionError, match="would be skipped"):
            with successor.transaction() as txn:
                txn.commit_offsets(consumer)
        assert consumer.rewind() == {TopicPartition("in", 0): 0}
        with successor.transaction() as txn:
            for record in consumer.records(limit=2):
                txn.send("out", record.value)
            txn.commit_offsets(consumer)
    assert committed(broker) == ["1", "2"]
    assert position(broker) == 2


def test_a_consumer_that_has_nothing_yet_has_nothing_to_commit(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    with member(broker) as consumer, producer.transaction() as txn:
        txn.commit_offsets(consumer)
        txn.send("out", "kept")
    assert committed(broker) == ["kept"]


def test_offsets_of_ones_own(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    broker.produce("in", "1", "2", "3", partition=0)
    with member(broker) as consumer:
        list(consumer.records(limit=3))
        with producer.transaction() as txn:
            txn.commit_offsets(consumer, {TopicPartition("in", 0): 2})
        assert consumer.rewind() == {TopicPartition("in", 0): 2}
        with producer.transaction() as txn:
            txn.commit_offsets("others", {TopicPartition("in", 1): 7})
    assert position(broker) == 2
    assert position(broker, "others") == 7


def test_an_objection_that_is_swallowed_still_aborts(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    broker.produce("in", "1", partition=0)
    with member(broker) as consumer:
        list(consumer.records(limit=1))
        with pytest.raises(ottla.AbortableTransactionError, match="is not assigned"):
            with producer.transaction() as txn:
                txn.send("out", "lost")
                try:
                    txn.commit_offsets(consumer, {TopicPartition("elsewhere", 0): 1})
                except KafkaError:
                    pass
    assert committed(broker) == []


# -- rebalances ----------------------------------------------------------------------------------


def test_nothing_is_committed_for_partitions_that_were_taken_away(
    broker: Broker,
    producer: ottla.Producer[bytes | str, bytes | str],
    eventually: Eventually,
) -> None:
    for partition in range(2):
        broker.produce("in", "1", partition=partition)
    with member(broker) as consumer:
        batch = list(consumer.records(limit=2))
        assert {record.partition for record in batch} == {0, 1}
        with pytest.raises(ottla.AbortableTransactionError, match="took in-"):
            with producer.transaction() as txn:
                for record in batch:
                    txn.send("out", record.value)
                with member(broker) as second:

                    def shared() -> bool:
                        consumer.poll(0.05)
                        second.poll(0.05)
                        return len(consumer.assignment()) == len(second.assignment()) == 1

                    eventually(shared)
                    txn.commit_offsets(consumer)
    assert committed(broker) == []
    assert position(broker) == 0


def test_a_member_that_was_thrown_out_commits_nothing(
    broker: Broker,
    producer: ottla.Producer[bytes | str, bytes | str],
    eventually: Eventually,
) -> None:
    broker.produce("in", "1", partition=0)
    poll_often = {"max.poll.interval.ms": 1000, "session.timeout.ms": 1000}
    with member(broker, **poll_often) as consumer:
        [record] = consumer.records(limit=1)
        with ottla.Admin(broker.bootstrap) as admin:
            eventually(lambda: not admin.describe_group("movers").members)
        with pytest.raises(ottla.AbortableTransactionError, match=r"not a member|lost its place"):
            with producer.transaction() as txn:
                txn.send("out", record.value)
                txn.commit_offsets(consumer)
        consumer.rewind()

        def moved() -> bool:
            try:
                with producer.transaction() as txn:
                    for record in consumer.take(10, 0.1):
                        txn.send("out", record.value)
                    txn.commit_offsets(consumer)
            except ottla.AbortableTransactionError:
                consumer.rewind()
            return committed(broker) == ["1"]

        eventually(moved)
    assert position(broker) == 1


def test_a_rebalance_that_the_consumer_has_not_noticed(
    broker: Broker,
    producer: ottla.Producer[bytes | str, bytes | str],
) -> None:
    """Its successor, a static member of the same name, has its place."""
    broker.produce("in", "1", partition=0)
    static = {"group.instance.id": "one"}
    with member(broker, **static) as consumer:
        [record] = consumer.records(limit=1)
        with member(broker, **static) as second:
            [same] = second.records(limit=1)
            with pytest.raises(ottla.AbortableTransactionError, match=r"lost its place|not a mem"):
                with producer.transaction() as txn:
                    txn.send("out", record.value)
                    txn.commit_offsets(consumer)
            with producer.transaction() as txn:
                txn.send("out", same.value)
                txn.commit_offsets(second)
        with pytest.raises(KafkaError):
            consumer.poll(TIMEOUT)
    assert committed(broker) == ["1"]
    assert position(broker) == 1


# -- errors --------------------------------------------------------------------------------------


def test_a_record_that_is_refused_aborts_and_the_producer_goes_on(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    for _ in range(2):
        with pytest.raises(ottla.AbortableTransactionError, match="too large") as caught:
            with producer.transaction() as txn:
                txn.send("out", "lost")
                txn.post("out", "x" * 200_000)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert [each.code for each in caught.value.failures] == [ErrorCode.MESSAGE_TOO_LARGE]
        with producer.transaction() as txn:
            txn.send("out", "kept")
    assert committed(broker) == ["kept", "kept"]


def test_a_transaction_that_has_failed_takes_no_more(
    producer: ottla.Producer[bytes | str, bytes | str],
) -> None:
    with pytest.raises(ottla.AbortableTransactionError, match="too large"):
        with producer.transaction() as txn:
            assert txn.send("out", "x" * 200_000).exception(TIMEOUT) is not None
            txn.send("out", "more")


def test_offsets_of_a_transaction_that_has_failed_say_which_record_it_was(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str]
) -> None:
    with pytest.raises(ottla.AbortableTransactionError, match=r"not stored.*too large"):
        with producer.transaction() as txn:
            assert txn.send("out", "x" * 200_000).exception(TIMEOUT) is not None
            txn.commit_offsets("others", {TopicPartition("in", 1): 7})
    with ottla.Admin(broker.bootstrap) as admin:
        assert admin.group_offsets("others") == {}


@pytest.mark.parametrize("how", ["commit", "send", "result", "offsets", "abort"])
def test_a_successor_fences(
    broker: Broker, producer: ottla.Producer[bytes | str, bytes | str], how: str
) -> None:
    with ottla.Producer(broker.bootstrap, transactional_id="mover") as successor:
        with pytest.raises((ottla.ProducerFencedError, ZeroDivisionError)) as caught:
            with producer.transaction() as txn:
                txn.send("out", "lost").result(TIMEOUT)
                successor.init_transactions()
                if how == "send":
                    assert txn.send("out", "lost").exception(TIMEOUT) is not None
                    txn.send("out", "lost")
                elif how == "result":
                    txn.send("out", "lost").result(TIMEOUT)
                elif how == "offsets":
                    txn.commit_offsets("g", {TopicPartition("in", 0): 1})
                elif how == "abort":
                    raise ZeroDivisionError
        if how == "abort":
            assert isinstance(caught.value, ZeroDivisionError)
            assert "ProducerFencedError" in caught.value.__notes__[0]
        else:
            assert "another producer has taken over" in str(caught.value)
        for _ in range(2):
            with pytest.raises(ottla.ProducerFencedError), producer.transaction():
                pass
        with successor.transaction() as txn:
            txn.send("out", "kept")
    assert committed(broker) == ["kept"]


def test_every_record_of_a_fenced_producer_has_an_end(broker: Broker) -> None:
    producer = ottla.Producer(broker.bootstrap, transactional_id="mover", linger=5)
    with ottla.Producer(broker.bootstrap, transactional_id="mover") as successor:
        with pytest.raises(ottla.ProducerFencedError):
            with producer.transaction() as txn:
                first = txn.send("out", "lost")
                producer.flush(TIMEOUT)
                assert first.result(0).offset == 0
                successor.init_transactions()
                futures = [txn.send("out", "lost") for _ in range(10)]
                producer.flush(TIMEOUT)
                assert all(isinstance(future.exception(0), KafkaError) for future in futures)
    assert len(producer) == 0
    producer.close()


@pytest.mark.parametrize("how", ["commit", "send"])
def test_a_transaction_that_lasts_too_long(
    broker: Broker, eventually: Eventually, how: str
) -> None:
    with ottla.Producer(
        broker.bootstrap, transactional_id="slow", transaction_timeout=TIMEOUT
    ) as producer:
        with pytest.raises(ottla.TransactionTimedOutError, match=r"transaction_timeout=60"):
            with producer.transaction() as txn:
                txn.send("out", "lost").result(TIMEOUT)
                # The time passes on both sides, and at once.
                assert producer._transactions is not None
                producer._transactions._clock = lambda: time.monotonic() + 2 * TIMEOUT
                broker.faults.jump_clock(2 * TIMEOUT)
                eventually(lambda: _is_stable(broker))
                if how == "send":
                    assert txn.send("out", "lost").exception(TIMEOUT) is not None
        with pytest.raises(ottla.FatalTransactionError), producer.transaction():
            pass
    with ottla.Producer(broker.bootstrap, transactional_id="slow") as successor:
        with successor.transaction() as txn:
            txn.send("out", "kept")
    assert committed(broker) == ["kept"]


def _is_stable(broker: Broker) -> bool:
    partition = broker._services().replicas.by_name("out", 0)
    return partition.last_stable_offset() == partition.log.log_end_offset


def test_what_the_coordinator_does_not_allow_is_fatal_and_says_what_to_lower(
    broker: Broker,
) -> None:
    with ottla.Producer(
        broker.bootstrap, transactional_id="long", transaction_timeout=2_000
    ) as producer:
        for _ in range(2):
            with pytest.raises(ottla.FatalTransactionError) as refused:
                producer.init_transactions()
            assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
            assert "transaction_timeout=2000 is longer than" in str(refused.value)
            assert "transaction.max.timeout.ms" in str(refused.value)
            assert "make a new one with a lower transaction_timeout" in str(refused.value)


def test_a_commit_that_nobody_answers_is_in_doubt(broker: Broker) -> None:
    producer = ottla.Producer(broker.bootstrap, transactional_id="mover")
    with pytest.raises(ottla.TransactionInDoubtError, match="as a whole or not at all"):
        with producer.transaction() as txn:
            txn.send("out", "lost").result(TIMEOUT)
            broker.stop()
            wait_no_longer(producer)
    with pytest.raises(ottla.TransactionInDoubtError), producer.transaction():
        pass
    broker.start()
    producer.close(0)
    with ottla.Producer(broker.bootstrap, transactional_id="mover") as successor:
        successor.init_transactions()
        assert committed(broker) in ([], ["lost"])


def test_an_abort_that_nobody_answers_is_made_good(broker: Broker) -> None:
    with ottla.Producer(broker.bootstrap, transactional_id="mover") as producer:
        with pytest.raises(ZeroDivisionError):
            with producer.transaction() as txn:
                txn.send("out", "lost").result(TIMEOUT)
                broker.stop()
                wait_no_longer(producer)
                raise ZeroDivisionError
        with pytest.raises(KafkaError, match="could begin within"), producer.transaction():
            pass
        broker.start()
        wait_no_longer(producer, TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                with producer.transaction() as txn:
                    txn.send("out", "kept")
                break
            except ottla.ClientError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
    assert committed(broker) == ["kept"]


def test_without_a_broker_no_transaction_begins() -> None:
    with ottla.Producer("127.0.0.1:1", transactional_id="mover", max_block=0.2) as producer:
        for _ in range(2):
            with pytest.raises(ottla.ClientError, match="could begin within") as caught:
                with producer.transaction():
                    pass
            assert caught.value.retriable


def test_a_program_ends_although_its_transaction_is_open_and_the_broker_gone(
    broker: Broker,
) -> None:
    program = f"""
import sys, ottla
producer = ottla.Producer({broker.bootstrap!r}, transactional_id="mover")
txn = producer.transaction().__enter__()
txn.send("out", "lost").result({TIMEOUT})
print("open", flush=True)
sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        broker.stop()
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0


# -- asyncio -------------------------------------------------------------------------------------


def test_the_same_for_asyncio(broker: Broker) -> None:
    broker.produce("in", "1", "2", "3", partition=0)

    async def main() -> None:
        async with (
            ottla.AsyncProducer(broker.bootstrap, transactional_id="mover") as producer,
            ottla.AsyncConsumer(
                broker.bootstrap,
                value=ottla.STRING,
                group="movers",
                reset="earliest",
                auto_commit=False,
            ) as consumer,
        ):
            await consumer.subscribe("in")
            await producer.init_transactions()
            with pytest.raises(RuntimeError, match=r"txn.send"):
                await producer.send("out", "outside")
            [first] = [record async for record in consumer.records(limit=1)]
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction() as txn:
                    await txn.send("out", first.value)
                    await txn.commit_offsets(consumer)
                    raise ZeroDivisionError
            assert await consumer.rewind() == {TopicPartition("in", 0): 0}
            async with producer.transaction() as txn:
                async for record in consumer.records(limit=2):
                    future = await txn.send("out", record.value)
                await txn.commit_offsets(consumer)
                assert (await future).offset >= 0
            async with producer.transaction() as txn:
                await txn.commit_offsets("others", {TopicPartition("in", 0): 5})
            async with producer.transaction() as txn:
                await txn.send("out", "lost")
                await txn.abort()
            with pytest.raises(ottla.AbortableTransactionError, match="too large"):
                async with producer.transaction() as txn:
                    await txn.send("out", "x" * 200_000)
            async with ottla.AsyncProducer(broker.bootstrap, transactional_id="mover") as successor:
                with pytest.raises(ottla.ProducerFencedError):
                    async with producer.transaction() as txn:
                        await txn.send("out", "lost")
                        await successor.init_transactions()

    asyncio.run(main())
    assert committed(broker) == ["1", "2"]
    assert position(broker) == 2
    assert position(broker, "others") == 5


def test_a_cancelled_task_aborts(broker: Broker) -> None:
    async def main() -> None:
        async with ottla.AsyncProducer(broker.bootstrap, transactional_id="mover") as producer:
            stored = asyncio.Event()

            async def forever() -> None:
                async with producer.transaction() as txn:
                    await (await txn.send("out", "lost"))
                    stored.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(forever())
            await stored.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction() as txn:
                await txn.send("out", "kept")

    asyncio.run(main())
    assert committed(broker) == ["kept"]


def test_a_task_cancelled_while_it_begins_leaves_a_producer_that_works(broker: Broker) -> None:
    async def main() -> None:
        async with ottla.AsyncProducer(broker.bootstrap, transactional_id="mover") as producer:
            for _ in range(3):
                task = asyncio.create_task(producer.transaction().__aenter__())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with producer.transaction() as txn:
                await txn.send("out", "kept")

    asyncio.run(main())
    assert committed(broker) == ["kept"]


def test_a_cancelled_task_that_could_not_begin_leaves_the_open_transaction_alone(
    broker: Broker,
) -> None:
    async def main() -> None:
        async with ottla.AsyncProducer(broker.bootstrap, transactional_id="mover") as producer:

            async def another() -> None:
                async with producer.transaction():
                    pass

            async with producer.transaction() as txn:
                await txn.send("out", "1")
                task = asyncio.create_task(another())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await txn.send("out", "2")

    asyncio.run(main())
    assert committed(broker) == ["1", "2"]
