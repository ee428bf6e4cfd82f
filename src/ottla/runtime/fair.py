"""Threads that callers share fairly.

`FairThreads` runs at most so many calls at a time. Each call has an owner (a connection), and the
owners take turns: who asks for a thousand look-ups waits a thousand turns, and who asks for one
waits one. A call that is cancelled before its turn is never made; one that runs keeps its thread
until it ends, so whoever asks and hangs up again and again gets no more threads by it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class FairThreads:
    """At most `threads` calls at a time. Used on one event loop."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queues: OrderedDict[object, deque[tuple[asyncio.Future[Any], Callable[[], Any]]]]
        self._queues = OrderedDict()
        self._running = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Calls that have not begun, the cancelled ones included."""
        return sum(len(queue) for queue in self._queues.values())

    def run(self, owner: object, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call `work` in a thread when it is the owner's turn; cancel the future to give it up."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.cancel()
            return future
        self._queues.setdefault(owner, deque()).append((future, work))
        self._begin()
        return future

    def _begin(self) -> None:
        while self._running < self._threads and self._queues:
            owner, queue = next(iter(self._queues.items()))
            future, work = queue.popleft()
            if queue:
                self._queues.move_to_end(owner)
            else:
                del self._queues[owner]
            if future.done():
                continue
            self._running += 1
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
            running.add_done_callback(partial(self._ended, future))

    def _ended(self, future: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._running -= 1
        error = None if running.cancelled() else running.exception()
        if future.done():
            pass
        elif running.cancelled():
            future.cancel()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(running.result())
        if not self._closed:
            self._begin()

    def close(self) -> None:
        """Give up what has not begun."""
        self._closed = True
        for queue in self._queues.values():
            for future, _ in queue:
                future.cancel()
        self._queues.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
