"""An event loop in a thread of its own, for a broker beside somebody else's test.

The test may be plain code or run a loop itself; either way it only hands work to the broker's
loop. The thread is a daemon: a test run that is killed must not hang on it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ottla.runtime.loop import loop_factory

T = TypeVar("T")

logger = logging.getLogger(__name__)

STUCK_SECONDS = 5.0

# Found at import, so that the first broker does not wait for uvloop to be loaded.
_new_loop = loop_factory()

_closing = threading.Lock()
"""The filters of warnings are those of the process: one changes them at a time."""


class LoopThread:
    """Runs from its creation until `close`."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a fault's condition runs inside the broker and may not call it")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def do(self, work: Callable[[], T], timeout: float | None = None) -> T:
        """Call a function on the loop's thread and wait for its result."""

        async def run() -> T:
            return work()

        return self.call(run(), timeout)

    def tell_stuck(self, what: str) -> None:
        """Log where each task waits, when `what` has taken too long."""
        try:
            stacks = self.call(_stacks(), STUCK_SECONDS)
        except TimeoutError:
            stacks = "the loop itself does not answer"
        logger.error("%s is stuck in %s: %s", self._thread.name, what, stacks)

    def close(self, timeout: float = 10.0) -> None:
        """Cancel what is left, wait for its end and stop. Its errors are ignored."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(
            self.loop.set_exception_handler, lambda _loop, _context: None
        )
        try:
            self.call(_end_tasks(), timeout)
        except TimeoutError:
            self.tell_stuck("its end")
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self._close_loop()

    def _close_loop(self) -> None:
        """Close the loop with whatever is still open in it.

        uvloop warns of each connection that is left, before it closes it. Where warnings are
        errors, as under pytest, that one would stay open, and uvloop wait for its end for ever.
        """
        with _closing, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.loop.close()


async def _stacks() -> str:
    """Where the tasks of this loop wait, down to what they wait for."""
    lines = io.StringIO()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        waiting: Any = task.get_coro()
        chain = []
        while waiting is not None:
            chain.append(getattr(waiting, "__qualname__", repr(waiting)))
            waiting = getattr(waiting, "cr_await", getattr(waiting, "gi_yieldfrom", None))
        lines.write(f"\n{task.get_name()}: {' > '.join(chain)}")
    return lines.getvalue()


async def _end_tasks() -> None:
    me = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not me]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    with suppress(RuntimeError):  # at the interpreter's end there is no thread to be had for it
        await asyncio.get_running_loop().shutdown_default_executor()
