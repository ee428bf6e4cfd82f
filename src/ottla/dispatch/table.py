"""Which handler answers which API, at which versions.

`@handles` only marks a function; the table is built from an explicit list, so what exists is
written in one place (`handlers/__init__.py`) and nothing registers itself by being imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from ottla.dispatch.pieces import Pieces
from ottla.protocol.apis import APIS, ApiKey, ApiSpec

MANY_WHOLE = 1 << 14
"""Elements of a request that cannot be cut: a group of so many members."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that answers one API."""

    key: ApiKey
    versions: range
    function: Callable[..., Any]
    # Makes the response to a request that failed as a whole; None: the connection is closed.
    failure: Callable[..., Any] | None
    # How a request of many entries is cut; None: it is handled whole, and may have `most` of them.
    pieces: Pieces | None = None
    most: int = MANY_WHOLE
    # Only the controller can do it: other brokers hand the request on to it.
    for_controller: bool = False

    @property
    def spec(self) -> ApiSpec:
        return APIS[self.key]


class _Marked(Protocol):
    """A function that says what it handles."""

    handler: Handler


def mark(function: F, handler: Handler) -> F:
    """Note at a function what it handles."""
    cast(_Marked, function).handler = handler
    return function


def handler_of(function: Callable[..., Any]) -> Handler:
    """What a function that was marked handles."""
    return cast(_Marked, function).handler


def handles(
    key: ApiKey,
    versions: range,
    failure: Callable[..., Any] | None = None,
    *,
    pieces: Pieces | None = None,
    most: int = MANY_WHOLE,
    for_controller: bool = False,
) -> Callable[[F], F]:
    """Mark a function as the handler of `key` for `versions`."""

    def marked(function: F) -> F:
        handler = Handler(key, versions, function, failure, pieces, most, for_controller)
        return mark(function, handler)

    return marked


class Table:
    """The handlers by key."""

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self._handlers: dict[int, Handler] = {}
        for function in functions:
            handler = handler_of(function)
            if handler.key in self._handlers:
                raise ValueError(f"{handler.key.name} has two handlers")
            self._handlers[handler.key] = handler

    def __iter__(self) -> Iterator[Handler]:
        return iter(sorted(self._handlers.values(), key=lambda handler: handler.key))

    def get(self, key: int) -> Handler | None:
        return self._handlers.get(key)
