"""Waiting for the end of the transaction before, on behalf of a producer that begins the next one.

EndTxn is answered when the decision is committed; the markers follow. A producer that is quick asks
for its next transaction in between, and CONCURRENT_TRANSACTIONS makes it wait: for 20 ms or 100 ms,
where the markers take a few. So the coordinator itself waits for a moment, as long as Kafka's
leaders try again for clients of transaction version 2, and gives the command again when the
transaction is over (`add.partitions.to.txn.retry.backoff.max.ms`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.coordinator.replies import attempt, settle
from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.waiters import Deferred


class Endings:
    """The transactions whose end somebody waits for."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def over(self, transactional_id: str) -> None:
        """Its markers are written, and its coordinator has noted it."""
        for go_on in self._waiting.pop(transactional_id, ()):
            go_on()

    def patiently(self, transactional_id: str, run: Callable[[], Any], seconds: float) -> Any:
        """The reply of a command, or a Deferred of it. While the transaction before is being ended,
        the command is given again when that is done, or when the time is up. Raises KafkaError."""
        reply = attempt(run)
        if not isinstance(reply, Deferred) and not _is_too_early(reply):
            return _given(reply)
        outcome: Deferred[Any] = Deferred()
        until = asyncio.get_running_loop().time() + seconds

        def judge(reply: Any) -> None:
            if isinstance(reply, Deferred):
                # A refusal that comes later may be out of date: then it is asked for again.
                reply.on_done(lambda settled: last_or(attempt(settled.result), again))
            else:
                last_or(reply, lambda: self._wait(transactional_id, again, until))

        def last_or(reply: Any, go_on: Callable[[], None]) -> None:
            if _is_too_early(reply) and asyncio.get_running_loop().time() < until:
                go_on()
            else:
                settle(outcome, reply)

        def again() -> None:
            judge(attempt(run))

        judge(reply)
        return outcome

    def _wait(self, transactional_id: str, go_on: Callable[[], None], until: float) -> None:
        waiting = self._waiting.setdefault(transactional_id, [])

        def once() -> None:
            timer.cancel()
            go_on()

        def give_up() -> None:
            waiting.remove(once)
            if not waiting and self._waiting.get(transactional_id) is waiting:
                del self._waiting[transactional_id]
            go_on()

        timer = asyncio.get_running_loop().call_at(until, give_up)
        waiting.append(once)


def _is_too_early(reply: Any) -> bool:
    return isinstance(reply, KafkaError) and reply.code is ErrorCode.CONCURRENT_TRANSACTIONS


def _given(reply: Any) -> Any:
    if isinstance(reply, KafkaError):
        raise reply
    return reply
