"""How far a pipeline is behind its topics, in records and in seconds, asked for in a thread.

Spark's own progress tells it only after a batch; a pipeline that hangs would look as if all were
well. So the brokers are asked every few seconds where the logs end, whatever the query does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ottla.client.ages import lag_seconds
from ottla.client.groups import Groups, PartitionLag
from ottla.errors import KafkaError
from ottla.pipelines.source.offsets import Progress

INTERVAL: Final = 3.0

Tell = Callable[[int | None, float | None], None]


class LagWatch:
    """Tells the lag of the newest position that it was given, until it is closed."""

    def __init__(self, groups: Groups, tell: Tell, *, interval: float = INTERVAL) -> None:
        self._groups = groups
        self._tell = tell
        self._interval = interval
        self._position: Progress | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag of the pipeline", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stands_at(self, position: Progress) -> None:
        """Where the pipeline stands from now on."""
        self._position = position

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def look(self) -> None:
        """Ask once; a cluster that does not answer leaves what was known."""
        position = self._position
        if position is None:
            return
        ends = position.ends()
        try:
            logs = self._groups.topics.ends(ends)
            rows = [PartitionLag(tp, offset, logs.get(tp), None) for tp, offset in ends.items()]
            behind = lag_seconds(self._groups.router, rows, time.time_ns() // 1_000_000)
        except KafkaError:
            return
        self._tell(sum(max(row.lag or 0, 0) for row in rows), max(behind.values(), default=0.0))

    def _run(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(self._interval)
