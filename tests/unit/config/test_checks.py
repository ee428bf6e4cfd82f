"""Rules between settings."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.checks import contradictions, parse_ip_limits
from ottla.config.setting import ConfigError


def test_the_defaults_do_not_contradict_each_other() -> None:
    assert contradictions(BrokerConfig()) == []


# Every message but the two about roles and listeners is what Apache Kafka 4.2 says.
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
        (
            {"log.retention.minutes": "0"},
            "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        ),
        (
            {"log.cleaner.dedupe.buffer.size": "1048576"},
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        (
            {"replica.fetch.wait.max.ms": "30001", "replica.lag.time.max.ms": "50000"},
            "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to "
            "prevent unnecessary socket timeouts",
        ),
        (
            {"replica.fetch.wait.max.ms": "30001", "replica.socket.timeout.ms": "50000"},
            "replica.fetch.wait.max.ms should always be less than or equal to "
            "replica.lag.time.max.ms to prevent frequent changes in ISR",
        ),
        (
            {"queued.max.request.bytes": "5"},
            "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
        ),
        (
            {"max.connections.per.ip": "0"},
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
            "property is set.",
        ),
        (
            {"max.connections.per.ip.overrides": "@@:5"},
            "max.connections.per.ip.overrides contains invalid addresses : @@",
        ),
        (
            {"connections.max.idle.ms": "50"},
            "connection.failed.authentication.delay.ms=100 should always be less than "
            "connections.max.idle.ms=50 to prevent failed authentication responses from timing out",
        ),
        (
            {"group.consumer.heartbeat.interval.ms": "1"},
            "group.consumer.heartbeat.interval.ms must be greater than or equal to "
            "group.consumer.min.heartbeat.interval.ms",
        ),
        (
            {"group.consumer.heartbeat.interval.ms": "16000"},
            "group.consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {
                "group.consumer.heartbeat.interval.ms": "50000",
                "group.consumer.max.heartbeat.interval.ms": "60000",
            },
            "group.consumer.heartbeat.interval.ms must be less than "
            "group.consumer.session.timeout.ms",
        ),
        (
            {"group.consumer.min.session.timeout.ms": "70000"},
            "group.consumer.max.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"group.share.record.lock.duration.ms": "1000"},
            "group.share.record.lock.duration.ms must be greater than or equal to "
            "group.share.min.record.lock.duration.ms",
        ),
        (
            {"group.share.record.lock.duration.ms": "61000"},
            "group.share.max.record.lock.duration.ms must be greater than or equal to "
            "group.share.record.lock.duration.ms",
        ),
        (
            {"group.share.max.share.sessions": "100"},
            "group.share.max.share.sessions must be greater than or equal to group.share.max.size",
        ),
        (
            {"group.streams.num.standby.replicas": "3"},
            "group.streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas",
        ),
        (
            {"group.coordinator.rebalance.protocols": "consumer"},
            "Disabling the 'classic' protocol is not supported.",
        ),
        (
            {"process.roles": "controller"},
            "Invalid value controller for configuration process.roles: a process that is only a "
            "controller does not exist here; include broker",
        ),
        (
            {"listeners": "X://:1"},
            "Invalid value X://:1 for configuration listeners: No security protocol defined for "
            "listener X; add it to listener.security.protocol.map",
        ),
        *(
            (
                {
                    "listeners": f"PLAINTEXT://{listener}:9092",
                    "advertised.listeners": "PLAINTEXT://broker:9092",
                    "metrics.listen": f"{host}:9092",
                },
                "metrics need a port of their own, as 9308: 9092 is that of listener PLAINTEXT",
            )
            for listener, host in (
                ("127.0.0.1", "127.0.0.1"),
                ("127.0.0.1", "0.0.0.0"),
                ("", "127.0.0.1"),
            )
        ),
    ],
)
def test_a_contradiction_is_told(texts: dict[str, str], message: str) -> None:
    assert [str(error) for error in contradictions(BrokerConfig.of(texts))] == [message]


@pytest.mark.parametrize(
    "texts",
    [
        {"log.retention.hours": "-1"},
        {"log.cleaner.dedupe.buffer.size": "1048577"},
        {"log.cleaner.threads": "0"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
        {"connections.max.idle.ms": "-1"},
        {"process.roles": "broker,controller"},
        {"listeners": "PLAINTEXT://127.0.0.1:9092", "metrics.listen": "127.0.0.2:9092"},
        {"listeners": "PLAINTEXT://127.0.0.1:0", "metrics.listen": "127.0.0.1:0"},
    ],
)
def test_what_may_stand_together_is_no_contradiction(texts: dict[str, str]) -> None:
    assert contradictions(BrokerConfig.of(texts)) == []


def test_limits_per_address_are_pairs() -> None:
    assert parse_ip_limits("10.0.0.1:5, host-b:6,::1:7,,") == {"10.0.0.1": 5, "host-b": 6, "::1": 7}
    for text in ("10.0.0.1", "10.0.0.1:x", ":5"):
        with pytest.raises(ConfigError, match="is not of the form host:count"):
            parse_ip_limits(text)
