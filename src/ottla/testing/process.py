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

Every wait has a deadline, and a broker that dies while it is waited for raises
`BrokerProcessError` with the end of its log, so that a failing test says why at once.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

LOOPBACK = "127.0.0.1"

# Ports below the range from which Linux takes the source ports of outgoing connections
# (32768 and up). Inside that range a client that keeps knocking at a broker which is down
# sooner or later gets the broker's own port as its source port, connects to itself, and the
# broker can never bind it again.
PORTS = range(14_000, 32_000)

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


class BrokerProcessError(Exception):
    """The process ended, or did not do what was waited for; carries the end of its log."""

    def __init__(self, what: str, log: str) -> None:
        tail = "\n".join(log.splitlines()[-40:])
        super().__init__(f"{what}\n--- the end of the broker's log ---\n{tail}")


def free_port(host: str = LOOPBACK) -> int:
    """A port that nothing listens on, chosen where no outgoing connection will take it."""
    rng = random.SystemRandom()
    for _ in range(1_000):
        port = rng.choice(PORTS)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {PORTS.start} and {PORTS.stop}")


class BrokerProcess:
    """One `ottla server start` with its data folder, port and log file.

    `settings` become `--set key=value`, `arguments` are added as they are, and `wrapper` is
    put in front of the command (`["unshare", …]`). Without `listen` the broker gets
    `--listen 127.0.0.1:<port>`; with it, those listener strings are passed on instead and
    `port` must be one of theirs. `program` is what the interpreter runs in place of `-m ottla`.
    """

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
        # for the life of this object
        self.folder = folder
        self.host = LOOPBACK
        self.port = free_port() if port is None else port
        self.data_dir = folder / "data" if data_dir is None else data_dir
        self.log_path = folder / "broker.log"
        self.settings: dict[str, object] = dict(settings or {})
        self.arguments = list(arguments)
        self.listen = list(listen) if listen is not None else [f"{self.host}:{self.port}"]
        self.wrapper = list(wrapper)
        self.environment = dict(environment or {})
        self.program = list(program)
        # for one run of the process
        self._process: subprocess.Popen[bytes] | None = None

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
        for name, value in self.settings.items():
            line += ["--set", f"{name}={value}"]
        return line + self.arguments

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # -- starting ------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process and return at once, whether or not it will ever listen."""
        if self.alive:
            raise RuntimeError(f"the broker already runs as process {self.pid}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
                cwd=self.folder,
                start_new_session=True,
            )

    def start(self, *, timeout: float = START_TIMEOUT) -> BrokerProcess:
        """Start the process and wait until it accepts connections."""
        self.launch()
        try:
            self.wait_listening(timeout=timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def wait_listening(self, *, timeout: float = START_TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while True:
            if not self.alive:
                code = self.process.returncode
                raise BrokerProcessError(f"the broker ended with exit code {code}", self.log())
            try:
                with closing(socket.create_connection((self.host, self.port), timeout=1.0)):
                    return
            except OSError:
                if time.monotonic() >= deadline:
                    raise BrokerProcessError(
                        f"the broker does not listen on {self.bootstrap} after {timeout} s",
                        self.log(),
                    ) from None
                time.sleep(0.005)

    # -- stopping ------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL to the broker and to every child process it has; wait until it is gone."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def terminate(self, *, timeout: float = STOP_TIMEOUT) -> int:
        """SIGTERM, then wait; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout=timeout)

    def wait(self, *, timeout: float = STOP_TIMEOUT) -> int:
        """Wait until the process ends by itself; returns the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise BrokerProcessError(
                f"the broker still runs after {timeout} s", self.log()
            ) from None

    def restart(self, *, timeout: float = START_TIMEOUT) -> None:
        """Stop cleanly and start again on the same port and data."""
        self.terminate()
        self.start(timeout=timeout)

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    # -- looking at it -------------------------------------------------------------------

    def log(self) -> str:
        """Everything the process wrote so far, over all its runs."""
        try:
            return self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        """A position to hand to `log_since`."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_since(self, position: int) -> str:
        with self.log_path.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")

    def wait_log(self, text: str, *, since: int = 0, timeout: float = 10.0) -> str:
        """Wait until a line holding `text` was written after `since`; returns that line."""
        deadline = time.monotonic() + timeout
        while True:
            for line in self.log_since(since).splitlines():
                if text in line:
                    return line
            if time.monotonic() >= deadline:
                raise BrokerProcessError(
                    f"the broker did not log {text!r} within {timeout} s", self.log()
                )
            time.sleep(0.01)

    def rss(self) -> int:
        """Resident memory of the process, in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BrokerProcessError("the broker has no memory any more", self.log())

    def open_files(self) -> int:
        """How many file descriptors the process holds."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))
