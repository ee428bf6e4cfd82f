"""A server in a process of its own, for tests: what `BrokerProcess` and its kin share.

It is started, killed, started again, and its log is read. Every wait has a deadline, and a server
that dies while it is waited for raises an error with the end of its log, so that a failing test
says why at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

# Long, since they are for what hangs: a busy machine may take its time to start a program.
START_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0


class ServerProcessError(Exception):
    """The process ended, or did not do what was waited for; carries the end of its log."""

    server: ClassVar[str] = "the server"

    def __init__(self, what: str, log: str) -> None:
        tail = "\n".join(log.splitlines()[-40:])
        super().__init__(f"{what}\n--- the end of {self.server}'s log ---\n{tail}")


class ServerProcess(ABC):
    """One server with its folder and its log file."""

    failure: ClassVar[type[ServerProcessError]] = ServerProcessError
    poll: ClassVar[float] = 0.005
    """Seconds between two looks whether it serves."""

    def __init__(self, folder: Path, log_name: str) -> None:
        # for the life of this object
        self.folder = folder
        self.log_path = folder / log_name
        self.environment: dict[str, str] = {}
        self.user: int | None = None
        """Who it runs as, if not as we do."""
        # for one run of the process
        self._process: subprocess.Popen[bytes] | None = None

    # -- what each server has of its own

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The command line, run with this interpreter so that no PATH is needed."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Its address, as a message names it."""

    @abstractmethod
    def serves(self) -> bool:
        """Whether clients are served now."""

    # -- the process

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.failure.server} was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # -- starting

    def launch(self) -> None:
        """Start the process and return at once, whether or not it will ever serve."""
        if self.alive:
            raise RuntimeError(f"{self.failure.server} already runs as process {self.pid}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                # a folder of pytest's is open to its owner alone
                cwd=self.folder if self.user is None else "/",
                start_new_session=True,
                user=self.user,
            )

    def start(self, *, timeout: float = START_TIMEOUT) -> Self:
        """Start the process and wait until it serves."""
        self.launch()
        try:
            self.wait_ready(timeout=timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def wait_ready(self, *, timeout: float = START_TIMEOUT) -> None:
        """Wait until clients are served."""
        deadline = time.monotonic() + timeout
        while True:
            if not self.alive:
                raise self._failed(f"ended with exit code {self.process.returncode}")
            if self.serves():
                return
            if time.monotonic() >= deadline:
                raise self._failed(f"does not serve on {self.where} after {timeout} s")
            time.sleep(self.poll)

    # -- stopping

    def kill(self) -> None:
        """SIGKILL to the server and to every child process it has; wait until it is gone."""
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
            raise self._failed(f"still runs after {timeout} s") from None

    def restart(self, *, timeout: float = START_TIMEOUT) -> None:
        """Stop cleanly and start again on the same port and data."""
        self.terminate()
        self.start(timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    # -- looking at it

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

    def wait_log(self, text: str, *, since: int = 0, timeout: float = START_TIMEOUT) -> str:
        """Wait until a line holding `text` was written after `since`; returns that line."""
        deadline = time.monotonic() + timeout
        while True:
            for line in self.log_since(since).splitlines():
                if text in line:
                    return line
            if time.monotonic() >= deadline:
                raise self._failed(f"did not log {text!r} within {timeout} s")
            time.sleep(0.01)

    def rss(self) -> int:
        """Resident memory of the process, in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise self._failed("has no memory any more")

    def open_files(self) -> int:
        """How many file descriptors the process holds."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _failed(self, what: str) -> ServerProcessError:
        return self.failure(f"{self.failure.server} {what}", self.log())


def settings_line(settings: Mapping[str, object]) -> list[str]:
    """Settings as arguments of an `ottla` command."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
