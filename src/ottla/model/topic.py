"""Topics and the state of their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.model.ids import TopicId

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition, who leads it, and since when."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster knows it; `config` holds only what was set on the topic itself."""

    name: str
    id: TopicId
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS
