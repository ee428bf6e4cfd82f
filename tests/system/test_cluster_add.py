"""`ottla cluster add`: one more broker for a cluster that runs, under load, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import ottla
from ottla import Admin, NewTopic
from ottla.broker.cluster_folder import ClusterFolder
from ottla.broker.control import ask_to_renew
from ottla.cli.main import cli as command_line
from ottla.runtime.pid_file import holder
from ottla.testing.process import BrokerProcess, free_port

END = 250.0
UP = "Ctrl-C stops them all."


class Up:
    """`ottla cluster up` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.folder = ClusterFolder((str(self.data),))
        self.base = free_port(row=5)
        self.bootstrap = f"127.0.0.1:{self.base}"
        self.log_path = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        place = ["--base-port", str(self.base), "--data-dir", str(self.data)]
        before = self.log().count(UP)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ottla", "cluster", "up", *place, *flags],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        while self.log().count(UP) == before:
            assert self.process.poll() is None, self.log()
            threading.Event().wait(0.01)

    def run(self, *arguments: str, code: int = 0) -> str:
        return self.command(*arguments, "--bootstrap", self.bootstrap, code=code)

    def command(self, *arguments: str, code: int = 0) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "ottla", "cluster", *arguments],
            capture_output=True, text=True, timeout=END, check=False, cwd=self.data.parent,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def add(self, *flags: str, code: int = 0) -> str:
        return self.run("add", "--data-dir", str(self.data), *flags, code=code)

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def brokers(self) -> set[int]:
        with Admin(self.bootstrap) as admin:
            return {node.id for node in admin.describe_cluster().nodes}

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END) == 0

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for broker in self.folder.brokers() if self.data.exists() else ():
            pid = holder(self.folder.process(broker))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    found = Up(tmp_path)
    yield found
    found.close()


def test_a_broker_joins_under_load_gets_its_share_and_is_there_the_next_time(
    up: Up, start_load: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    up.start("--brokers", "2")
    with Admin(up.bootstrap) as admin:
        admin.create_topic("t", partitions=6)
    load = start_load(up.bootstrap)
    load.wait_for_more()
    shown = up.add()
    assert f"broker 3 was added: it listens on 127.0.0.1:{up.base + 2}, its data is in" in shown
    assert "to move" in shown
    assert "`ottla cluster rebalance --yes` does it" in shown
    load.wait_for_more()

    document = json.loads(up.add("--id", "7", "--port", str(up.base + 4), "--rebalance", "--json"))
    assert document["broker"] == 7
    assert document["address"] == f"127.0.0.1:{up.base + 4}"
    assert document["rebalance"]["executed"]

    def held() -> set[int]:
        with Admin(up.bootstrap) as admin:
            [described] = admin.describe_topics("t")
        return {each for part in described.partitions for each in part.replicas}

    eventually(lambda: held() == {1, 2, 3, 7})
    load.wait_for_more()
    load.check_kept()

    # It is watched like the others, and the next `up` knows it.
    before = holder(up.folder.process(7))
    assert before is not None
    os.kill(before, signal.SIGKILL)
    eventually(lambda: holder(up.folder.process(7)) not in (None, before), timeout=END)
    up.stop()
    up.start()
    eventually(lambda: up.brokers() == {1, 2, 3, 7})
    assert f"7: 127.0.0.1:{up.base + 4}" in up.log()


def test_a_broker_with_a_smaller_id_than_the_first_is_there_the_next_time(
    up: Up, eventually: Callable[..., Any]
) -> None:
    up.start("--brokers", "2")
    assert f"broker 0 was added: it listens on 127.0.0.1:{up.base + 2}" in up.add("--id", "0")
    with Admin(up.bootstrap) as admin:
        admin.create_topics([NewTopic("t", assignment=[[0]])])
    up.stop()
    place = ("--base-port", str(up.base), "--data-dir", str(up.data))
    refused = up.command("up", *place, "--brokers", "2", code=1)
    assert "broker 0 has 1 partition (t-0): start 3, and have `ottla cluster drain 0" in refused
    up.start()
    eventually(lambda: up.brokers() == {0, 1, 2})
    assert f"0: 127.0.0.1:{up.base + 2}" in up.log()


def test_the_process_that_runs_the_brokers_begins_anew_and_they_run_on(
    up: Up, start_load: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """As at the end of an upgrade: it is one of the new version then."""
    up.start("--brokers", "2")
    with Admin(up.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
    load = start_load(up.bootstrap)
    load.wait_for_more()
    assert up.process is not None
    pids = {broker: holder(up.folder.process(broker)) for broker in (1, 2)}
    assert not ask_to_renew(up.folder.control, ottla.__version__), "it has that version"
    banners = up.log().count(UP)
    assert ask_to_renew(up.folder.control, "0.0.0")
    eventually(lambda: up.log().count(UP) > banners, timeout=END)
    assert holder(up.folder.supervisor) == up.process.pid
    assert {broker: holder(up.folder.process(broker)) for broker in (1, 2)} == pids
    load.wait_for_more()
    # It keeps them running as before, and what has ended leaves nothing behind.
    assert pids[2] is not None
    os.kill(pids[2], signal.SIGKILL)
    eventually(lambda: holder(up.folder.process(2)) not in (None, pids[2]), timeout=END)
    eventually(lambda: not Path(f"/proc/{pids[2]}").exists(), timeout=END)
    assert "was added" in up.add()
    load.wait_for_more()
    load.check_kept()
    up.stop()


def test_the_process_that_begins_anew_runs_those_that_were_added_too(
    up: Up, eventually: Callable[..., Any]
) -> None:
    up.start("--brokers", "1")
    assert "broker 2 was added" in up.add()
    pids = {broker: holder(up.folder.process(broker)) for broker in (1, 2)}
    for _ in range(2):
        assert ask_to_renew(up.folder.control, "0.0.0")
        assert {broker: holder(up.folder.process(broker)) for broker in (1, 2)} == pids
    up.stop()
    assert [holder(up.folder.process(broker)) for broker in (1, 2)] == [None, None]
    # Whoever types the number again means it, and is told who is left out.
    up.start("--brokers", "1")
    assert "broker 2 was there before, and is left out now" in up.log()
    assert holder(up.folder.process(2)) is None


def test_all_that_were_there_are_there_again_with_auto(
    up: Up, eventually: Callable[..., Any]
) -> None:
    cores = len(os.sched_getaffinity(0))
    line = [sys.executable, "-m", "ottla", "server", "start", "--processes", "auto"]
    line += ["--listen", up.bootstrap, "--data-dir", str(up.data)]
    for added in (0, 1):
        with up.log_path.open("wb") as log:
            up.process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        eventually(lambda: UP in up.log(), timeout=END)
        assert len(up.brokers()) == cores + added
        if not added:
            assert "was added" in up.add()
        up.stop()


def test_who_interrupts_the_command_is_told_that_the_broker_comes(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    up.start("--brokers", "1")
    monkeypatch.setattr("ottla.broker.control.ask_to_add", interrupt)
    words = ["cluster", "add", "--data-dir", str(up.data), "-b", up.bootstrap]
    done = CliRunner().invoke(command_line, words)
    assert done.exit_code == 130
    assert "interrupted: the process that runs the cluster goes on and adds" in done.output


def test_a_broker_that_was_added_is_told_to_programs_whatever_comes_after_it(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise click.ClickException("1 partition did not arrive")

    up.start("--brokers", "1")
    monkeypatch.setattr("ottla.cli.cluster_add.run_moves", refuse)
    words = ["cluster", "add", "--rebalance", "--json", "--data-dir", str(up.data)]
    done = CliRunner().invoke(command_line, [*words, "-b", up.bootstrap])
    assert done.exit_code == 1
    assert "did not arrive" in done.stderr
    document = json.loads(done.stdout)
    assert (document["broker"], document["rebalance"]) == (2, None)


def test_what_cannot_be_is_refused_and_leaves_nothing_behind(up: Up, tmp_path: Path) -> None:
    shown = up.add(code=1)
    assert f"nobody runs a cluster in {up.data}" in shown
    up.start("--brokers", "1")
    before = {path.name for path in up.data.iterdir()}
    assert "broker 1 is there already: choose another id" in up.add("--id", "1", code=1)
    assert f"broker 1 listens on port {up.base}" in up.add("--port", str(up.base), code=1)
    with socket.create_server(("127.0.0.1", up.base + 1)):
        assert f"cannot listen on 127.0.0.1:{up.base + 1}" in up.add(code=1)
    (up.data / "broker-2").mkdir()
    meta = up.data / "broker-2" / "meta.properties"
    meta.write_text("version=1\nnode.id=2\ncluster.id=JHOfTKO3RCSL2iBAkVLXRw\n")
    shown = up.add(code=1)
    assert "belongs to broker 2 of cluster JHOfTKO3RCSL2iBAkVLXRw" in shown
    meta.unlink()
    meta.parent.rmdir()
    assert {path.name for path in up.data.iterdir()} == before
    assert up.brokers() == {1}

    # Another cluster answers than the one in the folder.
    with BrokerProcess(tmp_path / "other") as other:
        other.start()
        ours, up.bootstrap = up.bootstrap, other.bootstrap
        assert f"is not the one in {up.data}" in up.add(code=1)
        up.bootstrap = ours
    assert {path.name for path in up.data.iterdir()} == before
    assert "was added: it listens on" in up.add()


def test_the_settings_of_a_broker_on_zookeeper_are_written(
    zookeeper: str, unique: Callable[[], str], up: Up, tmp_path: Path
) -> None:
    where = f"{zookeeper}/{unique()}"
    up.data.mkdir()
    place = ["--zookeeper", where, "--listen", "127.0.0.1:19099", "--data-dir", "new"]
    assert f"{where} holds no cluster" in up.run("add", *place, code=1)
    settings = {"zookeeper.connect": where, "num.partitions": "5"}
    with BrokerProcess(tmp_path / "first", settings=settings) as first:
        first.start()
        assert "broker 1 is there already, or was" in up.run("add", "--id", "1", *place, code=1)
        taken = [*place[:3], first.bootstrap, *place[4:]]
        assert f"broker 1 listens on {first.bootstrap}" in up.run("add", *taken, code=1)
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "x").touch()
        assert "new is not empty" in up.run("add", *place, code=1)
        (tmp_path / "new" / "x").unlink()
        assert not (tmp_path / "broker-2.properties").exists()

        like = tmp_path / "server.properties"
        like.write_text(
            f"node.id=1\nlisteners=PLAINTEXT://{first.bootstrap}\nlog.dirs=first\n"
            f"zookeeper.connect={where}\nnum.partitions=5\nrack = a\\\n b\n"
        )
        port = free_port()
        place = ["--like", str(like), "--listen", f"127.0.0.1:{port}", "--data-dir", "new"]
        shown = up.run("add", *place)
        assert "wrote broker-2.properties: broker 2 of cluster" in shown
        assert "ottla server start --config broker-2.properties" in shown
        assert (tmp_path / "broker-2.properties").stat().st_mode & 0o777 == 0o600
        assert "is there already: move it away" in up.run("add", *place, code=1)

        line = [sys.executable, "-m", "ottla", "server", "start", "--config"]
        with (tmp_path / "second.log").open("wb") as log:
            second = subprocess.Popen(
                [*line, "broker-2.properties"], cwd=tmp_path, stdout=log, stderr=log
            )
        try:
            up.bootstrap = first.bootstrap
            while up.brokers() != {1, 2}:
                assert second.poll() is None, (tmp_path / "second.log").read_text()
                threading.Event().wait(0.1)
            text = (tmp_path / "broker-2.properties").read_text()
            assert "num.partitions=5\n" in text
            assert "rack=ab\n" in text
            assert (tmp_path / "new" / "meta.properties").exists()
        finally:
            second.terminate()
            second.wait()
