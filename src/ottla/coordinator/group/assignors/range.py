"""The `range` assignor: consecutive partitions of each topic for each of its subscribers.

Members stand in one order (static ones first, by instance id, then the others by member id), so
partition n of two topics with the same subscribers and equally many partitions goes to the same
member: that is what joins of two topics need, and why one chooses `range`.

It is as sticky as Kafka 4.2's, whose assignor does not look at present owners either: the order
decides, never who had what. The same members and topics get the same ranges, and a static member
that restarts finds its old ones. Positions kept from a former assignment would differ between
topics that were subscribed at different times, and the join of those two would be torn apart;
whoever wants few moves chooses `uniform`.

Kafka's does not look at racks. Here, where they are known and matter, a member gets the partitions
with a replica in its rack first, in order, as many as its share allows. Topics that are joined must
not be torn apart by that, so it is done only where all topics with the same subscribers and equally
many partitions also have their replicas in the same racks (the rule of KIP-881).
"""

from __future__ import annotations

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

# The partitions of a topic for each of its subscribers, in their order.
Shares = Sequence[frozenset[int]]


class RangeAssignor:
    """See the module."""

    name = "range"

    def assign(
        self,
        subscribers: Mapping[str, Subscriber],
        topics: Mapping[TopicId, AssignableTopic],
    ) -> dict[str, Partitions]:
        order = sorted(subscribers, key=lambda member_id: _rank(member_id, subscribers[member_id]))
        shares: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in order}
        use_racks = racks_matter(subscribers, topics)
        for members, count, joined in _joined_topics(order, subscribers, topics):
            layouts = {topics[topic].racks for topic in joined} if use_racks else set()
            layout = layouts.pop() if len(layouts) == 1 else ()
            if layout:
                parts = _near(count, layout, [subscribers[member].rack for member in members])
            else:
                parts = _ranges(count, len(members))
            for member, part in zip(members, parts, strict=True):
                if part:
                    share = shares[member]
                    for topic in joined:
                        share[topic] = part
        return {
            member: owned if (owned := subscribers[member].owned) == share else share
            for member, share in shares.items()
        }


def _rank(member_id: str, subscriber: Subscriber) -> tuple[bool, str]:
    instance = subscriber.instance_id
    return (True, member_id) if instance is None else (False, instance)


def _joined_topics(
    order: Sequence[str],
    subscribers: Mapping[str, Subscriber],
    topics: Mapping[TopicId, AssignableTopic],
) -> Iterable[tuple[list[str], int, list[TopicId]]]:
    """Topics with the same subscribers and equally many partitions, together."""
    joined: dict[tuple[int, int], list[TopicId]] = defaultdict(list)
    crowd_of = crowds(order, subscribers)
    for topic, crowd in crowd_of.items():
        joined[id(crowd), topics[topic].partitions].append(topic)
    for (_, count), names in joined.items():
        yield [order[position] for position in crowd_of[names[0]]], count, names


def _ranges(count: int, members: int) -> Shares:
    least, extra = divmod(count, members)
    shares = []
    start = 0
    for index in range(members):
        end = start + least + (index < extra)
        shares.append(frozenset(range(start, end)))
        start = end
    return shares


def _near(count: int, layout: tuple[frozenset[str], ...], racks: Sequence[str | None]) -> Shares:
    """Shares of the same sizes as ranges would have, filled from the member's rack first."""
    least, extra = divmod(count, len(racks))
    room = [least + (index < extra) for index in range(len(racks))]
    shares: list[set[int]] = [set() for _ in racks]
    left = list(range(count))
    for index, rack in enumerate(racks):
        if rack is not None and room[index]:
            near = [partition for partition in left if rack in layout[partition]][: room[index]]
            shares[index].update(near)
            room[index] -= len(near)
            left = [partition for partition in left if partition not in shares[index]]
    rest = iter(left)
    for index, free in enumerate(room):
        shares[index].update(next(rest) for _ in range(free))
    return [frozenset(share) for share in shares]
