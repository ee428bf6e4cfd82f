"""Callbacks of an `AsyncConsumer` that are coroutines.

librdkafka calls back on the consumer's thread, and what the callback has to do must be over when it
returns: whoever is told of partitions that are about to be given up commits now or never. So the
thread waits until the coroutine has ended on its loop. What the coroutine asks of the same consumer
would wait for the thread in turn; the thread does it while it waits.

    Desk().carry_out(coroutine, loop)   on the thread: run it, and return when it is over
    Desk.current(owner)                 on the loop: the one whose coroutine is asking, if any
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from queue import SimpleQueue
from typing import TypeVar

R = TypeVar("R")

_current: ContextVar[Desk | None] = ContextVar("ottla-callback", default=None)


class Desk:
    """Where the consumer's thread sits while a coroutine that it waits for is run."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._open = True
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    @staticmethod
    def current(owner: object) -> Desk | None:
        desk = _current.get()
        # A task that the coroutine has started may live on.
        return desk if desk is not None and desk._owner is owner and desk._open else None

    def carry_out(self, coroutine: Awaitable[object], loop: asyncio.AbstractEventLoop) -> None:
        """Run it on the loop, doing what it asks for; raises what it raises."""
        outcome = asyncio.run_coroutine_threadsafe(self._run(coroutine), loop)
        # Also if it never began, since the loop has ended.
        outcome.add_done_callback(lambda _: self._work.put(None))
        while (work := self._work.get()) is not None:
            work()
        outcome.result()

    async def do(self, work: Callable[[], R]) -> R:
        """Have it done by the thread."""
        done: Future[R] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)

        self._work.put(run)
        return await asyncio.wrap_future(done)

    async def _run(self, coroutine: Awaitable[object]) -> None:
        _current.set(self)
        try:
            await coroutine
        finally:
            self._open = False
