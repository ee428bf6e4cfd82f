"""Which partition a row goes to, for a whole Arrow batch at once.

As Java's producer decides: the `partition` column where it is not null; else murmur2 of the key;
else (no key, or `kafka.partitioner.ignore.keys`) a chunk of rows to one partition, the next chunk
to the next that has a leader. A chunk has `kafka.batch.size` bytes, 16 KB unless given, so small
writes are spread too. `RoundRobinPartitioner` is the same with chunks of one row.

A lane is a partition of some topic, numbered over all topics of the task. Rows are sorted by lane,
keeping their order within one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from ottla.client.partitioners import murmur2_partition
from ottla.errors import ErrorCode
from ottla.pipelines.sink import loops
from ottla.pipelines.sink.failures import RowFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ottla.pipelines.sink.columns import Blobs

    Longs = NDArray[np.int64]
    Flags = NDArray[np.uint8]


class Partitioner:
    """Knows the topics of one task. `add_topic` first, then `route` batch after batch."""

    def __init__(self, *, chunk_bytes: int, ignore_keys: bool, native: bool = True) -> None:
        self._chunk = chunk_bytes
        self._ignore_keys = ignore_keys
        self._loops = loops.load() if native else None
        self.lanes: list[tuple[str, int]] = []
        """Topic and partition of each lane."""
        self._topics: dict[str, int] = {}
        self._counts = np.empty(0, np.int64)
        self._bases = np.empty(0, np.int64)
        self._available = np.empty(0, np.int64)
        self._available_at = np.zeros(1, np.int64)
        self._turn = np.empty(0, np.int64)
        self._room = np.empty(0, np.int64)

    def number_of(self, topic: str) -> int | None:
        """What a topic is called in `route`; None before it was added."""
        return self._topics.get(topic)

    def add_topic(self, topic: str, partitions: int, available: list[int]) -> int:
        """`available` are the partitions with a leader; all of them when there is none."""
        number = self._topics[topic] = len(self._topics)
        open_ones = available or list(range(partitions))
        self._counts = np.append(self._counts, partitions)
        self._bases = np.append(self._bases, len(self.lanes))
        self._available = np.append(self._available, np.asarray(open_ones, np.int64))
        self._available_at = np.append(self._available_at, self._available.size)
        # Tasks start anywhere, so that many small ones do not all fill partition 0.
        self._turn = np.append(self._turn, random.randrange(len(open_ones)))
        self._room = np.append(self._room, self._chunk)
        self.lanes += [(topic, partition) for partition in range(partitions)]
        return number

    def route(
        self,
        topics: Longs,
        keys: Blobs,
        sizes: Longs,
        chosen: tuple[Longs, Flags] | None = None,
    ) -> Longs:
        """The lane of each row. `chosen` is the partition column with its nulls."""
        count = topics.size
        wanted = np.full(count, -1, np.int64)
        if chosen is not None:
            partitions, nulls = chosen
            self._check_negative(partitions, nulls)
            wanted = np.where(nulls, wanted, partitions)
        unkeyed = np.ones(count, np.uint8) if self._ignore_keys else keys.nulls
        lanes = np.empty(count, np.int64)
        step = _route if self._loops is None else self._loops.route
        bad = step(
            topics,
            wanted,
            unkeyed,
            keys.offsets,
            keys.data,
            sizes,
            self._counts,
            self._bases,
            self._available,
            self._available_at,
            self._turn,
            self._room,
            self._chunk,
            lanes,
        )
        if bad >= 0:
            topic = list(self._topics)[int(topics[bad])]
            raise unknown_partition(
                int(bad), topic, int(wanted[bad]), int(self._counts[topics[bad]])
            )
        return lanes

    def sort(self, lanes: Longs) -> tuple[Longs, Longs]:
        """Where each lane's rows start in the order, and the rows in that order."""
        starts = np.zeros(len(self.lanes) + 1, np.int64)
        if self._loops is not None:
            order = np.empty(lanes.size, np.int64)
            self._loops.sort_by_lane(lanes, starts, order)
            return starts, order
        np.cumsum(np.bincount(lanes, minlength=len(self.lanes)), out=starts[1:])
        return starts, np.argsort(lanes, kind="stable").astype(np.int64)

    def _check_negative(self, partitions: Longs, nulls: Flags) -> None:
        negative = (partitions < 0) & (nulls == 0)
        if negative.any():
            row = int(np.argmax(negative))
            raise RowFailed(
                row, f"its partition is {int(partitions[row])}; partitions count from 0"
            )


def unknown_partition(row: int, topic: str, partition: int, count: int) -> RowFailed:
    """A row that chose a partition its topic does not have."""
    there = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
    return RowFailed(
        row,
        f"topic {topic!r} has no partition {partition}, it has {there}",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def _route(  # noqa: PLR0913, PLR0917 - takes the arrays that its twin in C takes
    topics: Longs,
    chosen: Longs,
    unkeyed: Flags,
    key_offsets: Longs,
    keys: Flags,
    sizes: Longs,
    counts: Longs,
    bases: Longs,
    available: Longs,
    available_at: Longs,
    turn: Longs,
    room: Longs,
    chunk: int,
    lanes: Longs,
) -> int:
    """Fill `lanes`; the first row whose chosen partition is not there, or -1. What the native
    `route` does, in Python."""
    data = keys.tobytes()
    for row, topic in enumerate(topics.tolist()):
        partition = int(chosen[row])
        if partition >= 0:
            if partition >= counts[topic]:
                return row
        elif unkeyed[row]:
            first = available_at[topic]
            partition = available[first + turn[topic] % (available_at[topic + 1] - first)]
            room[topic] -= sizes[row]
            if room[topic] <= 0:
                turn[topic] += 1
                room[topic] = chunk
        else:
            key = data[key_offsets[row] : key_offsets[row + 1]]
            partition = murmur2_partition(key, int(counts[topic]))
        lanes[row] = bases[topic] + partition
    return -1
