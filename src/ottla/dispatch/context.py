"""What a handler is given: the request, and the services it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ottla.cluster.contact import StoreContact
from ottla.cluster.departed import DepartedBrokers
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.registry import Registry
from ottla.config.broker import BrokerConfig
from ottla.controller.remote import ControllerLink
from ottla.controller.service import Controller
from ottla.coordinator.group.service import Groups
from ottla.coordinator.transaction.service import Transactions
from ottla.dispatch.table import Table
from ottla.model.broker import Endpoint
from ottla.model.image import ClusterImage
from ottla.net.connection import Connection
from ottla.replication.fetch_sessions import FetchSessions
from ottla.replication.replicas import Replicas
from ottla.replication.service import Replication
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import Metrics
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.telemetry.clients import Telemetry

T = TypeVar("T")


class Request(Generic[T]):
    """One decoded request. `body`'s records are views that die when the handler returns."""

    __slots__ = ("api_version", "body", "client_id", "connection", "has_many")

    def __init__(
        self,
        api_version: int,
        client_id: str | None,
        connection: Connection,
        body: T,
        has_many: bool = False,
    ):
        self.api_version = api_version
        self.client_id = client_id
        self.connection = connection
        self.body = body
        # So many entries that they are to be handled in turns with other requests.
        self.has_many = has_many

    @property
    def listener(self) -> str:
        """The listener the request came in on: addresses in the answer are those it advertises."""
        return self.connection.listener


class InternalTopics(Protocol):
    """Whoever makes the broker's own topics."""

    async def ensure(self, name: str) -> None:
        """The topic is there when this returns. Raises KafkaError."""
        ...


@dataclass(slots=True)
class Services:
    """Everything below the handlers, by role. `image` and `config` change; read them each time."""

    node_id: int
    clock: Clock
    config: BrokerConfig
    registry: Registry
    departed: DepartedBrokers

    contact: StoreContact
    replicas: Replicas
    replication: Replication
    logs: LogDirectories
    controller: Controller
    controller_link: ControllerLink
    groups: Groups
    transactions: Transactions
    internal_topics: InternalTopics
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    telemetry: Telemetry
    workers: Workers
    metrics: Metrics
    table: Table
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """Of this broker, by listener, as clients are told."""

    @property
    def image(self) -> ClusterImage:
        """The newest state of the cluster."""
        return self.registry.image
