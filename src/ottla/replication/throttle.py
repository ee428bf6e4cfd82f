"""How much replication may take of the network while replicas catch up (KIP-73). No I/O.

A leader limits what it sends, a follower what it asks for: each by a rate of its own, in bytes a
second over all replicas that the topics' settings name. A replica that is in sync is never held
back, or a limit could drive it out of the in-sync set; nor is one that has caught up and is about
to join, since producers wait for it already. What these copy counts all the same.

As in Kafka the rate is that of the last seconds, and what would pass it is not cut short: after a
large answer nothing is sent until the rate is below the limit again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set

from ottla.config.broker import BrokerConfig
from ottla.config.setting import MAX_LONG
from ottla.runtime.clock import Clock

ALL = frozenset({"*"})


class Throttle:
    """One direction of one broker."""

    def __init__(
        self,
        node_id: int,
        limit: Callable[[], int],
        now: Callable[[], float],
        *,
        samples: int = 11,
        seconds: float = 1.0,
    ) -> None:
        self._node_id = node_id
        self._limit = limit
        self._now = now
        self._samples = samples
        self._seconds = seconds
        self._windows: deque[tuple[float, int]] = deque()  # when each began, and its bytes
        self._total = 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._limit() < MAX_LONG

    def names(self, index: int, replicas: Set[str]) -> bool:
        """Whether a setting of a topic names this broker's replica of a partition. It may name tens
        of thousands, and is asked for each partition in each fetch."""
        return bool(replicas) and (replicas == ALL or f"{index}:{self._node_id}" in replicas)

    @property
    def exceeded(self) -> bool:
        """Whether more was copied in the last seconds than may be."""
        limit = self._limit()
        if limit >= MAX_LONG:
            return False
        now = self._now()
        self._forget(now)
        if not self._windows:
            return False
        return self._total / max(now - self._windows[0][0], self._seconds) > limit

    def record(self, size: int) -> None:
        """So many bytes were copied, whether that was too much or not."""
        now = self._now()
        self._forget(now)
        if self._windows and now - self._windows[-1][0] < self._seconds:
            began, before = self._windows[-1]
            self._windows[-1] = began, before + size
        else:
            self._windows.append((now, size))
        self._total += size

    def _forget(self, now: float) -> None:
        oldest = now - self._samples * self._seconds
        while self._windows and self._windows[0][0] <= oldest:
            self._total -= self._windows.popleft()[1]


def folder_moves_throttle(
    node_id: int, config: Callable[[], BrokerConfig], clock: Clock
) -> Throttle:
    """How fast a broker copies logs from one data folder to another (KIP-113), all together."""
    window = config()
    return Throttle(
        node_id,
        lambda: config().replica_alter_log_dirs_io_max_bytes_per_second,
        clock.monotonic,
        samples=window.alter_log_dirs_replication_quota_window_num,
        seconds=window.alter_log_dirs_replication_quota_window_size_seconds,
    )
