"""`ottla zookeeper start` and Kafka's names for it, with the real server behind them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.cli.kafka_compat.zookeeper import processes
from ottla.testing.process import free_port
from ottla.testing.zookeeper import ZooKeeperProcess


def tool(name: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ottla.cli.kafka_compat", name, *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=250, cwd=cwd, check=False)


def test_a_server_is_started_looked_into_and_stopped(
    tmp_path: Path, eventually: Callable[..., Any]
):
    with ZooKeeperProcess(tmp_path) as server:
        server.start()
        assert f"on {server.address}; data in {server.data_dir}" in server.log()
        made = tool("zookeeper-shell.sh", server.address, "create", "/seen", "value", cwd=tmp_path)
        assert made.returncode == 0, made.stderr

        def shows(place: str, *words: str, line: str) -> bool:
            """What else the shell tells comes when it will, also in the middle of this line."""
            shown = tool("zookeeper-shell", place, *words, cwd=tmp_path)
            return line in shown.stdout.splitlines()

        eventually(lambda: shows(server.address, "ls", "/", line="[seen, zookeeper]"))
        eventually(lambda: shows(f"{server.address}/seen", "get", "/", line="value"))
        absent = tool("zookeeper-shell", server.address, "get", "/absent", cwd=tmp_path)
        assert absent.returncode == 1
        assert "Node does not exist: /absent" in absent.stderr
        assert server.process.pid in set(processes())

        second = ZooKeeperProcess(tmp_path, port=server.port)
        second.launch()
        assert second.process.wait(120) == 1
        assert f"dataDir {server.data_dir} is in use by another ZooKeeper" in server.log()

        server.signal(signal.SIGTERM)
        assert server.process.wait(120) in (0, 128 + signal.SIGTERM)
        server.start()
        eventually(lambda: shows(server.address, "get", "/seen", line="value"))


def test_a_daemon_runs_on_with_its_output_in_a_file(tmp_path: Path, eventually: Callable[..., Any]):
    port = free_port()
    file = tmp_path / "zookeeper.properties"
    file.write_text(f"dataDir={tmp_path}/data\nclientPort={port}\nmaxClientCnxns=0\n")
    before = set(processes())
    started = tool("zookeeper-server-start", "-daemon", str(file), cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    found = eventually(lambda: [pid for pid in processes() if names(pid, str(file))])
    (pid,) = found
    assert pid not in before
    try:
        probe = ZooKeeperProcess(tmp_path, port=port)
        eventually(lambda: probe.mode() == "standalone")
        assert "binding to port" in (tmp_path / "logs" / "zookeeper.out").read_text()
        again = tool("zookeeper-server-start", str(file), cwd=tmp_path)
        assert again.returncode == 1
        assert "is in use by another ZooKeeper" in again.stderr
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not any(names(each, str(file)) for each in processes()))


def names(pid: int, file: str) -> bool:
    """Whether a process has this file on its command line: what `pkill -f` looks for."""
    try:
        return file in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
