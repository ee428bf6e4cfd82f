"""What a log says of a broker that is waited for: it is gone, it still is, it is back.

    outage = Outage(LOGGER, "Spark partition 3")
    outage.note("127.0.0.1:9092: Connection refused")   # at every attempt that fails
    outage.over()                                       # at the first that does not

A leader that moves is found again within a second, and nothing is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

SAY_AFTER: Final = 1.0
"""Seconds that trouble lasts before it is worth a line."""
REMIND: Final = 30.0


class Outage:
    """One at a time, for `who` waits; for any number of threads.

    limit  seconds after which waiting ends and an error follows; None: it does not end
    """

    def __init__(
        self,
        log: logging.Logger,
        who: str,
        limit: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._who = who
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether the last attempt has failed."""
        return self._since is not None

    def note(self, why: str) -> float:
        """An attempt has failed; returns for how many seconds they have."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since = now
            lasts = now - self._since
            if lasts >= SAY_AFTER and (self._told is None or now - self._told >= REMIND):
                self._told = now
                until = "" if self._limit is None else f", for {self._limit:g} s at most"
                self._log.warning("%s waits for a broker%s: %s", self._who, until, why)
            return lasts

    def over(self) -> None:
        """An attempt has not failed."""
        if self._since is None:
            return
        with self._lock:
            if self._since is not None and self._told is not None:
                lasted = self._clock() - self._since
                self._log.warning("%s goes on after %.1f s.", self._who, lasted)
            self._since = self._told = None
