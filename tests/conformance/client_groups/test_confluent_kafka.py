"""confluent-kafka in groups of both protocols: what an application does with them, and survives.

`test_all_libraries` and `test_groups_consumer` look at the protocols and at who gets which
partition; here are the stories: nothing is read twice or not at all while members come and go, a
member crashes or sleeps through its session, topics appear and grow, offsets are committed and
looked at. Every expectation was checked against Apache Kafka 4.2 (with quick-groups.properties).
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

PARTITIONS = 4
TIMEOUT = 120
PROTOCOLS = ("classic", "consumer")
CLASSIC_ONLY = {"heartbeat.interval.ms": 200, "session.timeout.ms": 30_000}
KINDS: dict[str, dict[str, Any]] = {
    "classic range": {"partition.assignment.strategy": "range"},
    "classic roundrobin": {"partition.assignment.strategy": "roundrobin"},
    "classic cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer uniform": {"group.remote.assignor": "uniform"},
    "consumer range": {"group.remote.assignor": "range"},
}

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def settings_of(bootstrap: str, group: str, kind: str, **more: Any) -> dict[str, Any]:
    protocol = kind.split(maxsplit=1)[0]
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 300,
        **(CLASSIC_ONLY if protocol == "classic" else {}),
        **KINDS.get(kind, {}),
        **{k if k == "stats_cb" else k.replace("_", "."): v for k, v in more.items()},
    }


class Member:
    """A consumer; one that `commits` does so for what it has read when partitions are taken."""

    def __init__(self, settings: dict[str, Any], *topics: str, commits: bool = True) -> None:
        self.commits = commits
        self.values: list[str] = []
        self.revoked: set[tuple[str, int]] = set()
        self.committed: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        self.errors: list[KafkaError] = []
        self.consumer = Consumer(
            {**settings, "on_commit": lambda error, done: self.committed.append((error, done))}
        )
        self.consumer.subscribe(list(topics), on_revoke=self._on_revoke)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked |= {(item.topic, item.partition) for item in partitions}
        read = [item for item in consumer.position(partitions) if item.offset >= 0]
        if read and self.commits:
            consumer.commit(offsets=read, asynchronous=False)

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is None:
            return
        if message.error():
            self.errors.append(message.error())
        else:
            self.values.append(message.value().decode())

    @property
    def owned(self) -> set[tuple[str, int]]:
        return {(item.topic, item.partition) for item in self.consumer.assignment()}


@pytest.fixture
def member(bootstrap: str, group: str) -> Iterator[Callable[..., Member]]:
    """`member("consumer range", topic, group_instance_id="i")`: one more in this test's group."""
    made: list[Member] = []

    def join(kind: str, *topics: str, commits: bool = True, **more: Any) -> Member:
        made.append(Member(settings_of(bootstrap, group, kind, **more), *topics, commits=commits))
        return made[-1]

    yield join
    for item in made:
        with contextlib.suppress(RuntimeError):  # closed by the test
            item.consumer.close()


def together(*members: Member, until: Callable[[], Any]) -> None:
    """Everybody polls, as applications do, until something holds."""
    deadline = time.monotonic() + TIMEOUT
    while not until():
        assert time.monotonic() < deadline, [(sorted(item.owned), item.errors) for item in members]
        for item in members:
            item.poll()


def everything(topic: str, partitions: int = PARTITIONS) -> set[tuple[str, int]]:
    return {(topic, item) for item in range(partitions)}


def shared(*members: Member, topic: str) -> bool:
    owned = [item for each in members for item in each.owned]
    return sorted(owned) == sorted(everything(topic)) and all(item.owned for item in members)


# -- members come and go -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_is_read_once_while_members_come_and_go(kind, member, topic, produce):
    sent = produce(topic, 40)
    one = member(kind, topic)
    together(one, until=lambda: len(one.values) >= 10)
    two = member(kind, topic)
    sent += produce(topic, 40)
    together(one, two, until=lambda: shared(one, two, topic=topic))
    sent += produce(topic, 40)
    together(one, two, until=lambda: len(one.values) + len(two.values) >= 120)
    one.consumer.close()
    sent += produce(topic, 40)
    together(two, until=lambda: len(one.values) + len(two.values) >= 160)
    assert two.owned == everything(topic)
    assert sorted(one.values + two.values) == sorted(sent)
    assert not one.errors + two.errors


@protocols
def test_whoever_takes_over_begins_at_the_committed_offset(protocol, member, topic, produce):
    sent = produce(topic, 40)
    one = member(protocol, topic, commits=False)
    together(one, until=lambda: len(one.values) == 40)
    half = [TopicPartition(topic, item, 5) for item in range(PARTITIONS)]
    one.consumer.commit(offsets=half, asynchronous=False)
    one.consumer.close()
    two = member(protocol, topic)
    together(two, until=lambda: len(two.values) == 20)
    assert sorted(two.values) == sorted(sent[20:])


class Process:
    """A member in a process of its own (`member.py`)."""

    def __init__(self, settings: dict[str, Any], topic: str) -> None:
        self.values: list[str] = []
        self.codes: queue.Queue[int] = queue.Queue()
        self.lost: list[int] = []
        script = str(Path(__file__).parent / "member.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(settings), topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match json.loads(line):
                case {"value": value}:
                    self.values.append(value)
                case {"code": code}:
                    self.codes.put(code)
                case {"lost": code}:
                    self.lost.append(code)

    def commit(self, offsets: dict[int, int]) -> int:
        """The error code of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"commit": offsets}) + "\n")
        self.process.stdin.flush()
        return self.codes.get(timeout=TIMEOUT)

    def close(self) -> None:
        self.process.kill()
        self._thread.join()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()


@pytest.fixture
def process(bootstrap: str, group: str, brief_session: None) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(protocol: str, topic: str) -> Process:
        session = {"session.timeout.ms": 6_000} if protocol == "classic" else {}
        started.append(Process(settings_of(bootstrap, group, protocol, **session), topic))
        return started[-1]

    yield start
    for item in started:
        item.close()


@protocols
def test_a_crashed_member_is_replaced_from_the_committed_offset(
    protocol, process, member, topic, produce, eventually
):
    sent = produce(topic, 40)
    doomed = process(protocol, topic)
    eventually(lambda: len(doomed.values) == 40, timeout=TIMEOUT)
    assert doomed.commit(dict.fromkeys(range(PARTITIONS), 3)) == 0
    doomed.process.send_signal(signal.SIGKILL)
    heir = member(protocol, topic)
    together(heir, until=lambda: len(heir.values) == 28)
    assert heir.owned == everything(topic)
    assert sorted(heir.values) == sorted(sent[12:])


@protocols
def test_a_member_that_slept_through_its_session_commits_no_more(
    protocol, process, member, topic, produce, eventually, admin, group
):
    produce(topic, 40)
    zombie = process(protocol, topic)
    eventually(lambda: len(zombie.values) == 40, timeout=TIMEOUT)
    zombie.process.send_signal(signal.SIGSTOP)
    heir = member(protocol, topic)
    together(heir, until=lambda: heir.owned == everything(topic) and len(heir.values) == 40)
    heir.consumer.commit(asynchronous=False)
    zombie.process.send_signal(signal.SIGCONT)
    together(heir, until=lambda: zombie.lost)
    assert zombie.lost[0] != 0
    assert offsets_of(admin, group) == dict.fromkeys(range(PARTITIONS), 10)


@protocols
def test_a_static_member_that_is_back_in_time_disturbs_nobody(protocol, member, topic, produce):
    one = member(protocol, topic, group_instance_id="one")
    two = member(protocol, topic, group_instance_id="two")
    together(one, two, until=lambda: shared(one, two, topic=topic))
    had = two.owned
    one.revoked.clear()
    two.consumer.close()
    again = member(protocol, topic, group_instance_id="two")
    together(one, again, until=lambda: shared(one, again, topic=topic))
    assert again.owned == had
    sent = produce(topic, 8)
    together(one, again, until=lambda: len(one.values) + len(again.values) >= 8)
    assert sorted(one.values + again.values) == sorted(sent)
    assert one.revoked == set()


def test_a_second_holder_of_an_instance_id_pushes_the_first_one_out(member, topic):
    first = member("classic", topic, group_instance_id="i")
    together(first, until=lambda: first.owned == everything(topic))
    second = member("classic", topic, group_instance_id="i")
    together(first, second, until=lambda: first.errors)
    assert [item.code() for item in first.errors] == [KafkaError._FATAL]
    together(second, until=lambda: second.owned == everything(topic))


def test_a_second_holder_is_turned_away_by_the_consumer_protocol(member, topic, produce):
    first = member("consumer", topic, group_instance_id="i")
    together(first, until=lambda: first.owned == everything(topic))
    second = member("consumer", topic, group_instance_id="i")
    together(first, second, until=lambda: second.errors)
    assert [item.code() for item in second.errors] == [KafkaError._FATAL]
    sent = produce(topic, 8)
    together(first, until=lambda: len(first.values) == 8)
    assert sorted(first.values) == sorted(sent)


# -- topics come and grow ----------------------------------------------------------------------


@protocols
def test_a_pattern_finds_topics_that_are_made_later(protocol, member, admin, unique, produce):
    prefix = unique("logs")
    names = [f"{prefix}.{item}" for item in ("a", "b")]
    admin.create_topics([NewTopic(names[0], 1)])[names[0]].result()
    one = member(protocol, f"^{prefix}\\..*")
    together(one, until=lambda: one.owned == {(names[0], 0)})
    admin.create_topics([NewTopic(names[1], 1)])[names[1]].result()
    together(one, until=lambda: one.owned == {(item, 0) for item in names})
    sent = produce(names[0], 2, partitions=1) + produce(names[1], 2, partitions=1)
    together(one, until=lambda: len(one.values) == 4)
    assert sorted(one.values) == sorted(sent)


@protocols
def test_partitions_that_are_added_find_an_owner(protocol, member, topic, admin):
    one, two = member(protocol, topic), member(protocol, topic)
    together(one, two, until=lambda: shared(one, two, topic=topic))
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result()
    together(one, two, until=lambda: one.owned | two.owned == everything(topic, 6))
    assert not one.owned & two.owned


# -- positions and commits ---------------------------------------------------------------------


@protocols
def test_a_member_seeks_pauses_and_resumes(protocol, member, topic, produce):
    sent = produce(topic, 40)
    item = member(protocol, topic)
    together(item, until=lambda: len(item.values) == 40)
    item.values.clear()
    item.consumer.seek(TopicPartition(topic, 1, 7))
    together(item, until=lambda: len(item.values) == 3)
    assert item.values == sent[29::4]
    item.values.clear()
    item.consumer.pause([TopicPartition(topic, 1)])
    more = produce(topic, 8)
    together(item, until=lambda: len(item.values) == 6)
    assert sorted(item.values) == sorted(set(more) - {more[1], more[5]})
    item.consumer.resume([TopicPartition(topic, 1)])
    together(item, until=lambda: len(item.values) == 8)
    assert item.values[6:] == [more[1], more[5]]


@protocols
def test_commits_wait_or_call_back_and_keep_their_notes(protocol, member, topic, produce):
    produce(topic, 40)
    item = member(protocol, topic)
    together(item, until=lambda: len(item.values) == 40)
    noted = [TopicPartition(topic, p, p + 1, metadata=f"note {p}") for p in range(PARTITIONS)]
    done = item.consumer.commit(offsets=noted, asynchronous=False)
    assert [(p.offset, p.error) for p in done] == [(p + 1, None) for p in range(PARTITIONS)]
    found = item.consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], TIMEOUT)
    assert [(p.offset, p.metadata) for p in found] == [
        (p + 1, f"note {p}") for p in range(PARTITIONS)
    ]
    item.committed.clear()
    item.consumer.commit()
    together(item, until=lambda: item.committed)
    ((error, told),) = item.committed
    assert error is None
    assert sorted((p.partition, p.offset) for p in told) == [(p, 10) for p in range(PARTITIONS)]
    missing = [TopicPartition(topic, PARTITIONS, 1)]
    with pytest.raises(KafkaException) as caught:
        item.consumer.commit(offsets=missing, asynchronous=False)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


# -- administration ----------------------------------------------------------------------------


def offsets_of(admin: AdminClient, group: str) -> dict[int, int]:
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result()
    return {item.partition: item.offset for item in found.topic_partitions}


def listed(admin: AdminClient, **filters: Any) -> dict[str, Any]:
    return {item.group_id: item for item in admin.list_consumer_groups(**filters).result().valid}


@protocols
def test_a_group_with_members_is_listed_and_described_but_not_moved_or_deleted(
    protocol, member, topic, produce, admin, group
):
    produce(topic, 40)
    item = member(protocol, topic, client_id="somebody", group_instance_id="i")
    together(item, until=lambda: len(item.values) == 40)
    item.consumer.commit(asynchronous=False)

    kind = ConsumerGroupType[protocol.upper()]
    other = ConsumerGroupType["CONSUMER" if protocol == "classic" else "CLASSIC"]
    found = listed(admin, types={kind})[group]
    assert (found.type, found.state) == (kind, ConsumerGroupState.STABLE)
    assert group in listed(admin, states={ConsumerGroupState.STABLE})
    assert group not in listed(admin, states={ConsumerGroupState.EMPTY})
    assert group not in listed(admin, types={other})

    described = admin.describe_consumer_groups([group])[group].result()
    assert (described.type, described.state) == (kind, ConsumerGroupState.STABLE)
    assert described.partition_assignor == {"classic": "range", "consumer": "uniform"}[protocol]
    (one,) = described.members
    assert (one.client_id, one.host, one.group_instance_id) == ("somebody", "/127.0.0.1", "i")
    owned = {(p.topic, p.partition) for p in one.assignment.topic_partitions}
    assert owned == everything(topic)
    if protocol == "consumer":
        wanted = {(p.topic, p.partition) for p in one.target_assignment.topic_partitions}
        assert wanted == owned

    reset = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])]
    (refused,) = admin.alter_consumer_group_offsets(reset)[group].result().topic_partitions
    assert refused.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result()
    assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    assert offsets_of(admin, group) == dict.fromkeys(range(PARTITIONS), 10)


@protocols
def test_a_group_without_members_is_moved_and_deleted(
    protocol, member, topic, produce, admin, group, eventually
):
    sent = produce(topic, 40)
    item = member(protocol, topic)
    together(item, until=lambda: len(item.values) == 40)
    item.consumer.close()  # its callback commits
    eventually(lambda: listed(admin)[group].state is ConsumerGroupState.EMPTY)
    assert offsets_of(admin, group) == dict.fromkeys(range(PARTITIONS), 10)
    moved = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])]
    admin.alter_consumer_group_offsets(moved)[group].result()
    assert offsets_of(admin, group)[0] == 3
    again = member(protocol, topic)
    together(again, until=lambda: len(again.values) == 7)
    assert again.values == sent[12::4]
    again.consumer.close()
    eventually(lambda: listed(admin)[group].state is ConsumerGroupState.EMPTY)
    admin.delete_consumer_groups([group])[group].result()
    assert offsets_of(admin, group) == {}
    assert group not in listed(admin)
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result()
    assert caught.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


@protocols
def test_lag_is_what_was_written_less_what_was_committed(
    protocol, member, topic, produce, admin, group
):
    produce(topic, 40)
    seen: list[dict[str, Any]] = []
    item = member(
        protocol,
        topic,
        statistics_interval_ms=100,
        stats_cb=lambda text: seen.append(json.loads(text)),
    )
    together(item, until=lambda: len(item.values) == 40)
    half = [TopicPartition(topic, p, p) for p in range(PARTITIONS)]
    item.consumer.commit(offsets=half, asynchronous=False)

    ends = admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in range(4)})
    committed = offsets_of(admin, group)
    lag = {p.partition: end.result().offset - committed[p.partition] for p, end in ends.items()}
    assert lag == {0: 10, 1: 9, 2: 8, 3: 7}

    def told() -> dict[int, int]:
        partitions = seen[-1]["topics"][topic]["partitions"] if seen else {}
        return {int(p): each["consumer_lag_stored"] for p, each in partitions.items() if p != "-1"}

    together(item, until=lambda: told() == dict.fromkeys(range(PARTITIONS), 0))
