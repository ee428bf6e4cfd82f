"""Fetch (1): read record batches, waiting for them if asked to.

Versions   4-18. From 7 on incremental sessions (KIP-227), from 13 on topics are named by id.
Behaviour  Answers at once when `min_bytes` are there, when a partition has an error, or when the
           client will not wait; else when enough was appended or `max_wait_ms` has passed. Enough
           is the smaller of `min_bytes` and `max_bytes`, and what a partition could give counts up
           to its `partition_max_bytes`. A reader that is not in the last segment is never kept
           waiting: more of its segment will not come. Data is never read into memory here: the
           answer holds file regions. Where finding it would wait for the disk, a thread reads
           what is needed first. More than 1,000 partitions are looked at in turns with other
           requests; more than 20,000 wake nobody, but are looked at every half second.
           Of a follower's session only the partitions with news are looked at.
           `max_bytes` bounds the whole, `partition_max_bytes` each part; the first batch of the
           first partition with data is sent whole even when it is larger than both.
           isolation_level 1 reads up to the last stable offset and lists aborted transactions.
           Such a reader is woken by the end of a transaction, not by appends behind an open one.
           A follower (a replica id) reads up to the log's end, and tells by the offset what it has.
           It waits for half a second at most, and not at all with the first fetch of a session or
           long after its last answer: by asking again it vouches for its leader
           (`replication/lease.py`).
           A follower that is not in sync gets nothing of a partition for which its leader has
           sent more than `leader.replication.throttled.rate` in the last seconds (KIP-73).
           A consumer of version 11 or later may also read from a follower, up to the high
           watermark that one knows (KIP-392). With the RackAwareReplicaSelector the leader sends
           consumers that name their rack to an in-sync replica there.
           The leader epoch that a client knows is judged before anything else, by followers too.
           From version 16 on NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH come with the leader,
           and its address.
Odd        The last batch may be cut off by the limit, as in Kafka; every client copes.
           An offset beyond the high watermark but not beyond the log's end is no error.
Not done   Tiered offsets.
See        KIP-73, KIP-74, KIP-98, KIP-227, KIP-320, KIP-392, KIP-516, KIP-595, KIP-951, KIP-1166
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ottla.dispatch.context import Request, Services
from ottla.dispatch.leaders import LeaderHints
from ottla.dispatch.table import handles
from ottla.dispatch.turns import TURN, InTurns
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, ZERO_TOPIC_ID
from ottla.net.connection import Connection
from ottla.protocol.apis import ApiKey
from ottla.protocol.decoder import MAX_ELEMENTS
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    Session,
    Wanted,
)
from ottla.replication.lease import FOLLOWER_WAIT_MS, LONG_AGO, OLD_MS
from ottla.replication.partition import Partition
from ottla.replication.read_replica import RACK_AWARE, nearest_replica
from ottla.replication.reader import Reader, Seen
from ottla.replication.rounds import Key, Rounds
from ottla.replication.traffic import TopicTraffic
from ottla.runtime.files import ColdRead
from ottla.runtime.waiters import Deferred, Signal, Waiter

BY_ID = 13
KNOWS_RACKS = 11
KNOWS_LEADERS = 16
READ_COMMITTED = 1
WARM_UPS = 3

# The client has to go to another broker, or to this one under another epoch.
LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# So many partitions are looked at in turns with other requests.
MANY = 1000
# To be woken by more than so many would cost too much; they are looked at again after so long.
MAX_WATCHED = 20_000
LOOK_AGAIN = 0.5

E = TypeVar("E")
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


@dataclass(slots=True)
class Reading:
    """What one pass over the partitions found."""

    parts: list[tuple[Key, PartitionData]]
    size: int
    at_once: bool  # there is an error or a divergence: do not wait
    cold: list[Callable[[], None]]  # to be run in a thread before one can read on
    sent: list[tuple[TopicTraffic, int]]  # bytes of topics, to be counted once they are answered


def _failed(request: Request[FetchRequest], error: KafkaError) -> FetchResponse:
    return FetchResponse(error_code=error.code, session_id=NO_SESSION, responses=[])


@handles(ApiKey.FETCH, versions=range(4, 19), failure=_failed, most=MAX_ELEMENTS)
def fetch(
    request: Request[FetchRequest], services: Services
) -> FetchResponse | Deferred[FetchResponse] | InTurns[FetchResponse | Deferred[Any]]:
    body = request.body
    if request.has_many:
        return _fetch_many(request, services)
    try:
        plan = _plan(request, services, _requested(body, request.api_version >= BY_ID))
    except KafkaError as error:
        return _failed(request, error)
    session, rounds = plan.session, plan.rounds
    if rounds is not None and session is not None and plan.incremental:
        if (
            len(rounds) <= MANY
            and body.max_wait_ms > 0
            and plan.min_bytes > 0
            and not plan.at_once
            and rounds.attend(session.partitions)
        ):
            deadline = _deadline(body, plan)
            return Waiting(request.connection, plan, services, deadline).begin_waiting()
        plan.look_again()
    if len(plan.items) > MANY:
        return _answer_many(plan, services, request.connection, _deadline(body, plan))
    appends = 0 if rounds is None else rounds.appends
    reading = _read(plan, services, cached_only=True, first=True)
    unsure = rounds is None and plan.reader.follows and not reading.size
    if unsure or (rounds is not None and rounds.appends != appends):
        # What the follower told has committed something, and that has led to more records; or may
        # have, where it has no session, which would know.
        plan.look_again()
        reading = _read(plan, services, cached_only=True)
    if not reading.cold and (
        body.max_wait_ms <= 0 or plan.at_once or _suffices(plan, reading, services)
    ):
        return _respond(plan, reading, services)
    return Waiting(request.connection, plan, services, _deadline(body, plan)).begin(reading)


def _deadline(body: FetchRequest, plan: Plan) -> float:
    wait_ms: float = body.max_wait_ms
    if plan.reader.follows:
        wait_ms = min(wait_ms, FOLLOWER_WAIT_MS)
    return asyncio.get_running_loop().time() + wait_ms / 1000


def _suffices(plan: Plan, reading: Reading, services: Services) -> bool:
    """Whether there is no reason to wait for more."""
    if reading.at_once or reading.size >= plan.min_bytes:
        return True
    for key, wanted in plan.items.items():
        partition = plan.reader.find(key, services.replicas)
        if plan.reader.is_held_back(partition, services.replication):
            continue
        if partition.log.is_behind(wanted.offset, plan.reader.upper(partition)):
            return True
    return False


class Waiting:
    """A fetch that cannot be answered at once: it waits for appends, or for the disk."""

    __slots__ = (
        "_deadline", "_loop", "_owner", "_plan", "_result", "_services", "_warmed",
    )  # fmt: skip

    def __init__(self, owner: object, plan: Plan, services: Services, deadline: float) -> None:
        self._owner = owner
        self._plan = plan
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._warmed = 0
        self._result: Deferred[FetchResponse] = Deferred()

    def begin(self, reading: Reading) -> Deferred[FetchResponse]:
        self._consider(reading)
        return self._result

    def begin_looking(self) -> Deferred[FetchResponse]:
        self._look()
        return self._result

    def begin_waiting(self) -> Deferred[FetchResponse]:
        self._wait(self._plan.min_bytes)
        return self._result

    def _look(self) -> None:
        # What was read a moment ago is in memory; on a machine that is so short of it that it is
        # not, waiting here is the smaller evil.
        cached_only = self._warmed < WARM_UPS
        self._plan.look_again()
        self._consider(_read(self._plan, self._services, cached_only=cached_only))

    def _consider(self, reading: Reading) -> None:
        plan = self._plan
        if reading.cold:
            self._warmed += 1
            warming = self._services.workers.look_ups.run(self._owner, partial(_warm, reading.cold))
            self._result.on_abandon = warming.cancel
            warming.add_done_callback(self._on_warm)
        elif self._loop.time() >= self._deadline or _suffices(plan, reading, self._services):
            self._result.resolve(_respond(plan, reading, self._services))
        else:
            # So much is missing; but of what is appended to a partition, no more counts than it
            # may give: one looks again.
            self._wait(plan.min_bytes - reading.size)

    def _wait(self, missing: int) -> None:
        loop, left = self._loop, self._deadline - self._loop.time()
        waiter = Waiter(loop, _signals(self._plan, self._services), missing, left, self._look)
        self._result.on_abandon = waiter.cancel

    def _on_warm(self, warming: asyncio.Future[None]) -> None:
        if not warming.cancelled():
            warming.exception()  # whatever it is, the next look will run into it
            self._look()


def _warm(reads: list[Callable[[], None]]) -> None:
    for read in reads:
        try:
            read()
        except (OSError, KafkaError):
            continue


# ---------------------------------------------------------------------- what is asked for


def _plan(
    request: Request[FetchRequest],
    services: Services,
    requested: Iterable[Item] | OrderedDict[Key, Wanted],
) -> Plan:
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


def _requested(body: FetchRequest, by_id: bool) -> Iterator[Item]:
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


def _signals(plan: Plan, services: Services) -> Iterator[Signal]:
    """What tells that there is more to read."""
    if plan.rounds is not None:
        yield plan.rounds.news
        return
    for key in plan.items:
        try:
            yield plan.reader.signal(plan.reader.find(key, services.replicas))
        except KafkaError:
            continue


# ---------------------------------------------------------------------- what is there


def _read(plan: Plan, services: Services, *, cached_only: bool, first: bool = False) -> Reading:
    reading = Reading([], 0, False, [], [])
    _read_some(plan, plan.items.items(), reading, services, cached_only=cached_only, first=first)
    return reading


def _read_some(
    plan: Plan,
    items: Iterable[Item],
    reading: Reading,
    services: Services,
    *,
    cached_only: bool,
    first: bool,
) -> None:
    """Go on reading with these partitions; `first` is the first look of a request at them."""
    reader = plan.reader
    first = first and not plan.overtaken
    left = max(0, plan.max_bytes - reading.size)
    min_one = not reading.size
    for key, wanted in items:
        try:
            partition = reader.find(key, services.replicas)
            nearer = _nearer(partition, wanted, reader, services) if reader.rack else None
            whole = not reader.is_held_back(partition, services.replication)
            part = nearer or _read_partition(
                key[1],
                partition,
                wanted,
                reader,
                left if whole else 0,
                min_one and whole,
                cached_only,
                first,
            )
        except ColdRead:
            upper = reader.upper(partition)
            offset = min(wanted.offset, upper)
            reading.cold.append(partition.log.warm_up(offset, upper, aborted=reader.committed))
            continue
        except KafkaError as error:
            reading.at_once = True
            code = reader.refusal(error, key, wanted.leader_epoch, services.replicas)
            part = PartitionData(
                partition_index=key[1],
                error_code=code,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                records=b"",
            )
            if code in LED_ELSEWHERE and plan.listener is not None:
                if plan.hints is None:
                    plan.hints = LeaderHints(
                        services, plan.listener, LeaderIdAndEpoch, NodeEndpoint
                    )
                part.current_leader = plan.hints.find(*key)
        else:
            if part.diverging_epoch is not None or nearer is not None:
                reading.at_once = True
            size = _size(part)
            if size:
                min_one = False
                left = max(0, left - size)
                reading.size += size
                reading.sent.append((partition.traffic, size))
            if plan.rounds is not None:
                plan.rounds.looked_at(key, partition, settled=_settled(partition, wanted, part))
        reading.parts.append((key, part))


def _nearer(
    partition: Partition, wanted: Wanted, reader: Reader, services: Services
) -> PartitionData | None:
    """The answer that sends a consumer to a replica in its rack, if there is one."""
    if partition.in_sync is None or reader.follows:
        return None
    partition.check_epoch(wanted.leader_epoch)
    replica = nearest_replica(
        partition.in_sync, wanted.offset, reader.rack, services.image.brokers, reader.listener
    )
    if replica is None:
        return None
    return PartitionData(
        partition_index=partition.id.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset(),
        log_start_offset=partition.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=b"",
    )


def _settled(partition: Partition, wanted: Wanted, part: PartitionData) -> bool:
    """Whether a follower has everything of a partition, and was told everything."""
    return (
        wanted.offset == partition.log.log_end_offset
        and wanted.high_watermark == part.high_watermark
        and wanted.log_start_offset == part.log_start_offset
        and part.diverging_epoch is None
    )


def _size(part: PartitionData) -> int:
    return 0 if part.records is None else len(part.records)


def _read_partition(
    index: int,
    partition: Partition,
    wanted: Wanted,
    reader: Reader,
    left: int,
    min_one: bool,
    cached_only: bool,
    first: bool,
) -> PartitionData:
    if wanted.leader_epoch != NO_LEADER_EPOCH:
        partition.check_epoch(wanted.leader_epoch)
    high_watermark = partition.high_watermark
    stable = partition.last_stable_offset()
    part = PartitionData(
        partition_index=index,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=None,
        records=b"",
    )
    offset = wanted.offset
    if wanted.last_fetched_epoch >= 0:
        epoch, end = partition.epoch_end_offset(wanted.last_fetched_epoch)
        if end < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end < offset:
            part.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return part
    if first and reader.follows:
        partition.fetched_by(
            reader.broker, reader.epoch, offset, wanted.log_start, reader.asked_after_ms
        )
        part.high_watermark = partition.high_watermark
    upper = reader.upper(partition)
    result = partition.read(
        offset, min(wanted.max_bytes, left), upper, min_one, cached_only=cached_only
    )
    if result.region is not None:
        part.records = result.region
    if reader.committed:
        log = partition.log
        end = log.end_of(result, cached_only=cached_only)
        part.aborted_transactions = [
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
            for txn in log.aborted_transactions(offset, end, cached_only=cached_only)
        ]
    return part


# ---------------------------------------------------------------------- what is answered


def _respond(plan: Plan, reading: Reading, services: Services) -> FetchResponse:
    by_topic: dict[str | bytes, FetchableTopicResponse] = {}
    _note_sent(plan, reading, services)
    _respond_some(plan, reading.parts, by_topic)
    _count(plan, reading)
    return _response(plan, by_topic, services)


def _note_sent(plan: Plan, reading: Reading, services: Services) -> None:
    """Have what followers are sent counted, where that is limited."""
    replication = services.replication
    if not plan.reader.follows or not replication.sending.limited:
        return
    for key, part in reading.parts:
        size = _size(part)
        if size:
            with suppress(KafkaError):  # it is not led here any more
                replication.note_sent(plan.reader.find(key, services.replicas), size)


def _count(plan: Plan, reading: Reading) -> None:
    for traffic, size in reading.sent:
        if plan.follower is None:
            traffic.bytes_out += size
        else:
            traffic.replicated_out += size


def _respond_some(
    plan: Plan,
    parts: Iterable[tuple[Key, PartitionData]],
    by_topic: dict[str | bytes, FetchableTopicResponse],
) -> None:
    session = plan.session
    for key, part in parts:
        if session is not None:
            wanted = session.partitions.get(key)
            size = _size(part)
            news = wanted is None or wanted.note_told(
                size > 0, part.error_code, part.high_watermark, part.log_start_offset
            )
            if size and wanted is not None:
                session.served(key)
            told_anyway = part.diverging_epoch is not None or part.preferred_read_replica >= 0
            if plan.incremental and not news and not told_anyway:
                continue
        name = key[0]
        topic = by_topic.get(name)
        if topic is None:
            topic = by_topic[name] = FetchableTopicResponse(
                topic=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, bytes) else ZERO_TOPIC_ID,
                partitions=[],
            )
        topic.partitions.append(part)


def _response(
    plan: Plan, by_topic: dict[str | bytes, FetchableTopicResponse], services: Services
) -> FetchResponse:
    if plan.follower is not None:
        plan.follower.noted = services.replication.now_ms()
    session_id = plan.session.id if plan.session is not None else NO_SESSION
    response = FetchResponse(session_id=session_id, responses=list(by_topic.values()))
    if plan.hints is not None:
        response.node_endpoints = plan.hints.endpoints
    return response


# ---------------------------------------------------------------------- many partitions


def _fetch_many(
    request: Request[FetchRequest], services: Services
) -> InTurns[FetchResponse | Deferred[Any]]:
    """A request of many partitions: as `fetch`, in turns with others."""
    body = request.body
    requested: OrderedDict[Key, Wanted] = OrderedDict()
    for count, (key, wanted) in enumerate(_requested(body, request.api_version >= BY_ID)):
        requested[key] = wanted
        if count % TURN == 0:
            yield 0
    try:
        plan = _plan(request, services, requested)
    except KafkaError as error:
        return _failed(request, error)
    deadline = _deadline(body, plan)
    return (yield from _answer_many(plan, services, request.connection, deadline))


def _answer_many(
    plan: Plan, services: Services, owner: object, deadline: float, first: bool = True
) -> InTurns[FetchResponse | Deferred[Any]]:
    """The answer about many partitions; if it is too early for one, a Deferred of the next try."""
    for attempt in range(WARM_UPS + 1):
        reading = Reading([], 0, False, [], [])
        if plan.incremental:
            plan.look_again()
        for chunk in _chunks(list(plan.items.items())):
            _read_some(
                plan,
                chunk,
                reading,
                services,
                cached_only=attempt < WARM_UPS,
                first=attempt == 0 and first,
            )
            yield len(chunk)
        if not reading.cold:
            break
        warming = services.workers.look_ups.run(owner, partial(_warm, reading.cold))
        yield _done(warming)
    early = asyncio.get_running_loop().time() < deadline
    if not plan.at_once and early and not reading.at_once and reading.size < plan.min_bytes:
        if plan.rounds is not None:
            return Waiting(owner, plan, services, deadline).begin_looking()
        next_try = _answer_many(plan, services, owner, deadline, first=False)
        again = yield from _wait_for_many(plan, services, deadline, reading, next_try)
        if again is not None:
            return again
    by_topic: dict[str | bytes, FetchableTopicResponse] = {}
    _note_sent(plan, reading, services)
    for parts in _chunks(reading.parts):
        _respond_some(plan, parts, by_topic)
        yield 0
    _count(plan, reading)
    return _response(plan, by_topic, services)


def _wait_for_many(  # noqa: C901 - each way out gives back what was taken, in sight of the others
    plan: Plan, services: Services, deadline: float, reading: Reading, next_try: InTurns[Any]
) -> InTurns[Deferred[Any] | None]:
    """A Deferred of the next try, when enough was appended or time is up; None for no reason, or
    no room, to wait.

    Partitions are watched a few at a time, so what was appended since they were read is noticed
    by their high watermarks.
    """
    count, sessions, loop = len(plan.items), services.fetch_sessions, asyncio.get_running_loop()
    held = 0 if plan.session is not None else count  # in memory because of this fetch alone
    if held and not sessions.has_room(held):
        return None
    again: Deferred[Any] = Deferred(exclusive=True)
    sessions.waiting += held

    def look() -> None:
        sessions.waiting -= held
        again.resolve(next_try)

    def give_up() -> None:
        if not again.done:
            sessions.waiting -= held
            waiter.cancel()
        next_try.close()

    reader = plan.reader
    watched = count <= MAX_WATCHED
    left = deadline - loop.time()
    waiter = Waiter(
        loop,
        (),
        plan.min_bytes - reading.size,
        left if watched else min(left, LOOK_AGAIN),
        look,
    )
    again.on_abandon = give_up
    try:
        for chunk in _chunks(reading.parts if watched else []):
            for key, part in chunk:
                partition = reader.find(key, services.replicas)
                wanted = plan.items[key]
                waiter.watch(reader.signal(partition))
                if reader.is_held_back(partition, services.replication):
                    continue  # there is more, and not for now
                if partition.log.is_behind(wanted.offset, reader.upper(partition)):
                    give_up()
                    return None
                seen = Seen(part.high_watermark, part.last_stable_offset, wanted.offset)
                if reader.has_more(partition, seen):
                    waiter.hurry()
            yield 0
    except (KafkaError, KeyError):
        waiter.hurry()  # a partition has gone, or is no longer wanted: the next look tells
    except GeneratorExit:
        give_up()
        raise
    return again


def _chunks(entries: list[E]) -> Iterator[list[E]]:
    for start in range(0, len(entries), TURN):
        yield entries[start : start + TURN]


async def _done(warming: asyncio.Future[None]) -> None:
    with suppress(Exception):  # whatever it is, the next look will run into it
        await warming
