"""A cluster on ZooKeeper. Kafka had these settings until 3.9; here they mean the same."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, integer, password, string
from ottla.config.rules import at_least


class ZookeeperSettings(Settings):
    """A cluster on ZooKeeper."""

    zookeeper_connect: str | None = string(
        default=None,
        importance="high",
        internal=True,
        foreign=True,
        doc="Where the cluster's metadata is kept, as host:port,host:port/chroot. The broker joins "
        "the cluster that it finds there. Without it the metadata is in the broker's own folders.",
    )
    zookeeper_connection_timeout_ms: int = integer(
        default=18_000,
        rule=at_least(1),
        importance="high",
        internal=True,
        foreign=True,
        doc="How long a start waits for ZooKeeper to answer.",
    )
    zookeeper_session_timeout_ms: int = integer(
        default=6_000,
        rule=at_least(1),
        importance="high",
        internal=True,
        foreign=True,
        doc="After so long without a sign of life ZooKeeper ends the broker's session, and others "
        "lead its partitions. ZooKeeper's own limits, 2 to 20 of its ticks, hold as well. Kafka "
        "had 18 seconds.",
    )
    zookeeper_digest_username: str | None = string(
        default=None,
        internal=True,
        foreign=True,
        doc="Who the broker is to ZooKeeper. What it creates there belongs to this user alone.",
    )
    zookeeper_digest_password: str | None = password(
        default=None,
        internal=True,
        foreign=True,
        doc="The password of zookeeper.digest.username. Only in a file.",
    )
    zookeeper_ssl_client_enable: bool = boolean(
        default=False,
        internal=True,
        foreign=True,
        doc="Speak TLS with ZooKeeper.",
    )
    zookeeper_ssl_truststore_location: str | None = string(
        default=None,
        internal=True,
        foreign=True,
        doc="A PEM file with the authorities that sign ZooKeeper's certificates; without it those "
        "of the system.",
    )
    zookeeper_ssl_keystore_location: str | None = string(
        default=None,
        internal=True,
        foreign=True,
        doc="A PEM file with the broker's certificate, and its key unless that is elsewhere.",
    )
    zookeeper_ssl_key_location: str | None = string(
        default=None,
        internal=True,
        foreign=True,
        doc="A PEM file with the key of the certificate.",
    )
    zookeeper_ssl_keystore_password: str | None = password(
        default=None,
        internal=True,
        foreign=True,
        doc="The password of the key. Only in a file.",
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = string(
        default="https",
        internal=True,
        foreign=True,
        doc="Empty: the host name in ZooKeeper's certificate does not matter.",
    )
