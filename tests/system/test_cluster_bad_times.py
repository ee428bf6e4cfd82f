"""A cluster that is asked for the impossible, whose clocks jump, or among whose brokers is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.cluster.lent import LentStore
from ottla.cluster.membership import Host, Membership
from ottla.cluster.registry import Registry
from ottla.errors import ErrorCode
from ottla.model.broker import Endpoint
from ottla.testing import Broker, Cluster, NewTopic
from ottla.testing.process import LOOPBACK
from ottla.testing.thread import LoopThread

HOUR = 3600.0
PARTITIONS = 3

Wire = Callable[..., Any]
StartLoad = Callable[..., Any]
Outcome = tuple[ErrorCode, str | None]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, topics=[NewTopic("t", PARTITIONS, 3)]) as cluster:
        yield cluster


def follower(cluster: Cluster) -> Broker:
    """One who hands everything on to the controller."""
    return next(each for each in cluster if each is not cluster.controller)


# -- replicas that nobody can have


def create(broker: Broker, wire: Wire, factor: int = -1, *replicas: int) -> Outcome:
    assignments = [{"partition_index": 0, "broker_ids": replicas}] if replicas else []
    count = -1 if replicas else 1
    wanted = {"name": "x", "num_partitions": count, "replication_factor": factor}
    answer = wire(broker.bootstrap).ask(
        "create_topics", 7, topics=[{**wanted, "assignments": assignments}], timeout=30_000
    )
    return ErrorCode.of(answer.topics[0].error_code), answer.topics[0].error_message


def grow(broker: Broker, wire: Wire, *replicas: int) -> Outcome:
    wanted = {"name": "t", "count": PARTITIONS + 1, "assignments": [{"broker_ids": replicas}]}
    answer = wire(broker.bootstrap).ask("create_partitions", 3, topics=[wanted], timeout=30_000)
    return ErrorCode.of(answer.results[0].error_code), answer.results[0].error_message


def too_few(wanted: int, registered: int) -> Outcome:
    return ErrorCode.INVALID_REPLICATION_FACTOR, (
        f"Unable to replicate the partition {wanted} time(s): The target replication factor of "
        f"{wanted} cannot be reached because only {registered} broker(s) are registered."
    )


def not_registered(broker: int) -> Outcome:
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, (
        f"The manual partition assignment includes broker {broker}, but no such broker is "
        "registered."
    )


TWICE: Outcome = (
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    "The manual partition assignment includes the broker 1 more than once.",
)


def test_what_cannot_be_placed_is_refused(cluster: Cluster, wire: Wire) -> None:
    asked = follower(cluster)
    assert create(asked, wire, 4) == too_few(4, 3)
    assert create(asked, wire, -1, 1, 2, 1) == TWICE
    assert create(asked, wire, -1, 1, 9) == not_registered(9)
    assert grow(asked, wire, 1, 2, 1) == TWICE
    assert grow(asked, wire, 1, 2, 9) == not_registered(9)
    assert grow(asked, wire, 1, 2)[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert all(each.topics() == {"t": PARTITIONS} for each in cluster)


def test_who_is_dead_gets_no_replicas(cluster: Cluster, wire: Wire) -> None:
    asked = follower(cluster)
    number = next(each for each in (1, 2, 3) if cluster[each] not in (asked, cluster.controller))
    cluster[number].crash()
    cluster.wait_until(lambda: number not in asked._services().image.brokers)
    assert create(asked, wire, 3) == too_few(3, 2)
    assert create(asked, wire, -1, number) == not_registered(number)
    assert all(each.topics() == {"t": PARTITIONS} for each in cluster.running)


# -- clocks


def states(cluster: Cluster) -> list[tuple[int, int, tuple[int, ...]]]:
    found = [cluster.state("t", each) for each in range(PARTITIONS)]
    return [(state.leader, state.leader_epoch, state.isr) for state in found]


def test_clocks_that_jump_move_no_leader_and_lose_nothing(
    cluster: Cluster, start_load: StartLoad
) -> None:
    cluster.wait_in_sync("t")
    before = states(cluster)
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    member = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
         "session.timeout.ms": 60_000, "log_level": 0}
    )  # fmt: skip
    lost: list[object] = []
    member.subscribe(["t"], on_lost=lambda consumer, parts: lost.append(parts))
    while member.poll(0.1) is None:
        load.wait_for_more(3)
    # An hour back is what a producer's timestamps may lie in the future (see below).
    for seconds in (24 * HOUR, -24 * HOUR, -HOUR / 2, HOUR):
        for broker in cluster:
            broker.faults.jump_clock(seconds)
            load.wait_for_more(30)
            assert member.poll(120) is not None
    member.commit(asynchronous=False)
    assert not lost
    positions = [TopicPartition("t", each) for each in range(PARTITIONS)]
    assert sum(max(0, each.offset) for each in member.committed(positions, timeout=120)) > 0
    member.close()
    assert states(cluster) == before
    load.check()
    assert states(cluster) == before


def test_with_a_clock_far_behind_records_seem_to_come_from_the_future(
    cluster: Cluster, wire: Wire, batch: Callable[..., bytes]
) -> None:
    leader = cluster.leader("t", 0)
    cluster.wait_in_sync("t")

    def produce() -> ErrorCode:
        data = [{"index": 0, "records": batch([b"x"])}]
        answer = wire(leader.bootstrap).ask(
            "produce",
            9,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": "t", "partition_data": data}],
        )
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

    before = states(cluster)
    assert produce() is ErrorCode.NONE
    leader.faults.jump_clock(-2 * HOUR)
    assert produce() is ErrorCode.INVALID_TIMESTAMP
    leader.faults.jump_clock(4 * HOUR)  # too old is nothing
    assert produce() is ErrorCode.NONE
    leader.faults.heal()
    assert produce() is ErrorCode.NONE
    leading = cluster.state("t", 0).leader
    assert cluster.replica(leading, "t", 0).log.log_end_offset == 3
    assert states(cluster) == before


# -- a broker that is none


class Impostor:
    """Registered as a broker, though what listens at its address is something else."""

    def __init__(self, cluster: Cluster, greeting: bytes | None) -> None:
        self._thread = LoopThread("impostor")
        self._greeting = greeting
        self._thread.call(self._start(cluster._socket), 30)

    async def _start(self, socket: str) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        host = LOOPBACK if self._greeting is not None else "no..address"
        self._store = await LentStore.connect(socket, session_seconds=60.0)
        about = Host((Endpoint("PLAINTEXT", host, port),), directories=("d",), incarnation="i")
        await Membership(Registry(self._store)).register(9, about)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1 << 16)
            writer.write(self._greeting or b"")
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def close(self) -> None:
        self._thread.do(self._server.close, 30)
        self._thread.call(self._store.close(), 30)
        self._thread.close()


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08\0\0\0\x63noise", b"", None],
    ids=["another language", "an answer to no request", "silence", "no address at all"],
)
def test_who_follows_an_impostor_serves_everything_else(
    cluster: Cluster, greeting: bytes | None, start_load: StartLoad
) -> None:
    impostor = Impostor(cluster, greeting)
    try:
        cluster.wait_until(lambda: all(9 in each._services().image.brokers for each in cluster))
        cluster.create(NewTopic("its", assignment=[[9, 1, 2]]))
        load = start_load(cluster.bootstrap)
        load.wait_for_more(300)
        cluster.wait_until(lambda: cluster.state("its", 0).leader == 9)
        load.check()
        assert all(each.running for each in cluster)
    finally:
        impostor.close()
    # When its session ends, those lead who can.
    cluster.wait_until(lambda: any(cluster.replica(each, "its", 0).leading for each in (1, 2)))
