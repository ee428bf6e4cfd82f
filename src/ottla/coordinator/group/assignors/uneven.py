"""`uniform` for members whose subscriptions differ: even loads as far as subscriptions allow.

Three steps. Everybody keeps what they may keep. Each partition without an owner goes to the least
loaded subscriber of its topic, topics with the most partitions per subscriber first, for they
leave the least choice. Then topics are balanced one after the other, moving a partition from
the most to the least loaded subscriber as long as they differ by two or more, round and round
until a whole round moves nothing (or a limit is reached: two topics can, rarely, undo each other).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ottla.coordinator.group.assignors.spec import (
    AssignableTopic,
    Partitions,
    Subscriber,
    crowds,
    racks_matter,
)
from ottla.model.ids import TopicId

ROUNDS = 16
NOBODY = -1


def assign(
    subscribers: Mapping[str, Subscriber], topics: Mapping[TopicId, AssignableTopic]
) -> dict[str, Partitions]:
    """An entry for every subscriber; see the module."""
    return _Table(subscribers, topics).assign()


class _Crowd:
    """The subscribers that one or more topics have in common, by index."""

    __slots__ = ("balanced_at", "by_rack", "heap", "members")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        # Least loaded first, with loads as they were when pushed; they only grow while used.
        self.heap: list[tuple[int, int]] = []
        self.by_rack: dict[str, list[tuple[int, int]]] = {}
        # The move after which these were last seen to be in balance.
        self.balanced_at = -1


class _Table:
    """One assignment being worked out."""

    def __init__(
        self, subscribers: Mapping[str, Subscriber], topics: Mapping[TopicId, AssignableTopic]
    ) -> None:
        self._ids = sorted(subscribers)
        self._subscribers = [subscribers[member_id] for member_id in self._ids]
        self._racks = [subscriber.rack for subscriber in self._subscribers]
        self._use_racks = racks_matter(subscribers, topics)
        self._topics = topics
        self._crowds = self._gather(subscribers)
        self._loads = [0] * len(self._ids)
        self._owners = {topic: [NOBODY] * topics[topic].partitions for topic in self._crowds}
        self._moves = 0

    def assign(self) -> dict[str, Partitions]:
        self._keep()
        order = sorted(self._crowds, key=self._difficulty)
        self._fill(order)
        self._balance([topic for topic in order if len(self._crowds[topic].members) > 1])
        return self._result()

    def _gather(self, subscribers: Mapping[str, Subscriber]) -> dict[TopicId, _Crowd]:
        shared: dict[int, _Crowd] = {}
        result = {}
        for topic, members in crowds(self._ids, subscribers).items():
            if id(members) not in shared:
                shared[id(members)] = _Crowd(members)
            result[topic] = shared[id(members)]
        return result

    def _difficulty(self, topic: TopicId) -> tuple[float, int, TopicId]:
        subscribers = len(self._crowds[topic].members)
        return (-self._topics[topic].partitions / subscribers, subscribers, topic)

    # ------------------------------------------------------------------ the three steps

    def _keep(self) -> None:
        for index, subscriber in enumerate(self._subscribers):
            for topic, partitions in subscriber.owned.items():
                if topic in subscriber.topics:
                    owners = self._owners[topic]
                    for partition in partitions:
                        # Whatever was once assigned twice, or is not there: see uniform.
                        if partition < len(owners) and owners[partition] == NOBODY:
                            owners[partition] = index
                            self._loads[index] += 1

    def _fill(self, order: Sequence[TopicId]) -> None:
        for topic in order:
            crowd = self._crowds[topic]
            owners = self._owners[topic]
            for partition, owner in enumerate(owners):
                if owner == NOBODY:
                    index = self._least_loaded(crowd, self._racks_of(topic, partition))
                    owners[partition] = index
                    self._loads[index] += 1

    def _balance(self, topics: Sequence[TopicId]) -> None:
        for _ in range(ROUNDS):
            before = self._moves
            for topic in topics:
                crowd = self._crowds[topic]
                if crowd.balanced_at != self._moves:
                    if self._spread(crowd) > 1:
                        self._balance_topic(topic, crowd)
                    if self._spread(crowd) <= 1:
                        crowd.balanced_at = self._moves
            if self._moves == before:
                return

    # ------------------------------------------------------------------ parts of them

    def _racks_of(self, topic: TopicId, partition: int) -> frozenset[str]:
        racks = self._topics[topic].racks
        return racks[partition] if racks and self._use_racks else frozenset()

    def _least_loaded(self, crowd: _Crowd, racks: Iterable[str]) -> int:
        if not crowd.heap:
            self._fill_heaps(crowd)
        load, index = self._top(crowd.heap)
        for rack in sorted(racks):
            near = crowd.by_rack.get(rack)
            if near:
                near_load, near_index = self._top(near)
                if near_load == load:
                    return near_index
        return index

    def _fill_heaps(self, crowd: _Crowd) -> None:
        crowd.heap = [(self._loads[index], index) for index in crowd.members]
        heapq.heapify(crowd.heap)
        if self._use_racks:
            near: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for entry in crowd.heap:
                rack = self._racks[entry[1]]
                if rack is not None:
                    near[rack].append(entry)
            for heap in near.values():
                heapq.heapify(heap)
            crowd.by_rack = near

    def _top(self, heap: list[tuple[int, int]]) -> tuple[int, int]:
        """The least loaded, after correcting entries whose load has grown since."""
        while True:
            load, index = heap[0]
            if load == self._loads[index]:
                return load, index
            heapq.heapreplace(heap, (self._loads[index], index))

    def _spread(self, crowd: _Crowd) -> int:
        loads = [self._loads[index] for index in crowd.members]
        return max(loads) - min(loads)

    def _balance_topic(self, topic: TopicId, crowd: _Crowd) -> None:
        """Move partitions of one topic from most to least loaded, while that helps."""
        loads = self._loads
        held: dict[int, list[int]] = defaultdict(list)
        for partition, owner in enumerate(self._owners[topic]):
            held[owner].append(partition)
        poorest = [(loads[index], index) for index in crowd.members]
        richest = [(-loads[index], index) for index in held]
        heapq.heapify(poorest)
        heapq.heapify(richest)
        while richest:
            giver = richest[0][1]
            taker = poorest[0][1]
            if loads[giver] - loads[taker] < 2:
                return
            partition = self._choose(topic, held[giver], giver, taker)
            held[giver].remove(partition)
            held[taker].append(partition)
            self._owners[topic][partition] = taker
            loads[giver] -= 1
            loads[taker] += 1
            self._moves += 1
            heapq.heapreplace(poorest, (loads[taker], taker))
            # A taker never becomes a giver here: it stays at least one below every giver.
            if held[giver]:
                heapq.heapreplace(richest, (-loads[giver], giver))
            else:
                heapq.heappop(richest)

    def _choose(self, topic: TopicId, partitions: list[int], giver: int, taker: int) -> int:
        """Which partition to give away: one that gets nearer, else the highest."""

        def gain(partition: int) -> tuple[int, int]:
            racks = self._racks_of(topic, partition)
            near = (self._racks[taker] in racks) - (self._racks[giver] in racks)
            return (near, partition)

        return max(partitions, key=gain) if self._use_racks else max(partitions)

    def _result(self) -> dict[str, Partitions]:
        shares: list[dict[TopicId, set[int]]] = [defaultdict(set) for _ in self._ids]
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                shares[owner][topic].add(partition)
        result: dict[str, Partitions] = {}
        for member, subscriber, share in zip(self._ids, self._subscribers, shares, strict=True):
            frozen = {topic: frozenset(partitions) for topic, partitions in share.items()}
            result[member] = subscriber.owned if subscriber.owned == frozen else frozen
        return result
