"""A clock that stands still until it is moved."""

from __future__ import annotations


class ManualClock:
    """A `runtime.clock.Clock` whose two times move together, and only by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._started_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return (self._now_ms - self._started_ms) / 1000

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds
