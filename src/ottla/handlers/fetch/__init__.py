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

from collections import OrderedDict
from typing import Any

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.dispatch.turns import TURN, InTurns
from ottla.errors import KafkaError
from ottla.handlers.fetch.answer import respond
from ottla.handlers.fetch.many import answer_many
from ottla.handlers.fetch.plan import BY_ID, deadline_of, plan_of, requested_in
from ottla.handlers.fetch.reading import read
from ottla.handlers.fetch.waiting import Waiting, suffices
from ottla.protocol.apis import ApiKey
from ottla.protocol.decoder import MAX_ELEMENTS
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.replication.fetch_sessions import NO_SESSION, Wanted
from ottla.replication.rounds import Key
from ottla.runtime.waiters import Deferred

# So many partitions are looked at in turns with other requests.
MANY = 1000


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
        plan = plan_of(request, services, requested_in(body, request.api_version >= BY_ID))
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
            deadline = deadline_of(body, plan)
            return Waiting(request.connection, plan, services, deadline).begin_waiting()
        plan.look_again()
    if len(plan.items) > MANY:
        return answer_many(plan, services, request.connection, deadline_of(body, plan))
    appends = 0 if rounds is None else rounds.appends
    reading = read(plan, services, cached_only=True, first=True)
    unsure = rounds is None and plan.reader.follows and not reading.size
    if unsure or (rounds is not None and rounds.appends != appends):
        # What the follower told has committed something, and that has led to more records; or may
        # have, where it has no session, which would know.
        plan.look_again()
        reading = read(plan, services, cached_only=True)
    if not reading.cold and (
        body.max_wait_ms <= 0 or plan.at_once or suffices(plan, reading, services)
    ):
        return respond(plan, reading, services)
    return Waiting(request.connection, plan, services, deadline_of(body, plan)).begin(reading)


def _fetch_many(
    request: Request[FetchRequest], services: Services
) -> InTurns[FetchResponse | Deferred[Any]]:
    """A request of many partitions: as `fetch`, in turns with others."""
    body = request.body
    requested: OrderedDict[Key, Wanted] = OrderedDict()
    for count, (key, wanted) in enumerate(requested_in(body, request.api_version >= BY_ID)):
        requested[key] = wanted
        if count % TURN == 0:
            yield 0
    try:
        plan = plan_of(request, services, requested)
    except KafkaError as error:
        return _failed(request, error)
    deadline = deadline_of(body, plan)
    return (yield from answer_many(plan, services, request.connection, deadline))
