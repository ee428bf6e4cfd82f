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

import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from ottla.testing.process import LOOPBACK, free_port
from ottla.testing.server_process import (
    START_TIMEOUT,
    ServerProcess,
    ServerProcessError,
    settings_line,
)

_SETTINGS: Mapping[str, object] = {
    "tickTime": 100,
    "minSessionTimeout": 200,
    "maxSessionTimeout": 60_000,
    "forceSync": "no",
}


class ZooKeeperProcessError(ServerProcessError):
    """It ended, or did not do what was waited for; carries the end of its log."""

    server = "ZooKeeper"


class ZooKeeperProcess(ServerProcess):
    """One `ottla zookeeper start` with its folder, port and log file."""

    failure = ZooKeeperProcessError
    poll = 0.02

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        server_id: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(folder, "zookeeper.log")
        self.port = free_port() if port is None else port
        self.data_dir = folder / "data"
        self.server_id = server_id
        self.settings: dict[str, object] = {**_SETTINGS, **(settings or {})}
        self.environment = {"KAFKA_HEAP_OPTS": "-Xmx256m"}
        self._mode: str | None = None

    @property
    def address(self) -> str:
        """For `zookeeper.connect`, without a chroot."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def where(self) -> str:
        return self.address

    @property
    def command(self) -> list[str]:
        line = [sys.executable, "-m", "ottla", "zookeeper", "start", "--listen", self.address]
        line += ["--data-dir", str(self.data_dir)]
        if self.server_id is not None:
            line += ["--id", str(self.server_id)]
        return line + settings_line(self.settings)

    def serves(self) -> bool:
        self._mode = self.mode()
        return self._mode is not None

    def wait_serving(self, *, timeout: float = START_TIMEOUT) -> str:
        """Wait until it serves clients; returns its mode: standalone, leader or follower."""
        self.wait_ready(timeout=timeout)
        assert self._mode is not None
        return self._mode

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

    def wipe(self) -> None:
        """Delete everything it knows; it must not be running."""
        if self.alive:
            raise RuntimeError("stop ZooKeeper first")
        shutil.rmtree(self.data_dir)


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
