"""A query as a consumer group: how far it has come, where Kafka's own tools look for it.

The checkpoint is the truth and this is a copy for people, so nothing here may hold up a batch or
end a query. Commits are made by a thread of their own, on a connection of their own. While one is
under way only the newest of those that follow is kept. What cannot be committed is logged once on
stderr; a cluster that cannot be reached is tried again.

Queries that read the same in the same way derive the same name for their group, and then it shows
the progress of neither. So a commit to such a group says who made it, and who finds another's word
after one of its own says so, once.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping

from ottla.client.groups import CommittedOffset
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.source.offsets import Progress

LOGGER = logging.getLogger("ottla.pipelines")

_PAUSE = 1.0
_BY = "ottla-spark "
"""How what a commit says begins; the rest is whose it is."""


class GroupCommits:
    """Commits the newest progress that it was given to one group.

    shared  whether the group's name is derived, so that other queries may have the same
    """

    def __init__(self, connect: Callable[[], Cluster], group: str, *, shared: bool = False) -> None:
        self._connect = connect
        self._group = group
        self._name = _my_name() if shared else ""
        self._committed = False
        self._warned = False
        self._changed = threading.Condition()
        self._wanted: Progress | None = None
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False
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

    def close(self) -> None:
        """End the thread, soon; what is not committed by then is not."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with self._connect() as cluster:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._wanted is not None or self._closed)
                    if self._closed:
                        return
                    progress, self._wanted, self._busy = self._wanted, None, True
                assert progress is not None
                again = self._commit(cluster, _offsets(progress, self._name))
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
            self._look_for_others(cluster, offsets)
            cluster.commit(self._group, offsets)
            self._committed = True
        except Unreachable as error:
            # A topic that was deleted, and that the query was told to leave, stays in its progress:
            # what there is of the others has been committed.
            return error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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

    def _look_for_others(
        self, cluster: Cluster, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        if not self._name or not self._committed or self._warned:
            return
        found = {
            each.metadata for tp, each in cluster.committed(self._group).items() if tp in offsets
        }
        others = sorted(word for word in found if word.startswith(_BY) and word != self._name)
        if others:
            self._warned = True
            LOGGER.warning(
                "Group %s is also committed to by another query (on %s), which reads the same in "
                "the same way: the group shows the progress of neither. Give one of them a "
                "groupIdPrefix or a kafka.group.id of its own. The checkpoints are not affected.",
                self._group,
                others[0].removeprefix(_BY),
            )


def _my_name() -> str:
    """Which query this is, to whoever looks at the group; no two have the same."""
    return f"{_BY}{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"


def _offsets(progress: Progress, name: str) -> dict[TopicPartition, CommittedOffset]:
    return {
        tp: CommittedOffset(mark.offset, mark.epoch if mark.epoch >= 0 else None, name)
        for tp, mark in progress.marks().items()
    }
