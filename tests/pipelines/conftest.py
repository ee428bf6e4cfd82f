"""One Spark a worker: a session takes seconds to start, a query in a warm one about one.

The same for clusters: one of two workers, for all tests that need one.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from ottla.pipelines import java
from ottla.pipelines.interpreters import same_minor
from ottla.testing.server_process import ServerProcess

# Every Spark that a test starts, here or in a process of its own, finds its settings there.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark_conf"))
_DAEMON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes Spark a second here may take it a minute on a machine that others use, too."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`local[2]`; a failed task is tried once more, as on a cluster."""
    from ottla.pipelines.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    made = spark_session(
        "tests",
        master="local[2,2]",
        config={
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


# -- a cluster


@pytest.fixture
def bare_environment() -> dict[str, str]:
    """The environment, without what a session of another test in this process has left in it."""
    return {key: value for key, value in os.environ.items() if "SPARK" not in key}


class SparkServer(ServerProcess):
    """Spark's master or one of its workers, from the wheel; its executors end with it."""

    def __init__(self, folder: Path, kind: str, host: str, *words: str, ready: str) -> None:
        super().__init__(folder, "log")
        self._home = Path(pyspark.__file__).parent
        self._class = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        self.host = host
        self._words = words
        self._ready = ready
        self._since = 0
        self.environment = {
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": str(java.find(os.environ)),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON,
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
    """A master and two workers, on two addresses and with a folder each.

    Their PATH begins with a Python of this version that has no Ottla in it. The master remembers
    its workers and applications, as one does that is to survive.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        python = folder / "bin" / same_minor()
        python.parent.mkdir()
        python.symlink_to(getattr(sys, "_base_executable", sys.executable))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self.url = f"spark://127.0.0.1:{port}"
        self.master = SparkServer(
            folder / "master",
            "Master",
            "127.0.0.1",
            "--port",
            port,
            ready="New state: ALIVE|Recovery complete",
        )
        self.master.environment["SPARK_DAEMON_JAVA_OPTS"] = (
            f"{_DAEMON} -Dspark.deploy.recoveryMode=FILESYSTEM "
            f"-Dspark.deploy.recoveryDirectory={folder / 'recovery'}"
        )
        words = ("--cores", "1", "--memory", "700m", "--work-dir", "work", self.url)
        self.workers = [
            SparkServer(
                folder / f"worker-{number}",
                "Worker",
                f"127.0.0.{number}",
                *words,
                ready="Successfully registered with master",
            )
            for number in (1, 2)
        ]
        for each in self.workers:
            each.environment["PATH"] = f"{python.parent}:{os.environ['PATH']}"

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


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone cluster; call `heal` before it is used: the test before may have killed some."""
    made = SparkCluster(tmp_path_factory.mktemp("spark-cluster"))
    yield made
    made.kill()
