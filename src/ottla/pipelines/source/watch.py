"""The driver's watch on the cluster: what there is to read, and whether it can be asked at all.

Spark asks a source every ten milliseconds or so whether there is anything new (its setting is
`spark.sql.streaming.pollingDelay`). So a look is one ListOffsets to each leader, on connections
that stay open, and where nothing moved for a while an answer is good for a moment. Who leads what,
and which topics there are, is asked for again once a second, when a look fails, and by `confirm`
before a batch is planned.

While the cluster cannot be reached a look returns None at once, and the next attempt is made after
a pause that doubles up to a second. Both, and the recovery, are logged on stderr: Spark shows a
reader's state in progress events only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.client.descriptions import OffsetInfo
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Topic, Unreachable, partitions_of

T = TypeVar("T")

LOGGER = logging.getLogger("ottla.pipelines")

TOPICS_AGE: Final = 1.0
"""Seconds after which the topics are asked for again."""

QUIET_AFTER: Final = 5.0
"""Seconds without anything new after which an answer is used again for `QUIET_LOOKS`."""
QUIET_LOOKS: Final = 0.025

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_REMIND: Final = 30.0


@dataclass(frozen=True, slots=True)
class View:
    """What a look has found: the topics to read, and where their logs end."""

    topics: Mapping[str, Topic]
    ends: Mapping[TopicPartition, OffsetInfo]


class Watch:
    """Looks at the topics that `find` finds; for one thread.

    find        asks the cluster for the topics to be read
    wants       whether a partition of them is to be read
    topics_age  seconds for which topics once found are believed, also by `confirm`
    """

    def __init__(
        self,
        cluster: Cluster,
        find: Callable[[Cluster], Mapping[str, Topic]],
        wants: Callable[[TopicPartition], bool],
        *,
        topics_age: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.trouble: str | None = None
        """Why the cluster cannot be reached; None when it can."""
        self._find = find
        self._wants = wants
        self._believed = topics_age
        self._clock = clock
        self._topics: Mapping[str, Topic] = {}
        self._topics_asked: float | None = None
        self._seen: View | None = None
        self._seen_at = 0.0
        self._moved_at = 0.0
        self._trouble_since = 0.0
        self._told = 0.0
        self._retry_at = 0.0
        self._pause = _FIRST_PAUSE

    def look(self) -> View | None:
        """Where the logs end now; None while nobody can be asked."""
        now = self._clock()
        if (
            self._seen is not None
            and now - self._moved_at >= QUIET_AFTER
            and now - self._seen_at < QUIET_LOOKS
        ):
            return self._seen
        return self._guarded(self._look)

    def confirm(self) -> View | None:
        """The same with topics that are known to be current: for planning."""
        self._seen = None
        if self._believed is None:
            self._topics_asked = None
        return self.look()

    def ask(self, question: Callable[[Cluster], T]) -> T | None:
        """Anything else that the cluster is asked; None while nobody can be."""
        return self._guarded(lambda: question(self.cluster))

    def wait(self) -> None:
        """Sleep until the next attempt is due, or for a moment when none is."""
        time.sleep(max(_FIRST_PAUSE, self._retry_at - self._clock()))

    # -- inside

    def _look(self) -> View:
        now = self._clock()
        if self._topics_asked is None or now - self._topics_asked >= (self._believed or TOPICS_AGE):
            self._topics = self._find(self.cluster)
            self._topics_asked = now
        wanted = [tp for tp in partitions_of(self._topics.values()) if self._wants(tp)]
        ends = self.cluster.ends(wanted)
        if len(ends) < len(wanted):
            # A topic went away between the two questions.
            self._topics_asked = None
        view = View(self._topics, ends)
        if view != self._seen:
            self._moved_at = now
        self._seen, self._seen_at = view, now
        return view

    def _guarded(self, ask: Callable[[], T]) -> T | None:
        if self.trouble is not None and self._clock() < self._retry_at:
            return None
        try:
            answer = ask()
        except Unreachable as error:
            self._note(str(error))
            return None
        if self.trouble is not None:
            LOGGER.warning(
                "%s can be reached again after %.1f s.",
                self.cluster.bootstrap,
                self._clock() - self._trouble_since,
            )
            self.trouble = None
        return answer

    def _note(self, why: str) -> None:
        now = self._clock()
        if self.trouble is None:
            self._trouble_since, self._told, self._pause = now, now - _REMIND, _FIRST_PAUSE
        self.trouble = why
        self._seen = None
        self._topics_asked = None
        self._retry_at = now + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if now - self._told >= _REMIND:
            self._told = now
            LOGGER.warning(
                "%s cannot be reached (%s). The query keeps its place and tries again.",
                self.cluster.bootstrap,
                why,
            )
