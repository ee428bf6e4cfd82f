"""Replies that are there, or will be: a coordinator gives either, and so can a handler.

Kept apart from coroutines on purpose. The common reply is there, and then no future is made; one
that is not must not hold back the connection's next request, as a coroutine would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from ottla.errors import KafkaError
from ottla.runtime.waiters import Deferred

T = TypeVar("T")
R = TypeVar("R")


def then(reply: T | Deferred[T], shape: Callable[[T], R]) -> R | Deferred[R]:
    """What `shape` makes of the reply, when it is there. A failure stays one."""
    return reply.shape(shape) if isinstance(reply, Deferred) else shape(reply)


def attempt(call: Callable[[], T | Deferred[T]]) -> T | KafkaError | Deferred[T]:
    """The reply, with a refusal as a value: one of many must not fail the others."""
    try:
        return call()
    except KafkaError as error:
        return error


def gather(
    replies: Iterable[T | KafkaError | Deferred[T]],
) -> list[T | KafkaError] | Deferred[list[T | KafkaError]]:
    """All of them in their order, once the last is there; failures are values."""
    gathered = list(replies)
    waiting = [(index, each) for index, each in enumerate(gathered) if isinstance(each, Deferred)]
    if not waiting:
        return _settled(gathered)
    everything: Deferred[list[T | KafkaError]] = Deferred()
    left = len(waiting)

    def done(index: int, reply: Deferred[T]) -> None:
        nonlocal left
        gathered[index] = attempt(reply.result)
        left -= 1
        if not left:
            everything.resolve(_settled(gathered))

    for index, reply in waiting:
        reply.on_done(partial(done, index))
    return everything


def _settled(replies: list[T | KafkaError | Deferred[T]]) -> list[T | KafkaError]:
    return [reply for reply in replies if not isinstance(reply, Deferred)]


def begin(call: Callable[[], T | Deferred[T]], waiting: Deferred[T]) -> None:
    """Make the call that somebody waits for already, and give him its reply when it is there."""
    try:
        reply = call()
    except Exception as error:
        waiting.fail(error)
        return
    if not isinstance(reply, Deferred):
        waiting.resolve(reply)
        return

    def done(reply: Deferred[T]) -> None:
        try:
            waiting.resolve(reply.result())
        except Exception as error:
            waiting.fail(error)

    reply.on_done(done)


def settle(deferred: Deferred[Any], value: Any) -> None:
    """Resolve a Deferred, or fail it if the value is a KafkaError."""
    if isinstance(value, KafkaError):
        deferred.fail(value)
    else:
        deferred.resolve(value)


async def when_there(reply: T | Deferred[T]) -> T:
    """The reply, for a coroutine that has to wait for it anyway. Raises what it failed with."""
    return await reply if isinstance(reply, Deferred) else reply
