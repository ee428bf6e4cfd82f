"""StoreContact: whether the metadata store answers this broker, and two log lines for each outage.

The broker looks into the store about once a second (`asked`, `answered`), and whoever cannot do
its work without the store tells why (`failed`). An outage is logged once when it is noticed, and
once when it is over. A store that comes and goes is no reason for a line a second: an outage within
a minute of the one before is not logged.
"""

from __future__ import annotations

import logging
import math

from ottla.runtime.clock import Clock

logger = logging.getLogger(__name__)

SILENT_SECONDS = 2.0
"""A look that is not answered for so long is an outage, though nobody says so yet."""

LOG_SECONDS = 60.0


class StoreContact:
    """The broker's contact with the metadata store, for its log and for `ottla cluster status`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._quiet_until = -math.inf
        # of the first look that was not answered
        self._asked: float | None = None
        self._asked_ms = 0
        # of an outage
        self._failed = False
        self._logged = False

    @property
    def away_since_ms(self) -> int | None:
        """Since when the store is away, by the wall clock; None while it answers."""
        if self._asked is None:
            return None
        silent = self.clock.monotonic() - self._asked > SILENT_SECONDS
        return self._asked_ms if self._failed or silent else None

    def asked(self) -> None:
        """The store is asked something."""
        if self._asked is None:
            self._asked = self.clock.monotonic()
            self._asked_ms = self.clock.now_ms()

    def failed(self, error: Exception) -> None:
        """Something cannot be done because the store is out of reach."""
        if self._failed:
            return
        self.asked()
        self._failed = True
        now = self.clock.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + LOG_SECONDS
        self._logged = True
        logger.warning(
            "the metadata store cannot be used: %s; the broker goes on with what it knows, and "
            "tries again until it can",
            error,
        )

    def answered(self) -> None:
        """The store has answered."""
        if self._logged and self._asked is not None:
            seconds = self.clock.monotonic() - self._asked
            logger.info("the metadata store answers again, after %.0f s", seconds)
        self._asked = None
        self._failed = self._logged = False
