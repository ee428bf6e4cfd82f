"""Rules between settings: what no single setting can judge alone.

Kafka's own list where the settings have a meaning here, in its words, plus what is ours: the
roles a process may have and the listeners it can open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ottla.config.declare import Settings
from ottla.config.listeners import ANY_HOST, Listener
from ottla.config.setting import ConfigError

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.config.group import GroupConfig

_MEGABYTE = 1024 * 1024
_THREAD_POOLS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
_HOST = re.compile(r"[0-9a-zA-Z\-%._:]*")


def contradictions(config: BrokerConfig) -> list[ConfigError]:
    """Everything wrong between the settings of `config`, in a fixed order."""
    return [
        *_identity(config),
        *_logs(config),
        *_replication(config),
        *_network(config),
        *_groups(config),
    ]


def parse_ip_limits(text: str) -> dict[str, int]:
    """max.connections.per.ip.overrides: `host:count` pairs; the host may be an IPv6 literal."""
    name = "max.connections.per.ip.overrides"
    limits = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, count = entry.rpartition(":")
        if not colon or not host or not re.fullmatch(r"[+-]?[0-9]+", count.strip()):
            raise ConfigError.invalid(name, text, f"{entry!r} is not of the form host:count")
        if not _HOST.fullmatch(host.strip()):
            raise ConfigError(name, f"{name} contains invalid addresses : {host.strip()}")
        limits[host.strip()] = int(count)
    return limits


def _identity(config: BrokerConfig) -> Iterator[ConfigError]:
    stated = config.stated("broker.id")
    if (
        config.is_given("node.id")
        and isinstance(stated, int)
        and stated >= 0
        and stated != config.stated("node.id")
    ):
        yield ConfigError("broker.id", "You must set `node.id` to the same value as `broker.id`.")
    if "broker" not in config.process_roles:
        yield ConfigError.invalid(
            "process.roles",
            ",".join(config.process_roles),
            "a process that is only a controller does not exist here; include broker",
        )


def _logs(config: BrokerConfig) -> Iterator[ConfigError]:
    if config.log_roll_ms < 1:
        yield ConfigError("log.roll.ms", "log.roll.ms must be greater than or equal to 1")
    if config.log_roll_jitter_ms < 0:
        yield ConfigError(
            "log.roll.jitter.ms", "log.roll.jitter.ms must be greater than or equal to 0"
        )
    if config.log_retention_ms < 1 and config.log_retention_ms != -1:
        yield ConfigError(
            "log.retention.ms",
            "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        )
    if config.log_cleaner_dedupe_buffer_size // max(1, config.log_cleaner_threads) <= _MEGABYTE:
        yield ConfigError(
            "log.cleaner.dedupe.buffer.size",
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        )


def _replication(config: BrokerConfig) -> Iterator[ConfigError]:
    if config.replica_fetch_wait_max_ms > config.replica_socket_timeout_ms:
        yield ConfigError(
            "replica.fetch.wait.max.ms",
            "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to "
            "prevent unnecessary socket timeouts",
        )
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        yield ConfigError(
            "replica.fetch.wait.max.ms",
            "replica.fetch.wait.max.ms should always be less than or equal to "
            "replica.lag.time.max.ms to prevent frequent changes in ISR",
        )


def _network(config: BrokerConfig) -> Iterator[ConfigError]:
    try:
        listeners = config.listeners
    except ConfigError as error:
        yield error
    else:
        yield from _metrics_port(config.metrics_address, listeners)
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        yield ConfigError(
            "queued.max.request.bytes",
            "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
        )
    try:
        limits = parse_ip_limits(config.max_connections_per_ip_overrides)
    except ConfigError as error:
        yield error
    else:
        if config.max_connections_per_ip == 0 and not limits:
            yield ConfigError(
                "max.connections.per.ip",
                "max.connections.per.ip can be set to zero only if "
                "max.connections.per.ip.overrides property is set.",
            )
    delay, idle = config.connection_failed_authentication_delay_ms, config.connections_max_idle_ms
    if 0 <= idle <= delay:
        yield ConfigError(
            "connections.max.idle.ms",
            f"connection.failed.authentication.delay.ms={delay} should always be less than "
            f"connections.max.idle.ms={idle} to prevent failed authentication responses from "
            "timing out",
        )


def _metrics_port(
    metrics: tuple[str, int] | None, listeners: Iterable[Listener]
) -> Iterator[ConfigError]:
    """The broker must not find its own port taken by another program: itself."""
    if metrics is None or not metrics[1]:
        return
    host, port = metrics
    for listener in listeners:
        if listener.port == port and (
            listener.host == host or listener.binds_everywhere or host in ANY_HOST
        ):
            yield ConfigError(
                "metrics.listen",
                f"metrics need a port of their own, as 9308: {port} is that of listener "
                f"{listener.name}",
            )


def thread_count_jumps(before: BrokerConfig, after: BrokerConfig) -> Iterator[str]:
    """Why thread pools may not be resized like this at run time: at most halved or doubled."""
    old, new = before.log_cleaner_threads, after.log_cleaner_threads
    if new != old:
        if new < 1:
            yield "Log cleaner threads should be at least 1"
        elif new < old // 2:
            yield (
                f"Log cleaner threads cannot be reduced to less than half the current value {old}"
            )
        elif new > old * 2:
            yield (
                "Log cleaner threads cannot be increased to more than double the current value "
                f"{old}"
            )
    for name in _THREAD_POOLS:
        old, new = _of(before, name), _of(after, name)
        if new == old:
            continue
        failed = f"Dynamic thread count update validation failed for {name}={new}, value should"
        if new < 1:
            yield f"{failed} be at least 1"
        elif new < old // 2:
            yield f"{failed} be at least half the current value {old}"
        elif new > old * 2:
            yield f"{failed} not be greater than double the current value {old}"


def group_contradictions(group: GroupConfig, broker: BrokerConfig) -> list[ConfigError]:
    """A group's own settings against the limits that the broker sets for them."""
    found: list[ConfigError] = []
    for family in ("consumer", "share", "streams"):
        for what in ("heartbeat.interval.ms", "session.timeout.ms"):
            name = f"{family}.{what}"
            low, high = f"group.{family}.min.{what}", f"group.{family}.max.{what}"
            found += _between(
                name, _of(group, name), low, _of(broker, low), high, _of(broker, high)
            )
    lock = "share.record.lock.duration.ms"
    low, high = (f"group.share.{end}.record.lock.duration.ms" for end in ("min", "max"))
    found += _between(lock, _of(group, lock), low, _of(broker, low), high, _of(broker, high))
    standby, most = "streams.num.standby.replicas", "group.streams.max.standby.replicas"
    if _of(group, standby) > _of(broker, most):
        found.append(_not_most(standby, most))
    for family in ("consumer", "share", "streams"):
        beat, session = f"{family}.heartbeat.interval.ms", f"{family}.session.timeout.ms"
        if _of(group, beat) >= _of(group, session):
            found.append(ConfigError(session, f"{session} must be greater than {beat}"))
    return found


def _groups(config: BrokerConfig) -> Iterator[ConfigError]:
    if "classic" not in config.group_coordinator_rebalance_protocols:
        yield ConfigError(
            "group.coordinator.rebalance.protocols",
            "Disabling the 'classic' protocol is not supported.",
        )
    for family in ("group.consumer", "group.share", "group.streams"):
        for what in ("heartbeat.interval.ms", "session.timeout.ms"):
            name, low, high = f"{family}.{what}", f"{family}.min.{what}", f"{family}.max.{what}"
            if _of(config, high) < _of(config, low):
                yield _not_least(high, low)
            else:
                yield from _between(
                    name, _of(config, name), low, _of(config, low), high, _of(config, high)
                )
        beat, session = f"{family}.heartbeat.interval.ms", f"{family}.session.timeout.ms"
        if _of(config, beat) >= _of(config, session):
            yield ConfigError(beat, f"{beat} must be less than {session}")
    lock = "group.share.record.lock.duration.ms"
    shortest, longest = (f"group.share.{end}.record.lock.duration.ms" for end in ("min", "max"))
    if _of(config, lock) < _of(config, shortest):
        yield _not_least(lock, shortest)
    if _of(config, longest) < _of(config, lock):
        yield _not_least(longest, lock)
    if config.group_share_max_share_sessions < config.group_share_max_size:
        yield _not_least("group.share.max.share.sessions", "group.share.max.size")
    if config.group_streams_num_standby_replicas > config.group_streams_max_standby_replicas:
        yield _not_most("group.streams.num.standby.replicas", "group.streams.max.standby.replicas")


def _between(
    name: str, value: int, low: str, lowest: int, high: str, highest: int
) -> Iterator[ConfigError]:
    if value < lowest:
        yield _not_least(name, low)
    elif value > highest:
        yield _not_most(name, high)


def _not_least(name: str, low: str) -> ConfigError:
    return ConfigError(name, f"{name} must be greater than or equal to {low}")


def _not_most(name: str, high: str) -> ConfigError:
    return ConfigError(name, f"{name} must be less than or equal to {high}")


def _of(config: Settings, name: str) -> int:
    """The effective number under a name; only ever asked for settings that are numbers."""
    value = getattr(config, config.settings[name].attribute)
    assert isinstance(value, int)
    return value
