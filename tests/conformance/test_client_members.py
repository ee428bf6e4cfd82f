"""`ottla.Consumer` as a member of groups, in each of their protocols."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

MakeTopic = Callable[..., str]
LONG = 120.0

EAGER: dict[str, Any] = {}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER = {"group.protocol": "consumer"}

in_each_protocol = pytest.mark.parametrize(
    "protocol", [EAGER, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "consumer"]
)


@pytest.fixture
def bootstrap(bootstrap_quick_groups: str) -> str:
    return bootstrap_quick_groups


@pytest.fixture
def make_topic(bootstrap: str, unique: Any, eventually: Any) -> MakeTopic:
    """`make_topic(2, 600)`: a topic with so many records "0", "1", … in each partition."""

    def make(partitions: int = 1, records: int = 0) -> str:
        name: str = unique()
        with ottla.Admin(bootstrap) as admin:
            admin.create_topic(name, partitions=partitions, replication=1)
            wanted: Any = {TopicPartition(name, number): "latest" for number in range(partitions)}

            def ready() -> bool:
                try:
                    return len(admin.list_offsets(wanted)) == partitions
                except KafkaError:
                    return False

            eventually(ready)
        with ottla.Producer(bootstrap) as producer:
            for partition in range(partitions):
                for number in range(records):
                    producer.post(name, str(number), partition=partition)
        return name

    return make


@in_each_protocol
def test_a_member_that_subscribes_again_reads_every_record_once(
    bootstrap: str, make_topic: MakeTopic, unique: Any, protocol: dict[str, Any]
) -> None:
    topic, other = make_topic(records=1_500), make_topic(records=3)
    options: Any = {"group": unique(), "reset": "earliest", "config": protocol}
    with ottla.Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        seen = [(record.topic, record.offset) for record in consumer.records(limit=7)]
        consumer.subscribe([topic, other])
        seen += [(record.topic, record.offset) for record in consumer.records(limit=1_496)]
    assert sorted(seen) == sorted(
        [(topic, number) for number in range(1_500)] + [(other, number) for number in range(3)]
    )


@in_each_protocol
def test_a_member_that_subscribes_to_the_same_again_has_joined(
    bootstrap: str, make_topic: MakeTopic, unique: Any, protocol: dict[str, Any]
) -> None:
    topic = make_topic(records=3)
    options: Any = {"group": unique(), "reset": "earliest", "config": protocol}
    with ottla.Consumer(bootstrap, **options) as consumer:
        for expected in (3, 0):
            consumer.subscribe(topic)
            assert len(list(consumer.records(idle=1.0))) == expected


def test_who_was_assigned_partitions_can_subscribe(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic = make_topic(records=1_500)
    with ottla.Consumer(bootstrap, group=unique(), reset="earliest") as consumer:
        consumer.assign(topic, 100)
        next(consumer.records())
        consumer.subscribe(topic)
        given = [record.offset for record in consumer.records(limit=1_500)]
        assert given == list(range(1_500))


@in_each_protocol
def test_a_slow_reader_gives_up_a_partition_before_it_has_read_all_that_waits(
    bootstrap: str,
    make_topic: MakeTopic,
    unique: Any,
    eventually: Any,
    protocol: dict[str, Any],
) -> None:
    topic = make_topic(2, records=1_000)
    options: Any = {"group": unique(), "reset": "earliest", "config": protocol}
    seen: list[Any] = []
    with (
        ottla.Consumer(bootstrap, **options) as slow,
        ottla.Consumer(bootstrap, **options) as other,
    ):
        slow.subscribe(topic)
        seen += slow.records(limit=1)
        other.subscribe(topic)

        def share() -> bool:
            seen.append(slow.poll(0.05))
            seen.append(other.poll(0.05))
            return len(slow.assignment()) == 1 == len(other.assignment())

        eventually(share)
        given = [(record.partition, record.offset) for record in seen if record is not None]
        assert len(given) < 400
        assert len(set(given)) == len(given), "nothing is read twice"


async def test_a_coroutine_commits_what_was_processed_when_the_consumer_is_closed(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(records=3), unique()
    async with ottla.AsyncConsumer(
        bootstrap, group=group, reset="earliest", auto_commit=False
    ) as consumer:

        async def give_up(_gone: Any) -> None:
            await consumer.commit()

        await consumer.subscribe(topic, on_revoke=give_up)
        assert len([record async for record in consumer.records(until_end=True)]) == 3
    with ottla.Consumer(bootstrap, group=group) as later:
        assert later.committed((topic, 0)) == {TopicPartition(topic, 0): 3}


@in_each_protocol
def test_a_partition_without_a_place_to_begin_is_an_error_until_there_is_one(
    bootstrap: str, make_topic: MakeTopic, unique: Any, protocol: dict[str, Any]
) -> None:
    topic, group = make_topic(2, records=700), unique()
    with ottla.Consumer(bootstrap, group=group) as before:
        before.commit({TopicPartition(topic, 0): 100})
    given: list[tuple[int, int]] = []
    with ottla.Consumer(bootstrap, group=group, reset="error", config=protocol) as consumer:
        consumer.subscribe(topic)

        def stopped() -> None:
            with pytest.raises(KafkaError, match=rf"{topic}-1: .* read until seek\(") as caught:
                given.extend((each.partition, each.offset) for each in consumer)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

        stopped()
        stopped()
        assert consumer.seek((topic, 1), 600) == 600
        rest = consumer.records(limit=700 - len(given))
        given.extend((each.partition, each.offset) for each in rest)
    assert sorted(given) == [
        *((0, offset) for offset in range(100, 700)),
        *((1, offset) for offset in range(600, 700)),
    ]


def test_who_is_outside_of_the_log_is_told_until_he_goes_elsewhere(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(records=5)
    with ottla.Consumer(bootstrap, reset="error") as consumer:
        consumer.assign(topic, 1_000)
        for _ in range(2):
            with pytest.raises(KafkaError, match="read until seek"):
                consumer.poll(30)
        consumer.seek((topic, 0), "earliest")
        assert [record.offset for record in consumer.records(until_end=True)] == [0, 1, 2, 3, 4]


@in_each_protocol
def test_a_partition_that_was_paused_and_given_up_is_read_when_it_is_back(
    bootstrap: str,
    make_topic: MakeTopic,
    unique: Any,
    eventually: Any,
    protocol: dict[str, Any],
) -> None:
    topic = make_topic(records=3)
    options: Any = {"group": unique(), "reset": "earliest", "config": protocol}
    with ottla.Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        assert len(list(consumer.records(limit=1))) == 1
        consumer.pause((topic, 0))
        assert consumer.poll(0.2) is None
        consumer.unsubscribe()
        eventually(lambda: consumer.poll(0.05) is None and not consumer.assignment())
        consumer.subscribe(topic)
        assert [record.offset for record in consumer.records(limit=2)] == [1, 2]


def test_a_partition_that_was_paused_and_is_assigned_anew_is_read(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(2, records=3)
    with ottla.Consumer(bootstrap) as consumer:
        consumer.assign(topic, "earliest")
        consumer.pause((topic, 0))
        assert len(list(consumer.records(limit=3))) == 3
        consumer.assign(topic, "earliest")
        assert len(list(consumer.records(limit=6))) == 6
        consumer.pause((topic, 1))
        consumer.incremental_unassign([(topic, 1)])
        consumer.incremental_assign([(topic, 1)], "earliest")
        assert len(list(consumer.records(limit=3))) == 3


@in_each_protocol
def test_a_commit_in_on_revoke_is_of_what_was_processed_also_when_a_member_leaves(
    bootstrap: str, make_topic: MakeTopic, unique: Any, protocol: dict[str, Any]
) -> None:
    topic = make_topic(records=9)
    options: Any = {"group": unique(), "reset": "earliest", "auto_commit": False}
    with ottla.Consumer(bootstrap, config=protocol, **options) as consumer:
        told: list[Any] = []

        def give_up(gone: Any) -> None:
            consumer.commit()
            told.append(gone)

        consumer.subscribe(topic, on_revoke=give_up)
        assert len(list(consumer.records(limit=4))) == 4
        consumer.unsubscribe()
        assert told == [((topic, 0),)]
        assert consumer.committed((topic, 0)) == {TopicPartition(topic, 0): 4}
        consumer.subscribe(topic)
        assert next(consumer.records()).offset == 4


@pytest.mark.parametrize("auto_commit", [True, False], ids=["by itself", "by hand"])
def test_who_closes_while_the_group_takes_its_partitions_commits_what_was_processed(
    bootstrap: str, make_topic: MakeTopic, unique: Any, auto_commit: bool
) -> None:
    topic, other, group = make_topic(records=9), make_topic(), unique()
    consumer = ottla.Consumer(bootstrap, group=group, reset="earliest", auto_commit=auto_commit)

    def give_up(_gone: Any) -> None:
        if not auto_commit:
            consumer.commit()

    consumer.subscribe(topic, on_revoke=give_up)
    assert len(list(consumer.records(limit=4))) == 4
    # For this the eager protocol takes all partitions away as soon as librdkafka has a turn.
    consumer.subscribe([topic, other], on_revoke=give_up)
    consumer.close()
    with ottla.Admin(bootstrap) as admin:
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 4
        assert admin.describe_group(group).members == ()


def comes_back(call: Callable[[], Any]) -> bool:
    """Whether a call ends: one that waits inside librdkafka cannot be interrupted."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


@in_each_protocol
@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_on_revoke_may_close_a_consumer_that_gives_up_its_partitions(
    bootstrap: str, make_topic: MakeTopic, unique: Any, protocol: dict[str, Any], how: str
) -> None:
    topic, group = make_topic(records=9), unique()
    consumer = ottla.Consumer(bootstrap, group=group, reset="earliest", config=protocol)
    consumer.subscribe(topic, on_revoke=lambda _gone: consumer.close())
    assert len(list(consumer.records(limit=4))) == 4
    assert comes_back(getattr(consumer, how))
    with pytest.raises(RuntimeError, match="the consumer is closed"):
        consumer.poll()
    with ottla.Admin(bootstrap) as admin:
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 4
        assert admin.describe_group(group).members == ()


def test_who_closes_in_on_revoke_commits_what_was_processed_and_nothing_else(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, other, group = make_topic(records=9), make_topic(), unique()
    consumer = ottla.Consumer(bootstrap, group=group, reset="earliest")
    consumer.subscribe(topic, on_revoke=lambda _gone: consumer.close())
    taken = list(consumer.records(limit=4))
    # For this the eager protocol takes all partitions away as soon as librdkafka has a turn.
    consumer.subscribe([topic, other], on_revoke=lambda _gone: consumer.close())

    def go_on() -> None:
        while True:
            taken.extend(consumer.take(2, 0.1))

    def go_on_until_closed() -> None:
        with pytest.raises(RuntimeError, match="the consumer is closed"):
            go_on()

    assert comes_back(go_on_until_closed)
    with ottla.Admin(bootstrap) as admin:
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == len(taken)
        assert admin.describe_group(group).members == ()


def test_a_coroutine_may_close_the_consumer_that_is_being_closed(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(records=3), unique()
    read: list[int] = []

    async def work() -> None:
        consumer = ottla.AsyncConsumer(bootstrap, group=group, reset="earliest")

        async def give_up(_gone: Any) -> None:
            await consumer.close()

        await consumer.subscribe(topic, on_revoke=give_up)
        read.extend([record.offset async for record in consumer.records(limit=3)])
        await consumer.close()

    assert comes_back(lambda: asyncio.run(work()))
    assert read == [0, 1, 2]


def test_an_error_in_on_revoke_does_not_keep_a_consumer_from_being_closed(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(records=3), unique()
    consumer = ottla.Consumer(bootstrap, group=group, reset="earliest")

    def give_up(_gone: Any) -> None:
        raise RuntimeError("no")

    consumer.subscribe(topic, on_revoke=give_up)
    assert len(list(consumer.records(limit=3))) == 3
    with pytest.raises(RuntimeError, match="no"):
        consumer.close()
    with pytest.raises(RuntimeError, match="the consumer is closed"):
        consumer.poll()
    with ottla.Admin(bootstrap) as admin:
        assert admin.describe_group(group).members == ()


def test_a_static_member_that_is_closed_stays_in_its_group(
    bootstrap: str, make_topic: MakeTopic, unique: Any
) -> None:
    topic, group = make_topic(records=3), unique()
    config = {"group.instance.id": "one"}
    with ottla.Consumer(bootstrap, group=group, reset="earliest", config=config) as consumer:
        consumer.subscribe(topic)
        assert len(list(consumer.records(limit=3))) == 3
    with ottla.Admin(bootstrap) as admin:
        [member] = admin.describe_group(group).members
        assert (member.instance, member.assignment) == ("one", ((topic, 0),))
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 3
