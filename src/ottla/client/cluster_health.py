"""The health of a cluster: its brokers, what each leads, and the partitions that lack something.

    with DirectAdmin("127.0.0.1:9092") as admin:
        health = look(admin)
        print(health.controller, [each.name for each in health.troubled if each.offline])

It comes from Kafka's own requests, so it works with any Kafka cluster. Brokers that are not there
are known by the partitions that they should have. Ottla's brokers are also asked what only they
know: which brokers belong to the cluster until it is told to forget them, on which machine a broker
runs or ran, since when it is what it is, which logs it cannot serve, and since when it has not
reached the metadata store. While all are without the store, what they tell is as old as that, and a
broker that has died since still counts as up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ottla.client.descriptions import ClusterDescription, PartitionDescription, TopicDescription
from ottla.client.reassignments import Ongoing, ongoing
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.brokers import DescribeBrokersRequest, DescribeBrokersResponse
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin

MIN_INSYNC = "min.insync.replicas"
FACTORS = MappingProxyType(
    {
        "__consumer_offsets": "offsets.topic.replication.factor",
        "__transaction_state": "transaction.state.log.replication.factor",
    }
)
"""The settings that say how many replicas the brokers' own topics have."""
_TOPIC, _BROKER = 2, 4
_DEFAULT_OF_ALL, _STATIC = "broker-default", "static"
_AT_ONCE = 500  # topics in a request


@dataclass(frozen=True, slots=True)
class Remembered:
    """What Ottla remembers of a broker."""

    host: str | None
    state: str
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """What brokers tell besides Kafka's requests; nothing in a cluster of others."""

    ours: bool = False  # whether it is a cluster of Ottla's
    brokers: Mapping[int, Remembered] = field(default_factory=dict)
    offline_logs: Mapping[TopicPartition, frozenset[int]] = field(default_factory=dict)
    min_insync: int | None = None  # the cluster's
    overruled: Mapping[int, int] = field(default_factory=dict)  # what files of brokers say instead
    store_away: Mapping[int, int] = field(default_factory=dict)  # since when, for those brokers
    silent: frozenset[int] = frozenset()  # called up, and did not answer
    versions: Mapping[int, str] = field(default_factory=dict)  # empty where a broker tells none


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
    host: str | None = None
    since_ms: int | None = None
    stopping: bool = False

    @property
    def state(self) -> str:
        """`up`, `stopping`, `fenced` (there, but shut out) or `missing`."""
        if self.address is None:
            return "missing"
        if self.fenced:
            return "fenced"
        return "stopping" if self.stopping else "up"


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
    broken: tuple[int, ...] = ()  # replicas whose log cannot be served

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
        """For whom the partition waits, and whether for all of them or for any one.

        One with a leader waits for all replicas that are not in sync. Without one, whoever is in
        sync or eligible (KIP-966) may lead at once. When nobody is, those last known to be have to
        report first, all of them, so that the one with the most records leads; also when they are
        there: one of them does not answer the controller.
        """
        if not self.offline:
            return tuple(each for each in self.replicas if each not in self.isr), True
        there = {each for each in live if each not in self.broken}
        able = self.elr or self.isr
        if able:
            return tuple(each for each in able if each not in there), False
        known = self.last_known_elr or self.replicas
        return tuple(each for each in known if each not in there) or known, True


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """A cluster at one moment; `troubled` are the partitions that are not in perfect order."""

    cluster: str
    controller: int | None
    brokers: tuple[BrokerHealth, ...]
    partitions: int
    troubled: tuple[PartitionHealth, ...]
    known: Known = Known()
    moving: int = 0  # partitions that are on their way to other brokers

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


def look(admin: DirectAdmin, *, ours: bool | None = None) -> ClusterHealth:
    """A few requests, some of them to every broker. Raises KafkaError.

    `ours` tells whether it is a cluster of Ottla's; when that is not known, it is if any broker
    answers what only Ottla's do. When a broker goes away meanwhile (who does not answer may keep
    this waiting for seconds), its partitions are looked at once more.
    """
    return _look(admin, ours, patient=True)


def _look(admin: DirectAdmin, ours: bool | None, *, patient: bool) -> ClusterHealth:
    cluster = admin.describe_cluster(fenced=True)
    fenced = admin.fenced_brokers()
    described = admin.describe_each(admin.topics())
    # A topic that was deleted meanwhile is not there any more.
    topics = [each for each in described.values() if isinstance(each, TopicDescription)]
    moving = _moving(admin)
    topics = [_without_coming(each, moving) for each in topics]
    live = [node.id for node in cluster.nodes if node.id not in fenced]
    known = _ask_brokers(admin, live, ours)
    if patient and any(known.brokers.get(each, _UNKNOWN).state == "missing" for each in live):
        return _look(admin, ours or known.ours, patient=False)
    suspects = {topic.name for topic in topics if any(map(_lacking, topic.partitions))}
    suspects |= {tp.topic for tp in known.offline_logs}
    found = assess(cluster, fenced, topics, min_insync(admin, suspects), known)
    return replace(found, moving=len(moving))


def assess(
    cluster: ClusterDescription,
    fenced: Collection[int],
    topics: Iterable[TopicDescription],
    least: Mapping[str, int],
    known: Known = Known(),  # noqa: B008 - a frozen value
) -> ClusterHealth:
    """What follows from the answers."""
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    troubled = []
    partitions = 0
    for topic in sorted(topics, key=lambda each: (each.internal, each.name)):
        for part in topic.partitions:
            partitions += 1
            replicas.update(part.replicas)
            in_sync.update(part.isr)
            broken = known.offline_logs.get(TopicPartition(topic.name, part.partition), frozenset())
            if part.leader in broken:
                part = replace(part, leader=None)  # noqa: PLW2901 - it leads in name only
            if part.leader is not None:
                leads[part.leader] += 1
            if _lacking(part):
                health = _health(topic.name, part, least.get(topic.name))
                troubled.append(replace(health, broken=tuple(sorted(broken))))
    there = {node.id: node for node in cluster.nodes}
    brokers = []
    for broker in sorted({*there, *replicas, *known.brokers}):
        remembered = known.brokers.get(broker, _UNKNOWN)
        gone = remembered.state == "missing"  # maybe only since the cluster was described
        node = None if gone else there.get(broker)
        brokers.append(
            BrokerHealth(
                broker,
                None if node is None else str(node),
                None if node is None else node.rack,
                broker in fenced,
                leads[broker],
                replicas[broker],
                in_sync[broker],
                remembered.host,
                remembered.since_ms,
                remembered.state == "stopping",
            )
        )
    troubled.sort(key=lambda each: (not each.offline, not each.under_min_insync))
    return ClusterHealth(
        cluster.id, cluster.controller, tuple(brokers), partitions, tuple(troubled), known
    )


def _moving(admin: DirectAdmin) -> Mapping[TopicPartition, Ongoing]:
    """What is being moved, as far as the controller tells."""
    try:
        return ongoing(admin.router)
    except KafkaError:
        return {}  # the rest of the picture is worth more than that


def _without_coming(
    topic: TopicDescription, moving: Mapping[TopicPartition, Ongoing]
) -> TopicDescription:
    """A topic without the replicas that are on their way: that they are not in sync is no lack."""
    if not any(tp.topic == topic.name for tp in moving):
        return topic
    parts = []
    for part in topic.partitions:
        move = moving.get(TopicPartition(topic.name, part.partition))
        coming = () if move is None else {*move.adding} - {*part.isr}
        replicas = tuple(each for each in part.replicas if each not in coming)
        parts.append(replace(part, replicas=replicas))
    return replace(topic, partitions=tuple(parts))


def _ask_brokers(admin: DirectAdmin, live: Iterable[int], ours: bool | None) -> Known:
    """What brokers know of one another and of themselves; those that do not answer are left out."""
    remembered: dict[int, Remembered] = {}
    offline: dict[TopicPartition, frozenset[int]] = {}
    cluster: int | None = None
    overruled: dict[int, int] = {}
    away: dict[int, int] = {}
    silent: set[int] = set()
    speechless: set[int] = set()  # to what others than Ottla's do not answer: they hang up
    versions: dict[int, str] = {}
    answered = False
    for broker in live:
        try:
            of_all, of_file = _min_insync_of(admin, broker)
        except KafkaError:
            silent.add(broker)
            continue
        cluster = of_all if cluster is None else cluster
        if of_all is not None and of_file not in (None, of_all):
            overruled[broker] = of_file
        if ours is False:
            continue
        answer = _ask_broker(admin, broker)
        if answer is None:
            speechless.add(broker)
            continue
        answered = True
        versions[broker] = answer.version
        if answer.store_away_since_ms >= 0:
            away[broker] = answer.store_away_since_ms
        _remember(remembered, answer)
        for log in answer.offline_logs:
            tp = TopicPartition(log.topic, log.partition_index)
            offline[tp] = offline.get(tp, frozenset()) | {broker}
    if ours or answered:
        silent |= speechless
    return Known(
        answered, remembered, offline, cluster, overruled, away, frozenset(silent), versions
    )


def _remember(known: dict[int, Remembered], answer: DescribeBrokersResponse) -> None:
    """Add what a broker tells of all; where it is behind another one, that one is right."""
    for each in answer.brokers:
        since_ms = None if each.since_ms < 0 else each.since_ms
        if (since_ms or 0) >= (known.get(each.broker_id, _UNKNOWN).since_ms or 0):
            known[each.broker_id] = Remembered(each.host or None, each.state, since_ms)


def _ask_broker(admin: DirectAdmin, broker: int) -> DescribeBrokersResponse | None:
    try:
        answer: DescribeBrokersResponse = admin.router.node(broker).ask(DescribeBrokersRequest())
    except KafkaError:
        return None
    return None if answer.error_code else answer


def _min_insync_of(admin: DirectAdmin, broker: int) -> tuple[int | None, int | None]:
    """What the cluster has set for all brokers, and what the file of this one says."""
    entries = admin.describe_configs(_BROKER, str(broker), keys=[MIN_INSYNC])
    values = {each.source: each.value for entry in entries for each in entry.synonyms}
    of_all, of_file = values.get(_DEFAULT_OF_ALL), values.get(_STATIC)
    return (
        int(of_all) if of_all is not None and of_all.isdigit() else None,
        int(of_file) if of_file is not None and of_file.isdigit() else None,
    )


def own_factors(admin: DirectAdmin) -> dict[str, int]:
    """How many replicas brokers of Ottla's give their own topics as soon as there are brokers for
    them (`controller.internal_replicas`); nothing where others do not."""
    controller = admin.describe_cluster().controller
    if controller is None or _ask_broker(admin, controller) is None:
        return {}
    try:
        entries = admin.describe_configs(_BROKER, str(controller), keys=[*FACTORS.values()])
    except KafkaError:
        return {}  # it has just died, and what moves is not told by this
    values = {each.name: each.value for each in entries}
    return {
        topic: int(value)
        for topic, name in FACTORS.items()
        if (value := values.get(name)) is not None and value.isdigit()
    }


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


_UNKNOWN = Remembered(None, "", None)


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
