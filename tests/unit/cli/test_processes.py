"""Several brokers on one machine: what each of them is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from ottla.broker.cluster_folder import ClusterFolder, Seat
from ottla.broker.start_failed import StartFailed
from ottla.cli.processes import AtLeast, Plan, Told, make_plan, process_count, seats_for
from ottla.cli.serve import start
from ottla.config.load import Given, load
from ottla.runtime.files import OsFileSystem

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


def test_metrics_of_one_broker_at_the_port_of_another_are_refused() -> None:
    message = "the metrics of broker 1 and a listener of broker 3 would both be at port 9094"
    with pytest.raises(click.UsageError, match=message):
        plan_of(3, listeners="PLAINTEXT://127.0.0.1:9092", metrics_listen="127.0.0.1:9094")


def test_ports_that_do_not_exist_are_refused() -> None:
    with pytest.raises(click.UsageError, match="3 brokers from port 65534 on need ports above"):
        plan_of(3, listeners="PLAINTEXT://127.0.0.1:65534")


def test_auto_is_one_for_each_core() -> None:
    context = click.Context(start)
    [option] = [each for each in start.params if each.name == "processes"]
    auto = process_count(context, option, "auto")
    assert auto == len(os.sched_getaffinity(0))
    assert isinstance(auto, AtLeast), "those that were there before are there again"
    twelve = process_count(context, option, "12")
    assert twelve == 12
    assert not isinstance(twelve, AtLeast)
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


def test_brokers_that_were_added_are_there_again_and_new_ones_come_after_them() -> None:
    known = [Seat(1, 0), Seat(2, 1), Seat(7, 9)]
    assert seats_for(2, 1, known) == (Seat(1, 0), Seat(2, 1))
    assert seats_for(4, 1, known) == (Seat(1, 0), Seat(2, 1), Seat(7, 9), Seat(8, 10))
    assert seats_for(2, 5, known) == (Seat(5, 0), Seat(6, 1)), "somebody has changed the first id"


def test_a_broker_that_was_added_with_a_smaller_id_is_one_of_those_after_the_first() -> None:
    known = [Seat(0, 3), Seat(1, 0), Seat(2, 1), Seat(3, 2)]
    assert seats_for(4, 1, known) == (Seat(1, 0), Seat(2, 1), Seat(3, 2), Seat(0, 3))
    assert seats_for(3, 1, known) == (Seat(1, 0), Seat(2, 1), Seat(3, 2))
    assert seats_for(5, 1, known)[-1] == Seat(4, 4)


def test_the_brokers_of_the_last_run_are_remembered(tmp_path: Path) -> None:
    fs, folder = OsFileSystem(), ClusterFolder((str(tmp_path),))
    assert folder.seats(fs) == ()
    folder.note_seats(fs, [Seat(7, 9), Seat(1, 0)])
    assert folder.seats(fs) == (Seat(1, 0), Seat(7, 9))
    Path(folder.roster).write_text("[")
    with pytest.raises(StartFailed, match=r"brokers\.json cannot be read"):
        folder.seats(fs)


def test_one_more_broker_has_the_next_id_and_port_or_those_that_are_chosen() -> None:
    plan = plan_of(2, listeners="PLAINTEXT://127.0.0.1:19092")
    growth = plan.growth
    assert growth.seat(plan.seats, None, None) == Seat(3, 2)
    chosen = growth.seat(plan.seats, 9, 19200)
    assert growth.address(chosen) == "127.0.0.1:19200"
    assert "node.id=9" in growth.plan(chosen).command
    for port, why in [(19093, "broker 2 listens on port 19093"), (19000, "ports below 19092")]:
        with pytest.raises(StartFailed, match=why):
            growth.seat(plan.seats, None, port)
    free = plan_of(1, listeners="PLAINTEXT://127.0.0.1:0")
    with pytest.raises(StartFailed, match="free ports"):
        free.growth.seat(free.seats, None, 19000)
