"""What `Admin` is told and what it answers: frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. None leaves a number to the broker's default.

    `assignment` places the replicas by hand: one list of broker ids per partition, the preferred
    leader first. It takes the place of both numbers.
    """

    name: str
    partitions: int | None = None
    replication: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers that are up, and which of them is the controller."""

    id: str
    controller: int | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic in a list."""

    name: str
    partitions: int
    replication: int
    internal: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """Who holds a partition. `leader` is None while nobody leads it.

    The eligible leader replicas (KIP-966) are None where the broker was not asked for them.
    """

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions; `id` is in Kafka's spelling."""

    name: str
    id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication(self) -> int:
        """Replicas per partition (the least, should they differ)."""
        return min((len(p.replicas) for p in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A setting that stands behind another one, with the value it has there."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker.

    `source` is one of `topic`, `broker`, `broker-default`, `static`, `default`, `group` and
    `unknown`: set on the topic, set on this broker or on all brokers while they ran, in the
    configuration file, nowhere. A sensitive value is None.
    """

    name: str
    value: str | None
    source: str
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def default(self) -> bool:
        """Nobody set it."""
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class OffsetInfo:
    """An offset of a partition; `timestamp` only where it was looked for by time."""

    offset: int
    timestamp: int = -1
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A partition's log in a folder: its size, how far it lags, whether it is moving there."""

    topic: str
    partition: int
    size: int
    lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A data folder of a broker; `error` is the protocol's code, 0 when it is in order.

    The sizes of the volume are -1 where the broker does not tell them.
    """

    path: str
    error: int
    replicas: tuple[ReplicaInfo, ...]
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """A feature: the levels that a broker supports, and the one that the cluster uses."""

    name: str
    minimum: int
    maximum: int
    finalized: int = 0


@dataclass(frozen=True, slots=True)
class ApiSupport:
    """An API of the protocol: the versions a broker speaks, and the one we would use.

    `name` is None where we do not know the API, the versions where the broker does not.
    """

    key: int
    name: str | None
    minimum: int | None = None
    maximum: int | None = None
    usable: int | None = None
