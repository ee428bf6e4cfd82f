"""Partitions that nobody can lead without a loss, and what the loss would be.

    with DirectAdmin("127.0.0.1:9092") as admin:
        for offer in offers(admin):
            print(offer.partition, offer.leader, offer.end_offset)

A partition without a leader waits for a replica that is certain to have its records, or for all
that may have most of them. When one of these never returns, an operator can give it up: of those
who are there the one with the highest last epoch and then the longest log leads, and records that
only others had are lost. Every live replica is asked what it has, so that this is known before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ottla.client.cluster_health import PartitionHealth, look
from ottla.client.direct import DirectAdmin
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

_ANY_REPLICA = -2
_LATEST = -1

End = tuple[int, int]  # the epoch of the last record, and the offset after it
Ends = dict[TopicPartition, dict[int, End]]  # of each replica that answers


@dataclass(frozen=True, slots=True)
class Offer:
    """A partition without a leader, and who would lead it; nobody where no replica answers."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    waits_for: tuple[int, ...]
    waits_for_all: bool
    broken: tuple[int, ...] = ()  # replicas whose log cannot be served
    answering: tuple[int, ...] = ()
    leader: int | None = None
    last_epoch: int | None = None
    end_offset: int | None = None

    @property
    def given_up(self) -> tuple[int, ...]:
        """Replicas whose records nobody asks for any more."""
        return tuple(each for each in self.replicas if each not in self.answering)


def offers(admin: DirectAdmin, topics: Collection[str] | None = None) -> list[Offer]:
    """What can be done for the partitions without a leader, of these topics or of all.

    Raises KafkaError.
    """
    health = look(admin)
    waiting = [
        each
        for each in health.troubled
        if each.offline and (topics is None or each.topic in topics)
    ]
    ends = _ask_all(admin, waiting, health.live)
    return [_offer(each, health.live, ends[_named(each)]) for each in waiting]


def _offer(part: PartitionHealth, live: Collection[int], ends: dict[int, End]) -> Offer:
    waits_for, all_of_them = part.waits_for(live)
    answering = tuple(each for each in part.replicas if each in ends)
    offer = Offer(_named(part), part.replicas, waits_for, all_of_them, part.broken)
    if not answering:
        return offer
    leader = max(answering, key=lambda each: ends[each])
    epoch, end = ends[leader]
    return replace(offer, answering=answering, leader=leader, last_epoch=epoch, end_offset=end)


def _ask_all(admin: DirectAdmin, parts: Iterable[PartitionHealth], live: Collection[int]) -> Ends:
    by_broker: dict[int, list[TopicPartition]] = defaultdict(list)
    for part in parts:
        for broker in part.replicas:
            if broker in live:
                by_broker[broker].append(_named(part))
    found: Ends = defaultdict(dict)
    for broker, partitions in by_broker.items():
        try:
            for tp, end in _ask(admin, broker, partitions):
                found[tp][broker] = end
        except KafkaError:
            continue  # whoever does not answer cannot lead either
    return found


def _ask(
    admin: DirectAdmin, broker: int, partitions: Iterable[TopicPartition]
) -> list[tuple[TopicPartition, End]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        by_topic[tp.topic].append(tp.partition)
    answer = admin.router.node(broker).ask(
        ListOffsetsRequest(
            replica_id=_ANY_REPLICA,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
                        for index in indexes
                    ],
                )
                for name, indexes in by_topic.items()
            ],
        )
    )
    return [
        (TopicPartition(topic.name, part.partition_index), (part.leader_epoch, part.offset))
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code
    ]


def _named(part: PartitionHealth) -> TopicPartition:
    return TopicPartition(part.topic, part.partition)
