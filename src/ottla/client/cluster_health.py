"""The health of a cluster: its brokers, what each leads, and the partitions that lack something.

    with DirectAdmin("127.0.0.1:9092") as admin:
        health = look(admin)
        print(health.controller, [each.name for each in health.troubled if each.offline])

All of it comes from Kafka's own requests, so it works with any Kafka cluster. Brokers that are not
there are known by the partitions that they should have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.descriptions import ClusterDescription, PartitionDescription, TopicDescription
from ottla.errors import KafkaError
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin

MIN_INSYNC = "min.insync.replicas"
_TOPIC = 2
_AT_ONCE = 500  # topics in a request


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """One broker; without an address when it is missing."""

    id: int
    address: str | None
    rack: str | None
    fenced: bool
    leads: int
    replicas: int
    in_sync: int

    @property
    def state(self) -> str:
        """`up`, `fenced` (there, but shut out) or `missing`."""
        if self.address is None:
            return "missing"
        return "fenced" if self.fenced else "up"


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One partition that lacks something; `min_insync` is None where no broker tells it."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    min_insync: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def offline(self) -> bool:
        return self.leader is None

    @property
    def under_min_insync(self) -> bool:
        """Writes with acks=all are refused."""
        return self.min_insync is not None and len(self.isr) < min(
            self.min_insync, len(self.replicas)
        )

    @property
    def state(self) -> str:
        """What is worst."""
        if self.offline:
            return "offline"
        return "under min.insync" if self.under_min_insync else "under-replicated"

    def waits_for(self, live: Collection[int]) -> tuple[tuple[int, ...], bool]:
        """For whom an offline partition waits, and whether for all of them or for any one.

        Whoever is in sync or eligible (KIP-966) may lead at once. When nobody is, those last known
        to be have to report first, all of them, so that the one with the most records leads.
        """
        if not self.offline:
            return (), False
        able = self.elr or self.isr
        if able:
            return tuple(each for each in able if each not in live), False
        known = self.last_known_elr
        if known:
            return tuple(each for each in known if each not in live), True
        return tuple(each for each in self.replicas if each not in live), False


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """A cluster at one moment; `troubled` are the partitions that are not in perfect order."""

    cluster: str
    controller: int | None
    brokers: tuple[BrokerHealth, ...]
    partitions: int
    troubled: tuple[PartitionHealth, ...]

    @property
    def live(self) -> frozenset[int]:
        return frozenset(each.id for each in self.brokers if each.state == "up")

    @property
    def offline(self) -> int:
        return sum(each.offline for each in self.troubled)

    @property
    def under_min_insync(self) -> int:
        return sum(each.under_min_insync for each in self.troubled)

    @property
    def under_replicated(self) -> int:
        return sum(len(each.isr) < len(each.replicas) for each in self.troubled)


def look(admin: DirectAdmin) -> ClusterHealth:
    """A few requests to any broker. Raises KafkaError."""
    cluster = admin.describe_cluster(fenced=True)
    fenced = admin.fenced_brokers()
    described = admin.describe_each(admin.topics())
    # A topic that was deleted meanwhile is not there any more.
    topics = [each for each in described.values() if isinstance(each, TopicDescription)]
    suspects = {topic.name for topic in topics if any(map(_lacking, topic.partitions))}
    return assess(cluster, fenced, topics, min_insync(admin, suspects))


def assess(
    cluster: ClusterDescription,
    fenced: Collection[int],
    topics: Iterable[TopicDescription],
    least: Mapping[str, int],
) -> ClusterHealth:
    """What follows from the answers."""
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    troubled = []
    partitions = 0
    for topic in sorted(topics, key=lambda each: each.name):
        for part in topic.partitions:
            partitions += 1
            replicas.update(part.replicas)
            in_sync.update(part.isr)
            if part.leader is not None:
                leads[part.leader] += 1
            if _lacking(part):
                troubled.append(_health(topic.name, part, least.get(topic.name)))
    there = {node.id: node for node in cluster.nodes}
    brokers = []
    for broker in sorted({*there, *replicas}):
        node = there.get(broker)
        brokers.append(
            BrokerHealth(
                broker,
                None if node is None else str(node),
                None if node is None else node.rack,
                broker in fenced,
                leads[broker],
                replicas[broker],
                in_sync[broker],
            )
        )
    troubled.sort(key=lambda each: (not each.offline, not each.under_min_insync))
    return ClusterHealth(
        cluster.id, cluster.controller, tuple(brokers), partitions, tuple(troubled)
    )


def min_insync(admin: DirectAdmin, topics: Collection[str]) -> dict[str, int]:
    """min.insync.replicas of these topics, of as many as brokers tell it."""
    found: dict[str, int] = {}
    wanted = sorted(topics)
    for first in range(0, len(wanted), _AT_ONCE):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=[MIN_INSYNC]
                )
                for name in wanted[first : first + _AT_ONCE]
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        try:
            answer = admin.router.ask_any(request)
        except KafkaError:
            continue  # the rest of the picture is worth more than this number
        for result in answer.results:
            for entry in result.configs:
                if entry.value is not None and entry.value.isdigit():
                    found[result.resource_name] = int(entry.value)
    return found


def _lacking(part: PartitionDescription) -> bool:
    return part.leader is None or len(part.isr) < len(part.replicas)


def _health(topic: str, part: PartitionDescription, least: int | None) -> PartitionHealth:
    return PartitionHealth(
        topic,
        part.partition,
        part.leader,
        part.replicas,
        part.isr,
        part.elr or (),
        part.last_known_elr or (),
        least,
    )
