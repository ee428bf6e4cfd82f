"""kill -9 under consumer groups: no committed offset is lost or moved back, and groups go on."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from ottla.testing.process import BrokerProcess

TOPIC, PARTITIONS = "work", 4
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "8"}
NONE = 0
LOADING = 14


BURST = 8


class Committer:
    """A client in a thread that commits 1, 2, 3 … for a group, and notes what was acknowledged.

    It sends a few in one packet: what the broker reads together it writes together.
    """

    def __init__(self, connect: Callable[[], Any], group: str) -> None:
        self.group = group
        self.sent = 0
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._connect = connect
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            connection = None
            while not self._stop.is_set():
                try:
                    connection = connection or self._connect()
                    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                    for _ in range(BURST):
                        self.sent += 1
                        self._commit(connection, self.sent)
                    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
                    for offset in range(self.sent - BURST + 1, self.sent + 1):
                        codes = self._answer(connection)
                        if codes == {NONE}:
                            self.acknowledged = offset
                        else:
                            assert codes <= {14, 15, 16}, codes
                            time.sleep(0.01)
                except OSError:
                    connection = None
                    time.sleep(0.01)
        except BaseException as error:
            self.failure = error

    def _commit(self, connection: Any, offset: int) -> None:
        partitions = [
            {"partition_index": p, "committed_offset": offset, "committed_metadata": "x"}
            for p in range(PARTITIONS)
        ]
        connection.send(
            "offset_commit",
            9,
            group_id=self.group,
            generation_id_or_member_epoch=-1,
            topics=[{"name": TOPIC, "partitions": partitions}],
        )

    def _answer(self, connection: Any) -> set[int]:
        (answer,) = connection.receive().topics
        return {each.error_code for each in answer.partitions}

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError(f"{self.group} failed") from self.failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


@pytest.fixture
def committers(wire) -> Iterator[Callable[..., list[Committer]]]:
    started: list[Committer] = []

    def start(broker: BrokerProcess, count: int) -> list[Committer]:
        started.extend(
            Committer(lambda: wire(broker.bootstrap), f"group-{number}") for number in range(count)
        )
        return started

    yield start
    for each in started:
        each.stop()


def committed(connection: Any, groups: list[str], eventually: Any) -> dict[str, set[int]]:
    """The offsets of each group's partitions, once all of them are loaded."""
    asked = [{"group_id": group, "topics": None} for group in groups]

    def fetched() -> Any:
        answer = connection.ask("offset_fetch", 9, groups=asked).groups
        return answer if all(each.error_code == NONE for each in answer) else None

    return {
        each.group_id: {
            partition.committed_offset for topic in each.topics for partition in topic.partitions
        }
        for each in eventually(fetched)
    }


@pytest.fixture
def broker(start_broker, wire, raw) -> BrokerProcess:
    each = start_broker(settings=SETTINGS)
    raw.create_topic(wire(each.bootstrap), TOPIC, PARTITIONS)
    wire(each.bootstrap).ask("find_coordinator", 6, key_type=0, coordinator_keys=["any"])
    return each


def test_a_committed_offset_survives_any_moment(broker, committers, wire, eventually):
    rng = random.Random(5)
    running = committers(broker, 6)
    for _ in range(12):
        goals = [each.acknowledged + 5 for each in running]
        eventually(
            lambda goals=goals: all(
                each.check() or each.acknowledged >= goal
                for each, goal in zip(running, goals, strict=True)
            )
        )
        time.sleep(rng.uniform(0, 0.05))
        broker.kill()
        known = {each.group: each.acknowledged for each in running}
        broker.start()
        found = committed(wire(broker.bootstrap), list(known), eventually)
        for each in running:
            each.check()
            # one commit is one batch: its partitions are there together
            (offset,) = found[each.group]
            assert known[each.group] <= offset <= each.sent
    assert "Traceback" not in broker.log()


def test_members_and_their_generation_survive(broker, wire, eventually):
    connection = wire(broker.bootstrap)
    fields = {
        "group_id": "g",
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0"}],
    }
    member = connection.ask("join_group", 9, **fields).member_id
    joined = connection.ask("join_group", 9, **fields, member_id=member)
    sync = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b"everything"}],
    }
    assert connection.ask("sync_group", 5, **sync).error_code == NONE
    broker.kill()
    broker.start()
    connection = wire(broker.bootstrap)
    beat = {"group_id": "g", "generation_id": joined.generation_id, "member_id": member}
    eventually(lambda: connection.ask("heartbeat", 4, **beat).error_code == NONE)
    # A heartbeat is answered while the groups are still loaded, as in Kafka; this is not.
    eventually(lambda: connection.ask("sync_group", 5, **sync).error_code != LOADING)
    again = connection.ask("sync_group", 5, **sync)
    assert (again.error_code, again.assignment) == (NONE, b"everything")
    (described,) = connection.ask("describe_groups", 6, groups=["g"]).groups
    assert (described.group_state, described.members[0].member_id) == ("Stable", member)


def test_a_consumer_goes_on_where_it_was_when_the_broker_dies_under_it(broker, eventually):
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "reconnect.backoff.ms": 5,
        "reconnect.backoff.max.ms": 50,
        "log_level": 0,
    }
    producer = Producer(settings | {"message.timeout.ms": 120_000})
    consumer = Consumer(
        settings
        | {
            "group.id": "workers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # A member that was thrown out would read again what it has not committed yet.
            "session.timeout.ms": 120_000,
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe([TOPIC])

    def has_committed() -> bool:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:  # the groups are still loaded: librdkafka does not try for long
            return False
        return True

    seen: dict[int, int] = {}
    done = 0
    for round_ in range(4):
        for number in range(200):
            producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(120) == 0
        goal, deadline = done + 200, time.monotonic() + 120
        while done < goal:
            assert time.monotonic() < deadline, f"{done} of {goal} in round {round_}"
            message = consumer.poll(0.5)
            if message is None or message.error():
                continue
            # what was committed is not read again, and nothing is passed over
            assert message.offset() == seen.get(message.partition(), -1) + 1
            seen[message.partition()] = message.offset()
            done += 1
            if done == goal:
                eventually(has_committed)
        broker.kill()
        broker.start()
    consumer.close()
