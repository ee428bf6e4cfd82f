"""Ottla: Kafka's event-streaming platform in Python.

The names below are resolved on first use: `import ottla` loads no client library, no console
library and no broker, so a program that wants one of them pays for that one alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.admin import (
        Admin,
        OffsetSpec,
    )
    from ottla.client.admin_transactions import (
        ProducerIdentity,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )
    from ottla.client.async_transactions import (
        AsyncTransaction,
    )
    from ottla.client.asynchronous import (
        AsyncAdmin,
        AsyncConsumer,
        AsyncProducer,
    )
    from ottla.client.callbacks import (
        RebalanceCallback,
    )
    from ottla.client.consumer import (
        Consumer,
    )
    from ottla.client.consumer_options import (
        ConsumerOptions,
    )
    from ottla.client.decoding import (
        DecodeErrorHandler,
    )
    from ottla.client.descriptions import (
        ClusterDescription,
        ConfigEntry,
        ConfigSynonym,
        LogDirDescription,
        NewTopic,
        Node,
        OffsetInfo,
        PartitionDescription,
        ReplicaInfo,
        TopicDescription,
        TopicListing,
    )
    from ottla.client.errors import (
        AbortableTransactionError,
        ClientError,
        DamagedRecordsError,
        DeliveryFailedError,
        FatalTransactionError,
        PartialFailureError,
        ProducerFencedError,
        RecordDecodeError,
        TransactionError,
        TransactionInDoubtError,
        TransactionTimedOutError,
    )
    from ottla.client.groups import (
        CommittedOffset,
        GroupDescription,
        GroupListing,
        GroupMember,
        PartitionLag,
    )
    from ottla.client.lookups import (
        Partitions,
    )
    from ottla.client.partitioners import (
        Partitioner,
    )
    from ottla.client.positions import (
        Position,
    )
    from ottla.client.producer import (
        Acks,
        Compression,
        DeliveryCallback,
        Producer,
        ProducerOptions,
    )
    from ottla.client.records import (
        Delivery,
        Headers,
        Record,
        TimestampType,
    )
    from ottla.client.serializers import (
        BYTES,
        JSON,
        STRING,
        Deserializer,
        Serde,
        Serializer,
    )
    from ottla.client.settings import (
        StatisticsCallback,
    )
    from ottla.client.transactions import (
        Transaction,
    )
    from ottla.errors import (
        ErrorCode,
        KafkaError,
    )
    from ottla.model.ids import (
        TopicPartition,
    )

__version__ = "0.1.0"

__all__ = [
    "BYTES",
    "JSON",
    "STRING",
    "AbortableTransactionError",
    "Acks",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "ClientError",
    "ClusterDescription",
    "CommittedOffset",
    "Compression",
    "ConfigEntry",
    "ConfigSynonym",
    "Consumer",
    "ConsumerOptions",
    "DamagedRecordsError",
    "DecodeErrorHandler",
    "Delivery",
    "DeliveryCallback",
    "DeliveryFailedError",
    "Deserializer",
    "ErrorCode",
    "FatalTransactionError",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "Headers",
    "KafkaError",
    "LogDirDescription",
    "NewTopic",
    "Node",
    "OffsetInfo",
    "OffsetSpec",
    "PartialFailureError",
    "PartitionDescription",
    "PartitionLag",
    "Partitioner",
    "Partitions",
    "Position",
    "Producer",
    "ProducerFencedError",
    "ProducerIdentity",
    "ProducerOptions",
    "ProducerState",
    "RebalanceCallback",
    "Record",
    "RecordDecodeError",
    "ReplicaInfo",
    "Serde",
    "Serializer",
    "StatisticsCallback",
    "TimestampType",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionError",
    "TransactionInDoubtError",
    "TransactionListing",
    "TransactionTimedOutError",
    "__version__",
]

_HOMES = {
    "AbortableTransactionError": "ottla.client.errors",
    "Acks": "ottla.client.producer",
    "Admin": "ottla.client.admin",
    "AsyncAdmin": "ottla.client.asynchronous",
    "AsyncConsumer": "ottla.client.asynchronous",
    "AsyncProducer": "ottla.client.asynchronous",
    "AsyncTransaction": "ottla.client.async_transactions",
    "BYTES": "ottla.client.serializers",
    "ClientError": "ottla.client.errors",
    "ClusterDescription": "ottla.client.descriptions",
    "CommittedOffset": "ottla.client.groups",
    "Compression": "ottla.client.producer",
    "ConfigEntry": "ottla.client.descriptions",
    "ConfigSynonym": "ottla.client.descriptions",
    "Consumer": "ottla.client.consumer",
    "ConsumerOptions": "ottla.client.consumer_options",
    "DamagedRecordsError": "ottla.client.errors",
    "DecodeErrorHandler": "ottla.client.decoding",
    "Delivery": "ottla.client.records",
    "DeliveryCallback": "ottla.client.producer",
    "DeliveryFailedError": "ottla.client.errors",
    "Deserializer": "ottla.client.serializers",
    "ErrorCode": "ottla.errors",
    "FatalTransactionError": "ottla.client.errors",
    "GroupDescription": "ottla.client.groups",
    "GroupListing": "ottla.client.groups",
    "GroupMember": "ottla.client.groups",
    "Headers": "ottla.client.records",
    "JSON": "ottla.client.serializers",
    "KafkaError": "ottla.errors",
    "LogDirDescription": "ottla.client.descriptions",
    "NewTopic": "ottla.client.descriptions",
    "Node": "ottla.client.descriptions",
    "OffsetInfo": "ottla.client.descriptions",
    "OffsetSpec": "ottla.client.admin",
    "PartialFailureError": "ottla.client.errors",
    "PartitionDescription": "ottla.client.descriptions",
    "PartitionLag": "ottla.client.groups",
    "Partitioner": "ottla.client.partitioners",
    "Partitions": "ottla.client.lookups",
    "Position": "ottla.client.positions",
    "Producer": "ottla.client.producer",
    "ProducerFencedError": "ottla.client.errors",
    "ProducerIdentity": "ottla.client.admin_transactions",
    "ProducerOptions": "ottla.client.producer",
    "ProducerState": "ottla.client.admin_transactions",
    "RebalanceCallback": "ottla.client.callbacks",
    "Record": "ottla.client.records",
    "RecordDecodeError": "ottla.client.errors",
    "ReplicaInfo": "ottla.client.descriptions",
    "STRING": "ottla.client.serializers",
    "Serde": "ottla.client.serializers",
    "Serializer": "ottla.client.serializers",
    "StatisticsCallback": "ottla.client.settings",
    "TimestampType": "ottla.client.records",
    "TopicDescription": "ottla.client.descriptions",
    "TopicListing": "ottla.client.descriptions",
    "TopicPartition": "ottla.model.ids",
    "Transaction": "ottla.client.transactions",
    "TransactionDescription": "ottla.client.admin_transactions",
    "TransactionError": "ottla.client.errors",
    "TransactionInDoubtError": "ottla.client.errors",
    "TransactionListing": "ottla.client.admin_transactions",
    "TransactionTimedOutError": "ottla.client.errors",
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
