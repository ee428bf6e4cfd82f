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

    The sets are explained in `controller/election.py`; `adding` and `removing` are the replicas
    that a reassignment brings and takes away (`controller/reassignment.py`). Both are among the
    `replicas` while it goes on.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that there will be when the reassignment is done."""
        if not self.removing:
            return self.replicas
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas that there will be if the reassignment is cancelled."""
        if not self.adding:
            return self.replicas
        return tuple(each for each in self.replicas if each not in self.adding)

    @property
    def under_replicated(self) -> bool:
        """Whether fewer are in sync than there are to be; those on their way do not count."""
        return len(self.isr) < len(self.replicas) - len(self.adding)

    def minimum(self, min_insync: int) -> int:
        """How many must be in sync: never more than there are replicas.

        Those that a reassignment brings do not count before it is done: it must not refuse what was
        accepted before, nor ask for less.
        """
        return min(min_insync, len(self.replicas) - len(self.adding))

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
