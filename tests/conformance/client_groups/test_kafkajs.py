"""kafkajs 2.2 in groups: the classic protocol with its one strategy, round robin.

kafkajs has no static members, and finds the topics of a pattern only once. It does everything
else that `test_confluent_kafka` tells of. Every expectation was checked against Apache Kafka 4.2
(with quick-groups.properties).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PARTITIONS = 4
TIMEOUT = 120


@pytest.fixture
def produce(kafkajs: Any) -> Callable[..., list[str]]:
    """`produce(topic, 8)`: that many records, numbered and dealt to the partitions in turn."""
    sent = 0

    def send(topic: str, count: int, partitions: int = PARTITIONS) -> list[str]:
        nonlocal sent
        values = [str(each) for each in range(sent, sent + count)]
        messages = [
            {"value": base64.b64encode(value.encode()).decode(), "partition": number % partitions}
            for number, value in enumerate(values)
        ]
        kafkajs.produce(topic, *messages)
        sent += count
        return values

    return send


class Member:
    """A consumer in a Node process, which reads by itself."""

    def __init__(self, node: Any, name: str, group: str, run: dict[str, Any], **which: Any) -> None:
        self.node = node
        self.name = name
        consumer = {
            "groupId": group,
            "sessionTimeout": 30_000,
            "heartbeatInterval": 200,
            "metadataMaxAge": 300,
            "maxWaitTimeInMs": 100,
            **which.pop("consumer", {}),
        }
        node.call(call="join", member=name, consumer=consumer, run=run, **which)

    def look(self) -> Any:
        seen = self.node.call(call="look", member=self.name)
        assert seen["crash"] is None, seen["crash"]
        return seen

    @property
    def values(self) -> list[str]:
        return list(self.look()["values"])

    @property
    def owned(self) -> set[tuple[str, int]]:
        return {(topic, p) for topic, owned in self.look()["owned"].items() for p in owned}

    def call(self, method: str, *arguments: Any) -> Any:
        return self.node.call(
            call="member", member=self.name, method=method, arguments=list(arguments)
        )


@pytest.fixture
def member(kafkajs: Any, group: str, unique: Any) -> Iterator[Callable[..., Member]]:
    """`member(topic)`: one more in this test's group; commits at once whatever it reads."""
    made: list[Member] = []

    def join(*topics: str, node: Any = kafkajs, commits: bool = True, **more: Any) -> Member:
        run = (
            {"autoCommit": commits, "autoCommitThreshold": 1} if commits else {"autoCommit": False}
        )
        which = {"topics": list(topics)} if topics else {}
        made.append(Member(node, unique("member"), group, run, **which, **more))
        return made[-1]

    yield join
    for each in made:
        if each.node is kafkajs:
            each.call("disconnect")


def everything(topic: str, partitions: int = PARTITIONS) -> set[tuple[str, int]]:
    return {(topic, each) for each in range(partitions)}


def shared(*members: Member, topic: str) -> bool:
    owned = [each.owned for each in members]
    return (
        sorted(set().union(*owned)) == sorted(everything(topic))
        and all(owned)
        and (sum(map(len, owned)) == PARTITIONS)
    )


def committed(kafkajs: Any, group: str, topic: str) -> dict[int, tuple[int, str | None]]:
    (found,) = kafkajs.admin("fetchOffsets", {"groupId": group, "topics": [topic]})
    return {
        each["partition"]: (int(each["offset"]), each["metadata"]) for each in found["partitions"]
    }


def state_of(kafkajs: Any, group: str) -> str:
    (found,) = kafkajs.call(call="admin", method="describeGroups", arguments=[group])["groups"]
    return str(found["state"])


# -- members come and go -----------------------------------------------------------------------


def test_members_share_a_topic_and_go_on_for_one_another(member, topic, produce, eventually):
    sent = produce(topic, 40)
    one = member(topic)
    eventually(lambda: len(one.values) == 40, timeout=TIMEOUT)
    two = member(topic)
    eventually(lambda: shared(one, two, topic=topic), timeout=TIMEOUT)
    sent += produce(topic, 40)
    eventually(lambda: len(one.values) + len(two.values) >= 80, timeout=TIMEOUT)
    assert two.values
    one.call("stop")
    before = one.values
    sent += produce(topic, 40)
    eventually(lambda: len(before) + len(two.values) >= 120, timeout=TIMEOUT)
    assert two.owned == everything(topic)
    assert sorted(before + two.values) == sorted(sent)


def test_a_crashed_member_is_replaced_from_the_committed_offset(
    member, topic, produce, eventually, start_kafkajs, bootstrap
):
    sent = produce(topic, 40)
    node = start_kafkajs(bootstrap)
    doomed = member(topic, node=node, commits=False, consumer={"sessionTimeout": 6_000})
    eventually(lambda: len(doomed.values) == 40, timeout=TIMEOUT)
    offsets = [{"topic": topic, "partition": each, "offset": "3"} for each in range(PARTITIONS)]
    doomed.call("commitOffsets", offsets)
    node.process.kill()
    heir = member(topic)
    eventually(lambda: len(heir.values) == 28, timeout=TIMEOUT)
    assert sorted(heir.values) == sorted(sent[12:])


def test_a_pattern_finds_its_topics(member, new_topic, produce, eventually):
    first, other = new_topic(1), new_topic(1)
    sent = produce(first.name, 4, partitions=1)
    produce(other.name, 4, partitions=1)
    each = member(pattern=f"^{first.name[:-1]}.$")
    eventually(lambda: each.values == sent, timeout=TIMEOUT)
    assert each.owned == {(first.name, 0)}


def test_partitions_that_are_added_find_an_owner(kafkajs, member, topic, eventually):
    one, two = member(topic), member(topic)
    eventually(lambda: shared(one, two, topic=topic), timeout=TIMEOUT)
    kafkajs.admin("createPartitions", {"topicPartitions": [{"topic": topic, "count": 6}]})
    eventually(lambda: one.owned | two.owned == everything(topic, 6), timeout=TIMEOUT)
    assert not one.owned & two.owned


# -- positions and commits ---------------------------------------------------------------------


def test_a_member_seeks_pauses_and_resumes(member, topic, produce, eventually):
    sent = produce(topic, 40)
    each = member(topic)
    eventually(lambda: len(each.values) == 40, timeout=TIMEOUT)
    each.call("seek", {"topic": topic, "partition": 1, "offset": "7"})
    eventually(lambda: len(each.values) == 43, timeout=TIMEOUT)
    assert each.values[40:] == sent[29::4]
    each.call("pause", [{"topic": topic, "partitions": [1]}])
    more = produce(topic, 8)
    eventually(lambda: len(each.values) == 49, timeout=TIMEOUT)
    assert sorted(each.values[43:]) == sorted(set(more) - {more[1], more[5]})
    each.call("resume", [{"topic": topic, "partitions": [1]}])
    eventually(lambda: len(each.values) == 51, timeout=TIMEOUT)
    assert each.values[49:] == [more[1], more[5]]


def test_commits_keep_their_notes(kafkajs, member, topic, group, produce, eventually):
    produce(topic, 40)
    each = member(topic, commits=False)
    eventually(lambda: len(each.values) == 40, timeout=TIMEOUT)
    offsets = [
        {"topic": topic, "partition": p, "offset": str(p), "metadata": f"note {p}"}
        for p in range(3)
    ]
    each.call("commitOffsets", offsets)
    assert committed(kafkajs, group, topic) == {
        **{p: (p, f"note {p}") for p in range(3)},
        3: (-1, None),
    }
    missing = [{"topic": topic, "partition": PARTITIONS, "offset": "1"}]
    with pytest.raises(kafkajs.Error) as caught:
        each.call("commitOffsets", missing)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in caught.value.types


def test_lag_is_what_was_written_less_what_was_committed(
    kafkajs, member, topic, group, produce, eventually
):
    produce(topic, 40)
    each = member(topic, commits=False)
    eventually(lambda: len(each.values) == 40, timeout=TIMEOUT)
    each.call(
        "commitOffsets",
        [{"topic": topic, "partition": p, "offset": str(p)} for p in range(PARTITIONS)],
    )
    ends = kafkajs.call(call="admin", method="fetchTopicOffsets", arguments=topic)
    done = committed(kafkajs, group, topic)
    lag = {each["partition"]: int(each["high"]) - done[each["partition"]][0] for each in ends}
    assert lag == {0: 10, 1: 9, 2: 8, 3: 7}


# -- administration ----------------------------------------------------------------------------


def test_a_group_is_listed_described_moved_and_deleted(
    kafkajs, member, topic, group, produce, eventually
):
    sent = produce(topic, 40)
    each = member(topic)
    eventually(lambda: len(each.values) == 40, timeout=TIMEOUT)
    assert {"groupId": group, "protocolType": "consumer"} in kafkajs.admin("listGroups")["groups"]
    (found,) = kafkajs.call(call="admin", method="describeGroups", arguments=[group])["groups"]
    assert (found["state"], found["protocol"]) == ("Stable", "RoundRobinAssigner")
    (only,) = found["members"]
    assert (only["clientId"], only["clientHost"]) == ("kafkajs-conformance", "/127.0.0.1")
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.call(call="admin", method="deleteGroups", arguments=[group])
    assert "NON_EMPTY_GROUP" in caught.value.types

    each.call("stop")
    eventually(lambda: state_of(kafkajs, group) == "Empty", timeout=TIMEOUT)
    assert committed(kafkajs, group, topic) == dict.fromkeys(range(PARTITIONS), (10, None))
    moved = [{"partition": 0, "offset": "3"}]
    kafkajs.admin("setOffsets", {"groupId": group, "topic": topic, "partitions": moved})
    again = member(topic)
    eventually(lambda: len(again.values) == 7, timeout=TIMEOUT)
    assert again.values == sent[12::4]
    again.call("stop")
    eventually(lambda: state_of(kafkajs, group) == "Empty", timeout=TIMEOUT)
    kafkajs.call(call="admin", method="deleteGroups", arguments=[group])
    assert state_of(kafkajs, group) == "Dead"
    with pytest.raises(kafkajs.Error) as caught:
        kafkajs.call(call="admin", method="deleteGroups", arguments=[group])
    assert "GROUP_ID_NOT_FOUND" in caught.value.types
