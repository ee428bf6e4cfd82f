"""A query as a consumer group: how far it has come, where Kafka's own tools look for it.

The checkpoint is the truth and this is a copy for people, so nothing here may hold up a batch or
end a query. Commits are made by a thread of their own, on a connection of their own. While one is
under way only the newest of those that follow is kept. What cannot be committed is said once on
stderr; a cluster that cannot be reached is tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from ottla.client.groups import CommittedOffset
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.source.offsets import Progress

LOGGER = logging.getLogger("ottla.pipelines")

_PAUSE = 1.0


class GroupCommits:
    """Commits the newest progress that it was given to one group."""

    def __init__(self, connect: Callable[[], Cluster], group: str) -> None:
        self._connect = connect
        self._group = group
        self._changed = threading.Condition()
        self._wanted: Progress | None = None
        self._busy = False
        self._thread: threading.Thread | None = None
        self._told: str | None = None

    def put(self, progress: Progress) -> None:
        """Commit where `progress` ends, soon. Returns at once."""
        with self._changed:
            self._wanted = progress
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"commits of {self._group}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is committed; False when that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._wanted is None and not self._busy, timeout)

    def _run(self) -> None:
        with self._connect() as cluster:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._wanted is not None)
                    progress, self._wanted, self._busy = self._wanted, None, True
                assert progress is not None
                again = self._commit(cluster, _offsets(progress))
                with self._changed:
                    self._busy = False
                    if again and self._wanted is None:
                        self._wanted = progress
                    self._changed.notify_all()
                    if again:
                        self._changed.wait(_PAUSE)

    def _commit(self, cluster: Cluster, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Whether it is to be tried again."""
        try:
            cluster.commit(self._group, offsets)
        except Unreachable:
            return True
        except KafkaError as error:
            if self._told != str(error):
                self._told = str(error)
                LOGGER.warning(
                    "Group %s does not show how far this query has come: %s. "
                    "The checkpoint is not affected.",
                    self._group,
                    error,
                )
        return False


def _offsets(progress: Progress) -> dict[TopicPartition, CommittedOffset]:
    return {
        tp: CommittedOffset(mark.offset, mark.epoch if mark.epoch >= 0 else None)
        for tp, mark in progress.marks().items()
    }
