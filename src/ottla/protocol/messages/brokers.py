"""Ours, not Kafka's: what the cluster remembers of its brokers, DescribeBrokers (10001)."""

from __future__ import annotations

from ottla.protocol.schema import array, int16, int32, int64, message, string, struct


@message(api_key=10_001, kind="request", versions="0", flexible="0+")
class DescribeBrokersRequest:
    """Asks a broker about all brokers, and about the logs that it cannot serve itself."""


@struct
class RememberedBroker:
    """One broker, whether it is there or not; `since_ms` is -1 where nobody knows."""

    broker_id: int = int32()
    host: str = string(default="")
    state: str = string()
    since_ms: int = int64(default=-1)


@struct
class OfflineLog:
    """A partition that the broker which answers has, and cannot serve."""

    topic: str = string()
    partition_index: int = int32()
    reason: str = string()


@message(api_key=10_001, kind="response", versions="0", flexible="0+")
class DescribeBrokersResponse:
    """Every broker that ever registered, and the logs that cannot be served here.

    `store_away_since_ms` tells since when the broker has not reached the metadata store, so that
    its answer is as old as that; -1 while it does. `version` is that of the broker's program.
    """

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    node_id: int = int32(default=-1)
    brokers: list[RememberedBroker] = array(RememberedBroker)
    offline_logs: list[OfflineLog] = array(OfflineLog)
    store_away_since_ms: int = int64(default=-1, tag=0)
    version: str = string(default="", tag=1)
