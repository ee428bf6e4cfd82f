"""A fetch that cannot be answered at once: it waits for appends, or for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ottla.dispatch.context import Services
from ottla.errors import KafkaError
from ottla.handlers.fetch.answer import respond
from ottla.handlers.fetch.plan import Plan, signals
from ottla.handlers.fetch.reading import Reading, read
from ottla.protocol.messages.fetch import FetchResponse
from ottla.runtime.waiters import Deferred, Waiter

WARM_UPS = 3


def suffices(plan: Plan, reading: Reading, services: Services) -> bool:
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
    """One such fetch; it looks again whenever it is woken."""

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
        self._consider(read(self._plan, self._services, cached_only=cached_only))

    def _consider(self, reading: Reading) -> None:
        plan = self._plan
        if reading.cold:
            self._warmed += 1
            warming = self._services.workers.look_ups.run(self._owner, partial(warm, reading.cold))
            self._result.on_abandon = warming.cancel
            warming.add_done_callback(self._on_warm)
        elif self._loop.time() >= self._deadline or suffices(plan, reading, self._services):
            self._result.resolve(respond(plan, reading, self._services))
        else:
            # So much is missing; but of what is appended to a partition, no more counts than it
            # may give: one looks again.
            self._wait(plan.min_bytes - reading.size)

    def _wait(self, missing: int) -> None:
        loop, left = self._loop, self._deadline - self._loop.time()
        waiter = Waiter(loop, signals(self._plan, self._services), missing, left, self._look)
        self._result.on_abandon = waiter.cancel

    def _on_warm(self, warming: asyncio.Future[None]) -> None:
        if not warming.cancelled():
            warming.exception()  # whatever it is, the next look will run into it
            self._look()


def warm(reads: list[Callable[[], None]]) -> None:
    """Run, in a thread, what reads from the disk."""
    for each in reads:
        try:
            each()
        except (OSError, KafkaError):
            continue
