"""Commands as one has them at a terminal: what they show meanwhile, and how they are stopped."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ottla

Start = Callable[..., "OnTerminal"]


class OnTerminal:
    """A command whose stderr is a terminal of 100 columns; stdout is the same one, or a pipe."""

    def __init__(self, bootstrap: str, arguments: tuple[str, ...], *, piped: bool) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap, "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the last one who had the terminal open is gone
                return
            if not data:
                return
            self._shown += data

    @property
    def shown(self) -> str:
        """Everything that went to the terminal."""
        return self._shown.decode()

    def left(self) -> str:
        """What stays on the screen, line by line: without what was erased or overwritten."""
        text = re.sub(r"\x1b\[\?25[hl]", "", self.shown.replace("\r\n", "\n"))
        lines: list[str] = []
        row = 0
        for part in re.split(r"(\n|\r?\x1b\[2K|\x1b\[1A)", text):
            if not lines:
                lines.append("")
            if part == "\n":
                row += 1
                if row == len(lines):
                    lines.append("")
            elif part.endswith("\x1b[2K"):
                lines[row] = ""
            elif part == "\x1b[1A":
                row = max(0, row - 1)
            else:
                lines[row] += re.sub(r"\x1b\[[0-9;]*m|\r", "", part)
        return "\n".join(lines)

    def end(self) -> int:
        """Wait until it is over and everything has been read; its exit code."""
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        os.close(self._ours)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def on_terminal(bootstrap: str) -> Iterator[Start]:
    started: list[OnTerminal] = []

    def start(*arguments: str, piped: bool = False) -> OnTerminal:
        started.append(OnTerminal(bootstrap, arguments, piped=piped))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def topic(bootstrap: str, unique: Any) -> str:
    name: str = unique()
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=2, replication=1)
    return name


def run(bootstrap: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", *arguments],
        env={**os.environ, "OTTLA_BOOTSTRAP": bootstrap},
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )


# -- perf


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", ["produce", "consume", "latency"])
def test_perf_that_is_stopped_shows_what_it_has_measured(
    on_terminal: Start,
    bootstrap: str,
    topic: str,
    eventually: Any,
    verb: str,
    number: signal.Signals,
) -> None:
    rate = ["--rate", "2000"] if verb == "produce" else []
    if verb == "consume":
        run(bootstrap, "produce", topic, given=b"value\n" * 1500)
        rate = ["--timeout", "300"]
    command = on_terminal("perf", verb, topic, "--records", "10000000", "--json", *rate, piped=True)
    # the bar has been told of records
    eventually(lambda: re.search(r"[1-9][0-9,]* of 10,000,000 records", command.shown))
    command.process.send_signal(number)
    assert command.process.stdout is not None
    found = json.loads(command.process.stdout.read())
    assert command.end() == 0
    assert found["records"] > 0
    [stopped] = command.left().split("\n")[:-1]
    assert stopped == f"stopped after {found['records']:,} of 10,000,000 records"
    if verb == "consume":
        # the seconds in which nothing came any more are not counted
        assert found["records_per_second"] > found["records"] / found["seconds"]
