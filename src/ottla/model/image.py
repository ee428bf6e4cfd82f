"""ClusterImage: what every request reads about the cluster.

An image is immutable. The registry builds a new one when the store changed and the broker swaps
the reference, so a request sees one consistent state from beginning to end without a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.model.broker import Broker, BrokerState
from ottla.model.ids import TopicId
from ottla.model.topic import Topic


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything the store says, at one revision."""

    revision: int = 0
    cluster_id: str = ""
    controller_id: int = -1
    controller_epoch: int = 0
    # Brokers that are there and were admitted by the controller; those that are there; what is
    # remembered of all that ever were.
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    registrations: Mapping[int, Broker] = field(default_factory=dict)
    broker_states: Mapping[int, BrokerState] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    # Dynamic broker settings: by broker id, with "" for the cluster-wide default.
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Settings of single groups, by group id; the group itself need not exist.
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Subscriptions to clients' metrics, by name.
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
