"""The door to the group coordinator: which shard a group belongs to, and what is checked before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ottla.cluster.registry import ImageChange
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.coordinator import host as host_module
from ottla.coordinator.group import journal
from ottla.coordinator.group.commands import FetchOffsets, Join, Joined, Sync
from ottla.coordinator.group.group import Client, CommittedOffset, GroupType
from ottla.coordinator.group.service import OFFSETS_TOPIC, Groups
from ottla.coordinator.key_hash import key_hash
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.replication.tenure import Tenure
from ottla.runtime.clock import SystemClock
from ottla.runtime.workers import Workers
from ottla.testing.logs import LogBench

ID = TopicId(b"o" * 16)
STATE = PartitionState(1, 0, 0, (1,), (1,))


@pytest.mark.parametrize(
    ("group_id", "expected"),
    [
        # abs(String.hashCode()), by a Java virtual machine
        ("", 0),
        ("a", 97),
        ("my-group", 1_906_497_762),
        ("console-consumer-12345", 158_455_506),
        ("grüße", 98_768_023),
        ("🦦 otters", 960_129_585),
        ("polygenelubricants", 0),  # the least int: its abs is not an int
    ],
)
def test_a_group_is_hashed_as_java_does(group_id: str, expected: int) -> None:
    assert key_hash(group_id) == expected


@pytest.mark.parametrize("text", ["x", "\uffff", "🦦", "orders-é-🦦-\0"])
@pytest.mark.parametrize("size", [256, 257, 511, 512, 513, 10_000])
def test_a_long_id_is_hashed_as_java_does(text: str, size: int) -> None:
    group_id = (text * size)[:size]
    units = group_id.encode("utf-16-be")
    value = 0
    for position in range(0, len(units), 2):
        value = 31 * value + int.from_bytes(units[position : position + 2], "big")
    value &= 0xFFFFFFFF
    assert key_hash(group_id) == (value if value < 1 << 31 else (1 << 32) - value)


TOPICS = {
    OFFSETS_TOPIC: Topic(OFFSETS_TOPIC, ID, (STATE,)),
    "kept": Topic("kept", TopicId(b"k" * 16), (STATE,)),
    "gone": Topic("gone", TopicId(b"g" * 16), (STATE,)),
}


def image(*names: str) -> ClusterImage:
    topics = {each: TOPICS[each] for each in names}
    return ClusterImage(topics=topics, topic_names={each.id: each.name for each in topics.values()})


class Led:
    """The one partition of the offsets topic."""

    def __init__(self) -> None:
        log = LogBench(TopicConfig()).open()
        self.partition = Partition(TopicPartition(OFFSETS_TOPIC, 0), ID, log, STATE, None)
        self.partition.lead(STATE)

    def by_name(self, topic: str, index: int) -> Partition:
        return self.partition


def service(led: Led, workers: Workers) -> Groups:
    """That of broker 1, where groups have one partition."""
    return Groups(
        1,
        partitions=led,
        clock=SystemClock(),
        workers=workers,
        config=lambda: BrokerConfig(offsets_topic_num_partitions=1),
        new_id=str,
    )


async def test_a_topic_deleted_while_a_shard_is_loaded_leaves_no_offsets_behind() -> None:
    led, workers = Led(), Workers(children=1)
    loads: list[float] = []
    groups = Groups(
        1,
        partitions=led,
        clock=SystemClock(),
        workers=workers,
        config=lambda: BrokerConfig(offsets_topic_num_partitions=1),
        new_id=str,
        on_loaded=loads.append,
    )
    # As an older Kafka wrote them: without the topic's id, so that only its name tells.
    records = [
        journal.offset("g", name, 0, CommittedOffset(5, -1, "", 100)) for name in ("kept", "gone")
    ]
    batch = build_batch([(1, key, value, ()) for key, value in records])
    led.partition.append(memoryview(bytearray(batch)), 1)
    before, after = image(*TOPICS), image(OFFSETS_TOPIC, "kept")
    groups.apply(ImageChange(ClusterImage(), before, frozenset(TOPICS)))
    groups.apply(ImageChange(before, after, frozenset({"gone"})))
    assert (groups.count_partitions(active=False), groups.count_partitions(active=True)) == (1, 0)
    await groups.wait_loaded()
    assert (groups.count_partitions(active=False), groups.count_partitions(active=True)) == (0, 1)
    assert len(loads) == 1
    fetched = groups.run(FetchOffsets("g", None))
    assert [each.topic for each in fetched] == ["kept"]
    [group] = groups.held()
    assert (group.type, group.state_name) == (GroupType.CLASSIC, "Empty")
    await groups.close()
    workers.close()


async def test_what_another_coordinator_let_commit_in_a_new_topic_is_kept() -> None:
    """It all comes in one change: the topic was made anew, groups have read it, and this broker
    coordinates them now."""
    led, workers = Led(), Workers(children=1)
    groups = service(led, workers)
    old, new = TOPICS["gone"], Topic("gone", TopicId(b"n" * 16), (STATE,))
    committed = CommittedOffset(5, -1, "", 100, topic_id=new.id)
    key, value = journal.offset("g", "gone", 0, committed)
    led.partition.append(memoryview(bytearray(build_batch([(1, key, value, ())]))), 1)
    elsewhere = Topic(OFFSETS_TOPIC, ID, (PartitionState(2, 0, 0, (1, 2), (1, 2)),))
    here = Topic(OFFSETS_TOPIC, ID, (PartitionState(1, 1, 0, (1, 2), (1, 2)),))
    before = ClusterImage(
        topics={OFFSETS_TOPIC: elsewhere, "gone": old}, topic_names={old.id: "gone"}
    )
    after = ClusterImage(topics={OFFSETS_TOPIC: here, "gone": new}, topic_names={new.id: "gone"})
    groups.apply(ImageChange(ClusterImage(), before, frozenset(before.topics)))
    groups.apply(ImageChange(before, after, frozenset(after.topics)))
    await groups.wait_loaded()
    assert groups.committed("g", TopicPartition("gone", 0)) == 5
    await groups.close()
    workers.close()


async def test_retention_is_told_where_groups_are_once_they_are_loaded() -> None:
    led, workers = Led(), Workers(children=1)
    groups = service(led, workers)
    records = [
        journal.offset("g", "kept", 0, CommittedOffset(5, -1, "", 100)),
        journal.offset("h", "kept", 1, CommittedOffset(7, -1, "", 100)),
        journal.offset("h", "gone", 0, CommittedOffset(9, -1, "", 100)),
    ]
    batch = build_batch([(1, key, value, ()) for key, value in records])
    led.partition.append(memoryview(bytearray(batch)), 1)
    place = TopicPartition("kept", 0)
    assert groups.committed("g", place) is None  # led by nobody
    groups.apply(ImageChange(ClusterImage(), image(*TOPICS), frozenset(TOPICS)))
    assert groups.committed("g", place) is None  # being loaded
    assert groups.committed_in("kept") == []
    await groups.wait_loaded()
    assert groups.committed("g", place) == 5
    assert groups.committed("h", place) is None
    assert groups.committed("unknown", place) is None
    assert groups.committed_in("kept") == [("g", 0, 5), ("h", 1, 7)]
    await groups.close()
    workers.close()


class Members:
    """Members of one group, whose coordinator may be `in_doubt` about another one."""

    def __init__(self, groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
        self._groups = groups
        self.in_doubt = False
        monkeypatch.setattr(Tenure, "unrivalled", property(lambda _: not self.in_doubt))
        for pause in ("DOUBT_SECONDS", "WATCH_PAUSE"):
            monkeypatch.setattr(host_module, pause, 0.0)

    def join(self, member_id: str = "", **more: Any) -> Any:
        fields: dict[str, Any] = {
            "instance_id": None,
            "client": Client("c", "/127.0.0.1"),
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", b""),),
            "id_required": False,
        }
        return self._groups.join(Join("g", member_id, **{**fields, **more}))

    def sync(self, joined: Joined, assignments: tuple[tuple[str, bytes], ...] = ()) -> Any:
        return self._groups.sync(
            Sync("g", joined.member_id, None, joined.generation, assignments=assignments)
        )


@pytest.fixture
async def members(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Members]:
    led, workers = Led(), Workers(children=1)
    ids = iter("abcdef")
    groups = Groups(
        1,
        partitions=led,
        clock=SystemClock(),
        workers=workers,
        config=lambda: BrokerConfig(
            offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0
        ),
        new_id=lambda: next(ids),
    )
    groups.apply(ImageChange(ClusterImage(), image(*TOPICS), frozenset(TOPICS)))
    await groups.wait_loaded()
    yield Members(groups, monkeypatch)
    await groups.close()
    workers.close()


async def test_nobody_waits_for_an_assignment_of_who_may_have_gone_elsewhere(
    members: Members,
) -> None:
    """It would keep what it has meanwhile, where members are cooperative."""
    waiting = [members.join(), members.join()]
    leader, other = [await each for each in waiting]
    assert leader.leader == leader.member_id
    synced = members.sync(other)
    members.in_doubt = True
    with pytest.raises(KafkaError) as caught:
        async with asyncio.timeout(60):
            await synced
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    members.in_doubt = False
    again = members.sync(other)
    members.sync(leader, ((other.member_id, b"yours"),))
    assert (await again).assignment == b"yours"


async def test_who_comes_back_with_its_instance_id_does_not_wait_for_others_there(
    members: Members,
) -> None:
    """It is the same member the next time, without an id that others would be waiting for."""
    waiting = [members.join(), members.join(instance_id="i")]
    for each in waiting:
        await each
    back = members.join(instance_id="i")
    members.in_doubt = True
    with pytest.raises(KafkaError) as caught:
        async with asyncio.timeout(60):
            await back
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_new_member_is_not_refused_by_who_may_have_been_replaced(members: Members) -> None:
    """Members end by that, who may be welcome where the group is now; others wait here."""
    waiting = members.join()
    await waiting
    members.in_doubt = True
    given = members.join(id_required=True)
    assert given.error is ErrorCode.MEMBER_ID_REQUIRED, "it has an id when it comes again"
    refused = members.join(protocols=(("roundrobin", b""),))
    with pytest.raises(KafkaError) as caught:
        async with asyncio.timeout(60):
            await refused
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    second = members.join()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done
