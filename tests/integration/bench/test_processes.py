"""Processes that the bench starts, and those that they start."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from bench.processes import Child, descendants, free_port_block

STARTS_ANOTHER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


def test_row_of_free_ports_can_be_bound() -> None:
    first = free_port_block(4)
    with contextlib.ExitStack() as stack:
        for port in range(first, first + 4):
            stack.enter_context(socket.socket()).bind(("127.0.0.1", port))


def test_kill_reaches_the_whole_family(tmp_path: Path) -> None:
    output = tmp_path / "output"
    command = [sys.executable, "-c", STARTS_ANOTHER]
    with Child("family", command, output=output, family=True) as parent:
        while not (text := output.read_text()).endswith("\n"):
            assert parent.process.poll() is None
        other = int(text)
        assert descendants(parent.pid) == [other]
        parent.kill()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # Whoever has adopted it may not have buried it yet.
        assert Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}


def test_a_child_can_have_a_session_of_its_own(tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import time; time.sleep(600)"]
    output = tmp_path / "output"
    with Child("one", waits, output=output, apart=True) as child:
        assert os.getsid(child.pid) == child.pid
    with Child("one", waits, output=output) as child:
        assert os.getsid(child.pid) == os.getsid(0)
