"""Patience: for how long something is waited for, in time that this process has really had.

A machine that is busy otherwise, or asleep, lets the harness stand still, and the brokers with it.
What nobody could do meanwhile is not held against the brokers: of the time between two looks no
more counts than a look takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_OF_A_LOOK = 5.0
"""Seconds: a broker is asked, and does not answer in time."""


class Patience:
    """`while not there(): if patience.over(): raise …; pause`."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = seconds
        self._clock = clock
        self._looked = clock()

    def over(self) -> bool:
        """Whether it was waited for long enough. To be asked after every look."""
        now = self._clock()
        self._left -= min(now - self._looked, MOST_OF_A_LOOK)
        self._looked = now
        return self._left <= 0
