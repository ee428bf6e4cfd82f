"""How a pipeline is doing: rows a second, lag, batch time, dead letters, the last error.

The driver's threads tell a `Board` what happens; it gives out `Figures`, values that no later event
changes, to the terminal, to `status.json` and to Prometheus. The clocks are passed in.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from ottla.pipelines.connectors.process import NOTHING, Event, Note, Outcome

WINDOW: Final = 10.0
"""Seconds over which rows a second are averaged."""


class State(StrEnum):
    """What a driver is doing."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """Something is away: a broker, a database. It goes on by itself."""
    STOPPING = "stopping"
    """It finishes its batch."""
    STOPPED = "stopped"
    FAILED = "failed"


OVER: Final = frozenset({State.STOPPED, State.FAILED})
_UNDER_WAY: Final = frozenset({State.STARTING, State.RUNNING})


@dataclass(frozen=True, slots=True)
class Figures:
    """A pipeline at one moment; times are seconds since the epoch, None is what is not known.

    run           the checkpoint's id
    batch         the last finished batch
    rows, written, letters   of this run: read, in the sink, dead letters
    rows_per_second          read, over the last seconds
    batch_seconds            how long the last batch took
    lag, lag_seconds         records that wait in topics, and how old the first of them is
    waiting                  what is waited for
    error, error_at          the last thing that went wrong
    """

    pipeline: str
    state: State = State.STARTING
    process: int = 0
    host: str = ""
    master: str = ""
    bootstrap: str = ""
    started: float = 0.0
    updated: float = 0.0
    run: str | None = None
    batch: int | None = None
    rows: int = 0
    written: int = 0
    letters: int = 0
    rows_per_second: float = 0.0
    batch_seconds: float | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    waiting: str | None = None
    error: str | None = None
    error_at: float | None = None
    metrics: str | None = None

    def document(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"state": self.state.value}


class Board:
    """Collects what happens; for any number of threads."""

    def __init__(
        self,
        figures: Figures,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        # One that its thread may take again: a signal is handled in the main thread, wherever that
        # is, and says that the driver stops.
        self._lock = threading.RLock()
        now = clock()
        self._figures = replace(figures, started=now, updated=now)
        self._state = figures.state
        """Apart from the figures, so that nobody who is interrupted puts an old one back."""
        self._recent: deque[tuple[float, int]] = deque()
        self._began = monotonic()
        self._trouble: dict[str, str] = {}
        self._so_far = NOTHING

    @property
    def so_far(self) -> Outcome:
        """The counts of this run."""
        return self._so_far

    def figures(self) -> Figures:
        """How things are now."""
        with self._lock:
            rate, now = self._rate(), self._clock()
            found = replace(self._figures, state=self._state, rows_per_second=rate, updated=now)
            if found.state in _UNDER_WAY and self._trouble:
                waiting = "; ".join(self._trouble.values())
                return replace(found, state=State.WAITING, waiting=waiting)
            return found

    def state(self, state: State) -> None:
        """Another part of its life begins; nothing does after the end, and after a stop only that.

        A stop may come while Spark starts the query, which takes seconds.
        """
        with self._lock:
            if self._state in OVER or (self._state is State.STOPPING and state in _UNDER_WAY):
                return
            self._state = state

    def learn(self, **facts: Any) -> None:
        """Facts as `Figures` has them: run, master, metrics, lag, …"""
        with self._lock:
            self._figures = replace(self._figures, **facts)

    def batch(self, number: int, outcome: Outcome, seconds: float) -> None:
        """A batch is finished."""
        with self._lock:
            self._so_far += outcome
            self._recent.append((self._monotonic(), outcome.rows))
            self._figures = replace(
                self._figures,
                batch=number,
                batch_seconds=seconds,
                rows=self._so_far.rows,
                written=self._so_far.written,
                letters=self._so_far.letters,
            )

    def waits(self, who: str, why: str | None) -> None:
        """`who` waits for something, or, without a reason, does not any more."""
        with self._lock:
            if why is None:
                self._trouble.pop(who, None)
            else:
                self._trouble[who] = why

    def note(self, note: Note) -> None:
        """What a batch tells while it is under way."""
        match note.event:
            case Event.OUTAGE:
                self.waits("batch", note.sentence)
                self.error(note.sentence)
            case Event.RECOVERED:
                self.waits("batch", None)
            case _:
                self.waits("batch", None)
                self.error(note.sentence)

    def error(self, sentence: str) -> None:
        """Something went wrong."""
        with self._lock:
            self._figures = replace(self._figures, error=sentence, error_at=self._clock())

    def _rate(self) -> float:
        now = self._monotonic()
        while self._recent and self._recent[0][0] < now - WINDOW:
            self._recent.popleft()
        span = min(WINDOW, max(now - self._began, 1.0))
        return sum(rows for _, rows in self._recent) / span
