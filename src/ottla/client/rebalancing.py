"""Where replicas should be: spread evenly, or away from a broker. No I/O: placements in and out.

A plan changes as little as it can. Draining replaces one broker in the partitions that it holds,
each time by the broker that gets least to copy. Rebalancing moves single replicas from the broker
with most of them to that with fewest, small ones first, until these differ by one; then preferred
leaders are shared out, which copies nothing. Neither puts two replicas of a partition into one rack
where they were in two.
"""

from __future__ import annotations

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
    while _move_one(placed, cluster):
        pass
    while _lead_one(placed, cluster.racks):
        pass
    return [
        Move(tp, tuple(cluster.placement[tp]), tuple(replicas), cluster.sizes.get(tp, 0))
        for tp, replicas in sorted(placed.items())
        if tuple(replicas) != tuple(cluster.placement[tp])
    ]


def _move_one(placed: dict[TopicPartition, list[int]], cluster: Cluster) -> bool:
    """Move one replica from a broker that has more than another; False if none has."""
    held = Counter(dict.fromkeys(cluster.racks, 0))
    held.update(each for replicas in placed.values() for each in replicas if each in held)
    fewest_first = sorted(held, key=lambda each: (held[each], each))
    for source in reversed(fewest_first):
        for target in fewest_first:
            if held[source] - held[target] < 2:
                break
            movable = [
                tp
                for tp, replicas in placed.items()
                if source in replicas
                and target not in replicas
                and not _shares_rack(replicas, source, target, cluster.racks)
            ]
            if movable:
                tp = min(movable, key=lambda each: (cluster.sizes.get(each, 0), each))
                placed[tp][placed[tp].index(source)] = target
                return True
    return False


def _shares_rack(
    replicas: Sequence[int], source: int, target: int, racks: Mapping[int, str | None]
) -> bool:
    """Whether there would be fewer racks than before."""
    before = {racks.get(each) for each in replicas}
    after = {racks.get(target if each == source else each) for each in replicas}
    return len(after) < len(before)


def _lead_one(placed: dict[TopicPartition, list[int]], brokers: Collection[int]) -> bool:
    """Let another replica of one partition be the preferred leader; False if all are even."""
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(replicas[0] for replicas in placed.values() if replicas[0] in leads)
    for tp in sorted(placed):
        replicas = placed[tp]
        first = replicas[0]
        others = [each for each in replicas[1:] if each in leads]
        if first not in leads or not others:
            continue
        best = min(others, key=lambda each: (leads[each], each))
        if leads[first] - leads[best] >= 2:
            index = replicas.index(best)
            replicas[0], replicas[index] = best, first
            return True
    return False
