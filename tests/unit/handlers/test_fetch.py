"""Fetch by followers: requests that are worked on in turns, and those that get nothing for now."""

from __future__ import annotations

from collections.abc import Collection, Generator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.config.topic import TopicConfig
from ottla.handlers import fetch
from ottla.handlers.fetch import many, reading
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.records.builder import build_batch
from ottla.replication.fetch_sessions import FetchSessions
from ottla.replication.isr import Follower, Rules
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.testing.logs import LogBench

TOPIC = TopicId(b"t" * 16)
NOW = 1_700_000_000_000
EPOCH = 5
LED = PartitionState(
    leader=1, leader_epoch=EPOCH, partition_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3)
)


class Leader:
    """Broker 1, as the handler sees it; it leads some partitions that broker 2 follows."""

    node_id = 1
    max_lag_ms = 1_000.0
    session_alive = False
    sending = SimpleNamespace(limited=False)

    def __init__(
        self, partitions: int, *, sessions: int = 10, config: TopicConfig | None = None
    ) -> None:
        self.proposed: list[tuple[int, ...]] = []
        self.held_back = False
        self.now = 0.0
        self.partitions: dict[int, Partition] = {}
        for index in range(partitions):
            log = LogBench(config).open()
            nobody = None  # asks for fsync
            partition = Partition(TopicPartition("t", index), TOPIC, log, LED, nobody, self)
            partition.lead(LED, Rules(2))
            self.partitions[index] = partition
        ids = count(1)
        self.services: Any = SimpleNamespace(
            config=SimpleNamespace(fetch_max_bytes=1 << 20, replica_selector_class=""),
            clock=SimpleNamespace(monotonic=lambda: self.now / 1000),
            fetch_sessions=FetchSessions(sessions, lambda: next(ids)),
            replicas=SimpleNamespace(by_id=lambda _, index: self.partitions[index]),
            replication=self,
        )

    # ------------------------------------------------------------------ what partitions ask for

    def now_ms(self) -> float:
        return self.now

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return True

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        self.proposed.append(isr)

    def holds_back(self, partition: Partition, broker: int) -> bool:
        return self.held_back

    # ------------------------------------------------------------------ what happens

    def append(self, index: int) -> None:
        batch = bytearray(build_batch([(NOW, None, b"x", ())]))
        self.partitions[index].append(memoryview(batch), NOW)

    def follower(self, index: int, broker: int = 2) -> Follower:
        in_sync = self.partitions[index].in_sync
        assert in_sync is not None
        return in_sync.followers[broker]

    def ask(
        self,
        connection: Any,
        offsets: dict[int, int],
        session: tuple[int, int] = (0, 0),
        *,
        wait_ms: int = 500,
        many: bool = True,
    ) -> Any:
        """A fetch of broker 2, in turns if of `many`: of each partition from an offset on."""
        wanted = [
            FetchPartition(
                partition=index,
                current_leader_epoch=EPOCH,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            for index, offset in offsets.items()
        ]
        body = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=20),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic(topic_id=TOPIC, partitions=wanted)] if wanted else [],
            forgotten_topics_data=[],
        )
        request: Any = SimpleNamespace(
            api_version=17, body=body, connection=connection, has_many=many, listener="x"
        )
        return fetch.fetch(request, self.services)


def connection() -> Any:
    return SimpleNamespace(noted=None, listener="x")


def finish(answering: Generator[Any, Any, Any]) -> Any:
    while True:
        try:
            next(answering)
        except StopIteration as end:
            return end.value


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch, many):
        monkeypatch.setattr(module, "TURN", 1)


async def test_a_fetch_of_a_session_that_has_ended_says_nothing_any_more() -> None:
    """Its connection is half open: the follower has another, and has come further since."""
    leader = Leader(3)
    late = leader.ask(connection(), {0: 0, 1: 0, 2: 0})
    while leader.follower(0).end < 0:
        next(late)
    assert leader.follower(1).end < 0, "it is under way"
    for index in leader.partitions:
        leader.append(index)
    at = connection()
    begun = finish(leader.ask(at, {0: 1, 1: 1, 2: 1}))
    for each in leader.partitions.values():
        each.fetched_by(3, 30, 1, 0)
    for epoch in (1, 2):
        finish(leader.ask(at, {}, (begun.session_id, epoch), wait_ms=0))
    [session] = leader.services.fetch_sessions
    assert [leader.follower(each).rests_with(session.rounds) for each in range(3)] == [True] * 3
    finish(late)
    assert [leader.follower(each).end for each in range(3)] == [1, 1, 1]
    assert [leader.follower(each).rests_with(session.rounds) for each in range(3)] == [True] * 3
    assert leader.proposed == []


async def test_who_is_held_back_in_an_older_segment_is_kept_waiting() -> None:
    """Without a session, of many partitions. Else it would ask again and again without a pause."""
    leader = Leader(2, sessions=0, config=TopicConfig(segment_bytes=100))
    for _ in range(4):
        leader.append(1)
    leader.held_back = True
    at = connection()
    finish(leader.ask(at, {0: 0, 1: 0}))
    answer = finish(leader.ask(at, {0: 0, 1: 0}))
    assert isinstance(answer, Deferred)
    assert not answer.done
    answer.abandon()
    leader.held_back = False
    answer = finish(leader.ask(at, {0: 0, 1: 0}))
    assert [part.partition_index for part in answer.responses[0].partitions] == [0, 1]


async def test_who_has_no_session_is_looked_at_again_when_there_was_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it told may have led to more; who has something to read asks again anyway."""
    looks: list[int] = []
    read = reading._read_partition

    def counted(index: int, *more: Any) -> Any:
        looks.append(index)
        return read(index, *more)

    monkeypatch.setattr(reading, "_read_partition", counted)
    leader = Leader(2, sessions=0)
    at = connection()
    leader.ask(at, {0: 0, 1: 0}, many=False)
    assert looks == [0, 1, 0, 1]
    looks.clear()
    leader.append(1)
    answer = leader.ask(at, {0: 0, 1: 0}, many=False)
    assert [len(part.records) > 0 for part in answer.responses[0].partitions] == [False, True]
    assert looks == [0, 1]
