"""kafka-python 3.0 in groups: commits, positions, subscriptions that grow, its admin client.

How its members share partitions, with each of its strategies, is in `test_all_libraries`. Every
expectation was checked against Apache Kafka 4.2 (with quick-groups.properties).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import MemberToRemove, NewPartitions, NewTopic, OffsetSpec
from kafka.errors import (
    CommitFailedError,
    GroupSubscribedToTopicError,
    NoError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

PARTITIONS = 4
TIMEOUT = 120


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield made
    made.close()


@pytest.fixture
def member(bootstrap: str, group: str) -> Iterator[Callable[..., KafkaConsumer]]:
    made: list[KafkaConsumer] = []

    def join(*topics: str, **settings: Any) -> KafkaConsumer:
        made.append(
            KafkaConsumer(
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
        )
        return made[-1]

    yield join
    for item in made:
        # one that was thrown out learns it at the latest now
        with contextlib.suppress(CommitFailedError):
            item.close()


def read(consumer: KafkaConsumer, until: Callable[[list[str]], bool]) -> list[str]:
    """What arrives, value by value, until enough has."""
    values: list[str] = []
    deadline = time.monotonic() + TIMEOUT
    while not until(values):
        assert time.monotonic() < deadline, (values, consumer.assignment())
        # long enough for a rebalance: it begins anew with every poll
        for records in consumer.poll(timeout_ms=500).values():
            values += [item.value.decode() for item in records]
    return values


def offsets(topic: str, *values: int, note: str = "") -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, note, -1)
        for partition, offset in enumerate(values)
    }


# -- commits and positions -----------------------------------------------------------------------


def test_commits_keep_their_notes_and_the_next_member_goes_on(member, topic, produce):
    sent = produce(topic, 40)
    one = member(topic)
    read(one, lambda values: len(values) == 40)
    one.commit(offsets(topic, 5, 5, 5, 5, note="half way"))
    there = TopicPartition(topic, 2)
    assert one.committed(there, metadata=True) == OffsetAndMetadata(5, "half way", -1)
    told: list[Any] = []
    one.commit_async(
        {there: OffsetAndMetadata(6, "", -1)}, callback=lambda *what: told.append(what)
    )
    read(one, lambda _: bool(told))
    assert one.committed(there) == 6
    one.close()
    two = member(topic)
    rest = read(two, lambda values: len(values) == 19)
    assert sorted(rest) == sorted(set(sent[20:]) - {sent[22]})


def test_a_member_seeks_pauses_and_resumes(member, topic, produce):
    sent = produce(topic, 40)
    item = member(topic)
    read(item, lambda values: len(values) == 40)
    there = TopicPartition(topic, 1)
    item.seek(there, 7)
    assert read(item, lambda values: len(values) == 3) == sent[29::4]
    item.pause(there)
    more = produce(topic, 8)
    others = read(item, lambda values: len(values) == 6)
    assert sorted(others) == sorted(set(more) - {more[1], more[5]})
    item.resume(there)
    assert read(item, lambda values: len(values) == 2) == [more[1], more[5]]


def test_a_member_that_was_thrown_out_commits_no_more(member, topic, produce, admin, group):
    produce(topic, 40)
    item = member(topic)
    read(item, lambda values: len(values) == 40)
    item.commit(offsets(topic, 10, 10, 10, 10))
    (described,) = admin.describe_groups([group])[group]["members"]
    gone = MemberToRemove(member_id=described["member_id"])
    assert list(admin.remove_group_members(group, [gone]).values()) == [NoError]
    with pytest.raises(CommitFailedError):
        item.commit(offsets(topic, 1, 1, 1, 1))
    found = admin.list_group_offsets([group])[group]
    assert {each.offset for each in found.values()} == {10}


# -- subscriptions ---------------------------------------------------------------------------------


def test_a_pattern_finds_topics_that_are_made_later(member, admin, unique, produce):
    prefix = unique("logs")
    names = [f"{prefix}.{item}" for item in ("a", "b")]
    admin.create_topics([NewTopic(names[0], 1, 1)])
    item = member()
    item.subscribe(pattern=f"^{re.escape(prefix)}.*")
    read(item, lambda _: item.assignment() == {TopicPartition(names[0], 0)})
    admin.create_topics([NewTopic(names[1], 1, 1)])
    read(item, lambda _: item.assignment() == {TopicPartition(name, 0) for name in names})
    sent = produce(names[1], 3, partitions=1)
    assert read(item, lambda values: len(values) == 3) == sent


def test_partitions_that_are_added_are_read(member, topic, admin, produce):
    item = member(topic)
    read(item, lambda _: len(item.assignment()) == PARTITIONS)
    admin.create_partitions({topic: NewPartitions(6)})
    read(item, lambda _: item.assignment() == {TopicPartition(topic, p) for p in range(6)})
    sent = produce(topic, 12, partitions=6)
    assert sorted(read(item, lambda values: len(values) == 12)) == sorted(sent)


# -- administration --------------------------------------------------------------------------------


def test_a_group_with_members_is_described_but_not_moved_or_deleted(
    member, topic, produce, admin, group
):
    produce(topic, 40)
    item = member(topic, client_id="somebody")
    read(item, lambda values: len(values) == 40)
    item.commit()
    stable = admin.list_groups(states_filter=["Stable"], types_filter=["classic"])
    assert group in {each["group_id"] for each in stable}
    empty = admin.list_groups(states_filter=["Empty"])
    assert group not in {each["group_id"] for each in empty}
    described = admin.describe_groups([group])[group]
    assert (described["group_state"], described["protocol_type"]) == ("Stable", "consumer")
    (only,) = described["members"]
    assert (only["client_id"], only["client_host"]) == ("somebody", "/127.0.0.1")
    (owned,) = only["member_assignment"]["assigned_partitions"]
    assert (owned["topic"], owned["partitions"]) == (topic, list(range(PARTITIONS)))

    there = TopicPartition(topic, 0)
    assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    assert admin.alter_group_offsets(group, offsets(topic, 1)) == {there: UnknownMemberIdError}
    refused = admin.delete_group_offsets(group, [there])
    assert refused == {there: GroupSubscribedToTopicError}
    ends = item.end_offsets([TopicPartition(topic, p) for p in range(PARTITIONS)])
    committed = admin.list_group_offsets([group])[group]
    assert {p: end - committed[p].offset for p, end in ends.items()} == dict.fromkeys(ends, 0)
    assert item.highwater(there) == 10


def test_a_group_without_members_is_moved_and_deleted(
    member, topic, produce, admin, group, eventually
):
    sent = produce(topic, 40)
    item = member(topic)
    read(item, lambda values: len(values) == 40)
    item.commit()
    item.close()
    there, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.alter_group_offsets(group, offsets(topic, 3)) == {there: NoError}
    again = member(topic)
    assert read(again, lambda values: len(values) == 7) == sent[12::4]
    again.close()
    moved = admin.reset_group_offsets(group, {other: OffsetSpec.EARLIEST})
    assert moved == {other: {"error": NoError, "offset": 0}}
    assert admin.delete_group_offsets(group, [there]) == {there: NoError}
    found = admin.list_group_offsets([group])[group]
    assert {p.partition: each.offset for p, each in found.items()} == {1: 0, 2: 10, 3: 10}
    assert admin.delete_groups([group]) == {group: "OK"}
    assert admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}
    assert admin.describe_groups([group])[group]["group_state"] == "Dead"
    assert admin.list_group_offsets([group]) == {group: {}}
