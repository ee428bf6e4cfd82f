"""Where replicas should be: spread evenly, or away from a broker. No I/O: placements in and out.

A plan changes as little as it can. Draining replaces one broker in the partitions that it holds,
the largest first, each time by the broker that has fewest partitions of the topic, then of all
topics, and of equal ones by that which gets least to copy. Rebalancing moves single replicas, small
ones first, until the brokers have as many of every topic, give or take one, and as many of all
topics together as that allows; then preferred leaders are shared out in the same way, which copies
nothing. Topic by topic, since a new broker with a share of empty partitions has no share of the
load. Neither puts two replicas of a partition into one rack where they were in two, if there is any
other broker (`fewer_racks`). Topics can get more or fewer replicas, too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
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
    factors: Mapping[str, int] = MappingProxyType({})
    """How many replicas the brokers themselves give their own topics, where there are enough."""


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
    newcomers = _Newcomers(cluster)
    moves: list[Move] = []
    stuck: list[TopicPartition] = []
    sizes = cluster.sizes
    for tp in sorted(cluster.placement, key=lambda each: (-sizes.get(each, 0), each)):
        replicas = cluster.placement[tp]
        if broker not in replicas:
            continue
        others = [each for each in replicas if each != broker]
        candidates = [each for each in able if each not in others]
        if not candidates:
            stuck.append(tp)
            continue
        chosen = newcomers.choose(tp, candidates, others)
        after = tuple(chosen if each == broker else each for each in replicas)
        moves.append(Move(tp, tuple(replicas), after, sizes.get(tp, 0)))
    if stuck:
        most = max(len(cluster.placement[tp]) for tp in stuck)
        names = ", ".join(map(str, stuck[:3])) + (" and others" if len(stuck) > 3 else "")
        fewer = ", or give these topics fewer replicas with `ottla topic replicate`"
        raise TooFewBrokers(
            f"without broker {broker} there {'is' if len(able) == 1 else 'are'} {len(able)} "
            f"broker{'' if len(able) == 1 else 's'}, and {names} "
            f"{'have' if len(stuck) > 1 else 'has'} {most} replica{'' if most == 1 else 's'}: "
            f"add a broker first{'' if most == 1 else fewer}"
        )
    return sorted(moves)


def fewer_racks(cluster: Cluster, moves: Iterable[Move]) -> list[TopicPartition]:
    """Partitions whose replicas, of which there are no fewer, will be in fewer racks than now: the
    last broker of a rack is drained."""
    return [
        move.partition
        for move in moves
        if len(move.after) >= len(move.before)
        and len(_racks(cluster, move.after)) < len(_racks(cluster, move.before))
    ]


def _racks(cluster: Cluster, replicas: Iterable[int]) -> set[str | None]:
    return {cluster.racks[each] for each in replicas if each in cluster.racks}


def plan_replication(cluster: Cluster, topics: Collection[str], replication: int) -> list[Move]:
    """As many replicas of every partition of these topics. Raises TooFewBrokers.

    New ones go into other racks first, then to the brokers that have fewest of the topic, and of
    all topics. Those of dead brokers are given up first, then those whose rack has another, then
    those of the brokers that hold most; the preferred leader stays, if it lives.
    """
    if replication > len(cluster.racks):
        raise TooFewBrokers(
            f"{replication} replicas need as many brokers, and there "
            f"{'is' if len(cluster.racks) == 1 else 'are'} {len(cluster.racks)}"
        )
    newcomers = _Newcomers(cluster)
    held = newcomers.held
    moves: list[Move] = []
    for tp, before in sorted(cluster.placement.items()):
        if tp.topic not in topics:
            continue
        size = cluster.sizes.get(tp, 0)
        after = list(before)
        while len(after) > replication:
            given_up = max(after, key=lambda each: _worth_giving_up(each, after, cluster, held.all))
            after.remove(given_up)
            held.add(tp, given_up, -1)
        while len(after) < replication:
            candidates = [each for each in cluster.racks if each not in after]
            after.append(newcomers.choose(tp, candidates, after))
        if after != list(before):
            moves.append(Move(tp, tuple(before), tuple(after), size))
    return moves


def _worth_giving_up(
    broker: int, replicas: Sequence[int], cluster: Cluster, held: Mapping[int, int]
) -> tuple[bool, bool, bool, int, int]:
    racks = Counter(cluster.racks[each] for each in replicas if each in cluster.racks)
    return (
        broker not in cluster.racks,
        broker != replicas[0],
        racks[cluster.racks.get(broker)] > 1,
        held[broker],
        broker,
    )


def plan_rebalance(cluster: Cluster) -> list[Move]:
    """The same number of replicas, and of preferred leaders, of every topic on every broker, give
    or take one."""
    placed = {tp: list(replicas) for tp, replicas in cluster.placement.items()}
    held = _Shares(cluster.racks)
    for tp, replicas in placed.items():
        for broker in replicas:
            held.add(tp, broker)
    changed = True
    while changed:  # what evens out the sums may make room for a topic to become more even
        for partitions in _by_topic(placed).values():
            _Spreading(partitions, cluster, held).run()
        changed = _Spreading(placed, cluster, held, among_equals=True).run()
    _share_leaders(placed, cluster.racks)
    return [
        Move(tp, tuple(cluster.placement[tp]), tuple(replicas), cluster.sizes.get(tp, 0))
        for tp, replicas in sorted(placed.items())
        if tuple(replicas) != tuple(cluster.placement[tp])
    ]


def _by_topic(
    placed: Mapping[TopicPartition, list[int]],
) -> dict[str, dict[TopicPartition, list[int]]]:
    topics: dict[str, dict[TopicPartition, list[int]]] = {}
    for tp, replicas in sorted(placed.items()):
        topics.setdefault(tp.topic, {})[tp] = replicas
    return topics


class _Shares:
    """How many partitions each of the brokers has, of each topic and in all."""

    def __init__(self, brokers: Collection[int]) -> None:
        self._brokers = brokers
        self.all = Counter(dict.fromkeys(brokers, 0))
        self.of_topic: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, tp: TopicPartition, broker: int, count: int = 1) -> None:
        if broker in self._brokers:
            self.all[broker] += count
            self.of_topic[tp.topic][broker] += count

    def move(self, tp: TopicPartition, source: int, target: int) -> None:
        self.add(tp, source, -1)
        self.add(tp, target)

    def has_more(self, tp: TopicPartition, source: int, target: int) -> bool:
        """Of this topic: so that one that is moved leaves the two no less even than they were."""
        return self.of_topic[tp.topic][source] > self.of_topic[tp.topic][target]


class _Newcomers:
    """Chooses who gets one more replica of a partition.

    Numbers come before bytes: by bytes alone all partitions that are empty by now, of which a
    cluster may have many, would go to the one broker that has got the fewest bytes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._racks, self._sizes = cluster.racks, cluster.sizes
        self.held = _Shares(cluster.racks)
        for tp, replicas in cluster.placement.items():
            for broker in replicas:
                self.held.add(tp, broker)
        self._copied: Counter[int] = Counter()

    def choose(self, tp: TopicPartition, candidates: Iterable[int], others: Iterable[int]) -> int:
        """One of the candidates, in another rack than the other replicas if there is one."""
        used = {self._racks.get(each) for each in others}
        of_topic = self.held.of_topic[tp.topic]

        def cost(broker: int) -> tuple[bool, int, int, int, int]:
            shares = of_topic[broker], self.held.all[broker], self._copied[broker]
            return self._racks[broker] in used, *shares, broker

        chosen = min(candidates, key=cost)
        self.held.add(tp, chosen)
        self._copied[chosen] += self._sizes.get(tp, 0)
        return chosen


class _Spreading:
    """Moves replicas until every broker has as many of some partitions, give or take one.

    `among_equals` moves only what leaves topics as even as they are. Each broker's partitions are
    kept with the smallest first, so that a move looks at few of them, and a pair of brokers between
    which nothing can be moved is not looked at again until something of theirs has changed.
    """

    def __init__(
        self,
        placed: Mapping[TopicPartition, list[int]],
        cluster: Cluster,
        shares: _Shares,
        *,
        among_equals: bool = False,
    ) -> None:
        self._placed = placed
        self._racks, self._sizes = cluster.racks, cluster.sizes
        self._shares = shares
        self._among_equals = among_equals
        self._held: dict[int, list[tuple[int, TopicPartition]]] = {each: [] for each in self._racks}
        for tp in sorted(placed, key=self._rank):
            for broker in placed[tp]:
                if broker in self._held:
                    self._held[broker].append(self._rank(tp))
        self._changes = Counter(dict.fromkeys(self._racks, 0))
        self._vain: dict[tuple[int, int], tuple[int, int]] = {}

    def _rank(self, tp: TopicPartition) -> tuple[int, TopicPartition]:
        return self._sizes.get(tp, 0), tp

    def run(self) -> bool:
        """Whether anything was moved."""
        moved = False
        while self._move_one():
            moved = True
        return moved

    def _move_one(self) -> bool:
        """Move one replica from a broker that has more than another; False if none has."""
        held, in_all = self._held, self._shares.all
        fewest_first = sorted(held, key=lambda each: (len(held[each]), in_all[each], each))
        for source in reversed(fewest_first):
            for target in fewest_first:
                if len(held[source]) - len(held[target]) < 2:
                    break
                pair = source, target
                changes = self._changes[source], self._changes[target]
                if self._vain.get(pair) == changes:
                    continue
                tp = self._smallest_movable(source, target)
                if tp is not None:
                    self._move(tp, source, target)
                    return True
                self._vain[pair] = changes
        return False

    def _smallest_movable(self, source: int, target: int) -> TopicPartition | None:
        for _, tp in self._held[source]:
            replicas = self._placed[tp]
            if target in replicas or _shares_rack(replicas, source, target, self._racks):
                continue
            if not self._among_equals or self._shares.has_more(tp, source, target):
                return tp
        return None

    def _move(self, tp: TopicPartition, source: int, target: int) -> None:
        rank, replicas = self._rank(tp), self._placed[tp]
        del self._held[source][bisect_left(self._held[source], rank)]
        insort(self._held[target], rank)
        replicas[replicas.index(source)] = target
        self._shares.move(tp, source, target)
        self._changes.update((source, *replicas))


def _shares_rack(
    replicas: Sequence[int], source: int, target: int, racks: Mapping[int, str | None]
) -> bool:
    """Whether there would be fewer racks than before."""
    before = {racks.get(each) for each in replicas}
    after = {racks.get(target if each == source else each) for each in replicas}
    return len(after) < len(before)


def _share_leaders(placed: Mapping[TopicPartition, list[int]], brokers: Collection[int]) -> None:
    """Let other replicas be the preferred leaders, until all brokers lead as many of every topic,
    and of all together, as the others, as far as their replicas allow it."""
    leads = _Shares(brokers)
    for tp, replicas in placed.items():
        leads.add(tp, replicas[0])
    changed = True
    while changed:
        for topic, partitions in _by_topic(placed).items():
            _hand_over(partitions, leads, leads.of_topic[topic])
        changed = _hand_over(placed, leads, leads.all, among_equals=True)


def _hand_over(
    placed: Mapping[TopicPartition, list[int]],
    leads: _Shares,
    counts: Counter[int],
    *,
    among_equals: bool = False,
) -> bool:
    """Whether any partition has got another leader. `counts` are what becomes even."""
    changes = 0
    before = -1
    while changes != before:  # each change makes them more even, so there is an end
        before = changes
        for tp, replicas in sorted(placed.items()):
            first = replicas[0]
            others = [
                each
                for each in replicas[1:]
                if each in leads.all and (not among_equals or leads.has_more(tp, first, each))
            ]
            if first not in leads.all or not others:
                continue
            best = min(others, key=lambda each: (counts[each], leads.all[each], each))
            if counts[first] - counts[best] >= 2:
                index = replicas.index(best)
                replicas[0], replicas[index] = best, first
                leads.move(tp, first, best)
                changes += 1
    return changes > 0
