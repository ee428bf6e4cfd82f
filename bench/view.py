"""Everything a client can see of a broker: ids, configs, offsets and every record.

Two brokers that serve the same data give equal views; `differences` says where they do not.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
)

from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Place = tuple[str, int]
_EARLIEST = OffsetSpec.earliest()
_LATEST = OffsetSpec.latest()
_PATIENCE = 60.0
# What a broker that has just started may answer while it takes over its partitions.
_SETTLING = {
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
}


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """One record as a consumer gets it. Long values are kept as a digest."""

    offset: int
    timestamp_type: int
    timestamp: int
    leader_epoch: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """One partition: where it starts, where it ends under each isolation, and what is in it."""

    start: int
    end: int
    stable_end: int
    uncommitted: tuple[SeenRecord, ...]
    committed: tuple[SeenRecord, ...]


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """One topic with the configs that somebody has set."""

    topic_id: str
    configs: tuple[tuple[str, str | None], ...]
    partitions: tuple[SeenPartition, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A whole broker."""

    cluster_id: str
    nodes: tuple[int, ...]
    broker_configs: tuple[tuple[str, str | None], ...]
    topics: dict[str, SeenTopic]

    @property
    def records(self) -> int:
        return sum(len(p.uncommitted) for topic in self.topics.values() for p in topic.partitions)


def look(bootstrap: str) -> View:
    """Consume and describe everything there is, once the broker's leadership has settled."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _look(bootstrap)
        except KafkaException as error:
            if error.args[0].name() not in _SETTLING or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _look(bootstrap: str) -> View:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    cluster = admin.describe_cluster(request_timeout=_PATIENCE).result(_PATIENCE)
    names = sorted(admin.list_topics(timeout=_PATIENCE).topics)
    described = {
        name: found.result(_PATIENCE)
        for name, found in admin.describe_topics(
            TopicCollection(names), request_timeout=_PATIENCE
        ).items()
    }
    places = [(name, int(info.id)) for name in names for info in described[name].partitions]
    starts = _offsets(admin, places, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
    ends = _offsets(admin, places, _LATEST, IsolationLevel.READ_UNCOMMITTED)
    stable = _offsets(admin, places, _LATEST, IsolationLevel.READ_COMMITTED)
    uncommitted = _records(bootstrap, starts, "read_uncommitted")
    committed = _records(bootstrap, starts, "read_committed")
    topics: dict[str, SeenTopic] = {}
    for name in names:
        partitions = tuple(
            SeenPartition(
                starts[place], ends[place], stable[place], uncommitted[place], committed[place]
            )
            for place in sorted(place for place in places if place[0] == name)
        )
        configs = _set_configs(
            admin,
            ConfigResource(ConfigResource.Type.TOPIC, name),
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
        )
        topics[name] = SeenTopic(str(described[name].topic_id), configs, partitions)
    nodes = tuple(sorted(int(node.id) for node in cluster.nodes))
    broker_configs = _set_configs(
        admin,
        ConfigResource(ConfigResource.Type.BROKER, str(nodes[0])),
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    )
    return View(str(cluster.cluster_id), nodes, broker_configs, topics)


def _set_configs(
    admin: AdminClient, resource: ConfigResource, source: ConfigSource
) -> tuple[tuple[str, str | None], ...]:
    entries: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(_PATIENCE)
    return tuple(
        sorted(
            (name, entry.value) for name, entry in entries.items() if entry.source == source.value
        )
    )


def _offsets(
    admin: AdminClient, places: Sequence[Place], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[Place, int]:
    asked = admin.list_offsets(
        {TopicPartition(topic, partition): spec for topic, partition in places},
        isolation_level=isolation,
        request_timeout=_PATIENCE,
    )
    return {
        (where.topic, where.partition): int(answer.result(_PATIENCE).offset)
        for where, answer in asked.items()
    }


def _records(
    bootstrap: str, starts: Mapping[Place, int], isolation: str
) -> dict[Place, tuple[SeenRecord, ...]]:
    """All records of all partitions; an end-of-partition event tells when one is through."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "view",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 3,
        }
    )
    seen: dict[Place, list[SeenRecord]] = {place: [] for place in starts}
    pending = set(starts)
    try:
        consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        deadline = time.monotonic() + _PATIENCE
        while pending:
            for message in consumer.consume(1000, timeout=0.1):
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                error = message.error()
                if error is None:
                    seen[topic, partition].append(_seen(message, offset))
                elif error.name() == "_PARTITION_EOF":
                    pending.discard((topic, partition))
                else:
                    raise BenchError(f"{topic}-{partition}: {error.str()}")
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{len(pending)} partitions never came to their end: {sorted(pending)}"
                )
    finally:
        consumer.close()
    return {place: tuple(records) for place, records in seen.items()}


def _seen(message: Message, offset: int) -> SeenRecord:
    kind, timestamp = message.timestamp()
    return SeenRecord(
        offset,
        kind,
        timestamp,
        message.leader_epoch(),
        message.key(),
        _short(message.value()),
        tuple(message.headers() or ()),
    )


def _short(value: bytes | None) -> bytes | None:
    return value if value is None or len(value) <= 64 else hashlib.sha256(value).digest()


def differences(original: View, copy: View) -> list[str]:
    """Every way in which the copy is not the original, most important first, one line each."""
    found: list[str] = []
    if original.cluster_id != copy.cluster_id:
        found.append(f"cluster id {original.cluster_id} became {copy.cluster_id}")
    if original.nodes != copy.nodes:
        found.append(f"node ids {original.nodes} became {copy.nodes}")
    if original.broker_configs != copy.broker_configs:
        found.append(f"broker configs {original.broker_configs} became {copy.broker_configs}")
    missing, new = (
        original.topics.keys() - copy.topics.keys(),
        copy.topics.keys() - original.topics.keys(),
    )
    found += [f"topic {name} is missing" for name in sorted(missing)]
    found += [f"topic {name} is new" for name in sorted(new)]
    for name in sorted(original.topics.keys() & copy.topics.keys()):
        found += _topic_differences(name, original.topics[name], copy.topics[name])
    return found


def _topic_differences(name: str, original: SeenTopic, copy: SeenTopic) -> list[str]:
    found: list[str] = []
    if original.topic_id != copy.topic_id:
        found.append(f"{name}: id {original.topic_id} became {copy.topic_id}")
    if original.configs != copy.configs:
        found.append(f"{name}: configs {original.configs} became {copy.configs}")
    if len(original.partitions) != len(copy.partitions):
        found.append(f"{name}: {len(original.partitions)} partitions became {len(copy.partitions)}")
    for index, (one, other) in enumerate(zip(original.partitions, copy.partitions, strict=False)):
        found += [
            f"{name}-{index}: {mark} {getattr(one, mark)} became {getattr(other, mark)}"
            for mark in ("start", "end", "stable_end")
            if getattr(one, mark) != getattr(other, mark)
        ]
        for isolation in ("uncommitted", "committed"):
            found += _record_differences(
                f"{name}-{index} ({isolation})", getattr(one, isolation), getattr(other, isolation)
            )
    return found


def _record_differences(
    where: str, original: Sequence[SeenRecord], copy: Sequence[SeenRecord]
) -> list[str]:
    if original == copy:
        return []
    if len(original) != len(copy):
        return [f"{where}: {len(original)} records became {len(copy)}"]
    one, other = next(pair for pair in zip(original, copy, strict=True) if pair[0] != pair[1])
    unequal = [
        f"{field.name} {getattr(one, field.name)!r} became {getattr(other, field.name)!r}"
        for field in fields(SeenRecord)
        if getattr(one, field.name) != getattr(other, field.name)
    ]
    return [f"{where}: offset {one.offset}: {', '.join(unequal)}"]
