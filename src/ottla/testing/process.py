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

import atexit
import os
import random
import socket
import sys
import threading
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
BLOCK = 600
"""So many of them are one process's own."""


class BrokerProcessError(ServerProcessError):
    """The broker ended, or did not do what was waited for; carries the end of its log."""

    server = "the broker"


class _Ports:
    """The ports that this process hands out: a block that no other test process has.

    A port that was found free is bound later, and while its broker is down it is free again; who
    looks for one meanwhile in another process must not find it. So each process claims a block, by
    the name of a socket that the kernel keeps while it lives, and hands out its ports in turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = -1
        self._claim: socket.socket | None = None
        self._block = range(0)
        self._next = 0

    def take(self, host: str, row: int) -> int:
        """The first of so many ports in a row that nothing listens on."""
        with self._lock:
            if self._owner != os.getpid():  # a forked child has a block of its own
                self._claim_block()
            for _ in self._block:
                first = self._block[self._next]
                if first + row <= self._block.stop and _are_free(host, range(first, first + row)):
                    self._next = (self._next + row) % len(self._block)
                    return first
                self._next = (self._next + 1) % len(self._block)
        raise RuntimeError(
            f"no {row} free ports between {self._block.start} and {self._block.stop}"
        )

    def _claim_block(self) -> None:
        blocks = [PORTS[start : start + BLOCK] for start in range(0, len(PORTS), BLOCK)]
        random.SystemRandom().shuffle(blocks)
        self._owner, self._next = os.getpid(), 0
        if self._claim is not None:
            self._claim.close()  # which the parent process keeps
        for self._block in blocks:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                claim.bind(f"\0ottla-test-ports-{self._block.start}")
            except OSError:  # taken, or there are no such names here
                claim.close()
                continue
            self._claim = claim
            atexit.register(claim.close)
            return


def _are_free(host: str, ports: range) -> bool:
    for port in ports:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


_ports = _Ports()


def free_port(host: str = LOOPBACK, *, row: int = 1) -> int:
    """A port that nothing listens on, chosen where no outgoing connection will take it, or the
    first of a `row` of such ports. No other test process of this machine gets the same."""
    return _ports.take(host, row)


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
