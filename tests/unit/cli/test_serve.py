"""`ottla server start`: what flags are refused, and what the banner says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from ottla.cli import serve
from ottla.client.settings import bootstrap_servers
from ottla.model.broker import Endpoint
from ottla.net.listener import Bound

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--listen", "127.0.0.1:80000"], "--listen '127.0.0.1:80000': a port is a number from 0"),
        (["--listen", "A://127.0.0.1:80000"], "a port is a number from 0 to 65535, not '80000'"),
        (["--listen", "localhost:http"], "a port is a number from 0 to 65535, not 'http'"),
        (["--listen", "localhost:-1"], "a port is a number from 0 to 65535, not '-1'"),
        (["--listen", "localhost"], "expected HOST:PORT, as --listen localhost:9092"),
        (["--listen", "9092"], "expected HOST:PORT, as --listen :9092"),
        (["--advertise", "box:80000"], "--advertise 'box:80000': a port is a number from 1"),
        (["--advertise", "box:0"], "a port is a number from 1 to 65535, not '0'"),
        (["--advertise", "box"], "expected HOST:PORT, as --advertise box:9092"),
        (
            ["--listen", "localhost:1", "--advertise", "a:1", "--advertise", "b:1"],
            "--advertise is given 2 times and --listen 1: give one for each",
        ),
        (["--data-dir", ""], "--data-dir is empty; name a folder"),
        (["--data-dir", "a", "--data-dir", "  "], "--data-dir is empty; name a folder"),
        (["--set", "zookeeper.digest.password=x"], "everybody on this machine can read a command"),
    ],
)
def test_a_flag_that_cannot_be_is_refused_by_its_own_name(
    ottla: Run, flags: list[str], said: str
) -> None:
    result = ottla("server", "start", *flags)
    assert result.exit_code == 2
    assert said in result.stderr


def test_several_data_folders_are_all_used() -> None:
    [given] = serve.flag_settings((), (), ("disk-1", "disk-2"), ())
    assert (given.name, given.text) == ("log.dirs", "disk-1,disk-2")
    assert given.origin == "--data-dir disk-1 --data-dir disk-2"


def test_what_only_the_settings_know_is_said_of_the_flag_that_was_typed(ottla: Run) -> None:
    result = ottla("server", "start", "--advertise", "0.0.0.0:9092")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: --advertise 0.0.0.0:9092: Invalid value")
    assert result.stderr.endswith("Use a routable IP address.\n")


def broker(bound: str, port: int, told: str, *, chosen: bool = False) -> Any:
    return SimpleNamespace(
        listening=(Bound("PLAINTEXT", bound, port),),
        endpoints=(Endpoint("PLAINTEXT", told, port),),
        chosen_hosts={"PLAINTEXT"} if chosen else set(),
        data_dirs=("data",),
        node_id=1,
        cluster_id="AAAAAAAAAAAAAAAAAAAAAQ",
        metrics_url=None,
    )


def test_an_ipv6_address_in_the_banner_can_be_pasted() -> None:
    said = serve.banner(broker("::1", 9393, "::1"), 0.2)
    assert "  listening   PLAINTEXT://[::1]:9393\n" in said
    assert " topic create hello --bootstrap '[::1]:9393'\n" in said
    assert bootstrap_servers("[::1]:9393") == "[::1]:9393"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::", ""])
def test_commands_find_the_default_address_without_a_flag(host: str) -> None:
    assert serve.bootstrap_flag(broker(host, 9092, "box")) == ""


@pytest.mark.parametrize("host", ["::1", "10.0.0.5"])
def test_the_default_port_elsewhere_needs_a_flag(host: str) -> None:
    assert "--bootstrap" in serve.bootstrap_flag(broker(host, 9092, host))


@pytest.mark.parametrize(("bound", "shown"), [("0.0.0.0", "0.0.0.0"), ("", "*"), ("::", "[::]")])
def test_with_every_interface_it_says_what_clients_are_told_and_what_changes_it(
    bound: str, shown: str
) -> None:
    [line] = serve.listening(broker(bound, 9092, "10.0.0.5", chosen=True))
    assert line == (
        f"PLAINTEXT://{shown}:9092, every interface; clients are told 10.0.0.5:9092; "
        f"--advertise HOST:PORT changes that"
    )
    [line] = serve.listening(broker(bound, 9092, "localhost", chosen=True))
    assert "only those on this machine" in line
    assert "--advertise" in line
    [line] = serve.listening(broker(bound, 9092, "box.example.org"))
    assert line == f"PLAINTEXT://{shown}:9092 (advertised as box.example.org:9092)"
