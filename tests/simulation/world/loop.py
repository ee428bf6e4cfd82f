"""An event loop whose clock jumps to the next timer, and which knows whose code it runs.

Every callback belongs to the process in whose context it was made. That of a process that is killed
or stopped is kept instead of run: forever, or until the process goes on. What a callback costs is
counted for its process if the loop is `metered`. After each callback that has changed something
(`touch`) the loop calls `after_step`.

Tasks and futures are numbered, and hashed by their numbers: the order of a set of them, in which
they are waited for or cancelled, would else depend on where they are in memory.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from asyncio import base_events
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from struct import Struct
from typing import Any
from zlib import crc32

from ottla.runtime.clock import SystemClock

MOMENT = Struct("dq")


class Process:
    """Something that runs, stands still, or is dead."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0  # among those that were started
        self.alive = True
        self.stopped = False  # or dead: nothing of it runs
        self.held: list[asyncio.Handle] = []
        self.seconds = 0.0
        self.callbacks = 0
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def kill(self) -> None:
        self.alive = False
        self.stopped = True


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        self._loop.dispatch(self, asyncio.Handle._run)


class _TimerHandle(asyncio.TimerHandle):
    """Of two for the same moment, the one that was made first comes first."""

    __slots__ = ("number",)
    number: int

    def __lt__(self, other: Any) -> bool:
        if self._when != other._when:
            return bool(self._when < other._when)
        return bool(self.number < other.number)

    def _run(self) -> None:
        self._loop.dispatch(self, asyncio.TimerHandle._run)


class _Numbered:
    """Hashed by a number of its own, in the order in which they were made."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class _Future(_Numbered, asyncio.Future[Any]):
    def __init__(self, loop: VirtualLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)


class _Task(_Numbered, asyncio.Task[Any]):
    def __init__(self, loop: VirtualLoop, coroutine: Any, **options: Any) -> None:
        self._number = loop.next_number()
        super().__init__(coroutine, loop=loop, **options)


class VirtualLoop(base_events.BaseEventLoop):
    """asyncio's own loop, without sockets and without waiting."""

    def __init__(self, *, metered: bool = False) -> None:
        super().__init__()
        self._now = 0.0
        self._numbers = 0
        self._selector = self
        self._metered = metered
        self._touched = False
        self.steps = 0
        self.trace = 0  # when each step was, and whose, as one number
        self.processes: list[Process] = []  # all that were ever started
        self.after_step: Callable[[], None] | None = None
        self.set_task_factory(_Task)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- what asyncio asks for ----------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self)

    def run_in_executor(self, *_: Any) -> Any:
        raise RuntimeError("a thread has a time of its own: nothing here may use one")

    def select(self, timeout: float | None) -> list[Any]:
        """Wait: that is, let so much time pass."""
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self._now += timeout
        return []

    def _process_events(self, _: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        timer.number = self.next_number()
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    # --- whose code it is ---------------------------------------------------------------------

    def dispatch(self, handle: Any, run: Callable[[Any], None]) -> None:
        process: Process | None = handle._context.get(PROCESS)
        if process is not None and process.stopped:
            process.held.append(handle)
            return
        self.steps += 1
        number = 0 if process is None else process.number
        self.trace = crc32(MOMENT.pack(self._now, number), self.trace)
        if self._metered:
            begun = time.thread_time()
            run(handle)
            if process is not None:
                process.seconds += time.thread_time() - begun
                process.callbacks += 1
        else:
            run(handle)
        if self._touched and self.after_step is not None:
            self._touched = False
            self.after_step()

    def new_process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        process.number = len(self.processes)
        return process

    def touch(self) -> None:
        """Something has changed that is worth a look."""
        self._touched = True

    def go_on(self, process: Process) -> None:
        """Run what was kept of a process that stood still."""
        process.stopped = False
        held, process.held = process.held, []
        self._ready.extend(each for each in held if not each._cancelled)


class VirtualClock(SystemClock):
    """The loop's time, as the product asks for it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()
