"""The settings a group may have of its own, each with the broker setting that is its default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Self

from ottla.config.declare import Settings, Texts, integer, string
from ottla.config.rules import at_least, one_of
from ottla.config.setting import ConfigError, Rule, Value

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

_DURATION = re.compile(
    r"by_duration:P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]*)?S)?)?"
)


def _starting_point(name: str, value: Value) -> ConfigError | None:
    if value in ("latest", "earliest") or _DURATION.fullmatch(str(value)):
        return None
    return ConfigError.invalid(
        name,
        value,
        f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', "
        "'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
    )


class GroupConfig(Settings):
    """The effective settings of one group. `GroupConfig()` has Kafka's defaults."""

    consumer_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        synonym="group.consumer.heartbeat.interval.ms",
        doc="Interval at which members are told to send heartbeats.",
    )
    consumer_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        synonym="group.consumer.session.timeout.ms",
        doc="Silence after which a member is removed.",
    )
    share_auto_offset_reset: str = string(
        default="latest",
        rule=Rule("latest, earliest or by_duration:PnDTnHnMn.nS", _starting_point),
        effect="later",
        doc="Where a share group starts on a partition it has not read yet.",
    )
    share_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        effect="later",
        synonym="group.share.heartbeat.interval.ms",
        doc="Interval at which members of a share group are told to send heartbeats.",
    )
    share_isolation_level: str = string(
        default="read_uncommitted",
        rule=one_of("read_committed", "read_uncommitted"),
        effect="later",
        doc="Whether a share group sees records of transactions that are not committed.",
    )
    share_record_lock_duration_ms: int = integer(
        default=30_000,
        rule=at_least(1000),
        effect="later",
        synonym="group.share.record.lock.duration.ms",
        doc="How long a delivered record stays locked for its share consumer.",
    )
    share_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        effect="later",
        synonym="group.share.session.timeout.ms",
        doc="Silence after which a member of a share group is removed.",
    )
    streams_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        effect="later",
        synonym="group.streams.heartbeat.interval.ms",
        doc="Interval at which members of a streams group are told to send heartbeats.",
    )
    streams_initial_rebalance_delay_ms: int = integer(
        default=3000,
        rule=at_least(0),
        effect="later",
        synonym="group.streams.initial.rebalance.delay.ms",
        doc="How long an empty streams group waits for more members before its first assignment.",
    )
    streams_num_standby_replicas: int = integer(
        default=0,
        rule=at_least(0),
        effect="later",
        synonym="group.streams.num.standby.replicas",
        doc="Standby copies of each task of a streams group.",
    )
    streams_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        effect="later",
        synonym="group.streams.session.timeout.ms",
        doc="Silence after which a member of a streams group is removed.",
    )

    @classmethod
    def resolve(cls, overrides: Texts, broker: BrokerConfig) -> Self:
        """The settings of a group with these overrides on this broker."""
        return cls.inheriting(overrides, broker)
