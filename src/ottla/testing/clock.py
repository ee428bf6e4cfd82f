"""Clocks for tests: one that stands still until it is moved, one that runs and can be moved."""

from __future__ import annotations

import time


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


class ShiftedClock:
    """The machine's clocks with the wall clock moved, as by a wrong NTP server or an operator.

    Only the wall clock jumps. Durations are measured with the monotonic one, which goes on, as it
    does on a real machine.
    """

    def __init__(self) -> None:
        self._shift_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def monotonic(self) -> float:
        return time.monotonic()

    @property
    def shifted(self) -> bool:
        return self._shift_ms != 0

    def jump(self, milliseconds: int) -> None:
        self._shift_ms += milliseconds

    def settle(self) -> None:
        """Back to the machine's time."""
        self._shift_ms = 0
