"""Subscriptions: which metrics are wanted of which clients.

A subscription is a resource of DescribeConfigs and AlterConfigs with three settings
(`config/client_metrics.py`). A client gets the metrics of all that it matches, at the shortest of
their intervals. Patterns are matched by RE2, as those of groups are: in linear time, whatever
somebody has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.config.client_metrics import ClientMetricsConfig
from ottla.config.declare import Texts, mistakes
from ottla.coordinator.group.patterns import InvalidPattern, check, resolve
from ottla.errors import ErrorCode, KafkaError
from ottla.records.checksum import crc32c

ALL = "*"
SELECTORS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
SHORTEST_MS, LONGEST_MS = 100, 3_600_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one client is asked for; the id tells it apart from what it was asked for before."""

    id: int
    metrics: tuple[str, ...]
    interval_ms: int


def validated(name: str, texts: Texts) -> dict[str, str]:
    """The settings of a subscription, found fit. Raises KafkaError, in Kafka's words."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in texts:
        if key not in ClientMetricsConfig.settings:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}"
            )
    for error in mistakes(ClientMetricsConfig.settings, texts):
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error))
    config = ClientMetricsConfig.from_layers((texts,))
    if not SHORTEST_MS <= config.interval_ms <= LONGEST_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {config.interval_ms} for interval.ms, interval must be between "
            f"{SHORTEST_MS} and {LONGEST_MS} (1 hour)",
        )
    for pair in config.match:
        selector, pattern = _selector(pair)
        try:
            check(pattern)
        except InvalidPattern:
            raise _illegal(pair) from None
        if selector not in SELECTORS:
            raise _illegal(pair)
    return dict(texts)


def wanted_of(
    client: Mapping[str, str], subscriptions: Iterable[Texts], instance_id: bytes
) -> Wanted:
    """What is wanted of a client with these attributes, by selector."""
    metrics: set[str] = set()
    interval = ClientMetricsConfig().interval_ms
    for texts in subscriptions:
        config = ClientMetricsConfig.from_layers((texts,))
        if all(_matches(client, pair) for pair in config.match):
            metrics.update(config.metrics)
            interval = min(interval, config.interval_ms)
    names = (ALL,) if ALL in metrics else tuple(sorted(metrics))
    checksum = crc32c(f"{names}{interval}".encode()) ^ crc32c(instance_id)
    return Wanted(checksum - (1 << 32) if checksum >= 1 << 31 else checksum, names, interval)


def _matches(client: Mapping[str, str], pair: str) -> bool:
    selector, pattern = _selector(pair)
    value = client.get(selector)
    return value is not None and bool(resolve([pattern], [value])[pattern])


def _selector(pair: str) -> tuple[str, str]:
    selector, equals, pattern = pair.partition("=")
    if not equals or not pattern.strip() or "=" in pattern:
        raise _illegal(pair)
    return selector.strip(), pattern.strip()


def _illegal(pair: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pair}")
