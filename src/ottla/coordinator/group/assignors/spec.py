"""What an assignor is given, and what it returns. Plain values: no group, no clock, no cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from ottla.model.ids import TopicId

# Partitions by topic. Never changed once made, so it is shared freely between target
# assignments, members and records; a topic without partitions is not in it.
Partitions: TypeAlias = Mapping[TopicId, frozenset[int]]

NO_PARTITIONS: Partitions = {}


class Subscriber(NamedTuple):
    """A member, as far as an assignor cares."""

    topics: frozenset[TopicId]  # what it subscribes to and what exists
    owned: Partitions = NO_PARTITIONS  # the target it has now
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class AssignableTopic:
    """A subscribed topic: how many partitions, and in which racks each has a replica."""

    partitions: int
    racks: tuple[frozenset[str], ...] = ()  # empty where no broker has a rack


class Assignor(Protocol):
    """Shares out the partitions of the subscribed topics.

    Every partition of every topic that somebody subscribes to gets exactly one owner, who
    subscribes to it. The result has an entry for every member; a member whose share is as before
    gets the very object it came with. The same arguments give the same result.
    """

    @property
    def name(self) -> str: ...

    def assign(
        self,
        subscribers: Mapping[str, Subscriber],
        topics: Mapping[TopicId, AssignableTopic],
    ) -> dict[str, Partitions]: ...


def racks_matter(
    subscribers: Mapping[str, Subscriber], topics: Mapping[TopicId, AssignableTopic]
) -> bool:
    """Whether who gets which partition makes a difference to where it is read from.

    Not when no member says where it is, and not when all partitions have replicas in the same of
    the racks that have members: then any assignment is as near as any other.
    """
    inhabited = {subscriber.rack for subscriber in subscribers.values() if subscriber.rack}
    if not inhabited:
        return False
    nearby = (racks & inhabited for topic in topics.values() for racks in topic.racks)
    first = next(nearby, None)
    return any(racks != first for racks in nearby)


def crowds(
    order: Sequence[str], subscribers: Mapping[str, Subscriber]
) -> dict[TopicId, tuple[int, ...]]:
    """Who subscribes to each topic, as positions in `order`, topics in the order of their ids.

    Topics with the same subscribers share one tuple, so identity tells such topics. Members mostly
    agree, so it is the different subscriptions that are gone through, not the members.
    """
    agreeing: dict[frozenset[TopicId], list[int]] = defaultdict(list)
    for index, member in enumerate(order):
        agreeing[subscribers[member].topics].append(index)
    interested: dict[TopicId, list[int]] = defaultdict(list)
    for number, wanted in enumerate(agreeing):
        for topic in wanted:
            interested[topic].append(number)
    parties = list(agreeing.values())
    united: dict[tuple[int, ...], tuple[int, ...]] = {}
    result = {}
    for topic in sorted(interested):
        key = tuple(interested[topic])
        if key not in united:
            united[key] = tuple(sorted(index for number in key for index in parties[number]))
        result[topic] = united[key]
    return result
