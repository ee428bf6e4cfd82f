"""Subscriptions: which metrics are wanted of which clients.

A subscription is a resource of DescribeConfigs and AlterConfigs with three settings
(`config/client_metrics.py`). A client gets the metrics of all that it matches, at the shortest of
their intervals. Patterns are matched by RE2, as those of groups are: in linear time, whatever
somebody has written. They are compiled once and not for each client, of which ten thousand may come
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ottla.config.client_metrics import ClientMetricsConfig
from ottla.config.declare import Texts, mistakes
from ottla.coordinator.group.patterns import InvalidPattern, check, matcher
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


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription, ready to be matched: selectors, each with what its value has to fulfil."""

    match: tuple[tuple[str, Callable[[str], bool]], ...]
    metrics: tuple[str, ...]
    interval_ms: int

    def is_for(self, client: Mapping[str, str]) -> bool:
        """Whether it is for the client with these attributes."""
        return all(
            selector in client and fulfils(client[selector]) for selector, fulfils in self.match
        )


def prepared(texts: Texts) -> Subscription:
    """A subscription as its settings, which were found fit, have it."""
    config = ClientMetricsConfig.from_layers((texts,))
    pairs = (_selector(pair) for pair in config.match)
    match = tuple((selector, matcher(pattern)) for selector, pattern in pairs)
    return Subscription(match, config.metrics, config.interval_ms)


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
    client: Mapping[str, str], subscriptions: Iterable[Subscription], instance_id: bytes
) -> Wanted:
    """What is wanted of a client with these attributes, by selector."""
    metrics: set[str] = set()
    interval = ClientMetricsConfig().interval_ms
    for one in subscriptions:
        if one.is_for(client):
            metrics.update(one.metrics)
            interval = min(interval, one.interval_ms)
    names = (ALL,) if ALL in metrics else tuple(sorted(metrics))
    checksum = crc32c(f"{names}{interval}".encode()) ^ crc32c(instance_id)
    return Wanted(checksum - (1 << 32) if checksum >= 1 << 31 else checksum, names, interval)


def _selector(pair: str) -> tuple[str, str]:
    selector, equals, pattern = pair.partition("=")
    if not equals or not pattern.strip() or "=" in pattern:
        raise _illegal(pair)
    return selector.strip(), pattern.strip()


def _illegal(pair: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pair}")
