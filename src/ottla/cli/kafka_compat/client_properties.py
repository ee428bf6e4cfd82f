"""Java's client properties in librdkafka's words, for tools that send or read records.

Most names are the same. What only Java has (serializers, memory pools, `max.poll.records`) is
dropped without a word: in Java, too, a property that nobody reads changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.cli.kafka_compat.options import Failure

RENAMED = {
    "request.required.acks": "acks",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "max.request.size": "message.max.bytes",
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.truststore.location": "ssl.ca.location",
}
SAME = frozenset(
    [
        "acks",
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "batch.size",
        "bootstrap.servers",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.type",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.idempotence",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "linger.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.kerberos.service.name",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "session.timeout.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    ]
)
_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
# In Java the group coordinator decides these for the new protocol, and setting them is an error.
_CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")


def librdkafka_properties(properties: Mapping[str, str]) -> dict[str, str]:  # noqa: C901 - one branch for each kind of setting, one refusal for each rule
    """What librdkafka understands of Java's properties."""
    result: dict[str, str] = {}
    for name, value in properties.items():
        if name in RENAMED:
            result[RENAMED[name]] = value
        elif name in SAME:
            result[name] = value
        elif name == "buffer.memory":
            result["queue.buffering.max.kbytes"] = str(max(1, _number(name, value) // 1024))
        elif name == "partition.assignment.strategy":
            classes = [each.strip().rpartition(".")[2] for each in value.split(",")]
            unknown = [each for each in classes if each not in _ASSIGNORS]
            if unknown:
                raise Failure(
                    f"partition.assignment.strategy={value}: known are {', '.join(_ASSIGNORS)}"
                )
            result[name] = ",".join(_ASSIGNORS[each] for each in classes)
    if result.get("group.protocol", "").lower() == "consumer":
        result["group.protocol"] = "consumer"
        for name in _CLASSIC_ONLY:
            if name in result:
                raise Failure(f"{name} cannot be set when group.protocol=CONSUMER")
    if "acks" in result and result["acks"] not in ("all", "-1", "0", "1"):
        raise Failure(
            f"Invalid value {result['acks']} for configuration acks: String must be one of: all, "
            f"-1, 0, 1"
        )
    return result


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise Failure(
            f"Invalid value {value} for configuration {name}: Not a number of type LONG"
        ) from None
