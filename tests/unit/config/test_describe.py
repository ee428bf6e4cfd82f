"""DescribeConfigs, compared with what Apache Kafka 4.2 answered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from ottla.config.topic import TopicConfig

CASES = {
    case["case"]: case
    for case in json.loads(
        (Path(__file__).parent / "data" / "kafka-4.2-describe-configs.json").read_text()
    )
}
PLAIN = CASES["nothing but the file"]


def recorded_form(entries: Iterable[ConfigEntry]) -> dict[str, list[Any]]:
    """Our entries in the form of the record, with Kafka's defaults in place of ours."""
    theirs = {
        (s.name, s.format(s.default)): s.differs.kafka
        for s in BrokerConfig.settings.values()
        if s.differs is not None
    }
    form: dict[str, list[Any]] = {}
    for one in entries:
        value = one.value
        if one.source is ConfigSource.DEFAULT_CONFIG:
            value = theirs.get((one.name, value), value)
        synonyms = [
            [
                s.name,
                theirs.get((s.name, s.value), s.value)
                if s.source is ConfigSource.DEFAULT_CONFIG
                else s.value,
                s.source.name,
            ]
            for s in one.synonyms
        ]
        form[one.name] = [
            one.name,
            value,
            one.source.name,
            one.type.name,
            one.read_only,
            one.sensitive,
            synonyms,
        ]
    return form


def broker_of(case: dict[str, Any]) -> BrokerConfig:
    return BrokerConfig.of(
        case["static"], dynamic_default=case["dynamic_default"], dynamic=case["dynamic"]
    )


def test_a_broker_is_described_with_kafkas_names_types_defaults_and_synonyms() -> None:
    ours = recorded_form(describe_broker(broker_of(PLAIN)))
    assert list(ours) == [row[0] for row in PLAIN["broker"]]
    for row in PLAIN["broker"]:
        assert ours[row[0]] == row


def test_a_topic_is_described_with_kafkas_names_types_defaults_and_synonyms() -> None:
    ours = recorded_form(describe_topic({}, broker_of(PLAIN)))
    assert list(ours) == [row[0] for row in PLAIN["topic"]]
    for row in PLAIN["topic"]:
        assert ours[row[0]] == row


@pytest.mark.parametrize("name", ["more in the file", "dynamic settings and overrides"])
def test_sources_and_synonyms_of_changed_settings_are_kafkas(name: str) -> None:
    case = CASES[name]
    for kind, entries in (
        ("broker", describe_broker(broker_of(case))),
        ("topic", describe_topic(case["overrides"], broker_of(case))),
    ):
        ours = recorded_form(entries)
        expected = {row[0]: row for row in (*PLAIN[kind], *case[kind])}
        assert sorted(ours) == sorted(expected)
        for setting, row in expected.items():
            assert ours[setting] == row


def test_the_default_of_all_brokers_is_described_by_what_was_set() -> None:
    case = CASES["dynamic settings and overrides"]
    ours = recorded_form(describe_broker_default(case["dynamic_default"]))
    assert list(ours.values()) == case["broker_default"]


def test_a_group_is_described_as_by_kafka() -> None:
    case = CASES["a group"]
    ours = recorded_form(describe_group(case["overrides"], broker_of(case)))
    assert list(ours.values()) == case["group"]


def test_dynamic_texts_may_be_handed_in_apart() -> None:
    broker = BrokerConfig.of({"message.max.bytes": "5"})
    entries = {
        one.name: one
        for one in describe_topic(
            {}, broker, {"message.max.bytes": "7"}, {"message.max.bytes": "6"}
        )
    }
    one = entries["max.message.bytes"]
    assert one.value == "7"
    assert [(s.value, s.source) for s in one.synonyms] == [
        ("7", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("6", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("5", ConfigSource.STATIC_BROKER_CONFIG),
        ("1048588", ConfigSource.DEFAULT_CONFIG),
    ]
    carried = broker.with_dynamic({"message.max.bytes": "6"}, {"message.max.bytes": "7"})
    assert describe_topic({}, carried) == describe_topic(
        {}, broker, {"message.max.bytes": "7"}, {"message.max.bytes": "6"}
    )


def test_nothing_secret_and_nothing_unknown_is_ever_shown() -> None:
    broker = BrokerConfig.of(
        {
            "ssl.keystore.password": "hush",
            "listener.name.inside.scram-sha-256.sasl.jaas.config": "hush",
            "some.plugin.token": "hush",
        }
    ).with_dynamic({"listener.name.inside.ssl.key.password": "hush"}, {})
    assert "hush" not in repr(describe_broker(broker))
    assert "hush" not in repr(describe_broker_default(broker.dynamic_default))
    assert "hush" not in repr(broker)
    topic = describe_topic({"from.the.future": "hush"}, broker)
    assert "hush" not in repr(topic)
    shown = {one.name: one for one in topic}["from.the.future"]
    assert shown.sensitive
    assert shown.source is ConfigSource.DYNAMIC_TOPIC_CONFIG


def test_every_entry_is_documented() -> None:
    for one in (*describe_broker(BrokerConfig()), *describe_topic({}, BrokerConfig())):
        assert one.documentation


def test_only_defaults_are_called_default() -> None:
    entries = {one.name: one for one in describe_topic({"retention.ms": "5"}, BrokerConfig())}
    assert entries["retention.ms"].source is not ConfigSource.DEFAULT_CONFIG
    assert entries["segment.bytes"].source is ConfigSource.DEFAULT_CONFIG


def test_the_described_value_is_the_effective_one() -> None:
    broker = BrokerConfig.of({"log.retention.minutes": "1", "log.cleanup.policy": "compact,delete"})
    config = TopicConfig.resolve({}, broker)
    entries = {one.name: one.value for one in describe_topic({}, broker)}
    assert entries["retention.ms"] == str(config.retention_ms) == "60000"
    assert entries["cleanup.policy"] == "compact,delete"
