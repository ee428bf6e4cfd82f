"""One Spark a worker: a session takes seconds to start, a query in a warm one about one.

The same for clusters: one of two workers, for all tests that need one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from ottla.pipelines.interpreters import same_minor
from ottla.testing.spark import SparkCluster


@pytest.fixture(scope="session", autouse=True)
def java_options() -> str:
    """What every Spark of a test says to Java, here or in a process of its own."""
    program = Path(__file__).with_name("quick_java.py")
    printed = subprocess.run([sys.executable, program], check=True, text=True, stdout=PIPE).stdout
    os.environ["SPARK_SUBMIT_OPTS"] = printed.strip()
    return os.environ["SPARK_SUBMIT_OPTS"]


@pytest.fixture(scope="session")
def spark(java_options: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
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


@pytest.fixture(scope="session")
def ended() -> Callable[[Callable[[], Any]], Any]:
    """`ended(lambda: stream.start())`: the query when it has ended, or raises what ended it.

    Spark gives the process of a source that is written in Python ten seconds to start, and ends the
    query before its first batch where a busy machine needs more. Then it is started again, as a
    pipeline's driver does.
    """

    def wait(start: Callable[[], Any]) -> Any:
        for attempt in range(5):
            query = start()
            try:
                assert query.awaitTermination(400), "the query goes on"
            except Exception as error:
                starved = "failed to connect back" in str(error)
                if not starved or query.recentProgress or attempt == 4:
                    raise
            else:
                return query
            finally:
                query.stop()
        raise AssertionError

    return wait


@pytest.fixture
def web_server() -> Iterator[Callable[[Path], str]]:
    """`web_server(folder)`: the address at which its files are served."""
    with ExitStack() as stack:

        def serve(folder: Path) -> str:
            handler = partial(_Quiet, directory=str(folder))
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield serve


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


# -- a cluster


@pytest.fixture
def bare_environment(java_options: str) -> dict[str, str]:
    """The environment, without what a session of another test in this process has left in it."""
    kept = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    return kept | {"SPARK_SUBMIT_OPTS": java_options}


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A standalone cluster; call `heal` before it is used: the test before may have killed some.

    Its PATH begins with a Python of this version that has no Ottla in it.
    """
    folder = tmp_path_factory.mktemp("spark-cluster")
    python = folder / "bin" / same_minor()
    python.parent.mkdir()
    python.symlink_to(getattr(sys, "_base_executable", sys.executable))
    path = f"{python.parent}:{os.environ['PATH']}"
    made = SparkCluster(folder, environment={"PATH": path}, remembers=True)
    yield made
    made.kill()
