"""What every operation on a log's files has in common: `@guarded("rolling")`.

An offline log refuses it, and an OSError takes the data folder offline and becomes a KafkaError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from ottla.storage.faults import describe, is_shortage

if TYPE_CHECKING:
    from ottla.errors import KafkaError


class Fallible(Protocol):
    """A log, as far as its failures are concerned."""

    folder: str
    failure: str | None

    def offline_error(self) -> KafkaError: ...

    def storage_failed(self, error: OSError, doing: str) -> KafkaError: ...

    def take_offline(self, reason: str) -> None: ...


L = TypeVar("L", bound=Fallible)
P = ParamSpec("P")
R = TypeVar("R")


def guarded(
    doing: str, *, by_halves: bool = False
) -> Callable[[Callable[Concatenate[L, P], R]], Callable[Concatenate[L, P], R]]:
    """A method that an offline log refuses, and whose OSError takes the folder offline.

    What stops `by_halves` for want of a descriptor cannot be tried again: the log, though not the
    folder, is offline until the next start.
    """

    def decorate(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
        @functools.wraps(method)
        def run(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if self.failure is not None:
                raise self.offline_error()
            try:
                return method(self, *args, **kwargs)
            except OSError as error:
                if by_halves and is_shortage(error):
                    self.take_offline(describe(error, doing, self.folder))
                raise self.storage_failed(error, doing) from None

        return run

    return decorate
