"""The answer about many partitions, which are looked at in turns with other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ottla.dispatch.context import Services
from ottla.dispatch.turns import TURN, InTurns
from ottla.errors import KafkaError
from ottla.handlers.fetch.answer import count_sent, note_sent, respond_some, response_of
from ottla.handlers.fetch.plan import Plan
from ottla.handlers.fetch.reading import Reading, read_some
from ottla.handlers.fetch.waiting import WARM_UPS, Waiting, warm
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse
from ottla.replication.reader import Seen
from ottla.runtime.waiters import Deferred, Waiter

# To be woken by more than so many would cost too much; they are looked at again after so long.
MAX_WATCHED = 20_000
LOOK_AGAIN = 0.5

E = TypeVar("E")


def answer_many(
    plan: Plan, services: Services, owner: object, deadline: float, first: bool = True
) -> InTurns[FetchResponse | Deferred[Any]]:
    """The answer about many partitions; if it is too early for one, a Deferred of the next try."""
    for attempt in range(WARM_UPS + 1):
        reading = Reading([], 0, False, [], [])
        if plan.incremental:
            plan.look_again()
        for chunk in _chunks(list(plan.items.items())):
            read_some(
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
        warming = services.workers.look_ups.run(owner, partial(warm, reading.cold))
        yield _done(warming)
    early = asyncio.get_running_loop().time() < deadline
    if not plan.at_once and early and not reading.at_once and reading.size < plan.min_bytes:
        if plan.rounds is not None:
            return Waiting(owner, plan, services, deadline).begin_looking()
        next_try = answer_many(plan, services, owner, deadline, first=False)
        again = yield from _wait_for_many(plan, services, deadline, reading, next_try)
        if again is not None:
            return again
    by_topic: dict[str | bytes, FetchableTopicResponse] = {}
    note_sent(plan, reading, services)
    for parts in _chunks(reading.parts):
        respond_some(plan, parts, by_topic)
        yield 0
    count_sent(plan, reading)
    return response_of(plan, by_topic, services)


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
