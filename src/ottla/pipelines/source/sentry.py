"""Looks after the cluster while a batch runs, when Spark asks the driver's reader nothing.

The tasks of a batch wait for a broker that has gone, in other processes and often on other
machines, and Spark's progress stands still until they have finished. So a thread beside the reader
asks the leaders of the partitions that are read, once a second and on connections of its own. What
it finds goes to the driver's log at once, and into the progress event after the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster
from ottla.pipelines.source.watch import Watch

_EVERY: Final = 1.0
"""Seconds between looks, and before the first: most batches are over by then."""


class Sentry:
    """`look_after` partitions until it is time to `rest`; for the reader's thread."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        *,
        every: float = _EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._every = every
        self._clock = clock
        self._changed = threading.Condition()
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.last: dict[str, Any] | None = None
        """The last outage under a batch: its reason, when it began, and its seconds so far."""

    def look_after(self, partitions: Iterable[TopicPartition]) -> None:
        """A batch of these begins. Returns at once."""
        with self._changed:
            self._partitions = frozenset(partitions)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ottla-sentry", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def rest(self) -> None:
        """The batch is over."""
        with self._changed:
            self._partitions = frozenset()
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, soon."""
        with self._changed:
            self._closed = True
            self._partitions = frozenset()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._partitions or self._closed)
                if self._closed:
                    return
                looked_after = self._partitions
                if self._over(looked_after):
                    continue
            with self._connect() as cluster:
                self._look(cluster, looked_after)

    def _look(self, cluster: Cluster, partitions: frozenset[TopicPartition]) -> None:
        names = {tp.topic for tp in partitions}
        watch = Watch(cluster, lambda asked: asked.topics(names), partitions.__contains__)
        began: float | None = None
        while True:
            with suppress(KafkaError):  # what a person has to act upon is for the reader to raise
                watch.look()
            if watch.trouble is not None and began is None:
                began = self._clock()
            if began is not None:
                self._note(watch.trouble, began)
                began = None if watch.trouble is None else began
            with self._changed:
                if self._over(partitions):
                    return

    def _over(self, partitions: frozenset[TopicPartition]) -> bool:
        """Wait until the next look is due; whether the batch is over before that."""
        return self._changed.wait_for(lambda: self._partitions is not partitions, self._every)

    def _note(self, trouble: str | None, began: float) -> None:
        before = self.last or {}
        self.last = {
            "reason": trouble or before.get("reason"),
            "began": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
            "seconds": round(self._clock() - began, 1),
        }
