"""Everything that a run needs, as processes of their own: a broker, PostgreSQL, Spark, drivers.

All of it lives in one folder and survives this process, whether it ends in order or not: the next
one on the same folder first ends what is left of the last, which it knows by the variable
`OTTLA_KILLS_FOLDER` in the environment of a process.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import psutil
import quick_java
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kills import hook
from kills.drivers import Driver
from kills.executors import kill_all
from kills.pipelines import CREATE, PARTITIONS, Shape
from kills.switchboard import Switchboard
from ottla.pipelines import interpreters, points
from ottla.testing.postgres import PostgresProcess
from ottla.testing.process import BrokerProcess, free_port
from ottla.testing.spark import HOSTS, SparkCluster

FOLDER: Final = "OTTLA_KILLS_FOLDER"
HERE: Final = Path(__file__).parent
_TASK_START: Final = '{"Event":"SparkListenerTaskStart"'
SPARK: Final = {
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.driver.memory": "700m",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    # Executors unpack their Ottla, and find this package beside it.
    "spark.executorEnv.PYTHONPATH": str(HERE.parent),
    # A copy of every task that takes longer than the first one of its stage.
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


# Every executor unpacks an Ottla of 270 MB. What ended applications leave is removed.
TIDY: Final = (
    "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=60 "
    "-Dspark.worker.cleanup.appDataTtl=120"
)


class Environment:
    """What a run needs; `with` starts it and ends it.

    quick    for a run of a minute
    local    a Spark in each driver's own Java, in the place of one with executors
    planted  mistakes by pipeline
    """

    def __init__(
        self,
        folder: Path,
        shapes: Iterable[Shape],
        *,
        quick: bool,
        local: bool = False,
        planted: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.shapes = {shape.name: shape for shape in shapes}
        self.board = Switchboard()
        self._quick = quick
        self._local = local
        self._planted = dict(planted or {})
        self._stack = ExitStack()
        places = self._places()
        self.broker = BrokerProcess(
            self.folder / "broker",
            port=places["broker"],
            environment={FOLDER: str(self.folder)},
            settings={"log.retention.hours": -1},
        )
        self.postgres = PostgresProcess(
            self.folder / "postgres", port=places["postgres"], home=Path(places["data"])
        )
        self.postgres.environment[FOLDER] = str(self.folder)
        self.locks = {"broker": threading.Lock(), "database": threading.Lock()}
        variables = self._variables()
        # Twice as many cores as needed: what a killed driver leaves holds some for a moment.
        cores = 2 * len(self.shapes)
        self.spark = SparkCluster(
            self.folder / "spark",
            cores=cores,
            memory=f"{cores}g",
            environment={**variables, "SPARK_WORKER_OPTS": TIDY},
        )
        self.drivers: dict[str, Driver] = {}

    def _places(self) -> dict[str, Any]:
        """Ports and folders, the same for every run on this folder."""
        file = self.folder / "places.json"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            places = {
                "broker": free_port(),
                "postgres": free_port(),
                # Root starts PostgreSQL as nobody, who may not get into this folder.
                "data": tempfile.mkdtemp(prefix="kills-postgres-"),
            }
            file.write_text(json.dumps(places))
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def _variables(self) -> dict[str, str]:
        return {
            FOLDER: str(self.folder),
            points.VARIABLE: "kills.hook:reached",
            hook.SOCKET: self.board.address,
            "PYTHONPATH": str(HERE.parent),
            "PYSPARK_PYTHON": interpreters.choose(),
            "SPARK_LOCAL_IP": HOSTS[0],
            "SPARK_LOCAL_DIRS": str(self.folder / "local" / "workers"),
        }

    @property
    def master(self) -> str:
        """Where the pipelines run."""
        return "local[2,4]" if self._local else self.spark.url

    # -- from start to end

    def __enter__(self) -> Environment:
        end_leftovers(self.folder)
        for each in (self.folder / "local", *(self.folder / "spark").glob("worker-*/work")):
            shutil.rmtree(each, ignore_errors=True)
        with ExitStack() as stack:
            stack.enter_context(self.board)
            stack.callback(self.broker.kill)
            stack.callback(self.postgres.kill)
            self.broker.launch()
            self.postgres.launch()
            if not self._local:
                stack.callback(self._end_spark)
                self.spark.heal()
            self.broker.wait_ready()
            self.postgres.wait_ready()
            self._prepare()
            stack.callback(self._end_drivers)
            for shape in self.shapes.values():
                self.drivers[shape.name] = self._driver(shape)
                self.drivers[shape.name].start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def stop_drivers(self) -> None:
        """All at once, each after its batch."""
        threads = [threading.Thread(target=each.stop) for each in self.drivers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def forget(self) -> None:
        """Remove what is outside of the folder; only what is in it can be looked at afterwards."""
        self.postgres.kill()
        shutil.rmtree(self._places()["data"], ignore_errors=True)

    def _end_spark(self) -> None:
        """With the Python of tasks that are held at a point, which outlives its executor."""
        for each in (*self.spark.workers, self.spark.master):
            if each.alive:
                kill_all(psutil.Process(each.pid))
        self.spark.kill()

    def _end_drivers(self) -> None:
        for driver in self.drivers.values():
            driver.end()

    def _prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        there = admin.list_topics(timeout=30).topics
        wanted = [topic for shape in self.shapes.values() for topic in shape.topics]
        new = [NewTopic(topic, PARTITIONS) for topic in wanted if topic not in there]
        if new:
            for made in admin.create_topics(new).values():
                made.result()
        self.postgres.sql(CREATE)

    def _driver(self, shape: Shape) -> Driver:
        # One that starts quickly does not reach what the other does after minutes.
        java = quick_java.options() if self._quick else "-XX:+UseSerialGC"
        local = self.folder / "local" / shape.name
        events = self.folder / "events" / shape.name
        events.mkdir(parents=True, exist_ok=True)
        plant = {hook.PLANT: self._planted[shape.name]} if shape.name in self._planted else {}
        own = {hook.PIPELINE: shape.name, **plant}
        spark = {
            **SPARK,
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.sql.codegen.wholeStage": str(
                not self._quick
            ).lower(),  # it takes long to compile
            "spark.eventLog.dir": events.as_uri(),
            **({"spark.local.dir": str(local)} if self._local else {}),
            **{f"spark.executorEnv.{name}": value for name, value in own.items()},
        }
        file = self.folder / f"{shape.name}.yaml"
        file.write_text(
            json.dumps(shape.file(self.broker.bootstrap, self.postgres.dsn(), spark), indent=2)
        )
        command = [str(file), "--master", self.master, "--shared-path"]
        variables = {**self._variables(), **own, "SPARK_LOCAL_DIRS": str(local)}
        return Driver(shape.name, self.folder, command, variables, scratch=local)

    def ended_by_themselves(self) -> list[str]:
        """The servers that nobody has killed and that do not run: a full disk, or a fault."""
        found = []
        for name, server in (("broker", self.broker), ("database", self.postgres)):
            lock = self.locks[name]
            if lock.acquire(blocking=False):  # else it is being killed, and started again
                if not server.alive:
                    found.append(f"the {name} has ended by itself; see {server.folder}")
                lock.release()
        return found

    # -- what goes in

    def fed(self, shape: Shape) -> int:
        """How many records the pipeline's topic has."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "look"})
        try:
            places = [TopicPartition(shape.source, each) for each in range(PARTITIONS)]
            return sum(int(consumer.get_watermark_offsets(each, 60.0)[1]) for each in places)
        finally:
            consumer.close()

    def feed(self, shape: Shape, start: int, end: int) -> None:
        """Send the records from `start` to `end`, and wait until the broker has them all."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "linger.ms": 5,
                "log_level": 0,  # that nobody answers for a moment is no news here
            }
        )
        for number in range(start, end):
            while True:
                try:
                    producer.produce(
                        shape.source, shape.value(number), partition=number % PARTITIONS
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        left = producer.flush(600)
        if left:
            raise AssertionError(f"{left} records of {shape.source} were not acknowledged")

    # -- what Spark says

    def copies(self) -> int:
        """How many copies of tasks Spark has started beside the first, by its own event logs."""
        count = 0
        for path in (self.folder / "events").glob("*/*"):
            with path.open(errors="replace") as log:
                count += sum(
                    line.startswith(_TASK_START) and '"Speculative":true' in line for line in log
                )
        return count


def end_leftovers(folder: Path) -> None:
    """Kill what a run on this folder has left that was itself killed."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(FOLDER) == str(folder) and process.pid != os.getpid():
                process.kill()
                process.wait()
        except psutil.Error:
            pass  # another user's, or just gone
