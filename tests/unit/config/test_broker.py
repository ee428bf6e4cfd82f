"""A broker's settings as one value."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.setting import MAX_LONG, ConfigError


def test_a_broker_without_any_file_is_for_this_machine_alone() -> None:
    config = BrokerConfig()
    assert [str(one) for one in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.listener_plan.advertised == config.listeners
    assert config.log_dirs == ("data",)
    assert config.node_id == 1


def test_log_dirs_comes_before_log_dir() -> None:
    assert BrokerConfig.of({"log.dir": "/a"}).log_dirs == ("/a",)
    assert BrokerConfig.of({"log.dir": "/a", "log.dirs": "/b, /c"}).log_dirs == ("/b", "/c")


def test_durations_without_a_value_fall_back_to_coarser_units() -> None:
    config = BrokerConfig()
    assert config.log_retention_ms == 604_800_000
    assert config.log_roll_ms == 604_800_000
    assert config.log_flush_interval_ms == MAX_LONG
    assert config.stated("log.retention.ms") is None


def test_node_id_and_broker_id_are_one_setting() -> None:
    for name in ("node.id", "broker.id"):
        config = BrokerConfig.of({name: "7"})
        assert (config.node_id, config.broker_id) == (7, 7)
        assert config.is_given("node.id")
    assert BrokerConfig(node_id=8).broker_id == 8


def test_broker_id_minus_one_means_not_chosen() -> None:
    config = BrokerConfig.of({"broker.id": "-1"})
    assert (config.node_id, config.broker_id) == (1, 1)
    assert not config.is_given("node.id")
    assert BrokerConfig.of({"broker.id": "-1", "node.id": "4"}).broker_id == 4


def test_dynamic_settings_lie_over_static_ones() -> None:
    static = BrokerConfig.of({"log.retention.hours": "1", "num.partitions": "3"})
    config = static.with_dynamic({"log.retention.ms": "5", "message.max.bytes": "6"}, {})
    assert (config.log_retention_ms, config.message_max_bytes, config.num_partitions) == (5, 6, 3)
    config = config.with_dynamic(config.dynamic_default, {"log.retention.ms": "4"})
    assert (config.log_retention_ms, config.message_max_bytes) == (4, 6)
    assert config.with_dynamic({}, {}) == static
    assert config.static == static.static


def test_values_given_in_code_count_as_static() -> None:
    config = BrokerConfig(num_partitions=3, log_dirs=("/a", "/b"))
    assert config.static == {"num.partitions": "3", "log.dirs": "/a,/b"}
    assert config.with_dynamic({}, {}) == config
    assert (config.dynamic, config.dynamic_default) == ({}, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9308", ("127.0.0.1", 9308)),
        (":9308", ("127.0.0.1", 9308)),
        ("[::1]:0", ("::1", 0)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("metrics.example.org:9308", ("metrics.example.org", 9308)),
    ],
)
def test_metrics_are_served_on_loopback_unless_an_address_is_named(
    text: str, address: tuple[str, int]
) -> None:
    assert BrokerConfig.of({"metrics.listen": text}).metrics_address == address


@pytest.mark.parametrize("text", ["", "9308", "host", "host:", "host:65536", "a b:1", "::1:9308"])
def test_an_address_for_metrics_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listen.*host:port"):
        BrokerConfig.of({"metrics.listen": text})
