"""A real ZooKeeper for tests: `ottla zookeeper start` in a process of its own.

    with ZooKeeperProcess(tmp_path) as zookeeper:
        zookeeper.start()
        ...connect to zookeeper.address...
        zookeeper.kill()       # SIGKILL: no goodbye
        zookeeper.start()      # same port, same data

Its clock ticks fast, so that sessions may be as short as a fifth of a second, and it does not wait
for the disk: that is not what tests are about, and what was written survives a SIGKILL anyway.
`ensemble` makes several that know one another.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType

from ottla.testing.process import LOOPBACK, free_port

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
_SETTINGS: Mapping[str, object] = {
    "tickTime": 100,
    "minSessionTimeout": 200,
    "maxSessionTimeout": 60_000,
    "forceSync": "no",
}


class ZooKeeperProcessError(Exception):
    """The process ended, or did not do what was waited for; carries the end of its log."""

    def __init__(self, what: str, log: str) -> None:
        tail = "\n".join(log.splitlines()[-40:])
        super().__init__(f"{what}\n--- the end of ZooKeeper's log ---\n{tail}")


class ZooKeeperProcess:
    """One `ottla zookeeper start` with its folder, port and log file."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        server_id: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        # for the life of this object
        self.folder = folder
        self.port = free_port() if port is None else port
        self.data_dir = folder / "data"
        self.log_path = folder / "zookeeper.log"
        self.server_id = server_id
        self.settings: dict[str, object] = {**_SETTINGS, **(settings or {})}
        # for one run of the process
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For `zookeeper.connect`, without a chroot."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("ZooKeeper was not started")
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process and return at once, whether or not it will ever serve."""
        if self.alive:
            raise RuntimeError(f"ZooKeeper already runs as process {self.process.pid}")
        self.folder.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, "-m", "ottla", "zookeeper", "start", "--listen", self.address]
        line += ["--data-dir", str(self.data_dir)]
        if self.server_id is not None:
            line += ["--id", str(self.server_id)]
        for name, value in self.settings.items():
            line += ["--set", f"{name}={value}"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KAFKA_HEAP_OPTS": "-Xmx256m"},
                cwd=self.folder,
                start_new_session=True,
            )

    def start(self, *, timeout: float = START_TIMEOUT) -> ZooKeeperProcess:
        """Start the process and wait until it serves."""
        self.launch()
        try:
            self.wait_serving(timeout=timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def wait_serving(self, *, timeout: float = START_TIMEOUT) -> str:
        """Wait until it serves clients; returns its mode: standalone, leader or follower."""
        deadline = time.monotonic() + timeout
        while True:
            if not self.alive:
                code = self.process.returncode
                raise ZooKeeperProcessError(f"ZooKeeper ended with exit code {code}", self.log())
            mode = self.mode()
            if mode is not None:
                return mode
            if time.monotonic() >= deadline:
                raise ZooKeeperProcessError(
                    f"ZooKeeper does not serve on {self.address} after {timeout} s", self.log()
                )
            time.sleep(0.02)

    def mode(self) -> str | None:
        """What it is now; None while it does not serve."""
        try:
            with closing(socket.create_connection((LOOPBACK, self.port), timeout=1.0)) as asking:
                asking.sendall(b"srvr")
                answer = b""
                while piece := asking.recv(4096):
                    answer += piece
        except OSError:
            return None
        for line in answer.decode(errors="replace").splitlines():
            name, _, value = line.partition(": ")
            if name == "Mode":
                return value
        return None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; wait until it is gone."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def terminate(self) -> int:
        """SIGTERM, then wait; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT)

    def wipe(self) -> None:
        """Delete everything it knows; it must not be running."""
        if self.alive:
            raise RuntimeError("stop ZooKeeper first")
        shutil.rmtree(self.data_dir)

    def log(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def __enter__(self) -> ZooKeeperProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def ensemble(folder: Path, servers: int = 3) -> list[ZooKeeperProcess]:
    """Several that are one; start them all with `launch`, then wait for each."""
    # Ticks are short here. A leader that gets no processor for half a second must not be deposed.
    limits: dict[str, object] = {"initLimit": 100, "syncLimit": 50}
    places = {
        f"server.{number}": f"{LOOPBACK}:{free_port()}:{free_port()}"
        for number in range(1, servers + 1)
    }
    return [
        ZooKeeperProcess(folder / f"server-{number}", server_id=number, settings=limits | places)
        for number in range(1, servers + 1)
    ]
