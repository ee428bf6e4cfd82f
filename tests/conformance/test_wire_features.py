"""UpdateFeatures (57), seen on the wire, and transactions while the level changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.cli.kafka_compat import run as run_tool
from ottla.testing import Broker

INVALID_REQUEST, INVALID_UPDATE_VERSION = 42, 95
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
FEATURE = "transaction.version"


@pytest.fixture(scope="module")
def own() -> Iterator[Broker]:
    """A broker whose features nobody else relies on."""
    with Broker(topics=["t"]) as broker:
        yield broker


@pytest.fixture
def connection(own: Broker, wire: Any) -> Any:
    return wire(own.bootstrap)


def update(
    connection: Any, level: int, kind: int = UPGRADE, *, version: int = 2, **more: Any
) -> int:
    wanted = {
        "feature": more.pop("feature", FEATURE),
        "max_version_level": level,
        "upgrade_type": kind,
        "allow_downgrade": kind != UPGRADE,
    }
    answer = connection.ask("update_features", version, feature_updates=[wanted], **more)
    if version < 2:
        assert [each.error_code for each in answer.results] == [answer.error_code]
    return int(answer.error_code)


def level(connection: Any) -> int:
    answer = connection.ask(
        "api_versions", 4, client_software_name="test", client_software_version="1"
    )
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return int(levels[FEATURE])


@pytest.mark.parametrize("version", range(3))
def test_down_and_up(version: int, connection: Any) -> None:
    for lower in (1, 0):
        assert update(connection, lower, version=version) == INVALID_UPDATE_VERSION
        assert update(connection, lower, SAFE_DOWNGRADE, version=version) == 0
        assert level(connection) == lower
    assert update(connection, 2, version=version) == 0
    assert level(connection) == 2


def test_trying_changes_nothing(connection: Any) -> None:
    assert update(connection, 1, UNSAFE_DOWNGRADE, validate_only=True) == 0
    assert level(connection) == 2


@pytest.mark.parametrize(
    ("feature", "number", "kind", "code"),
    [
        (FEATURE, 3, UPGRADE, INVALID_UPDATE_VERSION),
        (FEATURE, -1, SAFE_DOWNGRADE, INVALID_UPDATE_VERSION),
        (FEATURE, 1, 9, INVALID_REQUEST),
        ("no.such.version", 1, UPGRADE, INVALID_UPDATE_VERSION),
        ("group.version", 0, SAFE_DOWNGRADE, INVALID_UPDATE_VERSION),
        ("group.version", 1, UPGRADE, 0),
    ],
)
def test_what_cannot_be(feature: str, number: int, kind: int, code: int, connection: Any) -> None:
    assert update(connection, number, kind, feature=feature) == code
    assert level(connection) == 2


def test_open_transactions_go_on(own: Broker, connection: Any) -> None:
    producer = Producer({"bootstrap.servers": own.bootstrap, "transactional.id": "goes-on"})
    producer.init_transactions(30)
    for number, kind in ((1, SAFE_DOWNGRADE), (0, SAFE_DOWNGRADE), (2, UPGRADE)):
        producer.begin_transaction()
        producer.produce("t", str(number).encode())
        producer.flush(30)
        assert update(connection, number, kind) == 0
        producer.commit_transaction(30)
    records = own.consume("t", count=3)
    assert [record.value for record in records] == [b"1", b"0", b"2"]


def test_the_tool(own: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    def tool(*arguments: str) -> tuple[int, str]:
        code = run_tool("kafka-features", ["--bootstrap-server", own.bootstrap, *arguments])
        return code, capsys.readouterr().out

    one = ("--feature", f"{FEATURE}=1")
    two = ("--feature", f"{FEATURE}=2")
    assert tool("downgrade", *one, "--dry-run") == (0, f"{FEATURE} can be downgraded to 1.\n")
    code, out = tool("upgrade", *one)
    assert code == 1
    assert out.startswith(f"Could not upgrade {FEATURE} to 1. Invalid update version 1")
    assert tool("downgrade", *one) == (0, f"{FEATURE} was downgraded to 1.\n")
    assert tool("disable", "--feature", FEATURE) == (0, f"{FEATURE} was disabled.\n")
    assert tool("upgrade", *two) == (0, f"{FEATURE} was upgraded to 2.\n")
    for wrong in ((), ("--feature", FEATURE), ("--feature", f"{FEATURE}=x"), ("--metadata", "4.2")):
        assert tool("upgrade", *wrong)[0] == 1
