"""What one fetch asks for: which partitions, as which reader, under which session."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ottla.dispatch.context import Request, Services
from ottla.dispatch.leaders import LeaderHints
from ottla.errors import KafkaError
from ottla.net.connection import Connection
from ottla.protocol.messages.fetch import FetchRequest
from ottla.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    Session,
    Wanted,
)
from ottla.replication.lease import FOLLOWER_WAIT_MS, LONG_AGO, OLD_MS
from ottla.replication.read_replica import RACK_AWARE
from ottla.replication.reader import Reader
from ottla.replication.rounds import Key, Rounds
from ottla.runtime.waiters import Signal

BY_ID = 13
KNOWS_RACKS = 11
KNOWS_LEADERS = 16
READ_COMMITTED = 1

Item = tuple[Key, Wanted]


@dataclass(slots=True)
class Plan:
    """What is to be read, and under which session it is answered."""

    items: OrderedDict[Key, Wanted]
    by_id: bool
    reader: Reader
    min_bytes: int
    max_bytes: int
    follower: Connection | None = None  # whose answers are noted on its connection
    listener: str | None = None  # of a client that wants to be told who leads elsewhere
    hints: LeaderHints | None = None  # what it is told
    session: Session | None = None
    incremental: bool = False
    rounds: Rounds | None = None  # of a follower's session

    @property
    def at_once(self) -> bool:
        """Whether there is nothing to wait for: a follower's session begins, or its last answer is
        old, or nothing is wanted. In the rounds of a follower nothing may be wanted now."""
        if self.reader.hurried:
            return True
        return not self.incremental if self.rounds is not None else not self.items

    @property
    def overtaken(self) -> bool:
        """Whether the follower's session has ended since: what it has said here may be old."""
        return self.rounds is not None and self.rounds.closed

    def look_again(self) -> None:
        """Before another look: at what has happened since."""
        if self.rounds is not None and self.session is not None:
            self.items = self.rounds.due(self.session.partitions)


def plan_of(
    request: Request[FetchRequest],
    services: Services,
    requested: Iterable[Item] | OrderedDict[Key, Wanted],
) -> Plan:
    """What a request asks for, and its session taken up; KafkaError where that cannot be."""
    body = request.body
    by_id = request.api_version >= BY_ID
    max_bytes = min(body.max_bytes, services.config.fetch_max_bytes)
    plan = Plan(
        items=OrderedDict(),
        by_id=by_id,
        reader=_reader(request, services),
        min_bytes=min(body.min_bytes, max_bytes),
        max_bytes=max_bytes,
    )
    if plan.reader.follows:
        plan.follower = request.connection
    if request.api_version >= KNOWS_LEADERS:
        plan.listener = request.listener
    now = services.clock.monotonic()
    sessions = services.fetch_sessions
    if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if body.session_id != NO_SESSION:
            sessions.close(body.session_id)
        if isinstance(requested, OrderedDict):
            plan.items = requested
        else:
            plan.items.update(requested)
        if body.session_epoch == INITIAL_EPOCH:
            rounds = plan.reader.rounds(plan.items, now * 1000)
            plan.session = sessions.open(plan.items, by_id, now, rounds)
            if plan.session is not None:
                plan.rounds = rounds
        return plan
    session = sessions.resume(
        body.session_id,
        body.session_epoch,
        by_id,
        requested.items() if isinstance(requested, OrderedDict) else requested,
        _forgotten(body, by_id),
        now,
    )
    plan.items = session.partitions
    if session.partitions:
        plan.session = session
        plan.incremental = True
        if session.rounds is not None:
            plan.rounds = session.rounds
            plan.rounds.begin(plan.reader.epoch, now * 1000, plan.reader.asked_after_ms)
    return plan


def requested_in(body: FetchRequest, by_id: bool) -> Iterator[Item]:
    """The partitions that a request names, and what it wants of each."""
    for topic in body.topics:
        name = topic.topic_id if by_id else topic.topic
        for part in topic.partitions:
            yield (
                (name, part.partition),
                Wanted(
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                    part.log_start_offset,
                ),
            )


def _forgotten(body: FetchRequest, by_id: bool) -> Iterator[Key]:
    for topic in body.forgotten_topics_data:
        name = topic.topic_id if by_id else topic.topic
        for index in topic.partitions:
            yield name, index


def _reader(request: Request[FetchRequest], services: Services) -> Reader:
    body = request.body
    broker, epoch = body.replica_id, -1
    if body.replica_state is not None:
        broker, epoch = body.replica_state.replica_id, body.replica_state.replica_epoch
    if broker >= 0:
        connection = request.connection
        asked_after_ms = LONG_AGO if connection.noted is None else connection.noted
        connection.noted = None  # until it has its answer
        hurried = services.replication.now_ms() - asked_after_ms > OLD_MS
        return Reader(broker, epoch, False, False, "", "", asked_after_ms, hurried)
    return Reader(
        broker,
        epoch,
        committed=body.isolation_level == READ_COMMITTED,
        any_replica=request.api_version >= KNOWS_RACKS,
        rack=body.rack_id if services.config.replica_selector_class == RACK_AWARE else "",
        listener=request.listener,
    )


def signals(plan: Plan, services: Services) -> Iterator[Signal]:
    """What tells that there is more to read."""
    if plan.rounds is not None:
        yield plan.rounds.news
        return
    for key in plan.items:
        try:
            yield plan.reader.signal(plan.reader.find(key, services.replicas))
        except KafkaError:
            continue


def deadline_of(body: FetchRequest, plan: Plan) -> float:
    """When it is answered at the latest, by the loop's clock."""
    wait_ms: float = body.max_wait_ms
    if plan.reader.follows:
        wait_ms = min(wait_ms, FOLLOWER_WAIT_MS)
    return asyncio.get_running_loop().time() + wait_ms / 1000
