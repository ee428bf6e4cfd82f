"""Time, handed in. Nothing below the broker's shell reads the system clock by itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a component may know of time."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch: what goes into records and files."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards: what deadlines and durations use."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
