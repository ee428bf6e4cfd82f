"""One line per event that an operator cares about.

Every module logs to `logging.getLogger(__name__)`; `setup` decides once how a line looks. Events
that anybody on the network can cause as often as they like go through `RateLimit`, so that a
hostile client cannot fill the disk with our own log.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable
from typing import IO, Literal

from ottla.runtime.clock import Clock

LogFormat = Literal["human", "json"]


class HumanFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,123 WARNING storage.log: message`, after a label if there is one."""

    def __init__(self, label: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(package)s: %(message)s")
        self._label = f"{label} | " if label else ""
        self._second = -1
        self._second_text = ""

    def formatTime(  # noqa: N802 - logging's own name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        second = int(record.created)
        if second != self._second:  # lines come in bursts
            self._second_text = super().formatTime(record, self.default_time_format)
            self._second = second
        return f"{self._second_text},{int(record.msecs):03d}"

    def format(self, record: logging.LogRecord) -> str:
        record.package = record.name.removeprefix("ottla.")
        text = super().format(record)
        if self._label:
            text = "\n".join(self._label + line for line in text.splitlines())
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: label if any, time (UTC, ISO 8601), level, logger, message, error."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = {"label": label} if label else {}

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            **self._label,
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def setup(
    log_format: LogFormat = "human",
    level: str = "INFO",
    stream: IO[str] | None = None,
    *,
    label: str = "",
) -> None:
    """Send everything the product logs to `stream` (standard error), in one form.

    A label tells the lines of one process from those of others that write to the same place."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(label) if log_format == "json" else HumanFormatter(label))
    # No line tells the process, the thread or the place in the code. Finding them out takes as long
    # as all the rest of a line, and a rebalance of a thousand groups logs two thousand lines.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as the documentation of `logging` advises
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class RateLimit:
    """Lets `burst` lines of each kind through in any `interval`, and says how many it held back.

    A kind is a word of the caller's. A stranger may be able to make up new ones, so only the first
    `KINDS` have a budget of their own; the others share one.
    """

    KINDS = 64
    OTHER = "other"

    __slots__ = ("_budgets", "_burst", "_clock", "_interval", "_logger")

    def __init__(
        self, logger: logging.Logger, clock: Clock, burst: int = 5, interval: float = 10.0
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._burst = burst
        self._interval = interval
        self._budgets: dict[str, _Budget] = {}

    def warning(self, kind: str, message: str, *args: object) -> None:
        budget = self._budgets.get(kind)
        if budget is None:
            if len(self._budgets) >= self.KINDS:
                kind = self.OTHER
            budget = self._budgets.setdefault(kind, _Budget())
        now = self._clock.monotonic()
        if now >= budget.until:
            if budget.held:
                self._logger.warning("%d more lines of this kind were held back", budget.held)
            budget.until = now + self._interval
            budget.left = self._burst
            budget.held = 0
        if budget.left:
            budget.left -= 1
            self._logger.warning(message, *args)
        else:
            budget.held += 1


def first_few(names: Iterable[object], most: int = 5) -> str:
    """A list for one line, however long it is: `t-0, t-1, t-2, t-3, t-4 and 95 more`."""
    texts = [str(name) for name in names]
    shown = ", ".join(texts[:most])
    return shown if len(texts) <= most else f"{shown} and {len(texts) - most} more"


class _Budget:
    """What one kind of line may still say in its interval."""

    __slots__ = ("held", "left", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self.left = 0
        self.held = 0
