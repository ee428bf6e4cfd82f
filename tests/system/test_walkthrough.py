"""The walkthrough that introductions to Kafka have had for years, typed as it is written.

ZooKeeper, a server, a topic, messages; two more servers from copied files, a topic with three
replicas, its leader killed with -9, and everything still there. The commands and files are those of
the slides, long dashes and missing ones included. Only ports and folders are the test's own, since
other tests run at the same time, and the leader is killed by its number and not with `pkill`, for
the same reason.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.testing.process import free_port

CONFIG = Path(__file__).parents[2] / "config"
SECONDS = 250


class Terminal:
    """A folder as `tar -xzf` leaves it, in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._background: list[subprocess.Popen[bytes]] = []
        self._ports: dict[str, str] = {}
        shutil.copytree(CONFIG, folder / "config")
        subprocess.run([sys.executable, "-m", "ottla", "tools", "link", folder / "bin"], check=True)

    def here(self, text: str) -> str:
        """With the ports of this test, each chosen when it is first needed."""
        return re.sub(r"\b(2181|9092|9093|9094)\b", lambda port: self._port(port[0]), text)

    def _port(self, name: str) -> str:
        while name not in self._ports:
            port = str(free_port())
            if port not in self._ports.values():
                self._ports[name] = port
        return self._ports[name]

    def edit(self, file: str, changes: dict[str, str]) -> None:
        path = self.folder / file
        text = path.read_text()
        for name, value in changes.items():
            line = f"{name}={self.here(value)}"
            text, count = re.subn(rf"(?m)^{re.escape(name)}=.*$", line, text)
            assert count == 1, f"{file} has no {name}"
        path.write_text(text)

    def type(self, command: str, *, stdin: str = "") -> str:
        done = subprocess.run(
            self.here(command),
            check=False,
            shell=True,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str, ready: str, eventually: Callable[..., None]) -> None:
        """`command &`, until it has written `ready`."""
        output = self.folder / f"output-{len(self._background)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                f"exec {self.here(command)}",
                shell=True,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append(process)

        def started() -> bool:
            text = output.read_text(errors="replace")
            assert process.poll() is None, text
            return ready in text

        eventually(started, timeout=SECONDS)

    def pgrep(self, pattern: str) -> list[int]:
        """The numbers that `pkill -f` would kill, of those that were started here."""
        found = []
        for process in self._background:
            with open(f"/proc/{process.pid}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode()
            if re.search(pattern, line):
                found.append(process.pid)
        return found

    def close(self) -> None:
        for process in self._background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path / "kafka")
    yield terminal
    terminal.close()


def fields(line: str) -> dict[str, str]:
    """`Topic: t Partition: 0 …`, whatever the blanks."""
    return dict(re.findall(r"(\w+): ?(\S+)", line))


@pytest.mark.timeout(1800)  # each command has a deadline of its own
def test_the_walkthrough(terminal: Terminal, eventually: Callable[..., None]) -> None:
    type_, edit, start = terminal.type, terminal.edit, terminal.start
    edit("config/zookeeper.properties", {"clientPort": "2181"})
    start("bin/zookeeper-server-start.sh config/zookeeper.properties", "binding to", eventually)
    edit("config/server.properties", {"port": "9092", "zookeeper.connect": "localhost:2181"})
    start("bin/kafka-server-start.sh config/server.properties", "started in", eventually)

    type_(
        "bin/kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 1 "
        "--partitions 1 --topic test"
    )
    assert type_("bin/kafka-topics.sh —list —zookeeper localhost:2181") == "test\n"

    typed = "This is a message\nThis is another message\n"
    type_("bin/kafka-console-producer.sh --broker-list localhost:9092 --topic test", stdin=typed)
    assert typed == type_(
        "bin/kafka-console-consumer.sh --zookeeper localhost:2181 --topic test --from-beginning "
        "--max-messages 2"
    )

    for number in (1, 2):
        type_(f"cp config/server.properties config/server-{number}.properties")
        edit(
            f"config/server-{number}.properties",
            {
                "broker.id": str(number),
                "port": str(9092 + number),
                "log.dir": str(terminal.folder / f"kafka-logs-{number}"),
            },
        )
        start(f"bin/kafka-server-start.sh config/server-{number}.properties", "started", eventually)
    type_(
        "bin/kafka-topics.sh --create --zookeeper localhost:2181 --replication-factor 3 "
        "--partitions 1 --topic my-replicated-topic"
    )
    describe = (
        "bin/kafka-topics.sh --describe --zookeeper localhost:2181 --topic my-replicated-topic"
    )
    head, line = type_(describe).splitlines()
    assert (fields(head)["PartitionCount"], fields(head)["ReplicationFactor"]) == ("1", "3")
    before = fields(line)
    assert set(before["Replicas"].split(",")) == {"0", "1", "2"}
    assert set(before["Isr"].split(",")) == {"0", "1", "2"}

    typed = "my test message 1\nmy test message 2\n"
    type_(
        "bin/kafka-console-producer.sh --broker-list localhost:9092 --topic my-replicated-topic",
        stdin=typed,
    )
    consume = (
        "bin/kafka-console-consumer.sh --zookeeper localhost:2181 --frombeginning "
        "--topic my-replicated-topic --max-messages 2"
    )
    assert type_(consume) == typed

    leader = before["Leader"]
    file = "server.properties" if leader == "0" else f"server-{leader}.properties"
    [process] = terminal.pgrep(f"config/{file}")
    os.kill(process, signal.SIGKILL)

    def led_by_another() -> bool:
        lines = type_("bin/kafka-list-topic.sh --zookeeper localhost:2181").splitlines()
        [line] = [line for line in lines if line.startswith("topic: my-replicated-topic ")]
        now = re.fullmatch(
            r"topic: my-replicated-topic partition: 0 leader: (\d) replicas: (\S+) isr: (\S+)", line
        )
        assert now is not None, line
        assert now[2] == before["Replicas"]
        return now[1] != leader and leader not in now[3].split(",")

    eventually(led_by_another, timeout=SECONDS)
    assert type_(consume) == typed
