"""Who leads a partition, for answers that tell a client where to go instead (KIP-951).

A client that asked the wrong broker learns the leader, its epoch and its address on the client's
own listener from the refusal itself, and need not ask for metadata first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ottla.dispatch.context import Services
from ottla.model.ids import TopicId


class LeaderHint(Protocol):
    """The message for a leader and its epoch; Produce and Fetch have one each."""

    def __call__(self, *, leader_id: int, leader_epoch: int) -> Any: ...


class EndpointHint(Protocol):
    """The message for a leader's address."""

    def __call__(self, *, node_id: int, host: str, port: int, rack: str | None) -> Any: ...


class LeaderHints:
    """Collects the hints of one response."""

    def __init__(
        self, services: Services, listener: str, leader: LeaderHint, endpoint: EndpointHint
    ) -> None:
        self._services = services
        self._listener = listener
        self._leader: Callable[..., Any] = leader
        self._endpoint: Callable[..., Any] = endpoint
        self._endpoints: dict[int, Any] = {}

    @property
    def endpoints(self) -> list[Any]:
        """The addresses of all leaders that were named."""
        return list(self._endpoints.values())

    def find(self, topic: str | bytes, index: int) -> Any | None:
        """The hint for a partition by its topic's name or id; None if there is nothing to tell.

        A broker that is about to lead, but was not admitted yet, does not name itself: the client
        would be back at once.
        """
        image = self._services.image
        name = topic if isinstance(topic, str) else image.topic_names.get(TopicId(topic))
        known = None if name is None else image.topics.get(name)
        if known is None or not 0 <= index < len(known.partitions):
            return None
        state = known.partitions[index]
        broker = image.brokers.get(state.leader)
        if state.leader == self._services.node_id and not self._leads(known.name, index):
            return None
        if broker is not None and state.leader not in self._endpoints:
            endpoint = broker.endpoints.get(self._listener)
            if endpoint is not None:
                self._endpoints[state.leader] = self._endpoint(
                    node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
        return self._leader(leader_id=state.leader, leader_epoch=state.leader_epoch)

    def _leads(self, topic: str, index: int) -> bool:
        return self._services.replicas.leads(topic, index)
