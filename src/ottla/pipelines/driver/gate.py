"""A stop that waits for the batch: what `foreachBatch` passes before and after its work.

Spark's own `stop` interrupts a query wherever it is: in a sink, or between a sink and the commit
log, and then the next run writes the batch again. So a stop closes the gate first. A batch that is
inside goes on to its end; one that comes later is turned away by `Closed` before it has done
anything. The query is stopped when nobody is inside and what was written last is in the commit log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Closed(Exception):
    """The pipeline was told to stop; this batch has not begun."""


class Gate:
    """One batch at a time passes; for any number of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._inside: int | None = None
        self._finished: int | None = None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def inside(self) -> int | None:
        """The batch that is being worked on."""
        return self._inside

    @property
    def finished(self) -> int | None:
        """The last batch whose work is done; Spark may not have committed it yet."""
        return self._finished

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """The work of one batch; `Closed` instead of it when the gate is."""
        with self._changed:
            if self._closed:
                raise Closed(f"batch {number} has not begun: the pipeline was told to stop")
            self._inside = number
        done = False
        try:
            yield
            done = True
        finally:
            with self._changed:
                self._inside = None
                if done:
                    self._finished = number
                self._changed.notify_all()

    def close(self) -> None:
        """No batch begins from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait so long; False, at once, when the gate is closed: then nobody waits for anything."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed, seconds)

    def wait_empty(self, timeout: float) -> bool:
        """Wait until nobody is inside; False when that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._inside is None, timeout)
