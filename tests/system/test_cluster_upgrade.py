"""`ottla cluster upgrade` from an older version to this one, under load, and back again.

`data/ottla-9e15ef6.tar.xz` holds the modules that a broker of that commit runs: the last one before
partitions could be reassigned and before transactions, which changed what the metadata store holds
(docs/adr/0027). What is installed on the brokers' machine is what the link `installed` leads to.
"""

from __future__ import annotations

import asyncio
import compileall
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

import ottla
from ottla.cli.kafka_compat import run as run_tool
from ottla.cli.main import cli as command_line
from ottla.client.direct import DirectAdmin
from ottla.client.reassignments import begin, ongoing
from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.store import Set
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import FORMATS, SUPPORTED, TRANSACTIONS
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.groups import FindCoordinatorRequest
from ottla.runtime.files import OsFileSystem
from ottla.testing.process import BrokerProcess, BrokerProcessError, free_port

OLD = Path(__file__).parent / "data" / "ottla-9e15ef6.tar.xz"
END = 120.0
LONG = 600.0


class Machine:
    """Three brokers, each started again whenever it ends, with the version that is installed."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        with tarfile.open(OLD) as archive:
            archive.extractall(folder / "old", filter="data")
        compileall.compile_dir(folder / "old", quiet=1)  # once, not at every start
        self.folder = folder
        self.old, self.new = folder / "old", Path(ottla.__file__).parents[1]
        self.zookeeper = zookeeper
        self.ports = {broker: free_port() for broker in (1, 2, 3)}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(each,)) for each in self.ports]

    def install(self, version: Path) -> None:
        link = self.folder / "next"
        link.symlink_to(version)
        link.rename(self.folder / "installed")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for process in self._processes.values():
            process.kill()
        for thread in self._threads:
            thread.join()

    def log(self, broker: int) -> str:
        return (self.folder / f"{broker}.log").read_text()

    def ottla(self, *arguments: str, code: int = 0) -> str:
        """A command of the new version."""
        ended = subprocess.run(
            [sys.executable, "-m", "ottla", "cluster", *arguments, "--bootstrap", self.bootstrap],
            capture_output=True, text=True, timeout=LONG, check=False, cwd=self.folder,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def upgrade(self, *flags: str, code: int = 0) -> str:
        return self.ottla("upgrade", "--with", "kill $(cat {id}.pid)", *flags, code=code)

    def restart(self, *flags: str) -> str:
        return self.ottla("restart", "--rolling", "--with", "kill $(cat {id}.pid)", *flags)

    def versions(self) -> dict[int, str | None]:
        found = json.loads(self.upgrade("--json"))
        return {each["broker"]: each["version"] for each in found["brokers"]}

    def levels(self) -> dict[str, int]:
        with DirectAdmin(self.bootstrap) as admin:
            greeting = admin.router.any().greeting
            return {each.name: each.max_version_level for each in greeting.finalized_features}

    def _keep(self, broker: int) -> None:
        settings = {
            "node.id": broker,
            "zookeeper.connect": self.zookeeper,
            "default.replication.factor": 3,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "min.insync.replicas": 2,
        }
        line = [sys.executable, "-m", "ottla", "server", "start"]
        line += ["--listen", f"127.0.0.1:{self.ports[broker]}", "--data-dir", f"data-{broker}"]
        line += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        environment = os.environ | {"PYTHONPATH": "installed"}
        with (self.folder / f"{broker}.log").open("ab") as log:
            while not self._closing.is_set():
                process = self._processes[broker] = subprocess.Popen(
                    line, cwd=self.folder, env=environment, stdout=log, stderr=log
                )
                (self.folder / f"{broker}.pid").write_text(f"{process.pid}\n")
                if self._closing.is_set():  # whoever closes may have killed the one before
                    process.kill()
                process.wait()


class Group:
    """A consumer of a group, which commits as it goes; every error that it meets is kept."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.errors: list[str] = []
        self.read = 0
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watchers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.read += 1
            else:
                self.errors.append(str(error))

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture
def machine(zookeeper: str, unique: Callable[[], str], tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path, f"{zookeeper}/{unique()}")
    found.install(found.old)
    found.start()
    yield found
    found.close()


def is_up(machine: Machine) -> bool:
    try:
        with DirectAdmin(machine.bootstrap, timeout=5) as admin:
            return len(admin.describe_cluster().nodes) == len(machine.ports)
    except KafkaError:
        return False


def reassign(machine: Machine, replicas: list[int]) -> None:
    with DirectAdmin(machine.bootstrap) as admin:
        assert not begin(admin.router, {TopicPartition("t", 0): replicas})


def find_transactions(machine: Machine) -> int:
    with DirectAdmin(machine.bootstrap) as admin:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
        code: int = admin.router.node(1).ask(request).coordinators[0].error_code
        return code


@pytest.fixture
def running(
    machine: Machine, start_load: Callable[..., Any], eventually: Callable[..., Any]
) -> Iterator[tuple[Any, Group]]:
    """A producer and a consumer of the cluster, which never meet an error."""
    eventually(lambda: is_up(machine), timeout=END)
    line = ["--create", "--topic", "t", "--partitions", "3"]
    assert run_tool("kafka-topics", ["--bootstrap-server", machine.bootstrap, *line]) == 0
    load = start_load(machine.bootstrap)
    group = Group(machine.bootstrap, "t")
    try:
        load.wait_for_more(timeout=END)
        yield load, group
    finally:
        group.end()


def check_plan(machine: Machine) -> None:
    """It is shown, and nothing is done."""
    shown = machine.upgrade()
    assert "3 brokers to restart with" in shown
    assert "nothing is changed without --yes" in shown
    assert set(machine.versions().values()) == {None}


def check_mixed(machine: Machine) -> None:
    """Nobody uses what one of the brokers does not know."""
    assert machine.versions()[1] == ottla.__version__
    assert find_transactions(machine) == ErrorCode.UNSUPPORTED_VERSION
    line = ["--bootstrap-server", f"127.0.0.1:{machine.ports[1]}", "upgrade"]
    assert run_tool("kafka-features", [*line, "--feature", f"{FORMATS}=1"]) == 1


def check_finalized(machine: Machine, eventually: Callable[..., Any]) -> None:
    """What is new is used, and what is in the store with it."""
    eventually(lambda: find_transactions(machine) != ErrorCode.UNSUPPORTED_VERSION)
    for replicas in ([1, 2], [1, 2, 3]):
        reassign(machine, replicas)
        with DirectAdmin(machine.bootstrap) as admin:
            eventually(lambda admin=admin: not ongoing(admin.router), timeout=END)
    assert f"every broker runs {ottla.__version__}" in machine.upgrade("--yes", "--finalize")


def check_old_is_refused(machine: Machine, eventually: Callable[..., Any]) -> None:
    machine.install(machine.old)
    os.kill(int((machine.folder / "3.pid").read_text()), signal.SIGTERM)
    eventually(lambda: "it has format version 2" in machine.log(3), timeout=END)
    machine.install(machine.new)
    eventually(lambda: is_up(machine), timeout=END)


@pytest.mark.timeout(1800)
def test_brokers_are_upgraded_under_load_go_back_and_are_finalized_at_last(
    machine: Machine, running: tuple[Any, Group], eventually: Callable[..., Any]
) -> None:
    load, group = running
    before = machine.levels()
    assert FORMATS not in before
    machine.install(machine.new)
    check_plan(machine)

    machine.restart("--broker", "1")
    load.wait_for_more(timeout=END)
    check_mixed(machine)
    assert machine.levels() == before

    shown = machine.upgrade("--yes")
    assert "2 brokers upgraded; all replicas are in sync" in shown
    assert "not finalized yet" in shown
    assert set(machine.versions().values()) == {ottla.__version__}
    assert machine.levels() == before
    with pytest.raises(KafkaError, match="when the upgrade of this cluster is finalized"):
        reassign(machine, [1, 2])
    load.wait_for_more(timeout=END)

    machine.install(machine.old)
    machine.restart()
    assert set(machine.versions().values()) == {None}
    load.wait_for_more(timeout=END)

    machine.install(machine.new)
    shown = machine.upgrade("--yes", "--finalize")
    assert "finalized: older brokers do not start in this cluster any more" in shown
    # Whoever is asked may hear of it later than the controller.
    eventually(lambda: machine.levels() == before | {FORMATS: 1, TRANSACTIONS: 2})
    check_finalized(machine, eventually)

    seen = group.read
    eventually(lambda: group.read > seen, timeout=END)
    load.check_kept()
    assert not group.errors
    check_old_is_refused(machine, eventually)


def set_levels(broker: BrokerProcess, value: bytes) -> None:
    """Write feature levels as a newer version would have."""

    async def write() -> None:
        store = await EmbeddedStore.open(OsFileSystem(), str(broker.data_dir / "metadata"))
        version = (await store.read("")).entries[layout.FEATURES].version
        await store.commit(Set(layout.FEATURES, value, version))
        await store.close()

    asyncio.run(write())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            layout.encode_features({FORMATS: 9}),
            f"the cluster has finalized {FORMATS} at 9, and this version knows 0 to 1: start a "
            "newer version of Ottla here",
        ),
        (b'{"v":9}', "it has format version 9, this Ottla knows 2"),
    ],
)
def test_a_broker_does_not_start_in_a_cluster_that_is_too_new_for_it(
    start_broker: Callable[..., BrokerProcess], value: bytes, why: str
) -> None:
    broker = start_broker()
    broker.terminate()
    set_levels(broker, value)
    with pytest.raises(BrokerProcessError):
        broker.start()
    assert why in broker.log()
    assert "Traceback" not in broker.log()


def test_a_version_that_cannot_read_the_data_is_refused_before_anything_is_changed(
    start_broker: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    older = {name: known for name, known in SUPPORTED.items() if name != FORMATS}
    monkeypatch.setattr("ottla.model.features.SUPPORTED", older)
    line = ["cluster", "upgrade", "--yes", "--with", "exit 1", "-b", broker.bootstrap]
    done = CliRunner().invoke(command_line, line)
    assert done.exit_code == 1
    assert f"the cluster has finalized {FORMATS} at 1, which this version does not know" in (
        done.output
    )
    assert "nothing was changed" in done.output
