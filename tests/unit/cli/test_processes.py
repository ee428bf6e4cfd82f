"""Several brokers on one machine: what each of them is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from ottla.cli.processes import Plan, Told, make_plan, process_count
from ottla.cli.serve import start
from ottla.config.load import Given, load

Run = Callable[..., Result]


def plan_of(count: int, **settings: str) -> Plan:
    given = [Given(name.replace("_", "."), value, "--set") for name, value in settings.items()]
    return make_plan(load(None, given), Told(None, given, False, "human", "info"), count)


def told(plan: Plan, number: int) -> dict[str, str]:
    """The settings that a broker is given."""
    words = plan.members[number].command
    pairs = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def test_ids_ports_and_folders_go_on_from_the_first() -> None:
    plan = plan_of(3, listeners="PLAINTEXT://127.0.0.1:19092", node_id="5", log_dirs="a,b")
    assert [member.id for member in plan.members] == [5, 6, 7]
    assert [told(plan, n)["node.id"] for n in range(3)] == ["5", "6", "7"]
    assert told(plan, 2)["listeners"] == "PLAINTEXT://127.0.0.1:19094"
    assert told(plan, 1)["log.dirs"] == "a/broker-6,b/broker-6"
    assert plan.addresses == (
        (5, "127.0.0.1:19092"),
        (6, "127.0.0.1:19093"),
        (7, "127.0.0.1:19094"),
    )
    assert plan.members[0].pid_file == "a/broker-5.pid"
    assert plan.members[0].command[-2:] == ("--member-of", "a")


def test_without_settings_they_are_1_and_so_on_beside_the_default_port() -> None:
    plan = plan_of(2)
    assert [member.id for member in plan.members] == [1, 2]
    assert [address for _, address in plan.addresses] == ["127.0.0.1:9092", "127.0.0.1:9093"]
    assert "advertised.listeners" not in told(plan, 1)


def test_what_is_advertised_goes_on_too() -> None:
    plan = plan_of(
        2,
        listeners="PLAINTEXT://0.0.0.0:9092",
        advertised_listeners="PLAINTEXT://box:31000",
    )
    assert told(plan, 1)["listeners"] == "PLAINTEXT://0.0.0.0:9093"
    assert told(plan, 1)["advertised.listeners"] == "PLAINTEXT://box:31001"
    assert plan.addresses[1] == (2, "box:31001")


def test_metrics_are_served_on_ports_in_sequence() -> None:
    plan = plan_of(3, metrics_listen="[::1]:9308")
    assert [told(plan, n)["metrics.listen"] for n in range(3)] == [
        "[::1]:9308",
        "[::1]:9309",
        "[::1]:9310",
    ]
    assert told(plan_of(2, metrics_listen=":0"), 1)["metrics.listen"] == "127.0.0.1:0"
    assert "metrics.listen" not in told(plan_of(2), 1)
    with pytest.raises(click.UsageError, match="metrics from port 65535 on"):
        plan_of(2, metrics_listen=":65535")


def test_a_free_port_stays_one() -> None:
    plan = plan_of(2, listeners="PLAINTEXT://127.0.0.1:0")
    assert told(plan, 1)["listeners"] == "PLAINTEXT://127.0.0.1:0"


def test_kafkas_older_name_of_the_id_is_given_along() -> None:
    assert told(plan_of(2, broker_id="0"), 1) | {"listeners": ""} == {
        "broker.id": "1",
        "node.id": "1",
        "log.dirs": "data/broker-1",
        "listeners": "",
    }


def test_all_other_settings_and_flags_are_the_same_for_all(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\n")
    given = [Given("log.retention.hours", "24", "--set")]
    plan = make_plan(load(file, given), Told(file, given, True, "json", "debug"), 2)
    words = plan.members[1].command
    assert words[words.index("--config") + 1] == str(file)
    assert "--strict" in words
    assert words[words.index("--log-format") + 1] == "json"
    assert words[words.index("--log-level") + 1] == "debug"
    assert told(plan, 1)["log.retention.hours"] == "24"


def test_listeners_that_would_meet_are_refused() -> None:
    listeners = "PLAINTEXT://127.0.0.1:9092,PLAINTEXT2://127.0.0.1:9093"
    with pytest.raises(
        click.UsageError, match=r"broker 1 and broker 2 would both listen on .*9093"
    ):
        plan_of(
            2,
            listeners=listeners,
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,PLAINTEXT2:PLAINTEXT",
        )


def test_ports_that_do_not_exist_are_refused() -> None:
    with pytest.raises(click.UsageError, match="3 brokers from port 65534 on need ports above"):
        plan_of(3, listeners="PLAINTEXT://127.0.0.1:65534")


def test_auto_is_one_for_each_core() -> None:
    context = click.Context(start)
    [option] = [each for each in start.params if each.name == "processes"]
    assert process_count(context, option, "auto") == len(os.sched_getaffinity(0))
    assert process_count(context, option, "12") == 12
    assert process_count(context, option, None) is None


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "257", ""])
def test_any_other_number_of_processes_is_refused(ottla: Run, text: str) -> None:
    result = ottla("server", "start", "--processes", text)
    assert result.exit_code == 2
    assert f"{text!r} is neither a number from 1 to 256 nor auto" in result.stderr


def test_a_zookeeper_is_not_for_processes_that_share_metadata_of_their_own(ottla: Run) -> None:
    flags = ("--processes", "2", "--set", "zookeeper.connect=127.0.0.1:2181")
    result = ottla("server", "start", *flags)
    assert result.exit_code == 2
    assert "--processes keeps the metadata of its brokers itself" in result.stderr
