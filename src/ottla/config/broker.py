"""Every broker setting, as one frozen value that the whole broker reads.

The declarations are in `families`, one module each. An attribute holds the effective value: where
Kafka has several names for one thing (log.retention.ms, .minutes, .hours; log.dirs, log.dir;
node.id, broker.id; listeners, port) the strongest that was given has been applied. What was written
where stays in the layers, for DescribeConfigs.
"""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import Self

from ottla.config.declare import NOTHING, Settings, Texts
from ottla.config.families.groups import GroupSettings
from ottla.config.families.kraft import KraftSettings
from ottla.config.families.log import LogSettings
from ottla.config.families.network import NetworkSettings
from ottla.config.families.oauth import OauthSettings
from ottla.config.families.quotas import QuotaSettings
from ottla.config.families.replication import ReplicationSettings
from ottla.config.families.security import SecuritySettings
from ottla.config.families.share import ShareSettings
from ottla.config.families.tiering import TieringSettings
from ottla.config.families.tls import TlsSettings
from ottla.config.families.transactions import TransactionSettings
from ottla.config.families.zookeeper import ZookeeperSettings
from ottla.config.listeners import Listener, ListenerPlan, plan_listeners
from ottla.config.rules import parse_address

FAMILIES: tuple[type[Settings], ...] = (
    NetworkSettings,
    LogSettings,
    ReplicationSettings,
    GroupSettings,
    TransactionSettings,
    QuotaSettings,
    SecuritySettings,
    TlsSettings,
    OauthSettings,
    ShareSettings,
    TieringSettings,
    KraftSettings,
    ZookeeperSettings,
)
"""The families in documented order."""


class BrokerConfig(
    NetworkSettings,
    LogSettings,
    ReplicationSettings,
    GroupSettings,
    TransactionSettings,
    QuotaSettings,
    SecuritySettings,
    TlsSettings,
    OauthSettings,
    ShareSettings,
    TieringSettings,
    KraftSettings,
    ZookeeperSettings,
):
    """The effective settings of one broker. `BrokerConfig()` has the defaults."""

    @classmethod
    def of(
        cls, static: Texts, *, dynamic_default: Texts = NOTHING, dynamic: Texts = NOTHING
    ) -> Self:
        """From texts: a file with flags, the cluster-wide dynamic default, this broker's own."""
        return cls.from_layers((dynamic, dynamic_default, static))

    def with_dynamic(self, default: Texts, own: Texts) -> Self:
        """The same static settings under other dynamic ones."""
        return self.of(self.static, dynamic_default=default, dynamic=own)

    @property
    def static(self) -> Texts:
        """What the file and the flags set."""
        return self.layers[-1]

    @property
    def dynamic_default(self) -> Texts:
        """Dynamic settings given for all brokers."""
        return self.layers[1] if len(self.layers) == 3 else NOTHING

    @property
    def dynamic(self) -> Texts:
        """Dynamic settings given for this broker."""
        return self.layers[0] if len(self.layers) == 3 else NOTHING

    def _fall_back(self) -> None:
        super()._fall_back()
        own = self.__dict__
        # One number with two names. -1 is how Kafka 3 spells "broker.id was not chosen".
        if not self.is_given("node.id") and self.broker_id >= 0:
            own["node_id"] = self.broker_id
        if self.is_given("node.id") or self.broker_id >= 0:
            number = str(self.node_id)
            static = {"node.id": number, "broker.id": number, **self.static}
            if self.broker_id < 0:
                static["broker.id"] = number
            own["layers"] = (*self.layers[:-1], MappingProxyType(static))
        own["broker_id"] = self.node_id
        self._listen_at_port()

    def _listen_at_port(self) -> None:
        """Kafka's documents of old give a port and nothing else."""
        if self.is_given("listeners") or not (self.is_given("port") or self.is_given("host.name")):
            return
        address = f"PLAINTEXT://{self.host_name}:{self.port}"
        static = MappingProxyType({"listeners": address, **self.static})
        self.__dict__.update(listener_addresses=(address,), layers=(*self.layers[:-1], static))

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where metrics are to be served, if anywhere."""
        if self.metrics_listen is None:
            return None
        return parse_address("metrics.listen", self.metrics_listen)

    @cached_property
    def listener_plan(self) -> ListenerPlan:
        """Where to bind and what to advertise. Raises `ConfigError` for a contradiction."""
        # Kafka 3 could set one listener apart for its controller; it is not opened either.
        control_plane = self.static.get("control.plane.listener.name", "").strip()
        return plan_listeners(
            listeners=self.listener_addresses,
            advertised=self.advertised_addresses,
            protocol_map=self.listener_security_protocol_map,
            controller_names=(
                *self.controller_listener_names,
                *([control_plane] if control_plane else []),
            ),
            inter_broker_name=self.inter_broker_listener_name,
            inter_broker_protocol=self.security_inter_broker_protocol
            if self.is_given("security.inter.broker.protocol")
            else None,
        )

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners to open, Kafka's controller listeners left out."""
        return self.listener_plan.listeners
