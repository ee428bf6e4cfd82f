"""Faults that a test can switch on: in the network, in answers, on the disk, in the clock.

    with Broker(topics=["orders"]) as broker:
        fault = broker.faults.error("NOT_LEADER_OR_FOLLOWER", "Produce", topic="orders", times=2)
        ...                              # the client retries twice, then gets through
        assert fault.hits == 2

Faults on requests have a match (API, topic, client id, any condition), a number of requests to let
pass first (`after`) and a number to hit (`times`, None for all from then on). Each is looked at in
the order it was made; the first that wants a request has it. `Broker.produce` and the like go
straight into the broker, so no such fault disturbs how a test arranges and checks.

A handler is wrapped, not the dispatcher: whatever a fault does to an answer passes through the same
encoding, ordering and back-pressure as any other answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypedDict, TypeVar, Unpack

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import Handler, handler_of, mark
from ottla.errors import ErrorCode, KafkaError
from ottla.net.connection import Connection, Hangup, NotYet
from ottla.protocol.apis import ApiKey
from ottla.runtime.waiters import Deferred
from ottla.testing.clock import ShiftedClock
from ottla.testing.disk import Disk, DiskOperation
from ottla.testing.requests import Api, Condition, Match, api_keys, spoil, spoil_fetch
from ottla.testing.thread import LoopThread

T = TypeVar("T")

CALL_SECONDS = 120.0
CUT = "a test cut this connection"

Apis = Api | Iterable[Api] | None
Result = Any  # what a handler gives: a response, None, a Deferred or a coroutine of those
Work = Callable[[], Result]


class Choice(TypedDict, total=False):
    """Which requests a fault hits, besides their API; all of it optional."""

    topic: str
    """Only requests that name this topic."""
    client_id: str
    """Only requests of clients with this client.id."""
    when: Condition
    """Only requests for which this is true. It runs on the broker's thread and gets the decoded
    request: `request.body` has Kafka's fields in snake_case."""
    after: int
    """So many of them pass first (0)."""
    times: int | None
    """So many of them are hit (1); None: all."""


class Fault:
    """One fault that was switched on. `hits` counts what it did."""

    def __init__(self, match: Match, after: int, times: int | None, action: _Action) -> None:
        if after < 0 or (times is not None and times < 1):
            raise ValueError("after is 0 or more, times is 1 or more, or None for no end")
        self.match = match
        self.hits = 0
        self._after = after
        self._times = times
        self._action = action
        self._changed = threading.Condition()
        self._cancelled = False

    @property
    def over(self) -> bool:
        """Whether it will hit nothing more."""
        return self._cancelled or (self._times is not None and self.hits >= self._times)

    def cancel(self) -> None:
        self._cancelled = True

    def wait_hit(self, hits: int = 1, timeout: float = 60.0) -> None:
        """Wait until it has hit so many requests; AssertionError when it does not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= hits, timeout):
                raise AssertionError(f"{self.hits} of {hits} requests hit after {timeout} s")

    def wants(self) -> bool:
        """A request matches: is it to be hit? Counted by `count`."""
        if self.over:
            return False
        if self._after > 0:
            self._after -= 1
            return False
        return True

    def ask_again(self) -> None:
        """A request that was let pass waits for its turn, and will come once more."""
        self._after += 1

    def count(self) -> None:
        with self._changed:
            self.hits += 1
            self._changed.notify_all()

    def act(self, asked: _Asked) -> Result:
        return self._action(self, asked)


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A request on its way to its handler."""

    handler: Handler
    request: Request[Any]
    services: Services

    def proceed(self) -> Result:
        return self.handler.function(self.request, self.services)


_Action = Callable[[Fault, _Asked], Result]


class Faults:
    """All faults of one broker; `heal` ends them all."""

    def __init__(self, disk: Disk, clock: ShiftedClock) -> None:
        self._disk = disk
        self._clock = clock
        self._faults: tuple[Fault, ...] = ()
        # while a broker runs
        self._thread: LoopThread | None = None
        self._connections: Collection[Connection] = ()
        # on the broker's thread
        self._silenced: set[Connection] = set()
        self._delayed: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------------ requests

    def error(
        self,
        code: ErrorCode | str,
        apis: Apis,
        *,
        processed: bool = False,
        **choice: Unpack[Choice],
    ) -> Fault:
        """Answer with an error code: `error("NOT_LEADER_OR_FOLLOWER", "Produce")`.

        The request has no effect, unless `processed`: then it is carried out and only its answer
        is wrong. APIs that cannot fail as a whole (ListOffsets, FindCoordinator, Fetch and a few
        more) are always carried out, and the code is put into each part of their answer.
        """
        wanted = _error_code(code)

        def act(fault: Fault, asked: _Asked) -> Result:
            return self._fail(fault, asked, wanted, processed)

        return self._add(act, apis, choice)

    def drop(self, apis: Apis = None, **choice: Unpack[Choice]) -> Fault:
        """Carry out the request and never answer it.

        As when a network goes quiet, nothing that comes after it on the connection arrives either;
        the client has to give up and connect anew.
        """

        def act(fault: Fault, asked: _Asked) -> Result:
            result = asked.proceed()
            fault.count()
            if result is None:
                return None
            self._silenced.add(asked.request.connection)
            silence: Deferred[Any] = Deferred()
            if hasattr(result, "send"):
                self._spawn(result)
            return silence

        return self._add(act, apis, choice)

    def delay(self, seconds: float, apis: Apis = None, **choice: Unpack[Choice]) -> Fault:
        """Carry out the request and answer it `seconds` later, and so whatever comes after it."""

        def act(fault: Fault, asked: _Asked) -> Result:
            result = asked.proceed()
            fault.count()
            return None if result is None else self._later(seconds, result)

        return self._add(act, apis, choice)

    def disconnect(
        self, apis: Apis = None, *, processed: bool = False, **choice: Unpack[Choice]
    ) -> Fault:
        """Close the connection instead of answering; `processed` says whether the request counts.

        `disconnect(after=10)` lets ten requests pass first. See `disconnect_now` as well.
        """

        def act(fault: Fault, asked: _Asked) -> Result:
            result = asked.proceed() if processed else None
            fault.count()
            if isinstance(result, Deferred) or result is None or not hasattr(result, "send"):
                raise Hangup(CUT)

            async def finish() -> None:
                with suppress(KafkaError):
                    await result
                raise Hangup(CUT)

            return finish()

        return self._add(act, apis, choice)

    def disconnect_now(self, client_id: str | None = None) -> int:
        """Close every connection (of one client id); returns how many there were."""

        def close() -> int:
            chosen = [
                connection
                for connection in self._connections
                if client_id is None or connection.client == client_id
            ]
            for connection in chosen:
                connection.close(CUT)
            return len(chosen)

        return self._on_loop(close) or 0

    # ------------------------------------------------------------------ disk and clock

    def slow_disk(
        self, seconds: float, operations: Collection[DiskOperation] = ("write", "sync")
    ) -> None:
        """Let each write and sync (or "read") take so much longer.

        Writes are made on the broker's loop, as in production: all clients wait with them. Syncs
        are made in threads, and only where a topic asks for them (`flush.messages=1`).
        """
        self._disk.slow(seconds, operations)

    def full_disk(self, room: int = 0, folder: str | None = None) -> None:
        """Let the disk take `room` more bytes, then fail with ENOSPC; `folder` fills only one.

        As in Kafka the first failed write takes the data folder offline for good, and a broker
        without any folder stops: `free_disk`, then `Broker.start` or `Broker.restart`.
        """
        self._disk.fill(room, folder or "")

    def free_disk(self) -> None:
        self._disk.free()

    def jump_clock(self, seconds: float) -> None:
        """Move the broker's wall clock, forwards or back. Timers go on undisturbed."""
        self._clock.jump(round(seconds * 1000))

    # ------------------------------------------------------------------ the end of them

    def heal(self) -> None:
        """End all faults: delayed answers go out, silenced connections are closed."""
        self._faults = ()
        self._disk.free()
        self._disk.quicken()
        self._clock.settle()
        self._on_loop(self.release)

    def release(self) -> None:
        """Let go of what is being held back. On the broker's thread."""
        delayed, self._delayed = self._delayed, {}
        for timer, answer in delayed.items():
            timer.cancel()
            answer()
        silenced, self._silenced = self._silenced, set()
        for connection in silenced:
            connection.close(CUT)

    # ------------------------------------------------------------------ for the broker

    def attach(self, thread: LoopThread, connections: Collection[Connection]) -> None:
        self._thread, self._connections = thread, connections

    def detach(self) -> None:
        self._thread, self._connections = None, ()
        self._silenced.clear()
        self._delayed.clear()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A handler that asks the faults first."""
        handler = handler_of(function)

        def wrapped(request: Request[Any], services: Services) -> Result:
            passed: list[Fault] = []
            try:
                for fault in self._faults:
                    if not _concerns(fault.match, handler.key, request, services):
                        continue
                    if fault.wants():
                        return fault.act(_Asked(handler, request, services))
                    passed.append(fault)
                return function(request, services)
            except NotYet:
                for fault in passed:
                    fault.ask_again()
                raise

        return mark(wrapped, dataclasses.replace(handler, function=wrapped))

    def _add(self, action: _Action, apis: Apis, choice: Choice) -> Fault:
        known = Choice.__annotations__
        for name in choice:
            if name not in known:
                raise TypeError(f"a fault has no option {name!r}; it has {', '.join(known)}")
        match = Match(
            api_keys(apis), choice.get("topic"), choice.get("client_id"), choice.get("when")
        )
        fault = Fault(match, choice.get("after", 0), choice.get("times", 1), action)
        self._faults = (*(earlier for earlier in self._faults if not earlier.over), fault)
        return fault

    def _fail(self, fault: Fault, asked: _Asked, code: ErrorCode, processed: bool) -> Result:
        handler, request = asked.handler, asked.request
        if handler.key is ApiKey.FETCH:
            topic = fault.match.topic
            image = asked.services.image

            def spoil_some(response: Any) -> Any:
                if not fault.over and spoil_fetch(response, code, topic, image):
                    fault.count()
                return response

            return _shaped(asked.proceed(), spoil_some)
        if handler.failure is None:
            fault.count()
            return _shaped(asked.proceed(), lambda response: spoil(response, code))
        error: Exception = KafkaError(code, "a fault of the test")
        if handler.key is ApiKey.PRODUCE and request.body.acks == 0:
            error = Hangup(CUT)  # nobody waits for an answer; as in Kafka this is the only sign
        result: Result = asked.proceed() if processed else None
        fault.count()
        if hasattr(result, "send"):

            async def finish() -> None:
                await result
                raise error

            return finish()
        raise error

    def _later(self, seconds: float, result: Result) -> Deferred[Any]:
        """The result, so much later than it is there."""
        late: Deferred[Any] = Deferred(exclusive=getattr(result, "exclusive", False))
        loop = asyncio.get_running_loop()

        def hold(answer: Callable[[], None]) -> None:
            timer: asyncio.TimerHandle

            def go() -> None:
                self._delayed.pop(timer, None)
                answer()

            timer = loop.call_later(seconds, go)
            self._delayed[timer] = answer

        def done(settled: Deferred[Any] | asyncio.Task[Any]) -> None:
            try:
                value = settled.result()
            except Exception as failure:
                error = failure
                hold(lambda: late.fail(error))
            else:
                hold(lambda: late.resolve(value))

        if isinstance(result, Deferred):
            late.on_abandon = result.abandon
            result.on_done(done)
        elif hasattr(result, "send"):
            late.exclusive = True
            self._spawn(result).add_done_callback(done)
        else:
            hold(lambda: late.resolve(result))
        return late

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _on_loop(self, work: Callable[[], T]) -> T | None:
        return None if self._thread is None else self._thread.do(work, CALL_SECONDS)


def _error_code(code: ErrorCode | str) -> ErrorCode:
    if isinstance(code, ErrorCode):
        return code
    if code not in ErrorCode.__members__:
        near = difflib.get_close_matches(code.upper(), ErrorCode.__members__, 1)
        raise ValueError(
            f"Kafka has no error code {code!r}" + (f"; did you mean {near[0]}?" if near else "")
        )
    return ErrorCode[code]


def _concerns(match: Match, key: ApiKey, request: Request[Any], services: Services) -> bool:
    if key is ApiKey.FETCH and match.topic is not None and match.may_include(key, request):
        # A fetch session's request does not name what it asks for. What is served is looked at.
        if match.when is not None and not match.when(request):
            return False
        body = request.body
        return match.includes(key, request, services.image) or body.session_id != 0
    return match.includes(key, request, services.image)


def _shaped(result: Result, shape: Callable[[Any], Any]) -> Result:
    """What `shape` makes of a response, now or when it is there."""
    if isinstance(result, Deferred):
        shaped: Deferred[Any] = Deferred(exclusive=result.exclusive)
        shaped.on_abandon = result.abandon

        def done(settled: Deferred[Any]) -> None:
            try:
                shaped.resolve(shape(settled.result()))
            except Exception as error:
                shaped.fail(error)

        result.on_done(done)
        return shaped
    if hasattr(result, "send"):

        async def finish() -> Any:
            return shape(await result)

        return finish()
    return shape(result)
