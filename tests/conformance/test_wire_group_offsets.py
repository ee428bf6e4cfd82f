"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47), seen on the wire."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

NONE, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE = 0, 3, 12
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, INVALID_GROUP_ID = 22, 25, 24
GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_ID = 69, 86, 100
NOTHING = (-1, -1, "", NONE)
NOWHERE = uuid.UUID(int=7)


@pytest.fixture
def commit(wire, group):
    """`commit(topic, {0: 5})`: the error codes by partition."""
    connection = wire()

    def ask(topic, offsets: dict[int, int], *, version: int = 9, note="", epoch=-1, **fields):
        partitions = [
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": epoch,
                "committed_metadata": note,
            }
            for partition, offset in offsets.items()
        ]
        asked = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": topic.name, "topic_id": topic.id, "partitions": partitions}],
        }
        (answer,) = connection.ask("offset_commit", version, **(asked | fields)).topics
        assert (answer.topic_id if version >= 10 else answer.name) in (topic.id, topic.name)
        return {each.partition_index: each.error_code for each in answer.partitions}

    return ask


@pytest.fixture
def committed(wire, group):
    """`committed(topic, [0, 1])`: offset, epoch, note and error by partition."""
    connection = wire()

    def ask(topic, partitions: list[int] | None = None, *, version: int = 9) -> Any:
        name = "topic_id" if version >= 10 else "name"
        key = topic.id if version >= 10 else topic.name
        topics = None
        if partitions is not None:
            topics = [{name: key, "partition_indexes": partitions}]
        if version >= 8:
            asked = {"groups": [{"group_id": group, "topics": topics}]}
            (answer,) = connection.ask("offset_fetch", version, **asked).groups
        else:
            answer = connection.ask("offset_fetch", version, group_id=group, topics=topics)
        assert getattr(answer, "error_code", NONE) == NONE
        return {
            each.partition_index: (
                each.committed_offset,
                getattr(each, "committed_leader_epoch", -1),
                each.metadata,
                each.error_code,
            )
            for found in answer.topics
            if getattr(found, name) == key
            for each in found.partitions
        }

    return ask


@pytest.mark.parametrize("version", range(2, 11))
def test_what_was_committed_is_found_again(version, commit, committed, topic):
    assert commit(topic, {0: 5, 1: 6}, version=version, note="where I was") == {0: NONE, 1: NONE}
    assert committed(topic, [0, 1]) == {
        0: (5, -1, "where I was", NONE),
        1: (6, -1, "where I was", NONE),
    }
    commit(topic, {0: 4}, version=version, epoch=3)
    epoch = 3 if version >= 6 else -1
    assert committed(topic, [0]) == {0: (4, epoch, "", NONE)}


@pytest.mark.parametrize("version", range(1, 11))
def test_what_was_not_committed_is_minus_one(version, commit, committed, topic):
    assert committed(topic, [0, 1], version=version) == {0: NOTHING, 1: NOTHING}
    commit(topic, {1: 9})
    assert committed(topic, [0, 1], version=version) == {0: NOTHING, 1: (9, -1, "", NONE)}


@pytest.mark.parametrize("version", range(2, 11))
def test_null_topics_ask_for_everything(version, commit, committed, new_topic):
    one, two = new_topic(2), new_topic(1)
    assert committed(one, version=version) == {}
    commit(one, {0: 1, 1: 2})
    commit(two, {0: 3})
    assert committed(one, version=version) == {0: (1, -1, "", NONE), 1: (2, -1, "", NONE)}
    assert committed(two, version=version) == {0: (3, -1, "", NONE)}


@pytest.mark.parametrize("version", [8, 9, 10])
def test_many_groups_are_asked_at_once(version, commit, topic, wire, group, unique):
    commit(topic, {0: 5})
    other = unique("group")
    asked = [
        {
            "group_id": name,
            "topics": [
                {"name": topic.name, "topic_id": topic.id, "partition_indexes": [0]},
            ],
        }
        for name in (other, group)
    ]
    answer = wire().ask("offset_fetch", version, groups=asked, require_stable=True)
    found = {
        each.group_id: each.topics[0].partitions[0].committed_offset
        for each in answer.groups
        if each.error_code == NONE
    }
    assert found == {other: -1, group: 5}


def test_a_null_note_is_an_empty_one(commit, committed, topic):
    assert commit(topic, {0: 5}, note=None) == {0: NONE}
    assert committed(topic, [0]) == {0: (5, -1, "", NONE)}


def test_a_note_may_have_4096_characters(commit, committed, topic):
    assert commit(topic, {0: 5}, note="x" * 4096) == {0: NONE}
    assert commit(topic, {0: 6}, note="x" * 4097) == {0: OFFSET_METADATA_TOO_LARGE}
    assert committed(topic, [0])[0][0] == 5


def test_partitions_that_do_not_exist_fail_alone(commit, committed, topic):
    assert commit(topic, {0: 5, 2: 5, -1: 5}) == {
        0: NONE,
        2: UNKNOWN_TOPIC_OR_PARTITION,
        -1: UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert committed(topic, [0, 2]) == {0: (5, -1, "", NONE), 2: NOTHING}


def test_topics_that_do_not_exist(wire, group):
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    fields = {"group_id": group, "generation_id_or_member_epoch": -1}
    connection = wire()
    (by_name,) = connection.ask(
        "offset_commit", 9, **fields, topics=[{"name": "nowhere", "partitions": partitions}]
    ).topics
    assert by_name.partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    (by_id,) = connection.ask(
        "offset_commit", 10, **fields, topics=[{"topic_id": NOWHERE, "partitions": partitions}]
    ).topics
    assert (by_id.topic_id, by_id.partitions[0].error_code) == (NOWHERE, UNKNOWN_TOPIC_ID)
    asked = [{"group_id": group, "topics": [{"topic_id": NOWHERE, "partition_indexes": [3]}]}]
    (fetched,) = connection.ask("offset_fetch", 10, groups=asked).groups
    (each,) = fetched.topics[0].partitions
    assert (fetched.error_code, fetched.topics[0].topic_id) == (NONE, NOWHERE)
    assert (each.partition_index, each.error_code, each.committed_offset) == (
        3,
        UNKNOWN_TOPIC_ID,
        -1,
    )


@pytest.mark.parametrize(
    ("fields", "version", "code"),
    [
        ({"generation_id_or_member_epoch": 3}, 8, ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 3}, 9, GROUP_ID_NOT_FOUND),
        ({"generation_id_or_member_epoch": 3}, 10, GROUP_ID_NOT_FOUND),
        ({"member_id": "somebody"}, 9, NONE),
    ],
)
def test_who_may_commit_to_a_group_that_does_not_exist(fields, version, code, commit, topic):
    assert commit(topic, {0: 5}, version=version, **fields) == {0: code}


def test_the_empty_group_keeps_offsets_too(commit, topic, wire):
    assert commit(topic, {0: 5}, group_id="") == {0: NONE}
    asked = [{"group_id": "", "topics": [{"name": topic.name, "partition_indexes": [0]}]}]
    (found,) = wire().ask("offset_fetch", 9, groups=asked).groups
    assert found.topics[0].partitions[0].committed_offset == 5


def test_a_group_that_only_keeps_offsets_is_listed_as_empty(commit, topic, wire, group):
    commit(topic, {0: 5})
    listed = {each.group_id: each for each in wire().ask("list_groups", 5).groups}[group]
    assert (listed.protocol_type, listed.group_state, listed.group_type) == ("", "Empty", "classic")
    (described,) = wire().ask("describe_groups", 6, groups=[group]).groups
    assert (described.error_code, described.group_state) == (NONE, "Empty")


# -- with members ------------------------------------------------------------------------------


class Member:
    """The only member of a group, once it has joined and synced."""

    def __init__(self, connection: Any, group: str, topics: list[str], kind: str) -> None:
        names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
        metadata = struct.pack(">hi", 0, len(topics)) + names + b"\xff\xff\xff\xff"
        self.connection = connection
        self.group = group
        self.fields = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": kind,
            "protocols": [{"name": "p", "metadata": metadata}],
        }
        self.id = connection.ask("join_group", 9, **self.fields).member_id

    def join(self) -> None:
        answer = self.connection.ask("join_group", 9, **self.fields, member_id=self.id)
        assert answer.error_code == NONE
        self.generation = answer.generation_id

    def sync(self) -> None:
        answer = self.connection.ask(
            "sync_group",
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type=self.fields["protocol_type"],
            protocol_name="p",
            assignments=[{"member_id": self.id, "assignment": b""}],
        )
        assert answer.error_code == NONE


@pytest.fixture
def member(wire, group):
    def make(*topics: str, kind: str = "consumer") -> Member:
        each = Member(wire(), group, list(topics), kind)
        each.join()
        return each

    return make


def test_only_members_of_the_generation_may_commit(commit, topic, member):
    one = member(topic.name)
    epoch = {"generation_id_or_member_epoch": one.generation}
    assert commit(topic, {0: 1}, member_id=one.id, **epoch) == {0: 27}  # not synced yet
    one.sync()
    assert commit(topic, {0: 1}, member_id=one.id, **epoch) == {0: NONE}
    assert commit(topic, {0: 2}) == {0: UNKNOWN_MEMBER_ID}
    assert commit(topic, {0: 2}, member_id="other", **epoch) == {0: UNKNOWN_MEMBER_ID}
    old = {"generation_id_or_member_epoch": one.generation - 1}
    assert commit(topic, {0: 2}, member_id=one.id, **old) == {0: ILLEGAL_GENERATION}
    static = {"group_instance_id": "unknown"}
    assert commit(topic, {0: 2}, member_id=one.id, **static, **epoch) == {0: UNKNOWN_MEMBER_ID}


def test_offsets_of_subscribed_topics_cannot_be_deleted(commit, committed, new_topic, member, wire):
    read, other = new_topic(1), new_topic(2)
    commit(read, {0: 1})
    commit(other, {0: 2, 1: 3})
    one = member(read.name)
    one.sync()

    def delete(*places: tuple[str, int]) -> Any:
        topics = [
            {"name": name, "partitions": [{"partition_index": index}]} for name, index in places
        ]
        answer = wire().ask("offset_delete", 0, group_id=one.group, topics=topics)
        return answer.error_code, {
            (each.name, partition.partition_index): partition.error_code
            for each in answer.topics
            for partition in each.partitions
        }

    assert delete((read.name, 0)) == (NONE, {(read.name, 0): GROUP_SUBSCRIBED_TO_TOPIC})
    assert delete((other.name, 0)) == (NONE, {(other.name, 0): NONE})
    assert delete(("nowhere", 0)) == (NONE, {("nowhere", 0): UNKNOWN_TOPIC_OR_PARTITION})
    assert committed(other, [0, 1]) == {0: NOTHING, 1: (3, -1, "", NONE)}
    assert committed(read, [0]) == {0: (1, -1, "", NONE)}


def test_offsets_of_unknown_groups_cannot_be_deleted(wire, group):
    def delete(name: str) -> int:
        return wire().ask("offset_delete", 0, group_id=name, topics=[]).error_code

    assert delete(group) == GROUP_ID_NOT_FOUND
    assert delete("") == INVALID_GROUP_ID


def test_a_group_of_others_than_consumers_is_left_alone(commit, topic, member, wire):
    commit(topic, {0: 1})
    one = member(kind="connect")
    one.sync()
    answer = wire().ask(
        "offset_delete",
        0,
        group_id=one.group,
        topics=[{"name": topic.name, "partitions": [{"partition_index": 0}]}],
    )
    assert (answer.error_code, answer.topics) == (68, ())


# -- what ends an offset -----------------------------------------------------------------------


def test_a_deleted_topic_takes_its_offsets_along(commit, committed, new_topic, wire, eventually):
    gone, stays = new_topic(1), new_topic(1)
    commit(gone, {0: 5})
    commit(stays, {0: 6})
    wire().ask(
        "delete_topics", 6, topics=[{"name": gone.name, "topic_id": uuid.UUID(int=0)}], timeout=5000
    )
    eventually(lambda: committed(gone, [0]) == {0: NOTHING})
    assert committed(stays, [0]) == {0: (6, -1, "", NONE)}


def test_a_deleted_group_has_committed_nothing(commit, committed, topic, wire, group):
    commit(topic, {0: 5})
    (deleted,) = wire().ask("delete_groups", 2, groups_names=[group]).results
    assert deleted.error_code == NONE
    assert committed(topic, [0]) == {0: NOTHING}
