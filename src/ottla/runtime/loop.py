"""Which event loop runs the broker, and how long it was ever held up.

uvloop where it is installed; plain asyncio otherwise, with the same behaviour. One broker is one
loop on one thread, so anything that holds the loop holds every client: `StallMonitor` measures
that all the time, and its histogram is the first thing to look at when latency is bad.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.runtime.metrics import Histogram

T = TypeVar("T")

LOOP_FACTORIES = ("uvloop", "asyncio")


def loop_factory(name: str | None = None) -> Callable[[], asyncio.AbstractEventLoop]:
    """The named loop; without a name uvloop if it is there, else asyncio."""
    if name is None:
        name = "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    if name == "asyncio":
        return asyncio.new_event_loop
    raise ValueError(f"no event loop is called {name!r}; there are {', '.join(LOOP_FACTORIES)}")


def run(main: Coroutine[Any, Any, T], loop: str | None = None) -> T:
    """Run `main` to its end on a new loop."""
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        return runner.run(main)


class StallMonitor:
    """Wakes every `interval` and records by how much each waking was late."""

    def __init__(self, histogram: Histogram, interval: float = 0.05) -> None:
        self._histogram = histogram
        self._interval = interval
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._interval
        self._handle = loop.call_later(self._interval, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._histogram.record(max(0.0, loop.time() - self._due))
        self._arm(loop)
