"""A standalone Spark for tests: a master and two workers, in processes of their own.

    cluster = SparkCluster(tmp_path)
    master = cluster.heal()             # "spark://127.0.0.1:…"; starts what does not run
    cluster.workers[1].kill()           # with its executors
    cluster.heal()
    cluster.kill()

They come from the wheel of PySpark. The workers are at two addresses, since Spark starts a copy of
a slow task only on another host than the first, and have a folder each.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.pipelines import java
from ottla.testing.process import free_port
from ottla.testing.server_process import ServerProcess

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
"""The addresses of the workers; the master has the first."""
_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_DAEMON: Final = "SPARK_DAEMON_JAVA_OPTS"


def _wheel() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ImportError("there is no pyspark: install ottla[pipelines]")
    return Path(found.origin).parent


class SparkServer(ServerProcess):
    """Spark's master or one of its workers; a worker's executors end with it."""

    def __init__(self, folder: Path, kind: str, host: str, *words: str, ready: str) -> None:
        super().__init__(folder, "log")
        self._home = _wheel()
        self._class = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        self.host = host
        self._words = words
        self._ready = ready
        self._since = 0
        self.environment = {
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": str(java.find(os.environ)),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            _DAEMON: _JAVA,
        }

    @property
    def command(self) -> list[str]:
        script = str(self._home / "bin" / "spark-class")
        return [script, self._class, "--host", self.host, "--webui-port", "0", *self._words]

    @property
    def where(self) -> str:
        return self.host

    def launch(self) -> None:
        self._since = self.log_size()
        super().launch()

    def serves(self) -> bool:
        return re.search(self._ready, self.log_since(self._since)) is not None


class SparkCluster:
    """The master and its workers.

    cores        of each worker
    memory       of each worker, as Spark writes it: 700m
    environment  of all of them, and so of the executors
    remembers    whether the master keeps a record of its workers and applications, as one does
                 that is to survive its death
    """

    def __init__(
        self,
        folder: Path,
        *,
        cores: int = 1,
        memory: str = "700m",
        environment: Mapping[str, str] | None = None,
        remembers: bool = False,
    ) -> None:
        self.folder = folder
        port = str(free_port())
        self.url = f"spark://{HOSTS[0]}:{port}"
        self.master = SparkServer(
            folder / "master",
            "Master",
            HOSTS[0],
            *("--port", port),
            ready="New state: ALIVE|Recovery complete",
        )
        words = ("--cores", str(cores), "--memory", memory, "--work-dir", "work", self.url)
        self.workers = [
            SparkServer(
                folder / f"worker-{number}",
                "Worker",
                host,
                *words,
                ready="Successfully registered with master",
            )
            for number, host in enumerate(HOSTS, start=1)
        ]
        for each in (self.master, *self.workers):
            each.environment |= {**(environment or {}), "SPARK_LOCAL_IP": each.host}
        if remembers:
            self.master.environment[_DAEMON] += (
                " -Dspark.deploy.recoveryMode=FILESYSTEM"
                f" -Dspark.deploy.recoveryDirectory={folder / 'recovery'}"
            )

    def heal(self) -> str:
        """Start whatever does not run; returns the master's address."""
        for each in (self.master, *self.workers):
            if not each.alive:
                each.launch()
        for each in (self.master, *self.workers):
            each.wait_ready()
        return self.url

    def kill(self) -> None:
        for each in (*self.workers, self.master):
            each.kill()
