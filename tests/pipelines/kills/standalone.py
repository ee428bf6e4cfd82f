"""A standalone Spark of two workers, at 127.0.0.1 and 127.0.0.2.

Spark starts a copy of a slow task only on another host than the first: hence two addresses, and not
`local-cluster`, whose workers have one. Each worker gives each pipeline one executor with one core.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil
import pyspark

from kills.hook import PIPELINE
from ottla.pipelines import java

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_PATIENCE: Final = 180.0
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class Standalone:
    """A master and its workers, which `start` does not wait for: drivers do that by themselves."""

    def __init__(self, folder: Path, environment: Mapping[str, str], cores: int) -> None:
        self._folder = folder
        self._cores = cores
        home = Path(pyspark.__file__).parent
        self._program = str(home / "bin" / "spark-class")
        self._environment = {
            **environment,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(java.find(os.environ)),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_LOCAL_IP": HOSTS[0],
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self) -> None:
        log = self._launch("master.Master", HOSTS[0], "--port", "0")
        self.master = _found(log, r"Starting Spark master at (spark://\S+)")
        for host in HOSTS:
            words = ("--cores", str(self._cores), "--memory", f"{self._cores}g")
            self._launch("worker.Worker", host, *words, "--work-dir", "work", self.master)

    def stop(self) -> None:
        for process in reversed(self._started):
            for each in _family(process.pid):
                _kill(each)
            process.wait()
        self._started.clear()

    def executors(self, pipeline: str) -> list[psutil.Process]:
        """The processes that run tasks of this pipeline."""
        return [
            each
            for worker in self._started[1:]
            for each in _family(worker.pid)
            if _is_executor_of(each, pipeline)
        ]

    def _launch(self, name: str, host: str, *words: str) -> Path:
        folder = self._folder / f"{name.partition('.')[0]}-{host}"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "log"
        with log.open("wb") as output:
            command = [self._program, f"org.apache.spark.deploy.{name}", "--host", host]
            self._started.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=folder,
                    env={**os.environ, **self._environment, "SPARK_LOCAL_IP": host},
                    start_new_session=True,
                )
            )
        return log


def executor_of(process: int) -> psutil.Process | None:
    """The executor for which a Python process works; None for a local Spark, or if it is gone."""
    try:
        for parent in psutil.Process(process).parents():
            if any(_EXECUTOR in word for word in parent.cmdline()):
                return parent
    except psutil.NoSuchProcess:
        pass
    return None


def kill_all(process: psutil.Process) -> None:
    """Kill -9 of a process and of all that it has started."""
    for each in _family(process.pid):
        _kill(each)


def _family(process: int) -> Iterator[psutil.Process]:
    """A process and its children; it comes first, so that it cannot start others."""
    try:
        first = psutil.Process(process)
        yield from (first, *first.children(recursive=True))
    except psutil.NoSuchProcess:
        pass


def _is_executor_of(process: psutil.Process, pipeline: str) -> bool:
    try:
        return any(_EXECUTOR in word for word in process.cmdline()) and (
            process.environ().get(PIPELINE) == pipeline
        )
    except psutil.Error:
        return False  # it has just ended


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass


def _found(log: Path, pattern: str) -> str:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        match = re.search(pattern, log.read_text(errors="replace"))
        if match:
            return match[1]
        time.sleep(0.05)
    raise TimeoutError(f"{log} does not say {pattern!r}:\n{log.read_text(errors='replace')}")
