"""`ottla pipeline run --master spark://…`: two workers without Ottla, on two addresses.

A worker, the master and the driver are killed under a pipeline, and its records are counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

import ottla
from ottla.client.groups import Groups
from ottla.pipelines.interpreters import same_minor

PATIENCE = 500.0
SLOWLY = "select id, reflect('java.lang.Thread', 'sleep', 400L) as nap from source"
"""A row takes its time, so that there is some in which to kill who works on it."""


class Runs:
    """`ottla pipeline run` on a cluster, in processes of their own."""

    def __init__(self, master: str, folder: Path, environment: dict[str, str]) -> None:
        self._master = master
        self._folder = folder
        self._environment = environment | {"OTTLA_PIPELINES": str(folder / "state")}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, document: dict[str, Any], *words: str) -> subprocess.Popen[str]:
        both = {"spark.executor.memory": "600m", "spark.cores.max": "2"}
        both |= {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}
        both |= {"spark.scheduler.maxRegisteredResourcesWaitingTime": "300s"}
        file = self._folder / f"{document['name']}.yaml"
        file.write_text(json.dumps(document | {"spark": both, "trigger": "500ms"}))
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), *words]
        with (self._folder / f"{document['name']}.said").open("a") as said:
            driver = subprocess.Popen(
                [*command, "--master", self._master, "--shared-path"],
                env=self._environment,
                cwd=self._folder,
                stdout=said,
                stderr=said,
                text=True,
            )
        self.started.append(driver)
        return driver

    def once(self, document: dict[str, Any]) -> None:
        driver = self.start(document, "--once")
        assert driver.wait(PATIENCE) == 0, self.said(document["name"])

    def said(self, name: str) -> str:
        logs = [self._folder / f"{name}.said", self._folder / "state" / name / "spark.log"]
        return "\n".join(log.read_text()[-4000:] for log in logs if log.exists())

    @staticmethod
    def kill(driver: subprocess.Popen[str]) -> None:
        """The driver with its Spark, at once."""
        if driver.poll() is None:
            children = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            for each in children:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        driver.wait()


def pythons(cluster: Any) -> set[str]:
    """The Pythons of the executors, as they were started."""
    found = set()
    for worker in cluster.workers:
        for child in psutil.Process(worker.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                command = child.cmdline()
                if "pyspark.daemon" in command:
                    found.add(command[0])
    return found


def writes(worker: Any, folder: Path) -> bool:
    """Whether a task of this worker has begun to write below a folder, and has not ended."""
    for child in psutil.Process(worker.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(folder in Path(each.path).parents for each in child.open_files()):
                return True
    return False


@pytest.fixture
def runs(spark_cluster: Any, tmp_path: Path, bare_environment: dict[str, str]) -> Iterator[Runs]:
    made = Runs(spark_cluster.heal(), tmp_path, bare_environment)
    yield made
    for each in made.started:
        made.kill(each)


@pytest.fixture
def topic(bootstrap: str, unique: Callable[..., str]) -> str:
    name = unique()
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(name, partitions=2)
    return name


def test_a_worker_the_master_and_the_driver_are_killed_and_every_record_is_there_once(
    runs: Runs,
    spark_cluster: Any,
    bootstrap: str,
    topic: str,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    out = tmp_path / "out"
    document = {
        "name": topic,
        "bootstrap": bootstrap,
        "source": {"topic": {"name": topic, "format": {"json": {"schema": "id long"}}}},
        "transform": SLOWLY,
        "sink": {"files": {"path": str(out), "format": "json"}},
    }

    def send(first: int) -> None:
        with ottla.Producer(bootstrap) as producer:
            for number in range(first, first + 10):
                producer.post(topic, json.dumps({"id": number}), partition=number % 2)

    def found() -> list[int]:
        lines = [line for file in out.glob("*.json") for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["id"] for line in lines)

    def tasks() -> set[Path]:
        """Those that have begun to write, of batches that are under way."""
        return set(out.glob("_ottla/*/*/*/*/_temporary/0/_temporary/attempt_*"))

    def wait(look: Callable[[], Any]) -> None:
        def looked() -> Any:
            if driver.poll() is not None:
                pytest.fail(runs.said(topic))
            return look()

        eventually(looked, timeout=PATIENCE)

    send(0)
    driver = runs.start(document)
    wait(lambda: writes(spark_cluster.workers[1], out))
    assert pythons(spark_cluster) == {same_minor()}, "none of them is the driver's"
    spark_cluster.workers[1].kill()  # and the task that it has
    wait(lambda: found() == list(range(10)))

    spark_cluster.heal()
    spark_cluster.master.kill()
    send(10)
    wait(lambda: found() == list(range(20)))  # nobody needs a master to go on

    spark_cluster.heal()
    before = tasks()
    send(20)
    wait(lambda: tasks() - before)
    runs.kill(driver)
    runs.once(document)
    assert found() == list(range(30))
    with Groups(bootstrap) as groups:
        assert sum(each.offset for each in groups.offsets(f"ottla-{topic}").values()) == 30


def test_rows_that_are_staged_here_reach_executors_that_see_the_folder(
    runs: Runs, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    class Orders(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([{"id": number} for number in range(5)]).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Orders)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/orders"
        runs.once(
            {
                "name": topic,
                "bootstrap": bootstrap,
                "source": {"http": {"url": url, "schema": "id long"}},
                "sink": {"topic": {"name": topic, "key": "id"}},
            }
        )
    finally:
        server.shutdown()
        server.server_close()
    with ottla.Consumer(bootstrap) as consumer:
        consumer.assign(topic, "earliest")
        records = list(consumer.records(until_end=True))
    assert sorted(json.loads(record.value)["id"] for record in records) == list(range(5))


LENT = """
import json, sys
from ottla.pipelines import Pipeline, spark_session

master, bootstrap, name, folder = sys.argv[1:]
settings = {"spark.executor.memory": "600m", "spark.cores.max": "1"}
spark = spark_session(name, master=master, config=settings)

def run(sink, **words):
    pipeline = Pipeline(
        name=name,
        bootstrap=bootstrap,
        source={"generator": {"rows": 3}},
        sink=sink,
        spark={"spark.master": "local[1]"},
    )
    try:
        done = pipeline.run(once=True, state_dir=f"{folder}/state", session=spark, **words)
    except Exception as error:
        return str(error)
    return [done.rows, done.written]

files = {"files": {"path": f"{folder}/out", "format": "json"}}
said = [
    run({"sqlite": {"path": f"{folder}/a.db", "table": "t", "create": True}}, shared_path=True),
    run(files),
    run(files, shared_path=True),
]
print(json.dumps(said))
"""


def test_a_session_that_is_lent_runs_on_its_own_master(
    spark_cluster: Any,
    bootstrap: str,
    unique: Callable[..., str],
    tmp_path: Path,
    bare_environment: dict[str, str],
) -> None:
    words = [spark_cluster.heal(), bootstrap, unique(), str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-c", LENT, *words],
        # A program's own session sends executors nothing: theirs is a Python that has Ottla.
        env=bare_environment | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    database, unseen, done = json.loads(ran.stdout.splitlines()[-1])
    assert f"cannot run on {words[0]}: the sink sqlite works with a local master only" in database
    assert "(in Python, shared_path=True)" in unseen
    assert done == [3, 3]
