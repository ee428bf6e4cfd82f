"""Groups of the consumer protocol (KIP-848): 68 and 69 spoken by hand, and librdkafka in use.

The broker has short intervals: quick-groups.properties, which Apache Kafka's must be given
as well when it is the one tested. Every expectation was checked against Apache Kafka 4.2.
"""

from __future__ import annotations

import struct
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, UNSUPPORTED_VERSION = 0, 25, 27, 35
INVALID_REQUEST, GROUP_ID_NOT_FOUND, FENCED_INSTANCE_ID, INVALID_GROUP_ID = 42, 69, 82, 24
FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, UNSUPPORTED_ASSIGNOR = 110, 111, 112
STALE_MEMBER_EPOCH, INVALID_REGULAR_EXPRESSION, MEMBER_ID_REQUIRED = 113, 128, 79

Owned = dict[uuid.UUID, frozenset[int]]


@pytest.fixture(scope="module")
def bootstrap(bootstrap_quick_groups: str) -> str:
    return bootstrap_quick_groups


def heartbeat(connection: Any, group: str, member: str, epoch: int, **fields: Any) -> Any:
    version = fields.pop("version", 1)
    return connection.ask(
        "consumer_group_heartbeat",
        version,
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        **fields,
    )


class Member:
    """One member with a connection of its own, which does as it is told when it is told to."""

    def __init__(self, connection: Any, group: str, **subscription: Any) -> None:
        self.connection = connection
        self.group = group
        self.instance = subscription.pop("instance_id", None)
        self.subscription = subscription
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: Owned = {}

    def join(self, **fields: Any) -> Any:
        self.owned = {}
        asked = {"rebalance_timeout": 30_000, "topic_partitions": []}
        return self.take(self.send(0, **(asked | self.subscription | fields)))

    def beat(self, **fields: Any) -> Any:
        owned = [{"topic_id": t, "partitions": sorted(p)} for t, p in self.owned.items()]
        return self.take(self.send(self.epoch, **({"topic_partitions": owned} | fields)))

    def send(self, epoch: int, **fields: Any) -> Any:
        return heartbeat(
            self.connection, self.group, self.id, epoch, instance_id=self.instance, **fields
        )

    def take(self, answer: Any) -> Any:
        if answer.error_code == NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = assignment(answer)
        return answer

    @property
    def size(self) -> int:
        return sum(map(len, self.owned.values()))


def assignment(answer: Any) -> Owned:
    return {
        each.topic_id: frozenset(each.partitions) for each in answer.assignment.topic_partitions
    }


@pytest.fixture
def member(wire, group):
    def make(*topics: Any, **subscription: Any) -> Member:
        if topics:
            subscription["subscribed_topic_names"] = [each.name for each in topics]
        return Member(wire(), group, **subscription)

    return make


@pytest.fixture
def settle(eventually):
    """`settle(one, two, owned=4)`: everybody sends heartbeats until they own so many partitions."""

    def wait(*members: Member, owned: int) -> None:
        def settled() -> bool:
            answers = [each.beat() for each in members]
            assert [each.error_code for each in answers] == [NONE] * len(members)
            return (
                sum(each.size for each in members) == owned
                and len({each.epoch for each in members}) == 1
            )

        eventually(settled)

    return wait


def describe(connection: Any, group: str, version: int = 1) -> Any:
    (described,) = connection.ask("consumer_group_describe", version, group_ids=[group]).groups
    return described


# -- joining and reconciling -----------------------------------------------------------------


def test_the_first_member_owns_everything_and_hears_no_more_of_it(member, topic):
    one = member(topic)
    answer = one.join()
    assert (answer.error_code, answer.error_message) == (NONE, None)
    assert (answer.member_id, answer.member_epoch) == (one.id, 1)
    assert answer.heartbeat_interval.total_seconds() == 0.2
    assert one.owned == {topic.id: frozenset({0, 1})}
    again = one.send(1)
    assert (again.error_code, again.member_epoch, again.assignment) == (NONE, 1, None)


def test_the_oldest_version_leaves_the_member_id_to_the_broker(wire, group, topic):
    connection = wire()
    answer = heartbeat(
        connection,
        group,
        "",
        0,
        version=0,
        rebalance_timeout=30_000,
        topic_partitions=[],
        subscribed_topic_names=[topic.name],
    )
    assert answer.error_code == NONE
    assert answer.member_id
    later = heartbeat(connection, group, answer.member_id, answer.member_epoch, version=0)
    assert later.error_code == NONE


def test_a_heartbeat_that_tells_everything_is_told_everything(member, topic):
    one = member(topic)
    one.join()
    answer = one.beat(rebalance_timeout=30_000, subscribed_topic_names=[topic.name])
    assert assignment(answer) == {topic.id: frozenset({0, 1})}


def test_a_partition_changes_hands_only_after_its_owner_has_let_go(member, new_topic, settle):
    topic = new_topic(4)
    one, two = member(topic), member(topic)
    one.join()
    assert assignment(two.join()) == {}
    had = one.owned
    told = one.beat()
    assert told.member_epoch == 1
    assert sum(map(len, assignment(told).values())) == 2
    # It has not said that it gave up the others.
    still = [{"topic_id": t, "partitions": sorted(p)} for t, p in had.items()]
    assert one.send(1, topic_partitions=still).member_epoch == 1
    assert two.beat().assignment is None
    assert one.beat().member_epoch == 2
    assert sum(map(len, assignment(two.beat()).values())) == 2
    assert not one.owned[topic.id] & two.owned[topic.id]


def test_a_member_that_leaves_frees_its_partitions(member, topic, settle):
    one, two = member(topic), member(topic)
    one.join()
    two.join()
    settle(one, two, owned=2)
    left = two.send(-1)
    assert (left.error_code, left.member_epoch, left.member_id) == (NONE, -1, two.id)
    settle(one, owned=2)


@pytest.mark.usefixtures("brief_session")
def test_a_silent_member_is_removed(member, topic, settle, eventually):
    one, two = member(topic), member(topic)
    one.join()
    two.join()
    settle(one, two, owned=2)
    eventually(lambda: one.beat() and one.size == 2, pause=0.2)
    assert two.send(two.epoch).error_code == UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_let_go_in_time_is_removed(member, topic, eventually):
    one, two = member(topic), member(topic)
    one.join(rebalance_timeout=1_000)
    two.join()
    one.beat()
    had = [{"topic_id": topic.id, "partitions": [0, 1]}]
    removed = eventually(
        lambda: one.send(1, topic_partitions=had).error_code and two.beat(), pause=0.1
    )
    assert removed.error_code == NONE
    eventually(lambda: two.beat() and two.size == 2)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_member_may_choose_an_assignor(assignor, member, new_topic, settle, wire, group):
    topics = new_topic(2), new_topic(2)
    one, two = (member(*topics, server_assignor=assignor) for _ in range(2))
    one.join()
    two.join()
    settle(one, two, owned=4)
    assert describe(wire(), group).assignor_name == assignor
    if assignor == "range":
        for each in (one, two):
            assert each.owned[topics[0].id] == each.owned[topics[1].id]


# -- refusals --------------------------------------------------------------------------------


JOIN = {"rebalance_timeout": 1_000, "topic_partitions": [], "subscribed_topic_names": []}


@pytest.mark.parametrize(
    ("epoch", "fields", "code"),
    [
        (0, JOIN | {"rebalance_timeout": -1}, INVALID_REQUEST),
        (0, JOIN | {"topic_partitions": None}, INVALID_REQUEST),
        (
            0,
            JOIN | {"topic_partitions": [{"topic_id": uuid.uuid4(), "partitions": [0]}]},
            INVALID_REQUEST,
        ),
        (0, JOIN | {"subscribed_topic_names": None}, INVALID_REQUEST),
        (0, JOIN | {"member": ""}, INVALID_REQUEST),
        (0, JOIN | {"member": "   "}, INVALID_REQUEST),
        (0, JOIN | {"instance_id": ""}, INVALID_REQUEST),
        (0, JOIN | {"rack_id": ""}, INVALID_REQUEST),
        (0, JOIN | {"server_assignor": "sticky"}, UNSUPPORTED_ASSIGNOR),
        (0, JOIN | {"subscribed_topic_regex": "(a"}, INVALID_REGULAR_EXPRESSION),
        (-2, {}, INVALID_REQUEST),
        (-3, {}, INVALID_REQUEST),
        (-1, {}, GROUP_ID_NOT_FOUND),
        (7, {}, GROUP_ID_NOT_FOUND),
    ],
)
def test_what_is_refused(epoch, fields, code, wire, group):
    answer = heartbeat(wire(), group, fields.get("member", "m"), epoch, **_without_member(fields))
    assert answer.error_code == code
    assert answer.error_message


def _without_member(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "member"}


def test_a_group_must_have_a_name(wire):
    assert heartbeat(wire(), "", "m", 0, **JOIN).error_code == INVALID_REQUEST


def test_wrong_epochs_are_fenced(member, new_topic):
    one, other = new_topic(1), new_topic(1)
    m = member(one)
    m.join()
    assert m.send(2).error_code == FENCED_MEMBER_EPOCH
    m.beat(subscribed_topic_names=[one.name, other.name])
    assert m.epoch == 2
    # One step behind: its answer may have been lost, if it owns nothing that it has not got.
    assert m.send(1).error_code == FENCED_MEMBER_EPOCH
    owned = [{"topic_id": one.id, "partitions": [0]}]
    assert m.send(1, topic_partitions=owned).error_code == NONE
    assert m.join().error_code == NONE


# -- static members --------------------------------------------------------------------------


def test_a_static_member_gets_its_partitions_back_without_a_rebalance(member, new_topic, settle):
    topic = new_topic(4)
    one, two = member(topic, instance_id="i"), member(topic)
    one.join()
    two.join()
    settle(one, two, owned=4)
    had, epoch = one.owned, one.epoch
    away = one.send(-2)
    assert (away.error_code, away.member_epoch, away.member_id) == (NONE, -2, one.id)
    assert one.send(epoch).error_code == FENCED_MEMBER_EPOCH
    back = member(topic, instance_id="i")
    answer = back.join()
    assert (answer.member_epoch, back.owned) == (epoch, had)
    assert two.beat().assignment is None
    assert one.send(epoch).error_code == FENCED_INSTANCE_ID


def test_an_instance_id_in_use_is_not_given_away(member, topic):
    member(topic, instance_id="i").join()
    assert member(topic, instance_id="i").join().error_code == UNRELEASED_INSTANCE_ID
    assert member(topic, instance_id="j").send(1).error_code == UNKNOWN_MEMBER_ID


# -- subscriptions ---------------------------------------------------------------------------


def test_what_a_member_no_longer_wants_is_taken_from_it(member, new_topic, settle):
    one, other = new_topic(1), new_topic(1)
    m = member(one, other)
    m.join()
    m.beat(subscribed_topic_names=[one.name])
    assert m.owned == {one.id: frozenset({0})}
    settle(m, owned=1)


def test_a_topic_that_grows_is_noticed(member, topic, wire, eventually):
    m = member(topic)
    m.join()
    wanted = [{"name": topic.name, "count": 5, "assignments": None}]
    (grown,) = wire().ask("create_partitions", 3, topics=wanted, timeout=10_000).results
    assert grown.error_code == NONE
    eventually(lambda: m.beat() and m.size == 5)
    assert m.epoch == 2


def test_a_topic_that_is_made_later_is_noticed(wire, group, unique, eventually):
    name = unique()
    m = Member(wire(), group, subscribed_topic_names=[name])
    assert assignment(m.join()) == {}
    made = {"name": name, "num_partitions": 2, "replication_factor": 1}
    (created,) = wire().ask("create_topics", 7, topics=[made], timeout=10_000).topics
    assert created.error_code == NONE
    eventually(lambda: m.beat() and m.owned == {created.topic_id: frozenset({0, 1})})


def test_a_topic_that_is_deleted_is_noticed(member, new_topic, wire, eventually):
    one, other = new_topic(1), new_topic(1)
    m = member(one, other)
    m.join()
    gone = [{"name": other.name, "topic_id": None}]
    wire().ask("delete_topics", 6, topics=gone, timeout=10_000)
    eventually(lambda: m.beat() and m.owned == {one.id: frozenset({0})})


def test_a_pattern_finds_its_topics(wire, group, unique, eventually):
    prefix = unique()
    names = [f"{prefix}.a", f"{prefix}.b", f"{prefix}-not"]
    wanted = [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in names]
    made = wire().ask("create_topics", 7, topics=wanted, timeout=10_000).topics
    ids = {each.name: each.topic_id for each in made}
    # A pattern is matched against the topics that are known by then.
    eventually(
        lambda: (
            not any(
                each.error_code
                for each in wire()
                .ask("metadata", 12, topics=[{"name": n, "topic_id": None} for n in names])
                .topics
            )
        )
    )
    m = Member(wire(), group, subscribed_topic_regex=rf"{prefix}\.[ab]")
    m.join()
    eventually(lambda: m.beat() and set(m.owned) == {ids[names[0]], ids[names[1]]})
    described = describe(wire(), group)
    assert described.members[0].subscribed_topic_regex == rf"{prefix}\.[ab]"


# -- description, offsets ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_is_described(version, member, topic, wire, group):
    one = member(topic, instance_id="i", rack_id="r")
    one.join()
    described = describe(wire(), group, version)
    assert (described.error_code, described.group_state) == (NONE, "Stable")
    assert (described.group_epoch, described.assignment_epoch) == (1, 1)
    assert described.assignor_name == "uniform"
    (each,) = described.members
    assert (each.member_id, each.instance_id, each.rack_id, each.member_epoch) == (
        one.id,
        "i",
        "r",
        1,
    )
    assert (each.client_id, each.client_host) == ("ottla-tests", "/127.0.0.1")
    assert each.subscribed_topic_names == (topic.name,)
    for assigned in (each.assignment, each.target_assignment):
        (only,) = assigned.topic_partitions
        assert (only.topic_id, only.topic_name) == (topic.id, topic.name)
        assert sorted(only.partitions) == [0, 1]
    if version:
        assert each.member_type == 1
    one.send(-1)
    assert describe(wire(), group, version).group_state == "Empty"


def test_groups_that_are_not_there_are_described_as_such(wire, group):
    answer = wire().ask("consumer_group_describe", 1, group_ids=[group, ""])
    codes = {each.group_id: each.error_code for each in answer.groups}
    assert codes == {group: GROUP_ID_NOT_FOUND, "": INVALID_GROUP_ID}


def test_offsets_are_committed_at_the_members_epoch(member, topic, wire, group):
    one = member(topic)
    one.join()

    def commit(member_id: str, epoch: int, version: int = 9) -> int:
        answer = wire().ask(
            "offset_commit",
            version,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": 0, "committed_offset": 5}],
                }
            ],
        )
        return answer.topics[0].partitions[0].error_code

    assert commit(one.id, 1) == NONE
    assert commit(one.id, 0) == STALE_MEMBER_EPOCH
    assert commit("somebody", 1) == UNKNOWN_MEMBER_ID
    assert commit("", -1) == UNKNOWN_MEMBER_ID
    assert commit(one.id, 1, version=8) == UNSUPPORTED_VERSION
    one.send(-1)
    assert commit("", -1) == NONE


# -- migration -------------------------------------------------------------------------------


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


def classic_join(connection: Any, group: str, member_id: str, topic: str) -> Any:
    return connection.ask(
        "join_group",
        9,
        group_id=group,
        member_id=member_id,
        session_timeout=120_000,
        rebalance_timeout=120_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": subscription(topic)}],
    )


def classic_sync(connection: Any, group: str, joined: Any, **fields: Any) -> Any:
    return connection.ask(
        "sync_group",
        5,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name=joined.protocol_name,
        **fields,
    )


def test_a_group_changes_its_protocol_and_back_while_it_works(wire, group, topic, eventually):
    old = wire()
    first = classic_join(old, group, "", topic.name)
    assert first.error_code == MEMBER_ID_REQUIRED
    joined = classic_join(old, group, first.member_id, topic.name)
    both = struct.pack(">hih", 1, 1, len(topic.name)) + topic.name.encode()
    both += struct.pack(">iiii", 2, 0, 1, -1)
    given = [{"member_id": joined.member_id, "assignment": both}]
    assert classic_sync(old, group, joined, assignments=given).assignment == both

    # One of the new protocol joins: the group is another, the old member is in it.
    new = Member(wire(), group, subscribed_topic_names=[topic.name])
    assert new.join().error_code == NONE
    assert new.epoch == joined.generation_id + 1
    described = describe(wire(), group)
    assert {each.member_type for each in described.members} == {0, 1}
    asked = {"group_id": group, "member_id": joined.member_id}
    beat = old.ask("heartbeat", 4, **asked, generation_id=joined.generation_id)
    assert beat.error_code == REBALANCE_IN_PROGRESS
    again = classic_join(old, group, joined.member_id, topic.name)
    assert (again.error_code, again.leader, again.members) == (NONE, "", ())
    assert again.generation_id == new.epoch
    synced = classic_sync(old, group, again)
    assert synced.error_code == NONE
    assert synced.assignment.endswith(struct.pack(">i", -1))
    assert len(synced.assignment) == len(both) - 4
    eventually(lambda: new.beat() and new.size == 1)
    assert old.ask("heartbeat", 4, **asked, generation_id=again.generation_id).error_code == NONE

    # It leaves: the group is a classic one again, and rebalances.
    new.send(-1)
    assert describe(wire(), group).error_code == GROUP_ID_NOT_FOUND
    beat = old.ask("heartbeat", 4, **asked, generation_id=again.generation_id)
    assert beat.error_code == REBALANCE_IN_PROGRESS
    last = classic_join(old, group, joined.member_id, topic.name)
    assert (last.error_code, last.leader) == (NONE, joined.member_id)
    assert last.generation_id == again.generation_id + 1


# -- librdkafka ------------------------------------------------------------------------------


class Reader:
    """A confluent-kafka consumer of the new protocol, and what it was told."""

    def __init__(self, bootstrap: str, group: str, **settings: Any) -> None:
        self.revoked: list[TopicPartition] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.values: list[bytes] = []

    def subscribe(self, *topics: str) -> None:
        self.consumer.subscribe(
            list(topics), on_revoke=lambda consumer, partitions: self.revoked.extend(partitions)
        )

    def poll(self, seconds: float = 0.05) -> None:
        message = self.consumer.poll(seconds)
        if message is not None:
            assert message.error() is None
            self.values.append(message.value())

    @property
    def owned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}


@pytest.fixture
def reader(bootstrap, group):
    opened: list[Reader] = []

    def make(*topics: str, **settings: Any) -> Reader:
        made = Reader(bootstrap, group, **settings)
        opened.append(made)
        if topics:
            made.subscribe(*topics)
        return made

    yield make
    for each in opened:
        each.consumer.close()


def together(*readers: Reader, until: Any, timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not until():
        assert time.monotonic() < deadline, [sorted(each.owned) for each in readers]
        for each in readers:
            each.poll()


@pytest.fixture
def produce_values(bootstrap):
    def produce(topic: Any, count: int) -> list[bytes]:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        values = [str(each).encode() for each in range(count)]
        for number, value in enumerate(values):
            producer.produce(topic.name, value, partition=number % topic.partitions)
        assert producer.flush(120) == 0
        return sorted(values)

    return produce


def test_librdkafka_reads_everything_commits_and_goes_on(new_topic, reader, produce_values):
    topic = new_topic(3)
    values = produce_values(topic, 30)
    first = reader(topic.name)
    together(first, until=lambda: len(first.values) == 30)
    assert sorted(first.values) == values
    first.consumer.commit(asynchronous=False)
    first.consumer.close()
    more = produce_values(topic, 6)
    second = reader(topic.name)
    together(second, until=lambda: len(second.values) >= 6)
    assert sorted(second.values) == more


def test_librdkafka_shares_partitions_and_loses_none(new_topic, reader, produce_values, bootstrap):
    topic = new_topic(4)
    everything = {(topic.name, each) for each in range(4)}
    one = reader(topic.name)
    together(one, until=lambda: one.owned == everything)
    two = reader(topic.name)
    together(one, two, until=lambda: len(one.owned) == len(two.owned) == 2)
    assert one.owned | two.owned == everything
    # Only what moved was revoked.
    assert {(each.topic, each.partition) for each in one.revoked} == two.owned
    values = produce_values(topic, 40)
    together(one, two, until=lambda: len(one.values) + len(two.values) >= 40)
    assert sorted(one.values + two.values) == values
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result()
    assert "CONSUMER" in {each.type.name for each in listed.valid}
    two.consumer.close()
    together(one, until=lambda: one.owned == everything)


def test_librdkafka_subscribes_by_pattern(new_topic, reader, produce_values):
    topic = new_topic(2)
    produce_values(topic, 4)
    each = reader(f"^{topic.name}.*")
    together(each, until=lambda: len(each.values) == 4)
    assert each.owned == {(topic.name, 0), (topic.name, 1)}


def test_librdkafka_static_member_restarts_without_moving_partitions(new_topic, reader):
    topic = new_topic(4)
    one = reader(topic.name, group_instance_id="i")
    two = reader(topic.name)
    together(one, two, until=lambda: len(one.owned) == len(two.owned) == 2)
    had = one.owned
    two.revoked.clear()
    one.consumer.close()
    back = reader(topic.name, group_instance_id="i")
    together(back, two, until=lambda: len(back.owned) == 2)
    assert back.owned == had
    assert two.revoked == []


def test_librdkafka_of_both_protocols_share_a_group(new_topic, reader):
    topic = new_topic(4)
    everything = {(topic.name, each) for each in range(4)}
    old = reader(
        topic.name,
        group_protocol="classic",
        partition_assignment_strategy="cooperative-sticky",
        heartbeat_interval_ms=200,
        session_timeout_ms=30_000,
    )
    together(old, until=lambda: old.owned == everything)
    new = reader(topic.name)
    together(old, new, until=lambda: len(old.owned) == len(new.owned) == 2)
    assert old.owned | new.owned == everything
    new.consumer.close()
    together(old, until=lambda: old.owned == everything)


def test_ten_thousand_topics_and_a_hostile_pattern_hold_up_nobody(
    start_broker, wire, unique, quick_groups_settings, eventually
):
    broker = start_broker(settings=quick_groups_settings)
    connection, other = wire(broker.bootstrap), wire(broker.bootstrap)
    group = unique("group")
    connection.ask("find_coordinator", 4, key_type=0, coordinator_keys=[group])
    for start in range(0, 10_000, 1_000):
        wanted = [
            {"name": f"{'a' * 200}-{each:05d}", "num_partitions": 1, "replication_factor": 1}
            for each in range(start, start + 1_000)
        ]
        connection.ask("create_topics", 7, topics=wanted, timeout=60_000)
    # An engine that backtracks would still be at the first topic when the sun goes out, so no
    # stopwatch is needed: `other` is answered at all, and the pattern is resolved.
    hostile = Member(connection, group, subscribed_topic_regex=r"(a+)+$|(.*a){20}-0000[0-4]")
    hostile.join()

    def resolved() -> bool:
        assert heartbeat(other, unique("group"), "m", 5).error_code == GROUP_ID_NOT_FOUND
        hostile.beat()
        return hostile.size == 5

    eventually(resolved, timeout=200)
