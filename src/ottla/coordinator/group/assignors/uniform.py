"""The `uniform` assignor: equally many partitions for everybody, and as few moves as possible.

What comes first: an owner for every partition, then balance, then that partitions stay where they
are, then that they are read within the rack. A partition is never moved for its rack's sake alone.

While all members subscribe to the same topics everybody's share is known beforehand (the total
divided by the members, one more for some), and one pass over the members suffices. Where
subscriptions differ, `uneven` balances topic by topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.coordinator.group.assignors import uneven
from ottla.coordinator.group.assignors.spec import (
    AssignableTopic,
    Partitions,
    Subscriber,
    racks_matter,
)
from ottla.model.ids import TopicId

OnePartition = tuple[TopicId, int]


class UniformAssignor:
    """See the module."""

    name = "uniform"

    def assign(
        self,
        subscribers: Mapping[str, Subscriber],
        topics: Mapping[TopicId, AssignableTopic],
    ) -> dict[str, Partitions]:
        if not subscribers:
            return {}
        wanted = next(iter(subscribers.values())).topics
        if all(
            subscriber.topics is wanted or subscriber.topics == wanted
            for subscriber in subscribers.values()
        ):
            return _share_evenly(subscribers, {topic: topics[topic] for topic in sorted(wanted)})
        return uneven.assign(subscribers, topics)


def _share_evenly(
    subscribers: Mapping[str, Subscriber], topics: Mapping[TopicId, AssignableTopic]
) -> dict[str, Partitions]:
    use_racks = racks_matter(subscribers, topics)
    taken: dict[TopicId, set[int]] = {topic: set() for topic in topics}
    kept = {
        member: _keep(subscribers[member].owned, topics, taken) for member in sorted(subscribers)
    }
    sizes = {member: sum(map(len, owned.values())) for member, owned in kept.items()}
    least, extra = divmod(sum(topic.partitions for topic in topics.values()), len(subscribers))
    # Some must have one partition more than others: those who have it already keep it.
    favoured = [member for member, size in sizes.items() if size > least][:extra]
    favoured += [member for member, size in sizes.items() if size <= least][: extra - len(favoured)]
    quotas = dict.fromkeys(kept, least) | dict.fromkeys(favoured, least + 1)

    result: dict[str, Partitions] = kept
    room: dict[str, int] = {}
    for member, quota in quotas.items():
        if sizes[member] > quota:
            rack = subscribers[member].rack if use_racks else None
            result[member] = _cut(kept[member], quota, rack, topics, taken)
        elif sizes[member] < quota:
            room[member] = quota - sizes[member]
    free = [
        (name, partition)
        for name, topic in topics.items()
        if len(taken[name]) < topic.partitions
        for partition in range(topic.partitions)
        if partition not in taken[name]
    ]
    gains: dict[str, list[OnePartition]] = {member: [] for member in room}
    if use_racks:
        free = _hand_out_near(free, room, gains, subscribers, topics)
    rest = iter(free)
    for member, places in room.items():
        gains[member].extend(next(rest) for _ in range(places))
    for member, gained in gains.items():
        result[member] = _with(result[member], gained)
    return result


def _keep(
    owned: Partitions,
    topics: Mapping[TopicId, AssignableTopic],
    taken: dict[TopicId, set[int]],
) -> Partitions:
    """What is owned and may stay owned; mostly all of it, and then the same object.

    Not what somebody before has as well. Our own targets never overlap, but those of a group that
    was classic a moment ago come from its clients.
    """
    same = True
    kept: dict[TopicId, frozenset[int]] = {}
    for topic, partitions in owned.items():
        others = taken.get(topic)
        if others is None:
            same = False
            continue
        stay = partitions
        if max(partitions) >= topics[topic].partitions or not others.isdisjoint(partitions):
            stay = frozenset(range(topics[topic].partitions)) & partitions - others
            same = False
        others |= stay
        if stay:
            kept[topic] = stay
    return owned if same else kept


def _cut(
    owned: Partitions,
    size: int,
    rack: str | None,
    topics: Mapping[TopicId, AssignableTopic],
    taken: dict[TopicId, set[int]],
) -> Partitions:
    """The `size` partitions to keep: near ones before far ones, low ones before high ones."""

    def far(one: OnePartition) -> bool:
        racks = topics[one[0]].racks
        return bool(racks) and rack not in racks[one[1]]

    order = [(topic, partition) for topic in sorted(owned) for partition in sorted(owned[topic])]
    if rack is not None:
        order.sort(key=far)
    for topic, partition in order[size:]:
        taken[topic].discard(partition)
    return _with({}, order[:size])


def _with(owned: Partitions, gained: Iterable[OnePartition]) -> Partitions:
    grown: dict[TopicId, set[int]] = {}
    for topic, partition in gained:
        if topic not in grown:
            grown[topic] = set(owned.get(topic, ()))
        grown[topic].add(partition)
    return {**owned, **{topic: frozenset(partitions) for topic, partitions in grown.items()}}


def _hand_out_near(
    free: list[OnePartition],
    room: dict[str, int],
    gains: dict[str, list[OnePartition]],
    subscribers: Mapping[str, Subscriber],
    topics: Mapping[TopicId, AssignableTopic],
) -> list[OnePartition]:
    """Fill places with partitions of the same rack; returns the partitions that are left.

    Partitions with the fewest racks to go to choose first, and of several racks the one with
    the most places left: greedy, and good enough where it cannot be perfect anyway.
    """
    waiting: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    for member in reversed(room):
        rack = subscribers[member].rack
        if rack is not None:
            waiting.setdefault(rack, []).append(member)
            places[rack] = places.get(rack, 0) + room[member]

    def choices(one: OnePartition) -> list[str]:
        racks = topics[one[0]].racks
        return [rack for rack in sorted(racks[one[1]]) if places.get(rack)] if racks else []

    left = []
    for one in sorted(free, key=lambda partition: len(choices(partition))):
        open_racks = choices(one)
        if not open_racks:
            left.append(one)
            continue
        rack = max(open_racks, key=places.__getitem__)
        member = waiting[rack][-1]
        gains[member].append(one)
        places[rack] -= 1
        room[member] -= 1
        if not room[member]:
            waiting[rack].pop()
    return sorted(left)
