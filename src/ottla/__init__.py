"""Ottla: Kafka's event-streaming platform in Python.

The names below are resolved on first use: `import ottla` loads no client library, no console
library and no broker, so a program that wants one of them pays for that one alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.asynchronous import AsyncAdmin, AsyncConsumer, AsyncProducer
    from ottla.client.consumer import Consumer
    from ottla.client.errors import DamagedRecordsError, RecordDecodeError
    from ottla.client.producer import Producer
    from ottla.client.records import Delivery, Record
    from ottla.client.serializers import BYTES, JSON, STRING, Serde
    from ottla.errors import ErrorCode, KafkaError
    from ottla.model.ids import TopicPartition

__version__ = "0.1.0"

__all__ = [
    "BYTES",
    "JSON",
    "STRING",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "DamagedRecordsError",
    "Delivery",
    "ErrorCode",
    "KafkaError",
    "Producer",
    "Record",
    "RecordDecodeError",
    "Serde",
    "TopicPartition",
    "__version__",
]

_HOMES = {
    "Admin": "ottla.client.admin",
    "AsyncAdmin": "ottla.client.asynchronous",
    "AsyncConsumer": "ottla.client.asynchronous",
    "AsyncProducer": "ottla.client.asynchronous",
    "BYTES": "ottla.client.serializers",
    "Consumer": "ottla.client.consumer",
    "DamagedRecordsError": "ottla.client.errors",
    "Delivery": "ottla.client.records",
    "ErrorCode": "ottla.errors",
    "JSON": "ottla.client.serializers",
    "KafkaError": "ottla.errors",
    "Producer": "ottla.client.producer",
    "Record": "ottla.client.records",
    "RecordDecodeError": "ottla.client.errors",
    "STRING": "ottla.client.serializers",
    "Serde": "ottla.client.serializers",
    "TopicPartition": "ottla.model.ids",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
