"""What brokers have told of their cluster: who they are, who controls it, who leads what.

The one cache of leaders. It asks nobody (`router` does), and any number of threads may use it.

- Brokers learn news one after the other. A leader of an older epoch does not take the place of a
  newer one, unless that was forgotten because it turned out to be of no use.
- A topic of the same name with another id is another topic: nothing of the old one is kept.
- A broker that is not listed any more, or cannot be reached, is not one of `nodes`. Its address is
  remembered all the same: one may have to begin there when every other one is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.client.descriptions import Node
from ottla.errors import ErrorCode
from ottla.model.ids import ZERO_TOPIC_ID, TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition (-1: nobody), and in which epoch (-1: the broker does not say)."""

    node: int
    epoch: int


@dataclass(slots=True)
class _Topic:
    id: bytes
    leaders: dict[int, Leader] = field(default_factory=dict)


class Topology:
    """A cluster as its brokers described it last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[int, Node] = {}
        self._ever: dict[int, Node] = {}
        self._complete = False
        self._controller: int | None = None
        self._topics: dict[str, _Topic] = {}

    # -- what is known

    @property
    def nodes(self) -> dict[int, Node]:
        """The brokers that are there, by number."""
        with self._lock:
            return dict(self._nodes)

    def node(self, number: int) -> Node | None:
        """One of them."""
        with self._lock:
            return self._nodes.get(number)

    @property
    def complete(self) -> bool:
        """Whether `nodes` are all that a broker named last, and none has been lost since."""
        with self._lock:
            return self._complete

    @property
    def known(self) -> tuple[Node, ...]:
        """Every broker that was ever heard of, where it was last."""
        with self._lock:
            return tuple(self._ever.values())

    @property
    def controller(self) -> int | None:
        with self._lock:
            return self._controller

    def leader(self, tp: TopicPartition) -> Leader | None:
        """Who leads a partition; None when nobody does, or it is not known."""
        with self._lock:
            topic = self._topics.get(tp.topic)
            return None if topic is None else topic.leaders.get(tp.partition)

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; zeros when it is not known."""
        with self._lock:
            known = self._topics.get(topic)
            return ZERO_TOPIC_ID if known is None else known.id

    # -- what is heard

    def learn(self, answer: MetadataResponse) -> None:
        """Take in an answer to a Metadata request."""
        nodes = {
            each.node_id: Node(each.node_id, each.host, each.port, each.rack)
            for each in answer.brokers
        }
        with self._lock:
            if nodes:
                self._nodes = nodes
                self._complete = True
                self._ever |= nodes
                self._controller = answer.controller_id if answer.controller_id >= 0 else None
            for topic in answer.topics:
                self._learn_topic(topic)

    def learn_node(self, node: Node) -> None:
        """A broker was named in another answer, which does not name them all."""
        with self._lock:
            self._nodes[node.id] = self._ever[node.id] = node

    def learn_leader(self, tp: TopicPartition, leader: Leader) -> bool:
        """Whoever was asked about a partition names its leader. Taken only if it is of a newer
        epoch than the known one: a broker that is behind must not send us back and forth."""
        with self._lock:
            topic = self._topics.get(tp.topic)
            before = None if topic is None else topic.leaders.get(tp.partition)
            if topic is None or before is None or leader.epoch <= before.epoch:
                return False
            if leader.node < 0 or leader.node not in self._nodes:
                return False
            topic.leaders[tp.partition] = leader
            return True

    def _learn_topic(self, found: MetadataResponseTopic) -> None:
        name, found_id = found.name or "", bytes(found.topic_id)
        if found.error_code:
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._topics.pop(name, None)
            return
        known = self._topics.get(name)
        if known is None or found_id != known.id:
            known = self._topics[name] = _Topic(found_id)
        for each in found.partitions:
            number = each.partition_index
            before = known.leaders.get(number)
            if before is not None and 0 <= each.leader_epoch < before.epoch:
                continue
            if each.leader_id >= 0:
                known.leaders[number] = Leader(each.leader_id, each.leader_epoch)
            else:
                known.leaders.pop(number, None)

    # -- what turned out to be wrong

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Whoever led these does not, or does not answer."""
        with self._lock:
            for tp in partitions:
                if tp.topic in self._topics:
                    self._topics[tp.topic].leaders.pop(tp.partition, None)

    def forget_leaders(self) -> None:
        """The same for all partitions."""
        with self._lock:
            self._topics.clear()

    def forget_controller(self) -> None:
        """Whoever controlled the cluster does not."""
        with self._lock:
            self._controller = None

    def lose(self, number: int) -> None:
        """A broker is not at its address; what it led may be led by another."""
        with self._lock:
            self._nodes.pop(number, None)
            self._complete = False
            for topic in self._topics.values():
                for partition in [p for p, led in topic.leaders.items() if led.node == number]:
                    del topic.leaders[partition]
