"""Waiting without polling: the place where requests sit until something happens (the "purgatory").

`Deferred` is a result that is not there yet. It differs from an asyncio future in one way that
matters on the request path: its callback runs in the call that resolves it, not one turn of the
loop later. It can be awaited as well.

`Signal` is something that happens to a partition ("bytes became readable"); `Waiter` wants a
certain amount of it from any of several signals, or its deadline, whichever comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Deferred(Generic[T]):
    """A value to come. One consumer: either `on_done` once, or one `await`."""

    __slots__ = ("_callback", "_error", "_shape", "_value", "done", "exclusive", "on_abandon")

    def __init__(self, *, exclusive: bool = False) -> None:
        self.done = False
        # An exclusive result holds back the connection's next request until it is there.
        self.exclusive = exclusive
        # What to do when nobody wants the value any more: stop waiting for it.
        self.on_abandon: Callable[[], object] | None = None
        self._value: T  # there once it is resolved
        self._error: BaseException | None = None
        self._shape: Callable[[Any], Any] | None = None
        self._callback: Callable[[Deferred[T]], None] | None = None

    def resolve(self, value: T) -> None:
        if self.done:
            return
        if self._shape is not None:
            try:
                value = self._shape(value)
            except Exception as error:
                self.fail(error)
                return
        self._value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        if self.done:
            return
        self._error = error
        self._finish()

    @property
    def error(self) -> BaseException | None:
        """What it has failed with, if it has: to be looked at without being raised."""
        return self._error

    def result(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # or the error and this frame would hold each other: a cycle to collect
        return self._value

    def shape(self, shape: Callable[[T], R]) -> Deferred[R]:
        """A Deferred of what `shape` makes of the value; a failure stays one.

        Where possible that is this same object, which applies `shape` when it is resolved. So a
        reply that several layers shape in turn costs one object and not one for each layer.
        """
        if self.done or self._shape is not None:
            return self._shaped(shape)
        self._shape = shape
        shaped: Deferred[Any] = self  # of another type from here on
        return shaped

    def _shaped(self, shape: Callable[[T], R]) -> Deferred[R]:
        shaped: Deferred[R] = Deferred()
        shaped.on_abandon = self.abandon

        def done(settled: Deferred[T]) -> None:
            try:
                shaped.resolve(shape(settled.result()))
            except Exception as error:
                shaped.fail(error)

        self.on_done(done)
        return shaped

    def on_done(self, callback: Callable[[Deferred[T]], None]) -> None:
        if self.done:
            callback(self)
        else:
            self._callback = callback

    def abandon(self) -> None:
        """Nobody is there to take the value: whoever works on it may stop."""
        self._callback = None
        if not self.done and self.on_abandon is not None:
            self.on_abandon()

    def _finish(self) -> None:
        self.done = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)

    def __await__(self) -> Generator[object, None, T]:
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: Deferred[T]) -> None:
                if not future.done():
                    future.set_result(None)

            self.on_done(wake)
            yield from future
        return self.result()


class Waiter:
    """Calls `ready` once: when `needed` has been signalled, or when the deadline passes.

    `ready` is called from the loop, never from inside the signalling call: whoever signalled
    (a producer's append) answers its own client first.
    """

    __slots__ = ("_loop", "_ready", "_signals", "_timer", "needed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        signals: Iterable[Signal],
        needed: int,
        timeout: float,
        ready: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._ready: Callable[[], None] | None = ready
        self._signals = list(signals)
        self.needed = needed
        self._timer = loop.call_later(timeout, self._fire)
        for signal in self._signals:
            signal.waiters[self] = None

    def watch(self, signal: Signal) -> None:
        """Wait for this one as well, unless the wait is over."""
        if self._ready is not None:
            self._signals.append(signal)
            signal.waiters[self] = None

    def signalled(self, amount: int) -> None:
        self.needed -= amount
        if self.needed <= 0 and self._ready is not None:
            self._unhook()
            self._loop.call_soon(self._fire)

    def hurry(self) -> None:
        """Something else has happened (a partition went away): call `ready` now."""
        self.signalled(self.needed)

    def cancel(self) -> None:
        self._ready = None
        self._unhook()

    def _fire(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            self._unhook()
            ready()

    def _unhook(self) -> None:
        self._timer.cancel()
        for signal in self._signals:
            signal.waiters.pop(self, None)


class Signal:
    """Something that can happen, and those who wait for it."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}  # in the order in which they came

    def notify(self, amount: int) -> None:
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.signalled(amount)

    def hurry(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.hurry()
