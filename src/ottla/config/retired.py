"""Names that Kafka had in 3.9 and no longer has: files with them must still load.

None has a meaning here. They are accepted, kept, and listed once at start.
"""

from __future__ import annotations

from types import MappingProxyType

_ZOOKEEPER = (
    "clientCnxnSocket",
    "max.in.flight.requests",
    "metadata.migration.enable",
    "metadata.migration.min.batch.size",
    "set.acl",
    "ssl.cipher.suites",
    "ssl.crl.enable",
    "ssl.enabled.protocols",
    "ssl.keystore.type",
    "ssl.ocsp.enable",
    "ssl.protocol",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
_PASSWORD_ENCODER = (
    "cipher.algorithm",
    "iterations",
    "key.length",
    "keyfactory.algorithm",
    "old.secret",
    "secret",
)

RETIRED = MappingProxyType(
    {
        "auto.include.jmx.reporter": "there is no JMX",
        "broker.id.generation.enable": "node.id has a default",
        "control.plane.listener.name": "there is no separate control plane; it is not opened",
        "controlled.shutdown.max.retries": "shutdown needs no retries",
        "controlled.shutdown.retry.backoff.ms": "shutdown needs no retries",
        "delegation.token.master.key": "renamed to delegation.token.secret.key",
        "eligible.leader.replicas.enable": "decided by the cluster's features",
        "group.coordinator.new.enable": "there is one group coordinator",
        "group.share.max.groups": "share groups are not limited in number",
        "inter.broker.protocol.version": "brokers agree on versions by themselves",
        "leader.imbalance.per.broker.percentage": "any imbalance is corrected",
        "log.message.downconversion.enable": "only the current record format is served",
        "log.message.format.version": "only the current record format is stored",
        "log.message.timestamp.difference.max.ms": (
            "replaced by log.message.timestamp.before.max.ms and .after.max.ms"
        ),
        "metadata.log.segment.min.bytes": "there is no KRaft metadata log",
        "offsets.commit.required.acks": "offset commits are always written with acks=all",
        "reserved.broker.max.id": "broker ids are not generated",
        **{
            f"password.encoder.{name}": "passwords are not kept encoded"
            for name in _PASSWORD_ENCODER
        },
        **{f"zookeeper.{name}": "not needed to reach ZooKeeper" for name in _ZOOKEEPER},
    }
)
