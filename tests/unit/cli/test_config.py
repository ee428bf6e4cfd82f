from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from ottla.client.descriptions import ConfigEntry
from ottla.client.direct import APPEND, BROKER, DELETE, GROUP, SET, SUBTRACT, TOPIC
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]


class FakeAdmin:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.failure: KafkaError | None = None

    def describe_configs(
        self, kind: int, name: str, *, keys: Any = None
    ) -> tuple[ConfigEntry, ...]:
        self.calls.append((kind, name, keys))
        if self.failure is not None:
            raise self.failure
        return (
            ConfigEntry("retention.ms", "5", "topic"),
            ConfigEntry("cleanup.policy", "delete", "default"),
            ConfigEntry("password", None, "topic", sensitive=True),
        )

    def alter_configs(self, kind: int, name: str, changes: Any) -> None:
        self.calls.append((kind, name, list(changes)))
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_exception: object) -> None: ...


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr("ottla.cli.config._open", lambda _bootstrap: fake)
    return fake


def test_describe_shows_what_was_set(ottla: Run, admin: FakeAdmin) -> None:
    assert ottla("config", "describe", "topic", "orders").output == (
        "topic orders\n"
        "KEY           VALUE     SOURCE\n"
        "password      (hidden)  topic\n"
        "retention.ms  5         topic\n"
    )
    assert admin.calls == [(TOPIC, "orders", None)]


def test_describe_all_as_json(ottla: Run, admin: FakeAdmin) -> None:
    found = json.loads(ottla("config", "describe", "topic", "orders", "--all", "--json").output)
    assert [each["key"] for each in found["settings"]] == [
        "cleanup.policy", "password", "retention.ms",
    ]  # fmt: skip
    assert found["settings"][0] == {
        "key": "cleanup.policy",
        "value": "delete",
        "source": "default",
        "read_only": False,
        "sensitive": False,
    }


def test_describe_asks_only_for_the_keys_given(ottla: Run, admin: FakeAdmin) -> None:
    ottla("config", "describe", "group", "g", "--key", "password", "--key", "retention.ms")
    assert admin.calls == [(GROUP, "g", ("password", "retention.ms"))]


def test_alter_passes_every_kind_of_change_on_at_once(ottla: Run, admin: FakeAdmin) -> None:
    result = ottla(
        "config", "alter", "broker", "1", "--set", "a=1", "--append", "b=2", "--subtract", "c=3",
        "--delete", "d",
    )  # fmt: skip
    assert result.output == "altered broker 1\n"
    changes = [("a", SET, "1"), ("b", APPEND, "2"), ("c", SUBTRACT, "3"), ("d", DELETE, None)]
    assert admin.calls == [(BROKER, "1", changes)]


def test_what_the_broker_refuses_is_said_with_the_assurance_that_nothing_changed(
    ottla: Run, admin: FakeAdmin
) -> None:
    admin.failure = KafkaError(ErrorCode.INVALID_CONFIG, "Invalid value x.")
    result = ottla("config", "alter", "topic", "orders", "--set", "retention.ms=x")
    assert result.exit_code == 1
    assert result.output == "Error: Invalid value x; nothing was changed\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["alter", "topic", "orders"], "nothing to change"),
        (["alter", "topic", "orders", "--set", "x"], "expected KEY=VALUE"),
        (["describe", "broker", "one"], "a broker is named by its number"),
        (["describe", "thing", "one"], "'thing' is not one of"),
    ],
)
def test_a_wrong_command_line_asks_nobody(
    ottla: Run, admin: FakeAdmin, arguments: list[str], complaint: str
) -> None:
    result = ottla("config", *arguments)
    assert result.exit_code == 2
    assert complaint in result.output
    assert admin.calls == []


def test_a_key_that_does_not_exist_is_not_one_that_nobody_set(ottla: Run, admin: FakeAdmin) -> None:
    result = ottla("config", "describe", "topic", "orders", "--key", "retenton.ms")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: topic orders has no setting 'retenton.ms'; did you mean 'retention.ms'?\n"
    )
