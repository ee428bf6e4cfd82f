"""Topics and the state of their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.model.ids import TopicId

NO_LEADER = -1
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition, who leads it, and since when.

    The sets are explained in `controller/election.py`.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def next_epoch(self, above: int = -1) -> PartitionState:
        """The same leader, under an epoch of its own that is also above the given one."""
        return replace(
            self,
            leader_epoch=max(self.leader_epoch, above) + 1,
            partition_epoch=self.partition_epoch + 1,
        )

    def forget_eligible(self) -> PartitionState:
        """The same, with nobody eligible but those in sync; the same object if so already.

        Where nobody leads nothing can be acknowledged, and the eligible stay what they are.
        """
        if self.leader == NO_LEADER or not (self.elr or self.last_known_elr):
            return self
        return replace(self, partition_epoch=self.partition_epoch + 1, elr=(), last_known_elr=())


class PartitionChange(NamedTuple):
    """A partition's next state; refused when it is not in the one before any more."""

    topic_id: TopicId
    partition: int
    before: PartitionState
    after: PartitionState


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
