"""Declarations become attributes, and configurations are frozen values."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from ottla.config.broker import FAMILIES, BrokerConfig
from ottla.config.declare import Settings, integer, mistakes, password
from ottla.config.group import GroupConfig
from ottla.config.rules import at_least
from ottla.config.setting import ConfigError
from ottla.config.topic import TopicConfig


class Small(Settings):
    """Two settings."""

    some_number: int = integer(default=3, rule=at_least(1), doc="A number.")
    some_secret: str | None = password(default=None, doc="A secret.")


def test_the_attribute_has_kafkas_name_with_underscores() -> None:
    assert list(Small.settings) == ["some.number", "some.secret"]
    assert Small().some_number == 3
    assert Small(some_number=0).some_number == 0  # the caller's own values are taken as they are


def test_text_is_judged() -> None:
    assert Small.from_layers([{"some.number": " 7 "}]).some_number == 7
    with pytest.raises(ConfigError, match="Value must be at least 1"):
        Small.from_layers([{"some.number": "0"}])


def test_the_first_layer_that_has_a_name_decides() -> None:
    small = Small.from_layers([{}, {"some.number": "5"}, {"some.number": "6"}])
    assert small.some_number == 5
    assert small.is_given("some.number")
    assert not small.is_given("some.secret")


def test_a_configuration_is_frozen() -> None:
    small = Small()
    with pytest.raises(AttributeError, match="frozen"):
        small.some_number = 4
    with pytest.raises(AttributeError, match="frozen"):
        del small.some_number


def test_equal_values_are_equal_and_hash_alike() -> None:
    assert Small(some_number=4) == Small.from_layers([{"some.number": "4"}])
    assert hash(Small(some_number=4)) == hash(Small.from_layers([{"some.number": "4"}]))
    assert Small(some_number=4) != Small()
    assert Small() != TopicConfig()


def test_repr_shows_what_is_not_default_and_no_secret() -> None:
    small = Small(some_number=4, some_secret="hush")
    assert repr(small) == "Small(some_number=4, some_secret=[hidden])"


def test_an_attribute_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="has no setting wrong"):
        Small(wrong=1)


def test_all_mistakes_are_found() -> None:
    found = mistakes(TopicConfig.settings, {"retention.ms": "x", "segment.bytes": "1", "other": ""})
    assert [error.name for error in found] == ["retention.ms", "segment.bytes"]


def test_every_setting_of_kafka_is_declared_as_kafka_declares_it(data: Path) -> None:
    classes: dict[str, type[Settings]] = {
        "topic": TopicConfig,
        "broker": BrokerConfig,
        "group": GroupConfig,
    }
    for resource, name, kind, default, importance, internal in json.loads(
        (data / "kafka-4.2-settings.json").read_text()
    ):
        setting = classes[resource].settings[name]
        assert setting.type.name == kind, name
        assert setting.importance == importance, name
        assert setting.internal == internal, name
        if setting.differs is not None:
            assert default == (setting.differs.kafka or "<NO_DEFAULT>"), name
        else:
            assert setting.format(setting.default) == default, name


def test_nothing_is_declared_that_kafka_does_not_have(data: Path) -> None:
    known = {(row[0], row[1]) for row in json.loads((data / "kafka-4.2-settings.json").read_text())}
    for resource, cls in (("topic", TopicConfig), ("broker", BrokerConfig), ("group", GroupConfig)):
        ours = {(resource, s.name) for s in cls.settings.values() if not s.foreign}
        assert ours <= known


def test_every_setting_is_documented_in_its_own_family_only() -> None:
    counted = [name for family in FAMILIES for name in family.settings]
    assert len(counted) == len(set(counted)) == len(BrokerConfig.settings)
    for setting in (*BrokerConfig.settings.values(), *TopicConfig.settings.values()):
        assert setting.doc.endswith("."), setting.name


def test_every_synonym_and_fallback_exists() -> None:
    for setting in (*TopicConfig.settings.values(), *GroupConfig.settings.values()):
        if setting.synonym:
            assert BrokerConfig.settings[setting.synonym].type is setting.type
    for setting in BrokerConfig.settings.values():
        for fallback in setting.fallbacks:
            assert fallback.name in BrokerConfig.settings


def test_settings_survive_the_way_to_another_process():
    before = TopicConfig.resolve({"compression.type": "gzip"}, BrokerConfig())
    after = pickle.loads(pickle.dumps(before))
    assert after == before
    assert after.compression_type == "gzip"
    assert after.layers == before.layers
