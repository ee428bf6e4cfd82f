"""What `ottla` says to somebody who made a mistake, with a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli
from ottla.client.groups import Groups

Ottla = Callable[..., Result]


@pytest.fixture
def ottla() -> Ottla:
    """`ottla(bootstrap, "topic", "list")`."""

    def call(bootstrap: str, *arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--bootstrap", bootstrap], **options)

    return call


@pytest.fixture
def web_server(stranger: Callable[[bytes], AbstractContextManager[str]]) -> Iterator[str]:
    """The address of something that speaks HTTP."""
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        yield address


@pytest.mark.parametrize("command", [["describe"], ["alter", "--set", "log.retention.ms=1"]])
def test_a_broker_that_is_not_there_is_not_a_silent_cluster(
    bootstrap: str, ottla: Ottla, command: list[str]
) -> None:
    result = ottla(bootstrap, "config", command[0], "broker", "7777", *command[1:])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: there is no broker 7777; this cluster has only broker ")


def test_a_reset_with_a_typing_mistake_makes_no_group(bootstrap: str, ottla: Ottla) -> None:
    topic, group = f"messages-{uuid.uuid4().hex}", f"billing-{uuid.uuid4().hex}"
    assert ottla(bootstrap, "topic", "create", topic).exit_code == 0
    reset = ["--topic", topic, "--to", "earliest", "--execute"]
    assert ottla(bootstrap, "group", "reset", group, *reset, "--create").exit_code == 0
    typed = f"x{group}"
    result = ottla(bootstrap, "group", "reset", typed, *reset)
    assert result.exit_code == 1
    assert f"there is no group {typed!r}; did you mean {group!r}?" in result.stderr
    with Groups(bootstrap) as groups:
        names = {each.name for each in groups.list_groups()}
    assert group in names
    assert typed not in names


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["group", "list"],
        ["consume", "t"],
        ["produce", "t"],
        ["offsets", "t"],
        ["config", "describe", "topic", "t"],
        ["topic", "explain-retention", "t"],
    ],
)
def test_what_answers_in_place_of_a_broker_is_said(
    ottla: Ottla, web_server: str, command: list[str]
) -> None:
    result = ottla(web_server, *command)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"Error: no broker answers: {web_server} is an HTTP server; start one with"
    )


@pytest.mark.parametrize("command", [["group", "list"], ["config", "describe", "broker", "1"]])
def test_an_advertised_address_that_leads_nowhere_is_what_is_wrong(
    ottla: Ottla, start_broker: Callable[..., Any], command: list[str]
) -> None:
    broker = start_broker(arguments=["--advertise", "nowhere.invalid:9999"])
    result = ottla(broker.bootstrap, *command)
    assert result.exit_code == 1
    assert "broker 1 is advertised as nowhere.invalid:9999, and cannot be reached" in result.stderr
    assert "--advertise" in result.stderr
