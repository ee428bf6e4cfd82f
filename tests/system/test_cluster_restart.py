"""`ottla cluster restart --rolling` with a command, and what happens between two brokers' turns."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli as command_line
from ottla.testing import Cluster, NewTopic


def restart(cluster: Cluster, folder: Path, before_each: Callable[[int], None]) -> Result:
    """A rolling restart by a command that leaves a file with the number of the broker."""
    over = threading.Event()

    def restart_wanted() -> None:
        while not over.wait(0.05):
            for path in folder.glob("broker-*"):
                path.unlink()
                broker = int(path.name.partition("-")[2])
                before_each(broker)
                cluster[broker].restart()

    words = ["cluster", "restart", "--rolling", "-b", cluster.bootstrap, "--timeout", "60"]
    words += ["--with", f"touch {folder}/broker-{{id}}"]
    with ThreadPoolExecutor(1) as pool:
        restarting = pool.submit(restart_wanted)
        try:
            return CliRunner().invoke(command_line, words)
        finally:
            over.set()
            restarting.result()


def test_a_broker_is_not_stopped_for_which_a_topic_came_meanwhile(tmp_path: Path) -> None:
    with Cluster(3, {"offsets.topic.num.partitions": 1}, topics=[NewTopic("t", 1, 3)]) as cluster:
        restarted: list[int] = []

        def before_each(broker: int) -> None:
            if not restarted:
                others = [[each] for each in cluster.brokers if each != broker]
                cluster.create(NewTopic("alone", assignment=others))
            restarted.append(broker)

        done = restart(cluster, tmp_path, before_each)
    assert done.exit_code == 1
    assert "alone-" in done.output
    assert "offline (there is no other replica)" in done.output
    assert "is left as it is" in done.output
    assert len(restarted) == 1


def test_what_is_wrong_already_is_told_before_what_clients_would_notice(tmp_path: Path) -> None:
    topic = NewTopic("t", assignment=[[1, 3]], config={"min.insync.replicas": "1"})
    with Cluster(3, {"offsets.topic.num.partitions": 1}, topics=[topic]) as cluster:
        cluster[3].crash()
        cluster.wait_until(lambda: all(3 not in cluster._live(each) for each in cluster.running))
        words = ["cluster", "restart", "--rolling", "-b", cluster[1].bootstrap]
        done = CliRunner().invoke(command_line, [*words, "--with", f"touch {tmp_path}/{{id}}"])
    assert done.exit_code == 1
    assert done.output == "Error: broker 3 is missing; nothing was changed\n"
    assert not [*tmp_path.iterdir()]


def test_what_a_command_prints_is_not_among_the_json(capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(1) as cluster:
        words = ["cluster", "restart", "--rolling", "--accept-pause", "-b", cluster.bootstrap]
        done = CliRunner().invoke(command_line, [*words, "--with", "echo noise; false", "--json"])
    assert done.exit_code == 1
    assert "ended with exit code 1" in json.loads(done.stdout)["stopped"]
    printed = capfd.readouterr()
    assert "noise" not in printed.out
    assert "noise" in printed.err


def test_a_command_with_other_names_in_braces_is_refused() -> None:
    with Cluster(1) as cluster:
        words = ["cluster", "restart", "--rolling", "--accept-pause", "-b", cluster.bootstrap]
        for command in ("run {other}", "run {id.other}", "run {host[0]}", "run {", "run {id"):
            done = CliRunner().invoke(command_line, [*words, "--with", command])
            assert done.exit_code == 2, done.output
            assert "--with knows {id} and {host}, nothing else" in done.output
