from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from ottla.cli.options import bootstrap_option, connect, settings, unescape
from ottla.client import contact


@click.group()
@click.option("--bootstrap")
def root(bootstrap: str | None) -> None:
    pass


@root.command()
@bootstrap_option
def show(bootstrap: str) -> None:
    click.echo(bootstrap)


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["show"], None, "127.0.0.1:9092"),
        (["show"], "env:1", "env:1"),
        (["--bootstrap", "root:2", "show"], "env:1", "root:2"),
        (["--bootstrap", "root:2", "show", "--bootstrap", "leaf:3"], "env:1", "leaf:3"),
        (["show", "--bootstrap", "a,b:2"], None, "a:9092,b:2"),
    ],
)
def test_the_nearest_bootstrap_counts(
    arguments: list[str], environment: str | None, expected: str
) -> None:
    result = CliRunner().invoke(root, arguments, env={"OTTLA_BOOTSTRAP": environment})
    assert result.output == f"{expected}\n"


def test_a_wrong_bootstrap_is_a_usage_error() -> None:
    result = CliRunner().invoke(root, ["show", "--bootstrap", "a:b"])
    assert result.exit_code == 2
    assert "give HOST:PORT" in result.stderr


def test_settings_are_keys_with_values() -> None:
    assert settings(["a=1", " b = x=y "], "--config") == {"a": "1", "b": "x=y"}
    with pytest.raises(click.UsageError, match="--config 'a': expected KEY=VALUE"):
        settings(["a"], "--config")


def test_escapes_can_be_typed() -> None:
    assert unescape(r"a\tb\nc\\t\0") == "a\tb\nc\\t\0"


def test_a_busy_broker_is_waited_for_longer_than_it_may_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(contact, "look_at", lambda server, timeout: waited.append(timeout))
    connect("127.0.0.1:9092")
    assert waited == [contact.PROMPT_SECONDS]
    assert contact.PROMPT_SECONDS >= 15
