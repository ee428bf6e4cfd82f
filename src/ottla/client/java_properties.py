"""Properties as Java's clients name them, for librdkafka.

Kafka's tools take `--command-property buffer.memory=…` and whole configuration files. Most names
are the same for both clients. Some differ, and some have no meaning without Java's classes: those are
left out, as they would change nothing. A name that neither knows is passed on, for librdkafka to
complain about.
"""

from __future__ import annotations

from collections.abc import Mapping

_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
}

_WITHOUT_MEANING = frozenset(
    {
        "auto.include.jmx.reporter",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "group.remote.assignor.class",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "max.block.ms",
        "max.poll.records",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "producer.type",
        "serializer.class",
        "transaction.two.phase.commit.enable",
        "value.deserializer",
        "value.serializer",
    }
)

_ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "cooperative-sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}

_PRODUCER_ONLY = frozenset({"request.timeout.ms"})


def from_java(properties: Mapping[str, str], *, producer: bool) -> dict[str, str]:
    """The same settings for librdkafka."""
    result: dict[str, str] = {}
    for name, value in properties.items():
        if name in _WITHOUT_MEANING:
            continue
        if name == "buffer.memory":
            result["queue.buffering.max.kbytes"] = str(max(1, _number(name, value) // 1024))
        elif name == "partition.assignment.strategy":
            result[name] = assignors(value)
        elif name == "auto.offset.reset" and value == "none":
            result[name] = "error"
        elif name in _PRODUCER_ONLY and not producer:
            result["socket.timeout.ms"] = value
        else:
            result[_RENAMED.get(name, name)] = value
    return result


def assignors(names: str) -> str:
    """Java's assignor classes as librdkafka's names; names that are those already stay."""
    plain = [
        _ASSIGNORS.get(name.strip().rpartition(".")[2], name.strip()) for name in names.split(",")
    ]
    return ",".join(dict.fromkeys(plain))


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} is a number, not {value!r}") from None
