"""A real broker process for tests: start it, kill it, start it again on the same data.

This is the broker as a user runs it: `ottla server start` in a process of its own, with a
data folder and a log file. `ottla.testing` also has brokers inside the test process, which
are quicker and can be looked into; use this one when the process itself is the subject
(kill -9, signals, memory, what the log says) or when the test must not share an
interpreter with the broker.

    with BrokerProcess(tmp_path) as broker:
        broker.start()
        ...talk to broker.bootstrap...
        broker.kill()          # SIGKILL: no goodbye
        broker.start()         # same port, same data

A broker that dies while it is waited for raises `BrokerProcessError`, see `server_process.py`.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from ottla.testing.server_process import (
    START_TIMEOUT,
    ServerProcess,
    ServerProcessError,
    settings_line,
)

LOOPBACK = "127.0.0.1"

# Ports below the range from which Linux takes the source ports of outgoing connections
# (32768 and up). Inside that range a client that keeps knocking at a broker which is down
# sooner or later gets the broker's own port as its source port, connects to itself, and the
# broker can never bind it again.
PORTS = range(14_000, 32_000)

_given: set[int] = set()
"""Ports that this process was given: whoever has one may not listen yet, or be down for a while."""


class BrokerProcessError(ServerProcessError):
    """The broker ended, or did not do what was waited for; carries the end of its log."""

    server = "the broker"


def free_port(host: str = LOOPBACK) -> int:
    """A port that nothing listens on, chosen where no outgoing connection will take it.

    Nobody else in this process is given it, nor another worker of pytest-xdist: each of them has a
    stretch of the ports to itself.
    """
    rng = random.SystemRandom()
    ports = _stretch(os.environ)
    for _ in range(1_000):
        port = rng.choice(ports)
        if port in _given:
            continue
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise RuntimeError(f"no free port between {ports.start} and {ports.stop}")


def _stretch(environment: Mapping[str, str]) -> range:
    """The ports of this worker of pytest-xdist; all of them where there is none."""
    name = environment.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    count = environment.get("PYTEST_XDIST_WORKER_COUNT", "")
    if not (name.isdecimal() and count.isdecimal() and int(name) < int(count)):
        return PORTS
    size = len(PORTS) // int(count)
    return PORTS[int(name) * size : (int(name) + 1) * size]


class BrokerProcess(ServerProcess):
    """One `ottla server start` with its data folder, port and log file.

    `settings` become `--set key=value`, `arguments` are added as they are, and `wrapper` is
    put in front of the command (`["unshare", …]`). Without `listen` the broker gets
    `--listen 127.0.0.1:<port>`; with it, those listener strings are passed on instead and
    `port` must be one of theirs. `program` is what the interpreter runs in place of `-m ottla`.
    """

    failure = BrokerProcessError

    def __init__(  # noqa: PLR0913 - what a process is started with, by name
        self,
        folder: Path,
        *,
        port: int | None = None,
        data_dir: Path | None = None,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        listen: Sequence[str] | None = None,
        wrapper: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "ottla"),
    ) -> None:
        super().__init__(folder, "broker.log")
        self.host = LOOPBACK
        self.port = free_port() if port is None else port
        self.data_dir = folder / "data" if data_dir is None else data_dir
        self.settings: dict[str, object] = dict(settings or {})
        self.arguments = list(arguments)
        self.listen = list(listen) if listen is not None else [f"{self.host}:{self.port}"]
        self.wrapper = list(wrapper)
        self.environment = {"PYTHONUNBUFFERED": "1", **(environment or {})}
        self.program = list(program)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def command(self) -> list[str]:
        """The command line, run with this interpreter so that no PATH is needed."""
        line = [*self.wrapper, sys.executable, *self.program, "server", "start"]
        for listener in self.listen:
            line += ["--listen", listener]
        line += ["--data-dir", str(self.data_dir)]
        return line + settings_line(self.settings) + self.arguments

    @property
    def where(self) -> str:
        return self.bootstrap

    def serves(self) -> bool:
        try:
            with closing(socket.create_connection((self.host, self.port), timeout=1.0)):
                return True
        except OSError:
            return False

    def wait_listening(self, *, timeout: float = START_TIMEOUT) -> None:
        """Wait until it accepts connections, after `launch`."""
        self.wait_ready(timeout=timeout)
