"""Reading and printing values as Kafka does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.setting import ConfigError, ConfigType, Setting, double_text
from ottla.config.topic import TopicConfig

RECORDED = json.loads((Path(__file__).parent / "data" / "kafka-4.2-values.json").read_text())


@pytest.mark.parametrize(
    ("resource", "name", "text", "printed", "refusal"),
    RECORDED,
    ids=[f"{row[1]}={row[2]}" for row in RECORDED],
)
def test_values_are_read_judged_and_printed_as_by_kafka(
    resource: str, name: str, text: str, printed: str | None, refusal: str | None
) -> None:
    settings = TopicConfig.settings if resource == "topic" else BrokerConfig.settings
    setting = settings[name]
    if refusal is not None:
        with pytest.raises(ConfigError) as caught:
            setting.parse(text)
        assert str(caught.value) == refusal
        assert caught.value.name == name
    else:
        value = setting.parse(text)
        # The record was made with Kafka's printer, which spells a hidden password out.
        assert (setting.format(value) or ("[hidden]" if setting.sensitive else "")) == printed


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (1e-5, "1.0E-5"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"),
        (-1.5e300, "-1.5E300"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_printed_as_java_prints_them(value: float, printed: str) -> None:
    assert double_text(value) == printed


def test_a_password_is_never_printed() -> None:
    setting = Setting(type=ConfigType.PASSWORD, default=None, doc="", name="p")
    assert setting.sensitive
    assert setting.format(setting.parse("secret")) is None


def test_a_list_is_split_at_commas_and_blanks_around_them_do_not_count() -> None:
    setting = Setting(type=ConfigType.LIST, default=(), doc="", name="l")
    assert setting.parse(" a ,\tb,c d ") == ("a", "b", "c d")
    assert setting.parse("  ") == ()
    assert setting.format(("a", "b")) == "a,b"


def test_type_numbers_are_those_of_the_protocol() -> None:
    assert [(one.name, one.value) for one in ConfigType] == [
        ("UNKNOWN", 0),
        ("BOOLEAN", 1),
        ("STRING", 2),
        ("INT", 3),
        ("SHORT", 4),
        ("LONG", 5),
        ("DOUBLE", 6),
        ("LIST", 7),
        ("CLASS", 8),
        ("PASSWORD", 9),
    ]
