from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import ottla
from ottla.client.settings import (
    bootstrap_servers,
    librdkafka_config,
    parse_address,
    timestamp_ms,
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)


def test_brokers_are_those_given_else_of_the_environment_else_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bootstrap_servers() == "127.0.0.1:9092"
    monkeypatch.setenv("OTTLA_BOOTSTRAP", "env:1")
    assert bootstrap_servers() == "env:1"
    assert bootstrap_servers("here:2") == "here:2"


def test_several_brokers_are_given_as_a_list_or_with_commas() -> None:
    assert bootstrap_servers("a:1, b:2") == "a:1,b:2"
    assert bootstrap_servers(["a:1", "b"]) == "a:1,b:9092"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("broker", ("broker", 9092)),
        ("broker:1234", ("broker", 1234)),
        ("[::1]:1234", ("[::1]", 1234)),
        ("[::1]", ("[::1]", 9092)),
        (" broker:1 ", ("broker", 1)),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":9092", "a:b", "a:0", "a:65536", "a:-1", "[::1"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"give HOST:PORT, such as 127\.0\.0\.1:9092"):
        bootstrap_servers(text)


@pytest.mark.parametrize("text", ["::1", "::1:9092", "fe80::1%eth0"])
def test_an_ipv6_address_without_brackets_is_refused_with_brackets(text: str) -> None:
    with pytest.raises(ValueError, match=r"give an IPv6 address in brackets, such as \[::1\]:9092"):
        bootstrap_servers(text)


@pytest.mark.parametrize("scheme", ["http://", "PLAINTEXT://"])
@pytest.mark.parametrize("address", ["127.0.0.1:9092", "localhost", "[::1]:9092"])
def test_an_address_with_a_scheme_is_refused_by_its_scheme(scheme: str, address: str) -> None:
    with pytest.raises(ValueError, match=f"give it without {scheme}, as HOST:PORT, such as"):
        bootstrap_servers(scheme + address)


def test_what_is_no_port_is_said() -> None:
    with pytest.raises(ValueError, match="'65536' is no port, those are numbers from 1 to 65535"):
        bootstrap_servers("a:65536")


def test_no_broker_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="names no broker"):
        bootstrap_servers([])


def test_properties_of_the_user_win_except_for_reserved_ones() -> None:
    assert librdkafka_config({"a": 1, "b": 2}, {"b": 3}, {}) == {"a": 1, "b": 3}
    with pytest.raises(ValueError, match="config may not set 'acks': use acks="):
        librdkafka_config({}, {"acks": 1}, {"acks": "use acks="})


def test_a_timestamp_is_milliseconds_or_a_datetime() -> None:
    assert timestamp_ms(1_700_000_000_123) == 1_700_000_000_123
    exact = datetime(2023, 11, 14, 22, 13, 20, 123_999, UTC)
    assert timestamp_ms(exact) == 1_700_000_000_123
    east = exact.astimezone(timezone(timedelta(hours=5)))
    assert timestamp_ms(east) == 1_700_000_000_123


@pytest.mark.parametrize("moment", [1.5, "2023", None, True])
def test_what_is_no_timestamp_is_refused(moment: Any) -> None:
    with pytest.raises(TypeError, match="a datetime or milliseconds"):
        timestamp_ms(moment)


def test_a_negative_timestamp_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        timestamp_ms(-1)


@pytest.mark.parametrize(
    ("kind", "given", "line"),
    [
        (ottla.Producer, {"bootstrap.servers": "h:1"}, "ottla.Producer('h:1')"),
        (
            ottla.Producer,
            {"bootstrap.servers": "h:1", "acks": 1, "linger.ms": 5},
            "ottla.Producer('h:1', acks=1, config={'linger.ms': 5})",
        ),
        (
            ottla.Consumer,
            {"bootstrap.servers": "h:1", "group.id": "g", "auto.offset.reset": "earliest"},
            "ottla.Consumer('h:1', group='g', reset='earliest')",
        ),
        (ottla.Admin, {"bootstrap.servers": "h:1"}, "ottla.Admin('h:1')"),
    ],
)
def test_a_mapping_as_confluent_kafka_takes_it_is_answered_with_the_line_to_type(
    kind: Any, given: dict[str, object], line: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(line)):
        kind(given)
