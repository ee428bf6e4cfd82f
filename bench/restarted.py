"""How soon a coordinator serves ten thousand groups again, before and after a compaction.

Groups commit again and again, so that `__consumer_offsets` holds many times what counts. Its
segments are as small as Kafka allows: the active one is never compacted and would be all there is.
The cleaner is held back by `min.compaction.lag.ms` until the first restart has been measured.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, ClassVar

from bench import cleaning
from bench.client import Client, measure
from bench.course import Course
from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.course import Step

_OFFSETS = "__consumer_offsets"
_TOPIC = "read"
_PARTITIONS = 10
_SHARDS = 50
_CONNECTIONS = 16
_DAY_MS = str(24 * 3_600_000)
_SIGN = 60.0
_PATIENCE = 900.0
_SETTLE_SECONDS = 2.0


class RestartedSession(Course):
    """One broker with very many groups, started three times."""

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "offsets.topic.num.partitions": str(_SHARDS),
        "offsets.topic.segment.bytes": "1048576",
        "log.cleaner.backoff.ms": "100",
    }

    def _steps(self) -> Sequence[Step]:
        return (
            (self._uncompacted, ("offsets-load",)),
            (self._compacted, ("offsets-load-compacted",)),
        )

    def _warm_up(self) -> None:
        """Not to warm anything up, which a restart forgets: to have something to load."""
        self._create(_TOPIC, _PARTITIONS)
        measure("commits", bootstrap=self._node.bootstrap, topic=_TOPIC, connections=1, seconds=0.1)
        self._alter(_OFFSETS, {"min.compaction.lag.ms": _DAY_MS})
        measure(
            "commit-all",
            bootstrap=self._node.bootstrap,
            topic=_TOPIC,
            groups=self._sizes.restarted_groups,
            partitions=_PARTITIONS,
            rounds=self._sizes.restarted_commits,
            connections=_CONNECTIONS,
        )

    def _uncompacted(self) -> None:
        self._report("offsets-load", self._restarted())

    def _compacted(self) -> None:
        goals = {}
        for partition in range(_SHARDS):
            active = cleaning.active_offset(self._node.data / f"{_OFFSETS}-{partition}")
            if active:
                goals[_OFFSETS, partition] = active
        if not goals:
            raise BenchError(f"no partition of {_OFFSETS} has a segment that is closed")
        self._alter(_OFFSETS, {"min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.01"})
        cleaning.wait_compacted(
            self._system.name, self._node.data, goals, sign=_SIGN, patience=_PATIENCE
        )
        self._report("offsets-load-compacted", self._restarted())

    def _restarted(self) -> float:
        """Stop in good order, start again; the seconds until every group has its offsets."""
        self._child.stop_timeout = _PATIENCE
        self._child.stop()
        os.sync()
        time.sleep(_SETTLE_SECONDS)
        with Client(
            "offsets-served",
            bootstrap=self._node.bootstrap,
            topic=_TOPIC,
            groups=self._sizes.restarted_groups,
            partitions=_PARTITIONS,
            offset=self._sizes.restarted_commits,
            shards=_SHARDS,
        ) as client:
            client.wait_ready()
            self._start_again()
            client.tell()
            return (client.result()["served_ns"] - self._child.started) / 1e9
