"""Where replicas should be: spread evenly, or away from a broker. No I/O: placements in and out.

A plan changes as little as it can. Draining replaces one broker in the partitions that it holds,
each time by the broker that gets least to copy. Rebalancing moves single replicas from the broker
with most of them to that with fewest, small ones first, until these differ by one; then preferred
leaders are shared out, which copies nothing. Neither puts two replicas of a partition into one rack
where they were in two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ottla.model.ids import TopicPartition

Placement = Mapping[TopicPartition, Sequence[int]]


class TooFewBrokers(Exception):
    """Some partitions would have fewer replicas than now; the message says which."""


class Cluster(NamedTuple):
    """Who may get replicas, with their racks, and what is where."""

    racks: Mapping[int, str | None]
    placement: Placement
    sizes: Mapping[TopicPartition, int]


class Move(NamedTuple):
    """One partition's way from some replicas to others; `size` is that of one copy."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int

    @property
    def copied(self) -> int:
        """Bytes that have to be copied."""
        return self.size * len({*self.after} - {*self.before})


def plan_drain(cluster: Cluster, broker: int) -> list[Move]:
    """Take every replica from a broker. Raises TooFewBrokers."""
    able = [each for each in cluster.racks if each != broker]
    held = Counter(each for replicas in cluster.placement.values() for each in replicas)
    copied: Counter[int] = Counter()
    moves: list[Move] = []
    stuck: list[TopicPartition] = []
    sizes = cluster.sizes
    for tp in sorted(cluster.placement, key=lambda each: (-sizes.get(each, 0), each)):
        replicas = cluster.placement[tp]
        if broker not in replicas:
            continue
        size = sizes.get(tp, 0)
        others = [each for each in replicas if each != broker]
        candidates = [each for each in able if each not in others]
        if not candidates:
            stuck.append(tp)
            continue
        racks = {cluster.racks.get(each) for each in others}
        chosen = min(
            candidates,
            key=lambda each: (cluster.racks[each] in racks, copied[each], held[each], each),
        )
        copied[chosen] += size
        held[chosen] += 1
        after = tuple(chosen if each == broker else each for each in replicas)
        moves.append(Move(tp, tuple(replicas), after, size))
    if stuck:
        most = max(len(cluster.placement[tp]) for tp in stuck)
        names = ", ".join(map(str, stuck[:3])) + (" and others" if len(stuck) > 3 else "")
        raise TooFewBrokers(
            f"without broker {broker} there are {len(able)} brokers, and {names} "
            f"{'have' if len(stuck) > 1 else 'has'} {most} replicas: add a broker first, or give "
            "these topics fewer replicas"
        )
    return sorted(moves)


def plan_rebalance(cluster: Cluster) -> list[Move]:
    """The same number of replicas, and of preferred leaders, on every broker, give or take one."""
    placed = {tp: list(replicas) for tp, replicas in cluster.placement.items()}
    _Spreading(placed, cluster).run()
    _share_leaders(placed, cluster.racks)
    return [
        Move(tp, tuple(cluster.placement[tp]), tuple(replicas), cluster.sizes.get(tp, 0))
        for tp, replicas in sorted(placed.items())
        if tuple(replicas) != tuple(cluster.placement[tp])
    ]


class _Spreading:
    """Moves replicas until every broker has as many as the others, give or take one.

    Each broker's partitions are kept with the smallest first, so that a move looks at few of them,
    and a pair of brokers between which nothing can be moved is not looked at again until something
    of the first one's has changed.
    """

    def __init__(self, placed: dict[TopicPartition, list[int]], cluster: Cluster) -> None:
        self._placed = placed
        self._racks, self._sizes = cluster.racks, cluster.sizes
        self._held: dict[int, list[tuple[int, TopicPartition]]] = {each: [] for each in self._racks}
        for tp in sorted(placed, key=self._rank):
            for broker in placed[tp]:
                if broker in self._held:
                    self._held[broker].append(self._rank(tp))
        self._changes = Counter(dict.fromkeys(self._racks, 0))
        self._vain: dict[tuple[int, int], int] = {}

    def _rank(self, tp: TopicPartition) -> tuple[int, TopicPartition]:
        return self._sizes.get(tp, 0), tp

    def run(self) -> None:
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        """Move one replica from a broker that has more than another; False if none has."""
        held = self._held
        fewest_first = sorted(held, key=lambda each: (len(held[each]), each))
        for source in reversed(fewest_first):
            for target in fewest_first:
                if len(held[source]) - len(held[target]) < 2:
                    break
                pair = source, target
                if self._vain.get(pair) == self._changes[source]:
                    continue
                tp = self._smallest_movable(source, target)
                if tp is not None:
                    self._move(tp, source, target)
                    return True
                self._vain[pair] = self._changes[source]
        return False

    def _smallest_movable(self, source: int, target: int) -> TopicPartition | None:
        for _, tp in self._held[source]:
            replicas = self._placed[tp]
            if target not in replicas and not _shares_rack(replicas, source, target, self._racks):
                return tp
        return None

    def _move(self, tp: TopicPartition, source: int, target: int) -> None:
        rank, replicas = self._rank(tp), self._placed[tp]
        del self._held[source][bisect_left(self._held[source], rank)]
        insort(self._held[target], rank)
        replicas[replicas.index(source)] = target
        self._changes.update((source, *replicas))


def _shares_rack(
    replicas: Sequence[int], source: int, target: int, racks: Mapping[int, str | None]
) -> bool:
    """Whether there would be fewer racks than before."""
    before = {racks.get(each) for each in replicas}
    after = {racks.get(target if each == source else each) for each in replicas}
    return len(after) < len(before)


def _share_leaders(placed: dict[TopicPartition, list[int]], brokers: Collection[int]) -> None:
    """Let other replicas be the preferred leaders, until all brokers lead as many as the others,
    as far as their replicas allow it."""
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(replicas[0] for replicas in placed.values() if replicas[0] in leads)
    changed = True
    while changed:  # each change makes them more even, so there is an end
        changed = False
        for _, replicas in sorted(placed.items()):
            first = replicas[0]
            others = [each for each in replicas[1:] if each in leads]
            if first not in leads or not others:
                continue
            best = min(others, key=lambda each: (leads[each], each))
            if leads[first] - leads[best] >= 2:
                index = replicas.index(best)
                replicas[0], replicas[index] = best, first
                leads[first] -= 1
                leads[best] += 1
                changed = True
