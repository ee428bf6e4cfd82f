"""Brokers of one machine under a supervisor, as real processes: any of them may be killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla import Admin, Consumer, NewTopic, Producer
from ottla.broker.cluster_folder import ClusterFolder
from ottla.broker.control import ask_to_renew
from ottla.cli.main import cli as command_line
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import FORMATS, SUPPORTED
from ottla.runtime.pid_file import hold, holder, release
from ottla.testing.process import BrokerProcess, free_port

Eventually = Callable[..., Any]
END = 120.0


class Processes:
    """A supervisor and its brokers, in a folder."""

    def __init__(self, folder: Path, brokers: int = 3, *flags: str) -> None:
        self.flags = flags
        self.data = folder / "data"
        self.folder = ClusterFolder((str(self.data),))
        self.base = free_port(row=brokers)
        self.brokers = brokers
        self.log_path = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.base + n}" for n in range(self.brokers))

    def line(self, *arguments: str) -> list[str]:
        place = ["--base-port", str(self.base), "--data-dir", str(self.data)]
        up = ["cluster", "up", "--brokers", str(self.brokers)]
        return [sys.executable, "-m", "ottla", *(arguments or (*up, *place, *self.flags))]

    def launch(self, *arguments: str) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.line(*arguments), stdout=log, stderr=log, start_new_session=True
            )

    def start(self, *arguments: str) -> None:
        """Start, and wait until everything is up."""
        before = self.log().count("Ctrl-C stops them all.")
        self.launch(*arguments)
        assert self.process is not None
        while self.log().count("Ctrl-C stops them all.") == before:
            assert self.process.poll() is None, self.log()
            threading.Event().wait(0.01)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Start what is to end by itself; its exit code, and what it has written."""
        ended = subprocess.run(
            self.line(*arguments), capture_output=True, text=True, timeout=END, check=False
        )
        return ended.returncode, ended.stdout + ended.stderr

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def pid(self, broker: int) -> int | None:
        return holder(self.folder.process(broker))

    def pids(self) -> dict[int, int]:
        """The brokers that run."""
        if not self.data.exists():
            return {}
        found = {each: self.pid(each) for each in self.folder.brokers()}
        return {broker: pid for broker, pid in found.items() if pid is not None}

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(END)

    def status(self) -> dict[str, Any]:
        code, text = self.run("cluster", "status", "--json", "--bootstrap", self.bootstrap)
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)
        return found

    def whole(self) -> bool:
        """All brokers are up and all replicas in sync."""
        found = self.status()
        up = [each["id"] for each in found["brokers"] if each["state"] == "up"]
        return len(up) == self.brokers and not found["troubled"]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        zookeeper = self.zookeeper
        if zookeeper is not None:
            os.kill(zookeeper, signal.SIGKILL)

    @property
    def zookeeper(self) -> int | None:
        """The process of a ZooKeeper that is run along."""
        return holder(f"{self.folder.zookeeper}.pid")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path)
    yield found
    found.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, brokers=2)
    yield found
    found.close()


def replicas_of(topic: str, admin: Admin) -> set[int]:
    """How many its partitions have, once the broker that is asked knows the topic."""
    try:
        return {len(each.replicas) for each in admin.describe_topic(topic).partitions}
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return set()


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    with Producer(bootstrap, acks="all") as producer:
        for number in numbers:
            producer.send(topic, str(number))


def consumed(bootstrap: str, topic: str, count: int) -> set[str]:
    deadline = time.monotonic() + END
    with Consumer(bootstrap) as consumer:
        while True:
            try:
                consumer.assign(topic, "earliest")
                break
            except KafkaError as error:
                # A new leader does not know yet how far its records are committed (KIP-207).
                if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE or time.monotonic() > deadline:
                    raise
        found: set[str] = set()
        while len(found) < count and time.monotonic() < deadline:
            found |= {(record.value or b"").decode() for record in consumer.take(count, timeout=1)}
        return found


def test_a_killed_broker_is_started_again_and_nothing_is_lost(
    processes: Processes, eventually: Eventually
) -> None:
    processes.start()
    with Admin(processes.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
        eventually(lambda: replicas_of("t", admin) == {3})
    produce(processes.bootstrap, "t", range(100))
    for broker in (1, 2, 3):
        before = processes.pid(broker)
        assert before is not None
        os.kill(before, signal.SIGKILL)
        produce(processes.bootstrap, "t", range(100 * broker, 100 * broker + 100))
        eventually(lambda b=broker, p=before: processes.pid(b) not in (None, p))
        eventually(processes.whole)
    assert consumed(processes.bootstrap, "t", 400) == set(map(str, range(400)))
    assert "broker 2 was ended by SIGKILL; it is started again" in processes.log()

    processes.signal(signal.SIGINT)
    assert processes.wait() == 0
    assert processes.pids() == {}
    assert holder(processes.folder.supervisor) is None


def test_brokers_survive_kill_9_of_the_supervisor_and_come_back_to_the_next_one(
    processes: Processes, eventually: Eventually
) -> None:
    processes.start()
    with Admin(processes.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
    before = processes.pids()
    assert len(before) == 3
    with Producer(processes.bootstrap, acks="all") as producer:
        producer.send("t", "0").result(END)
        processes.signal(signal.SIGKILL)
        processes.wait()
        # What needs no change of the metadata goes on.
        for number in range(1, 100):
            producer.send("t", str(number)).result(END)
    assert processes.pids() == before

    processes.start()
    assert processes.pids() == before
    assert "broker 1 still runs, as process" in processes.log()
    eventually(processes.whole)
    with Admin(processes.bootstrap) as admin:
        admin.create_topic("u", partitions=3)
    produce(processes.bootstrap, "u", range(100))
    assert consumed(processes.bootstrap, "t", 100) == set(map(str, range(100)))

    # One that is no child of this supervisor is watched all the same.
    os.kill(before[2], signal.SIGKILL)
    eventually(lambda: processes.pid(2) not in (None, before[2]))
    eventually(processes.whole)
    processes.signal(signal.SIGTERM)
    assert processes.wait() == 0
    assert processes.pids() == {}


def test_a_supervisor_leaves_brokers_alone_that_run_when_another_one_does_not_start(
    two: Processes, eventually: Eventually
) -> None:
    two.start()
    with Admin(two.bootstrap) as admin:
        admin.create_topic("t", partitions=2)
    two.signal(signal.SIGKILL)
    two.wait()
    before = two.pids()
    os.kill(before[2], signal.SIGKILL)
    eventually(lambda: two.pids() == {1: before[1]})
    meta = two.data / "broker-2" / "meta.properties"
    good = meta.read_text()
    meta.write_text("version=1\nnode.id=2\ncluster.id=JHOfTKO3RCSL2iBAkVLXRw\n")

    two.start()
    assert two.pids()[1] == before[1]
    assert "broker 2 did not start" in two.log()
    produce(f"127.0.0.1:{two.base}", "t", range(100))
    meta.write_text(good)  # it is tried again and again
    eventually(two.whole)
    assert two.pids()[1] == before[1]


def test_a_rolling_restart_is_not_noticed_by_clients(
    processes: Processes, start_load: Callable[..., Any]
) -> None:
    processes.start()
    with Admin(processes.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
    before = processes.pids()
    load = start_load(processes.bootstrap)
    load.wait_for_more()
    restart = ["cluster", "restart", "--rolling", "--bootstrap", f"127.0.0.1:{processes.base}"]
    code, text = processes.run(*restart, "--data-dir", str(processes.data), "--json")
    assert code == 0, text
    found = json.loads(text)
    assert sorted(each["broker"] for each in found["restarted"]) == [1, 2, 3]
    assert found["stopped"] is None
    after = processes.pids()
    assert set(after) == {1, 2, 3}
    assert not set(before.values()) & set(after.values())
    load.wait_for_more()
    load.check_kept()


def test_an_interrupted_rolling_restart_says_how_to_go_on(processes: Processes) -> None:
    processes.start()
    line = ["cluster", "restart", "--rolling", "--bootstrap", processes.bootstrap]
    line += ["--data-dir", str(processes.data)]
    with subprocess.Popen(
        [sys.executable, "-m", "ottla", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as restart:
        assert restart.stdout is not None
        first = restart.stdout.readline()
        restart.send_signal(signal.SIGINT)
        _, words = restart.communicate(timeout=END)
    assert re.fullmatch(r"broker \d: stopping\n", first)
    assert restart.returncode == 130
    assert "interrupted: no broker is restarted and in sync" in words
    left = re.search(r"To go on: ottla (.*)", words)
    assert left is not None, words
    arguments = shlex.split(left[1])
    assert arguments[:3] == line[:3]
    assert arguments[-4::2] == ["--broker", "--broker"]


def test_a_rolling_restart_that_clients_would_notice_is_refused(processes: Processes) -> None:
    processes.start()
    with Admin(processes.bootstrap) as admin:
        admin.create_topic("alone", replication=1)
    before = processes.pids()
    restart = ["cluster", "restart", "--rolling", "--bootstrap", processes.bootstrap]
    here = ["--data-dir", str(processes.data)]
    code, text = processes.run(*restart, *here)
    assert code == 1
    assert "alone-0 is offline (there is no other replica)" in text
    assert "Nothing was changed." in text
    code, text = processes.run(*restart, "--data-dir", str(processes.data / "other"))
    assert code == 1
    assert "nobody runs a cluster in" in text
    code, text = processes.run(*restart, *here, "--broker", "4")
    assert (code, "there is no broker 4" in text) == (1, True)
    code, text = processes.run(*restart, "--accept-pause", "--with", "false {id}")
    assert (code, "ended with exit code 1" in text) == (1, True)
    assert processes.pids() == before


def test_of_two_rolling_restarts_at_once_the_second_is_refused(two: Processes) -> None:
    two.start()
    before = two.pids()
    restart = ["cluster", "restart", "--rolling", "--bootstrap", two.bootstrap]
    restart += ["--data-dir", str(two.data)]
    first = hold(two.folder.rolling)  # as the other one does
    code, text = two.run(*restart)
    assert (code, two.pids()) == (1, before)
    assert f"process {os.getpid()} restarts brokers of this cluster already; nothing was" in text
    release(two.folder.rolling, first)
    code, text = two.run(*restart)
    assert (code, "2 brokers restarted" in text) == (0, True)
    assert not Path(two.folder.rolling).exists()


def test_no_broker_is_stopped_that_an_older_version_could_not_start_again(
    two: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back after an upgrade, typed when that was finalized already."""
    two.start()
    before = two.pids()
    older = {name: known for name, known in SUPPORTED.items() if name != FORMATS}
    monkeypatch.setattr("ottla.model.features.SUPPORTED", older)
    line = ["cluster", "restart", "--rolling", "--accept-pause", "--timeout", "10"]
    line += ["--bootstrap", two.bootstrap, "--data-dir", str(two.data)]
    done = CliRunner().invoke(command_line, line)
    assert done.exit_code == 1
    assert f"the cluster has finalized {FORMATS} at 1" in done.output
    assert "nothing was changed" in done.output
    assert two.pids() == before


def test_an_upgrade_refuses_the_folder_of_another_cluster(
    two: Processes, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also when all brokers are new, and only whoever runs them would be told to go on as one."""
    (tmp_path / "other").mkdir()
    other = Processes(tmp_path / "other", 1)
    request.addfinalizer(other.close)
    other.start()
    two.start()
    upgrade = ["cluster", "upgrade", "--yes", "--bootstrap", two.bootstrap]
    code, text = two.run(*upgrade, "--data-dir", str(other.data))
    assert code == 1, text
    assert f"{other.data} has another cluster than " in text
    assert "nothing was changed" in text
    code, text = two.run(*upgrade, "--data-dir", str(two.data))
    assert code == 0, text


def test_what_was_there_is_there_after_a_stop(processes: Processes) -> None:
    processes.start()
    with Admin(processes.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
    produce(processes.bootstrap, "t", range(100))
    processes.signal(signal.SIGTERM)
    assert processes.wait() == 0
    assert not list(processes.data.glob("*.pid")), "no process, no file that names one"
    processes.start()
    assert consumed(processes.bootstrap, "t", 100) == set(map(str, range(100)))


@pytest.mark.parametrize("command", ["cluster up", "server start"])
def test_what_is_ignored_at_the_start_stays_so_but_sigterm_ends_it(
    two: Processes, command: str, eventually: Eventually
) -> None:
    """A script's background has SIGINT ignored, nohup has SIGHUP, as with Kafka. If one of them
    counted SIGTERM would be the second signal, and the exit code 1."""
    line = two.line()
    if command == "server start":
        line = two.line("server", "start", "--listen", f"127.0.0.1:{two.base}")
        line += ["--data-dir", str(two.data)]
    with two.log_path.open("ab") as log:
        two.process = subprocess.Popen(
            ["sh", "-c", 'trap "" INT HUP TERM; exec "$@"', "sh", *line],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    eventually(lambda: "Ctrl-C stops" in two.log())
    two.signal(signal.SIGINT)
    two.signal(signal.SIGHUP)
    with Admin(f"127.0.0.1:{two.base}") as admin:
        admin.create_topic("t")
    two.signal(signal.SIGTERM)
    assert two.wait() == 0
    assert two.pids() == {}


@pytest.mark.parametrize("nobody", ["a pipe", "a full disk"])
def test_brokers_run_also_where_nobody_can_read_that_they_do(
    two: Processes, eventually: Eventually, nobody: str
) -> None:
    read, write = os.pipe() if nobody == "a pipe" else (None, os.open("/dev/full", os.O_WRONLY))
    if read is not None:
        os.close(read)
    with two.log_path.open("wb") as log:
        two.process = subprocess.Popen(two.line(), stdout=write, stderr=log, start_new_session=True)
    os.close(write)
    eventually(lambda: os.path.exists(two.folder.control), timeout=END)
    ask_to_renew(two.folder.control, "0.0.0")  # what it shows again cannot be read, either
    eventually(two.whole)
    two.signal(signal.SIGTERM)
    assert two.wait() == 0
    assert two.pids() == {}
    assert "Traceback" not in two.log()


def test_a_folder_is_for_one_supervisor(two: Processes) -> None:
    two.start()
    code, text = two.run()
    assert code == 1
    assert two.process is not None
    assert f"the cluster in {two.data} is already run by process {two.process.pid}: stop" in text
    for flag in ("--data-dir", "-d"):
        _, hint = two.run("cluster", "stop", flag, str(two.data))
        assert f"so does `kill {two.process.pid}`" in hint
    assert "or name another folder with --data-dir" in text
    assert len(two.pids()) == 2


def test_taken_ports_are_named_before_anything_is_made(two: Processes) -> None:
    zookeeper = free_port()
    with socket.socket() as taken, socket.socket() as other:
        for sock, port in ((taken, two.base + 1), (other, zookeeper)):
            sock.bind(("127.0.0.1", port))
            sock.listen()
        code, text = two.run()
        flags = ("--zookeeper", "--zookeeper-port", str(zookeeper))
        both_code, both = two.run(*two.line()[3:], *flags)
        listen = ("--listen", f"127.0.0.1:{two.base}", "--data-dir", str(two.data))
        _, started = two.run("server", "start", "--processes", "2", *listen)
    why = f"broker 2 cannot listen on 127.0.0.1:{two.base + 1}: another program uses this port"
    assert (code, text) == (1, f"Error: {why}; stop it, or choose other ports with --base-port\n")
    assert both_code == 1
    assert f"ZooKeeper cannot listen on 127.0.0.1:{zookeeper}" in both
    assert "with --zookeeper-port" in both
    assert why in both
    assert f"{why}; stop it, or choose another with --listen" in started
    assert not two.data.exists()


def test_fewer_brokers_are_refused_while_one_of_them_has_partitions(
    processes: Processes, eventually: Eventually
) -> None:
    start = ("server", "start", "--data-dir", str(processes.data))
    start += ("--listen", f"127.0.0.1:{processes.base}", "--processes")
    processes.start(*start, "3")
    with Admin(processes.bootstrap) as admin:
        admin.create_topics([NewTopic("t", assignment=[[3], [1]])])
    processes.signal(signal.SIGINT)
    assert processes.wait() == 0

    code, text = processes.run(*start, "2")
    assert code == 1
    assert "2 brokers are fewer than before, but broker 3 has 1 partition (t-0): start 3" in text
    assert "`ottla cluster drain 3 --yes`" in text
    assert processes.pids() == {}

    processes.start(*start, "3")
    with Admin(processes.bootstrap) as admin:
        admin.delete_topics("t")
        eventually(lambda: not admin.list_topics())
    processes.signal(signal.SIGKILL)
    processes.wait()
    assert set(processes.pids()) == {1, 2, 3}
    # The one that is not wanted any more is stopped.
    processes.start(*start, "2")
    eventually(lambda: set(processes.pids()) == {1, 2})


def test_ctrl_c_while_brokers_start_leaves_none(two: Processes, eventually: Eventually) -> None:
    two.launch()
    eventually(two.pids)
    two.signal(signal.SIGINT)
    assert two.wait() == 0
    assert two.pids() == {}


def test_a_signal_that_a_wrapper_sends_once_more_is_one(two: Processes) -> None:
    """timeout(1) sends it to its child and then to the group of processes that this is in, and
    `uv run` sends on what the terminal has sent to everybody: neither means to kill."""
    two.start()
    two.signal(signal.SIGSTOP)  # it finds both of them, however slowly they are sent
    two.signal(signal.SIGTERM)
    two.signal(signal.SIGINT)
    two.signal(signal.SIGCONT)
    assert two.wait() == 0
    assert "all brokers are stopped" in two.log()


def test_a_second_signal_ends_everything_at_once(two: Processes, eventually: Eventually) -> None:
    two.start()
    stuck = two.pid(2)
    assert stuck is not None
    os.kill(stuck, signal.SIGSTOP)  # the first signal waits for it
    two.signal(signal.SIGTERM)

    def ended() -> bool:
        two.signal(signal.SIGINT)
        return two.process is not None and two.process.poll() is not None

    eventually(ended)
    assert two.wait() == 1
    eventually(lambda: two.pids() == {})


def test_the_folders_of_one_broker_and_of_several_are_not_mixed_up(
    two: Processes, tmp_path: Path
) -> None:
    two.start()
    two.signal(signal.SIGTERM)
    assert two.wait() == 0
    code, text = two.run("server", "start", "--data-dir", str(two.data))
    assert code == 1
    assert f"{two.data} has the data of several brokers: start them with --processes" in text

    with BrokerProcess(tmp_path / "single") as single:
        single.start()
        assert single.terminate() == 0
        code, text = two.run("cluster", "up", "--data-dir", str(single.data_dir))
    assert code == 1
    assert f"{single.data_dir} is the data folder of a single broker" in text


@pytest.fixture
def on_zookeeper(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(tmp_path, 3, "--zookeeper", "--zookeeper-port", str(free_port()))
    yield found
    found.close()


def test_a_real_zookeeper_is_run_along_and_watched(
    on_zookeeper: Processes, eventually: Eventually
) -> None:
    on_zookeeper.start()
    with Admin(on_zookeeper.bootstrap) as admin:
        admin.create_topic("t", partitions=3)
    produce(on_zookeeper.bootstrap, "t", range(100))
    first = on_zookeeper.zookeeper
    assert first is not None
    logged = (on_zookeeper.data / "zookeeper.log").read_text()
    assert "INFO binding to port /127.0.0.1:" in logged
    assert f"its log is in {on_zookeeper.data / 'zookeeper.log'}" in on_zookeeper.log()
    assert "org.apache.zookeeper" not in on_zookeeper.log()
    complaints = [line for line in on_zookeeper.log().splitlines() if "ZooKeeper | " in line]
    assert not [line for line in complaints if "fsync-ing" not in line], "but for a slow disk"
    os.kill(first, signal.SIGKILL)
    eventually(lambda: on_zookeeper.zookeeper not in (None, first))
    eventually(lambda: "connected to ZooKeeper again" in on_zookeeper.log())
    assert "Exception" not in on_zookeeper.log()
    second = on_zookeeper.zookeeper
    before = on_zookeeper.pids()
    on_zookeeper.signal(signal.SIGKILL)
    on_zookeeper.wait()

    on_zookeeper.start()
    assert (on_zookeeper.zookeeper, on_zookeeper.pids()) == (second, before)
    assert f"ZooKeeper still runs, as process {second}" in on_zookeeper.log()
    eventually(on_zookeeper.whole)
    assert consumed(on_zookeeper.bootstrap, "t", 100) == set(map(str, range(100)))
    on_zookeeper.signal(signal.SIGINT)
    assert on_zookeeper.wait() == 0
    assert (on_zookeeper.zookeeper, on_zookeeper.pids()) == (None, {})

    code, text = on_zookeeper.run("cluster", "up", "--data-dir", str(on_zookeeper.data))
    assert code == 1
    assert "has its metadata in a ZooKeeper: start it with --zookeeper" in text


def test_a_cluster_that_keeps_its_metadata_is_not_moved_to_a_zookeeper(two: Processes) -> None:
    two.start()
    two.signal(signal.SIGTERM)
    assert two.wait() == 0
    code, text = two.run("cluster", "up", "--zookeeper", "--data-dir", str(two.data))
    assert code == 1
    assert "start it without --zookeeper" in text
