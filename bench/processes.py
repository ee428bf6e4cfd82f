"""Processes that the bench starts, watches and ends; never any other.

Every child runs in its own process group, so that Ctrl-C in a terminal reaches only the bench,
which then ends its children in order by process id. A child also asks the kernel to be killed
when the bench itself disappears, so that even `kill -9` of the bench leaves no broker behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

_PR_SET_PDEATHSIG = 1
_LISTEN = "0A"
_BLOCKS = range(20_000, 32_000)
_BLOCK_TRIES = 200
_KILL_PATIENCE = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


class BenchError(Exception):
    """Something the person at the keyboard has to know, in one sentence."""


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> None:
    """For `preexec_fn`: the kernel ends the child when the bench is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, sent)


def free_ports(count: int) -> list[int]:
    """Different loopback ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def free_port_block(count: int) -> int:
    """The first of so many loopback ports in a row that were free a moment ago.

    They lie below those that the kernel gives to clients, of which one would soon take a port of
    the row while its broker is down.
    """
    for _ in range(_BLOCK_TRIES):
        first = random.choice(_BLOCKS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise BenchError(f"no {count} loopback ports in a row are free")


def wait_port(port: int, child: Child, timeout: float) -> None:
    """Return once the child itself listens on the loopback port, or say why it never will.

    That something answers is not enough: a port that was free when it was chosen may belong to a
    stranger by now, and the load would go to the stranger.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if child.listens(port):
            return
        if child.process.poll() is not None:
            raise BenchError(
                f"{child.name} ended at once with code {child.process.returncode}:\n{child.tail()}"
            )
        time.sleep(0.01)
    raise BenchError(f"{child.name} did not listen within {timeout:.0f} s:\n{child.tail()}")


def listening_sockets(port: int) -> set[str]:
    """All sockets of this machine that listen on a port, named as in `/proc/<pid>/fd`."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its descendants hold and have used."""

    cpu_seconds: float
    resident_bytes: int


class Child:
    """One child process with its output in a file. Leaving the context ends it.

    One that starts brokers of its own (`family`) is asked to end when the bench is gone, and ends
    them; a kill reaches all of them.

    One that is compared with brokers that a `family` starts has a session of its own (`apart`), as
    these have. Linux shares the cores among sessions (autogroups), and one in the session of the
    load generator fares otherwise.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stop_timeout: float = 30.0,
        family: bool = False,
        apart: bool = False,
    ) -> None:
        self.name = name
        self._family = family
        self.output = output
        self.stop_timeout = stop_timeout
        self.started = time.monotonic_ns()
        with output.open("ab") as sink:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=None if env is None else dict(env),
                process_group=None if apart else 0,
                start_new_session=apart,
                preexec_fn=partial(  # noqa: PLW1509 - one system call, no lock is taken
                    die_with_parent, signal.SIGTERM if family else signal.SIGKILL
                ),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that is not heeded in time."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.stop_timeout)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has buried it."""
        if self.process.poll() is None:
            below = descendants(self.pid) if self._family else []
            self.process.kill()
            self.process.wait()
            for pid in below:
                _kill_stranger(pid)

    def listens(self, port: int) -> bool:
        """Whether the process or one it has started owns the socket that listens there."""
        wanted = listening_sockets(port)
        if not wanted:
            return False
        for pid in (self.pid, *descendants(self.pid)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        if str(descriptor.readlink()) in wanted:
                            return True
        return False

    def tail(self, lines: int = 20) -> str:
        """The last lines it printed."""
        text = self.output.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def usage(self) -> Usage:
        """CPU and memory of the process and whatever it has started."""
        cpu = 0.0
        resident = 0
        for pid in (self.pid, *descendants(self.pid)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                cpu += cpu_seconds(pid)
                resident += resident_bytes(pid)
        return Usage(cpu, resident)


def _kill_stranger(pid: int) -> None:
    """SIGKILL for a process that is not a child of ours, and wait until it has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], _KILL_PATIENCE)
        finally:
            os.close(descriptor)


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`, nearest first."""
    found: list[int] = []
    open_ends = [pid]
    while open_ends:
        parent = open_ends.pop()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    children = [int(child) for child in (task / "children").read_text().split()]
                    found += children
                    open_ends += children
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, with that of the children it has waited for."""
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Resident set of one process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def run(
    name: str,
    command: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run to the end, output captured; a failure becomes one readable error."""
    with subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="backslashreplace",
        cwd=cwd,
        env=None if env is None else dict(env),
        process_group=0,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock is taken
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise BenchError(f"{name} took longer than {timeout:.0f} s") from None
        except BaseException:
            process.kill()
            raise
    if check and process.returncode != 0:
        said = "\n".join((out + err).splitlines()[-20:])
        raise BenchError(f"{name} failed with code {process.returncode}:\n{said}")
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)
