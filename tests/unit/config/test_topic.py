"""A topic's settings: its own, else the broker's."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.setting import MAX_LONG, ConfigError
from ottla.config.topic import TopicConfig


def test_defaults_are_kafkas() -> None:
    config = TopicConfig()
    assert config.cleanup_policy == frozenset({"delete"})
    assert config.retention_ms == 7 * 24 * 3600 * 1000
    assert config.max_message_bytes == 1_048_588
    assert config.flush_messages == MAX_LONG
    assert config.min_cleanable_dirty_ratio == 0.5
    assert config.internal_segment_bytes is None


def test_a_topic_without_overrides_has_the_brokers_settings() -> None:
    assert TopicConfig.resolve({}, BrokerConfig()) == TopicConfig()
    broker = BrokerConfig(message_max_bytes=10, log_cleanup_policy=("compact", "delete"))
    config = TopicConfig.resolve({}, broker)
    assert config.max_message_bytes == 10
    assert config.cleanup_policy == frozenset({"compact", "delete"})


def test_an_override_comes_before_the_broker() -> None:
    broker = BrokerConfig(message_max_bytes=10)
    assert TopicConfig.resolve({"max.message.bytes": "20"}, broker).max_message_bytes == 20


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({}, 604_800_000),
    ],
)
def test_the_finest_unit_that_was_given_decides(static: dict[str, str], expected: int) -> None:
    assert TopicConfig.resolve({}, BrokerConfig.of(static)).retention_ms == expected


def test_rolling_and_flushing_have_coarser_names_too() -> None:
    broker = BrokerConfig.of(
        {
            "log.roll.hours": "1",
            "log.roll.jitter.hours": "2",
            "log.flush.scheduler.interval.ms": "5",
        }
    )
    config = TopicConfig.resolve({}, broker)
    assert (config.segment_ms, config.segment_jitter_ms) == (3_600_000, 7_200_000)
    assert config.flush_ms == 5


def test_internal_segment_bytes_replaces_the_segment_size_without_its_limit() -> None:
    config = TopicConfig.resolve({"internal.segment.bytes": "100"}, BrokerConfig())
    assert config.segment_bytes == 100


def test_a_bad_override_is_an_error_and_an_unknown_one_is_passed_over() -> None:
    with pytest.raises(ConfigError, match=r"Not a number of type LONG"):
        TopicConfig.resolve({"retention.ms": "soon"}, BrokerConfig())
    assert TopicConfig.resolve({"from.the.future": "1"}, BrokerConfig()) == TopicConfig()
