"""The sender of markers: to everybody, as often as it takes, and only as the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from ottla.coordinator.host import Slot
from ottla.coordinator.transaction import remote
from ottla.coordinator.transaction.marking import MarkerWriter
from ottla.coordinator.transaction.remote import Connections, MarkerSender
from ottla.coordinator.transaction.state import Complete, Identity, WriteMarkers
from ottla.dispatch.table import MANY_WHOLE
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState, Topic
from ottla.net.channel import ChannelClosed
from ottla.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.marker import Marker
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.testing.clock import ManualClock

HERE, THERE = 1, 2
PRODUCER = Identity(7, 3)
DECIDED_MS = 1_700_000_000_000


class Coordinator:
    """What a slot is to the sender."""

    def __init__(self) -> None:
        self.active = True
        self.leader_epoch = 5
        self.completed: list[Complete] = []
        self.failures: list[Any] = []  # what happens to the next completions

    def run(self, command: Complete) -> Any:
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, KafkaError):
                raise failure
            return failure
        self.completed.append(command)
        return None


class Cluster:
    """Partitions 0 and 1 of `t`, who leads them, and what they have been told."""

    def __init__(self, *leaders: int) -> None:
        self.lead(*leaders)
        self.marked: list[tuple[int, Marker | None]] = []
        self.errors: list[ErrorCode] = []  # of the next markers
        self.requests: list[WriteTxnMarkersRequest] = []
        self.broken = 0  # so many requests fail
        self.refused = 0  # requests that had more elements than a broker takes
        self.clock = ManualClock()
        self.write_ms = 0  # so long it takes to write a marker here; a turn has 5 ms

    def lead(self, *leaders: int) -> None:
        states = tuple(PartitionState(each, 0, 0, (each,), (each,)) for each in leaders)
        topics = {"t": Topic("t", TopicId(b"t" * 16), states)} if leaders else {}
        self.image = ClusterImage(topics=topics)

    def _code(self) -> ErrorCode:
        return self.errors.pop(0) if self.errors else ErrorCode.NONE

    # as a MarkerWriter

    def write(self, marker: Marker, to: TopicPartition) -> Deferred[None] | None:
        code = self._code()
        if code is not ErrorCode.NONE:
            raise KafkaError(code)
        self.clock.advance(self.write_ms)
        self.marked.append((to.partition, marker))
        return None

    # as Connections, and a Peer

    def to(self, broker: int) -> Any:
        return self

    async def ask(
        self, request: WriteTxnMarkersRequest, *, timeout: float
    ) -> WriteTxnMarkersResponse:
        await asyncio.sleep(0)
        if self.broken:
            self.broken -= 1
            raise ChannelClosed("gone")
        if _elements(request) > MANY_WHOLE:
            self.refused += 1
            raise ChannelClosed("malformed: too many elements")
        self.requests.append(request)
        results = []
        for marker in request.markers:
            partitions = []
            for index in marker.topics[0].partition_indexes:
                code = self._code()
                if code is ErrorCode.NONE:
                    self.marked.append((index, None))
                partitions.append(
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                )
            results.append(
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[WritableTxnMarkerTopicResult(name="t", partitions=partitions)],
                )
            )
        return WriteTxnMarkersResponse(markers=results)


def _elements(request: WriteTxnMarkersRequest) -> int:
    topics = [topic for marker in request.markers for topic in marker.topics]
    partitions = sum(len(topic.partition_indexes) for topic in topics)
    return len(request.markers) + len(topics) + partitions


class World:
    def __init__(self) -> None:
        self.cluster = Cluster(HERE, THERE)
        self.slot = Coordinator()
        self.sender = MarkerSender(
            HERE,
            lambda: self.cluster.image,
            cast(Connections, self.cluster),
            cast(MarkerWriter, self.cluster),
            Tasks(),
            self.cluster.clock,
        )

    def send(self, *partitions: int, name: str = "orders") -> None:
        places = frozenset(TopicPartition("t", each) for each in partitions)
        what = WriteMarkers(name, PRODUCER, True, places, 2, DECIDED_MS)
        self.sender.send(cast(Slot, self.slot), what)

    async def wait_completed(self) -> None:
        async with asyncio.timeout(60):
            while not self.slot.completed:
                await asyncio.sleep(0.001)
        assert self.slot.completed == [Complete("orders", PRODUCER, DECIDED_MS)]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(remote, "RETRY_SECONDS", 0)
    monkeypatch.setattr(remote, "LONG_RETRY_SECONDS", 0)
    made = World()
    yield made
    made.sender.close()
    await asyncio.sleep(0)


async def turns() -> None:
    """Let everything happen that waits for nothing else, also what is tried again at once."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_partitions_here_and_there_get_theirs_then_it_is_complete(world: World) -> None:
    world.send(0, 1)
    await world.wait_completed()
    assert world.cluster.marked == [(0, Marker(*PRODUCER, True, 5, True)), (1, None)]
    (request,) = world.cluster.requests
    (marker,) = request.markers
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)


@pytest.mark.parametrize("together", [True, False])
async def test_very_many_fit_into_the_requests(world: World, together: bool) -> None:
    """Of one transaction, or of as many that end together."""
    count = MANY_WHOLE + 1
    world.cluster.lead(*[THERE] * count)
    if together:
        world.send(*range(count))
    else:
        for index in range(count):
            world.send(index)
    async with asyncio.timeout(60):
        while len(world.cluster.marked) < count:
            await asyncio.sleep(0.001)
    assert not world.cluster.refused
    await turns()
    assert len(world.slot.completed) == (1 if together else count)


async def test_others_have_their_turn_while_very_many_are_written_here(world: World) -> None:
    count, in_a_turn = 100, 3
    world.cluster.lead(*[HERE] * count)
    world.cluster.write_ms = 2
    world.send(*range(count))
    written = [len(world.cluster.marked)]
    while not world.slot.completed:
        await asyncio.sleep(0)
        written.append(len(world.cluster.marked))
    assert written == [*range(in_a_turn, count, in_a_turn), count]
    assert sorted(index for index, _ in world.cluster.marked) == list(range(count))


async def test_an_end_with_few_does_not_wait_for_one_with_very_many(world: World) -> None:
    world.cluster.lead(*[HERE] * 100)
    world.cluster.write_ms = 6
    world.send(*range(100))
    world.send(0, name="small")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [each.transactional_id for each in world.slot.completed] == ["small"]


async def test_who_is_replaced_meanwhile_writes_no_more_here(world: World) -> None:
    world.cluster.lead(*[HERE] * 100)
    world.cluster.write_ms = 6
    world.send(*range(100))
    world.slot.active = False
    await turns()
    assert len(world.cluster.marked) == 1


async def test_one_that_cannot_be_written_does_not_stop_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(marker: Marker, to: TopicPartition) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(world.cluster, "write", broken)
    with pytest.raises(ZeroDivisionError):
        world.send(0)
    world.send(0)
    assert world.slot.completed


async def test_without_partitions_it_is_complete_at_once(world: World) -> None:
    world.send()
    assert world.slot.completed


async def test_what_fails_is_tried_again(world: World) -> None:
    world.cluster.errors = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    world.cluster.broken = 2
    world.send(0, 1)
    await world.wait_completed()
    assert sorted(index for index, _ in world.cluster.marked) == [0, 1]


async def test_what_is_tried_often_is_told_seldom(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is away for a minute is tried 1,200 times for every transaction."""
    caplog.set_level(logging.INFO)
    world.cluster.broken = 20
    world.slot.failures = [KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * 20
    world.send(0, 1)
    await world.wait_completed()
    told = [record.getMessage() for record in caplog.records]
    assert len([each for each in told if "could not be sent to broker 2" in each]) == 1
    assert len([each for each in told if "cannot be completed" in each]) == 1


async def test_whoever_leads_by_then_is_told(world: World) -> None:
    world.cluster.lead(NO_LEADER, NO_LEADER)
    world.send(0, 1)
    await turns()
    assert not world.cluster.marked
    world.cluster.lead(THERE, HERE)
    await world.wait_completed()


async def test_a_deleted_partition_needs_no_marker(world: World) -> None:
    world.cluster.lead(HERE)
    world.send(0, 1)
    await world.wait_completed()
    assert [index for index, _ in world.cluster.marked] == [0]


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
async def test_who_was_replaced_completes_nothing(world: World, code: ErrorCode) -> None:
    world.cluster.errors = [code]
    world.send(0, 1)
    await turns()
    assert not world.slot.completed


async def test_who_is_not_the_coordinator_any_more_sends_nothing(world: World) -> None:
    world.cluster.errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
    world.send(0)
    world.slot.active = False
    await turns()
    assert not world.cluster.marked
    assert not world.slot.completed


async def test_a_completion_that_could_not_be_written_is_tried_again(world: World) -> None:
    later: Deferred[Any] = Deferred()
    refusal = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    world.slot.failures = [refusal, later]
    world.send(0)
    async with asyncio.timeout(60):
        while world.slot.failures:
            await asyncio.sleep(0.001)
    assert not world.slot.completed
    assert world.sender.unwritten == 0, "it is being written"
    later.fail(refusal)
    assert world.sender.unwritten == 1
    await world.wait_completed()
    assert world.sender.unwritten == 0


async def test_what_another_coordinator_completes_is_not_to_be_written(world: World) -> None:
    world.slot.failures = [KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
    world.send(0)
    assert world.sender.unwritten == 1
    world.slot.active = False
    await turns()
    assert world.sender.unwritten == 0


async def test_others_have_their_turn_while_a_coordinator_elsewhere_has_very_many_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(HERE)
    cluster.write_ms = 2
    unused: Any = None
    writer = MarkerWriter(unused, unused, cluster.clock)
    monkeypatch.setattr(writer, "write", cluster.write)
    cluster.errors = [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    marker = Marker(*PRODUCER, True, 5, True)
    writing = writer.write_all((marker, TopicPartition("t", index)) for index in range(10))
    assert isinstance(writing, Deferred)
    written = [len(cluster.marked)]
    while not writing.done:
        await asyncio.sleep(0)
        written.append(len(cluster.marked))
    assert written == [3, 6, 9, 9]
    outcomes = [None if each is None else each.code for each in writing.result()]
    assert outcomes == [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, *[None] * 8]


async def test_a_coordinator_elsewhere_hears_of_a_failure_in_a_later_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    unused: Any = None
    writer = MarkerWriter(unused, unused, clock)

    def broken(marker: Marker, to: TopicPartition) -> None:
        clock.advance(6)  # a turn has 5 ms
        if to.partition:
            raise ZeroDivisionError

    monkeypatch.setattr(writer, "write", broken)
    marker = Marker(*PRODUCER, True, 5, True)
    writing = writer.write_all((marker, TopicPartition("t", index)) for index in range(3))
    assert isinstance(writing, Deferred)
    await turns()
    assert isinstance(writing.error, ZeroDivisionError)
