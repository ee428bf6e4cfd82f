"""aiokafka 0.14 in groups: commits, positions, subscriptions that grow, its admin client.

How its members share partitions, with each of its strategies, is in `test_all_libraries`. Every
expectation was checked against Apache Kafka 4.2 (with quick-groups.properties).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

PARTITIONS = 4
TIMEOUT = 120


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    made = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def produce(bootstrap: str) -> AsyncIterator[Callable[..., Any]]:
    """`await produce(topic, 8)`: that many records, numbered and dealt to the partitions."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    sent = 0

    async def send(topic: str, count: int, partitions: int = PARTITIONS) -> list[str]:
        nonlocal sent
        values = [str(each) for each in range(sent, sent + count)]
        for number, value in enumerate(values):
            await producer.send(topic, value.encode(), partition=number % partitions)
        await producer.flush()
        sent += count
        return values

    yield send
    await producer.stop()


@pytest.fixture
async def member(bootstrap: str, group: str) -> AsyncIterator[Callable[..., Any]]:
    made: list[AIOKafkaConsumer] = []

    async def join(*topics: str, **settings: Any) -> AIOKafkaConsumer:
        each = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=30_000,
            metadata_max_age_ms=300,
            **settings,
        )
        made.append(each)
        await each.start()
        return each

    yield join
    for each in made:
        await each.stop()


async def read(consumer: AIOKafkaConsumer, until: Callable[[list[str]], bool]) -> list[str]:
    """What arrives, value by value, until enough has."""
    values: list[str] = []
    async with asyncio.timeout(TIMEOUT):
        while not until(values):
            for records in (await consumer.getmany(timeout_ms=50)).values():
                values += [each.value.decode() for each in records]
    return values


async def test_commits_keep_their_notes_and_the_next_member_goes_on(member, topic, produce):
    sent = await produce(topic, 40)
    one = await member(topic)
    await read(one, lambda values: len(values) == 40)
    half = {TopicPartition(topic, p): (5, "half way") for p in range(PARTITIONS)}
    await one.commit(half)
    assert await one.committed(TopicPartition(topic, 2)) == 5
    await one.stop()
    two = await member(topic)
    rest = await read(two, lambda values: len(values) == 20)
    assert sorted(rest) == sorted(sent[20:])


async def test_a_member_seeks_pauses_and_resumes(member, topic, produce):
    sent = await produce(topic, 40)
    each = await member(topic)
    await read(each, lambda values: len(values) == 40)
    there = TopicPartition(topic, 1)
    each.seek(there, 7)
    assert await read(each, lambda values: len(values) == 3) == sent[29::4]
    each.pause(there)
    more = await produce(topic, 8)
    others = await read(each, lambda values: len(values) == 6)
    assert sorted(others) == sorted(set(more) - {more[1], more[5]})
    each.resume(there)
    assert await read(each, lambda values: len(values) == 2) == [more[1], more[5]]


async def test_a_member_that_was_thrown_out_commits_no_more(
    member, topic, produce, admin, group, wire
):
    await produce(topic, 40)
    each = await member(topic)
    await read(each, lambda values: len(values) == 40)
    there = TopicPartition(topic, 0)
    await each.commit({there: 10})
    (described,) = (await admin.describe_consumer_groups([group]))[0].groups
    ((member_id, *_),) = described[5]
    left = wire().ask("leave_group", 3, group_id=group, members=[{"member_id": member_id}])
    assert left.error_code == 0
    with pytest.raises(CommitFailedError):
        await each.commit({there: 1})
    assert (await admin.list_consumer_group_offsets(group))[there].offset == 10


async def test_a_pattern_finds_topics_that_are_made_later(member, admin, unique, produce):
    prefix = unique("logs")
    names = [f"{prefix}.{each}" for each in ("a", "b")]
    await admin.create_topics([NewTopic(names[0], 1, 1)])
    each = await member()
    each.subscribe(pattern=f"^{re.escape(prefix)}.*")
    await read(each, lambda _: each.assignment() == {TopicPartition(names[0], 0)})
    await admin.create_topics([NewTopic(names[1], 1, 1)])
    await read(each, lambda _: each.assignment() == {TopicPartition(name, 0) for name in names})
    sent = await produce(names[1], 3, partitions=1)
    assert await read(each, lambda values: len(values) == 3) == sent


async def test_partitions_that_are_added_are_read(member, topic, admin, produce):
    each = await member(topic)
    await read(each, lambda _: len(each.assignment()) == PARTITIONS)
    await admin.create_partitions({topic: NewPartitions(6)})
    await read(each, lambda _: each.assignment() == {TopicPartition(topic, p) for p in range(6)})


async def test_a_group_is_found_listed_and_described(member, topic, produce, admin, group):
    await produce(topic, 40)
    each = await member(topic, client_id="somebody")
    await read(each, lambda values: len(values) == 40)
    await each.commit()
    assert (group, "consumer") in await admin.list_consumer_groups()
    (described,) = (await admin.describe_consumer_groups([group]))[0].groups
    error, name, state, protocol_type, protocol, members, *_ = described
    assert (error, name, state) == (0, group, "Stable")
    assert (protocol_type, protocol) == ("consumer", "roundrobin")
    ((_, client, host, *_),) = members
    assert (client, host) == ("somebody", "/127.0.0.1")
    found = await admin.list_consumer_group_offsets(group)
    ends = await each.end_offsets(list(found))
    assert found == {p: OffsetAndMetadata(10, "") for p in each.assignment()}
    assert {p: end - found[p].offset for p, end in ends.items()} == dict.fromkeys(found, 0)
    assert each.highwater(TopicPartition(topic, 0)) == 10
