"""Produce where a batch's header does not tell enough, so that its records are walked.

A compacted topic takes no record without a key, a topic with a bound on timestamps looks at each of
them, and one with a codec of its own stores other bytes than it was sent. The other rows of produce
are to topics whose batches are taken as they come.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench.client import measure
from bench.course import Course

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.course import Step

_SIZE = 100


@dataclass(frozen=True, slots=True)
class Walked:
    """A topic whose records are looked into, and the codec of the producer that writes to it."""

    key: str
    title: str
    configs: Mapping[str, str] = field(default_factory=dict)
    codec: str = "none"


WALKED: tuple[Walked, ...] = (
    Walked(
        "produce-compacted", "produce 100 B to a compacted topic", {"cleanup.policy": "compact"}
    ),
    Walked(
        "produce-compacted-zstd",
        "… sent with zstd",
        {"cleanup.policy": "compact"},
        codec="zstd",
    ),
    Walked(
        "produce-timestamps",
        "produce 100 B, `message.timestamp.before.max.ms` set",
        {"message.timestamp.before.max.ms": "3600000"},
    ),
    Walked(
        "produce-recompressed",
        "produce 100 B, sent with lz4 to `compression.type=zstd`",
        {"compression.type": "zstd"},
        codec="lz4",
    ),
)


class WalkedSession(Course):
    """Keyed records into topics that want to see each of them."""

    def _steps(self) -> Sequence[Step]:
        return [(partial(self._produce, each), (each.key,)) for each in WALKED]

    def _warm_up(self) -> None:
        for each in WALKED:
            if self._wants(each.key):
                self._create(f"warm-{each.key}", 1, each.configs)
                self._send(f"warm-{each.key}", each, self._sizes.warm_records // 2)

    def _produce(self, each: Walked) -> None:
        self._create(each.key, 1, each.configs)
        for _ in range(self._sizes.repeats):
            figures = self._send(each.key, each, self._sizes.walked_records)
            self._report(each.key, figures["records"] / figures["seconds"] / 1e6)

    def _send(self, topic: str, each: Walked, count: int) -> dict[str, float]:
        os.sync()
        return measure(
            "produce",
            bootstrap=self._node.bootstrap,
            topic=topic,
            partitions=1,
            size=_SIZE,
            count=count,
            keyed=True,
            codec=each.codec,
        )
