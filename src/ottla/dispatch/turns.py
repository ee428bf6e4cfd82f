"""Requests that take long, done piece by piece between those of the others.

A request of a quarter of a million entries, or an answer of that size, is seconds of Python. The
broker has one thread for all of it, so such work is written as a generator that yields every few
hundred entries: the number of entries it has made of the answer since the last time. `begin` runs
it until `SLICE` is over; nearly everything is done by then, and has never left its caller's stack.
The rest goes on in slices, and the loop serves everybody else in between. Where a generator yields
a Deferred or a coroutine it waits for it, and gets its value.

Bounds. Only `AT_ONCE` such requests are worked on, in alternation, and `IN_ALL` are begun, with
those that wait for something. One that has yielded `DONE`, and waits for nothing but what it is to
answer, is not counted: that may take as long as its client likes. The others wait in the order in
which they came, having used one slice. A connection has one of them at most, since their results
are exclusive. An answer of more than `MAX_ENTRIES` is not made: the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from time import perf_counter
from typing import Any, TypeVar

from ottla.net.connection import Hangup
from ottla.runtime.waiters import Deferred

T = TypeVar("T")


class Done(Enum):
    DONE = "done"


DONE = Done.DONE
Step = int | Deferred[Any] | Coroutine[Any, Any, Any] | Done
InTurns = Generator[Step, Any, T]
"""What a handler with many entries is: yields how many it has made, returns the response."""

SLICE = 0.002
AT_ONCE = 2
IN_ALL = 8
MAX_ENTRIES = 1 << 20
"""Of one answer: the settings of 30,000 topics."""
TURN = 256
"""After so many cheap entries a handler yields."""


class _Work:
    """One request that is being worked on."""

    __slots__ = ("_awaited", "_entries", "done", "result", "steps")

    def __init__(self, steps: InTurns[Any]) -> None:
        self.steps = steps
        self.result: Deferred[Any] = Deferred(exclusive=True)
        self.done = False  # but for its answer
        self._entries = 0
        self._awaited: Deferred[Any] | None = None

    @property
    def waits(self) -> bool:
        """Whether it cannot go on yet."""
        return self._awaited is not None and not self._awaited.done

    def run_slice(self) -> None:
        """Go on until the slice is over. Raises what the work does, and StopIteration, with its
        result, at its end."""
        end = perf_counter() + SLICE
        while True:
            made = self._step()
            if isinstance(made, Coroutine):
                made = _started(made)
            if isinstance(made, Deferred):
                self._awaited = made
                if not made.done:
                    return
            elif made is DONE:
                self.done = True
            else:
                self._entries += made
                if self._entries > MAX_ENTRIES:
                    self.steps.close()
                    raise Hangup(f"the answer has more than {MAX_ENTRIES} entries")
            if perf_counter() >= end:
                return

    def _step(self) -> Step:
        awaited, self._awaited = self._awaited, None
        if awaited is None:
            return next(self.steps)
        try:
            value = awaited.result()
        except Exception as error:
            return self.steps.throw(error)
        return self.steps.send(value)

    def on_ready(self, go_on: Callable[[], None]) -> None:
        """Call back when what it waits for has come."""
        assert self._awaited is not None
        self._awaited.on_done(lambda _: go_on())

    def give_up(self) -> None:
        if self._awaited is not None:
            self._awaited.abandon()
        self.steps.close()


class Turns:
    """The long work of a broker that reads, or all that changes something: of that much may wait
    for something at once, and readers are not to wait for it. Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[_Work] = deque()
        self._begun: deque[_Work] = deque()  # those that can go on
        self._held: set[_Work] = set()  # those that wait for something
        self._done: set[_Work] = set()  # those that wait for what to answer
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Requests that are being worked on, those that wait included."""
        return len(self._waiting) + len(self._begun) + len(self._held) + len(self._done)

    def begin(
        self, steps: InTurns[T | Deferred[T]], *, to_the_end: bool = False
    ) -> T | Deferred[T]:
        """Do a first slice of the work: its result if that was all, else a Deferred of it, which
        is exclusive. A result that is a Deferred is waited for. Raises what the work does.

        Work that nobody wants the result of any more is given up, unless it is done `to_the_end`.
        """
        work = _Work(steps)
        try:
            work.run_slice()
        except StopIteration as end:
            result: T | Deferred[T] = end.value
            return result
        if not to_the_end:
            work.result.on_abandon = lambda: self._give_up(work)
        if work.waits:
            self._hold(work)
        else:
            self._waiting.append(work)
            self._go_on()
        return work.result

    def _hold(self, work: _Work) -> None:
        held = self._done if work.done else self._held

        def ready() -> None:
            if work in held:
                held.remove(work)
                self._begun.append(work)
                self._go_on()

        held.add(work)
        work.on_ready(ready)

    def _go_on(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                while self._waiting and len(self._begun) < min(AT_ONCE, IN_ALL - len(self._held)):
                    self._begun.append(self._waiting.popleft())
                if not self._begun:
                    return
                await asyncio.sleep(0)
                if self._begun:
                    work = self._begun.popleft()
                    if not _advance(work):
                        if work.waits:
                            self._hold(work)
                        else:
                            self._begun.append(work)
        finally:
            self._task = None

    def _give_up(self, work: _Work) -> None:
        """Nobody is there for the result any more."""
        for queue in (self._waiting, self._begun):
            if work in queue:
                queue.remove(work)
        self._held.discard(work)
        self._done.discard(work)
        work.give_up()
        if self._waiting:
            self._go_on()

    async def finish(self, timeout: float) -> None:
        """Wait for what is still being worked on, then close."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while len(self) and loop.time() < deadline:
            await asyncio.sleep(0.01)
        self.close()

    def close(self) -> None:
        """Give up everything."""
        if self._task is not None:
            self._task.cancel()
        for work in (*self._waiting, *self._begun, *self._held, *self._done):
            work.give_up()
        self._waiting.clear()
        self._begun.clear()
        self._held.clear()
        self._done.clear()


def _started(work: Coroutine[Any, Any, T]) -> Deferred[T]:
    """The result of a coroutine, which runs to its end even if nobody wants it any more."""
    outcome: Deferred[T] = Deferred()

    async def run() -> None:
        try:
            outcome.resolve(await work)
        except Exception as error:
            outcome.fail(error)

    task = asyncio.get_running_loop().create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return outcome


_tasks: set[asyncio.Task[None]] = set()


def _advance(work: _Work) -> bool:
    """Do one more slice; whether the work is over, and its result settled."""
    try:
        work.run_slice()
    except StopIteration as end:
        _settle(work.result, end.value)
    except Exception as error:
        work.result.fail(error)
    else:
        return False
    return True


def _settle(result: Deferred[Any], value: Any) -> None:
    if isinstance(value, Deferred):
        pass_on(value, result)
    else:
        result.resolve(value)


def pass_on(inner: Deferred[Any], outer: Deferred[Any]) -> None:
    """Let `outer` have the result of `inner`, when it comes."""

    def done(inner: Deferred[Any]) -> None:
        try:
            outer.resolve(inner.result())
        except Exception as error:
            outer.fail(error)

    outer.on_abandon = inner.abandon
    inner.on_done(done)
