"""A broker that comes late, goes under a batch, or never comes: who waits, and who says so."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition
from ottla.pipelines import spark_session
from ottla.testing.process import BrokerProcess

GATED = Path(__file__).parent / "gated_copy.py"
PATIENCE = 400.0


class Doorkeeper:
    """Listens in the place of a broker, hangs up on everybody, and knows that somebody came."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._listener = socket.create_server((host, int(port)))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seen = threading.Event()

    def __enter__(self) -> Doorkeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.close()
            self.seen.set()


def begun(work: Callable[[], Any]) -> Future[Any]:
    """Start it in a thread that nobody has to wait for."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def create(bootstrap: str, *topics: str) -> None:
    with DirectAdmin(bootstrap) as admin:
        for topic in topics:
            admin.create_topic(NewTopic(topic, 1, 1))


def produce(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.post(topic, str(number).encode(), partition=0)


def log_end(bootstrap: str, topic: str) -> int:
    with Groups(bootstrap) as groups:
        return groups.topics.ends([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]


def reader(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic} | options
    return spark.read.format("ottla").options(**given).load()


def writer(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    spark_session()  # this thread's, too
    rows = spark.range(10).selectExpr("CAST(id AS string) AS value").coalesce(1)
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic} | options
    return rows.write.format("ottla").options(**given).mode("append")


def test_a_batch_waits_for_a_broker_that_starts_late(
    spark: Any,
    start_broker: Callable[..., BrokerProcess],
    unique: Callable[..., str],
    eventually: Callable[..., Any],
) -> None:
    broker, topic = start_broker(), unique()
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 5)
    works: list[tuple[Callable[[], Any], int | None]] = [
        (lambda: reader(spark, broker.bootstrap, topic).count(), 5),
        (lambda: writer(spark, broker.bootstrap, topic).save(), None),
    ]
    for work, answer in works:
        broker.kill()
        with Doorkeeper(broker.bootstrap) as door:
            done = begun(work)
            eventually(
                lambda done=done, door=door: door.seen.is_set() or done.done(), timeout=PATIENCE
            )
            assert not done.done(), done.result()
        broker.start()
        assert done.result(PATIENCE) == answer
    assert log_end(broker.bootstrap, topic) == 15


def test_a_broker_that_is_gone_for_good_is_named_when_the_time_is_up(spark: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Exception, match="could not be reached for") as refused:
        reader(spark, address, "orders", **{"kafkaConsumer.pollTimeoutMs": "1500"}).count()
    logged = str(refused.value)
    assert f"kafka.bootstrap.servers={address} could not be reached for 1.5 s" in logged
    assert "(kafkaConsumer.pollTimeoutMs)" in logged
    with pytest.raises(Exception, match="could be asked after") as refused:
        writer(spark, address, "orders", **{"kafka.max.block.ms": "1500"}).save()
    assert f"no broker of {address} could be asked after 1.5 s (kafka.max.block.ms)" in str(
        refused.value
    )


def planners() -> set[int]:
    """The processes that Spark keeps for queries: those that plan their batches."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if any("python_streaming_source_runner" in word for word in child.cmdline()):
                found.add(child.pid)
        except psutil.Error:
            pass  # it has just ended
    return found


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_a_query_that_waits_for_a_broker_can_be_stopped_and_leaves_no_process(
    spark: Any, tmp_path: Path, eventually: Callable[..., Any], trigger: str
) -> None:
    before = planners()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    given = {"kafka.bootstrap.servers": address, "subscribe": "orders"}
    stream = spark.readStream.format("ottla").options(**given).load().writeStream
    with Doorkeeper(address) as door:
        query = (
            stream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .trigger(**{trigger: True})
            .start()
        )
        eventually(door.seen.is_set, timeout=PATIENCE)
        door.seen.clear()
        eventually(door.seen.is_set, timeout=PATIENCE)  # it waits
        assert planners() - before
        query.stop()
        eventually(lambda: planners() <= before, timeout=PATIENCE)


def test_a_broker_that_accepts_and_says_nothing_is_no_endless_wait(spark: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Exception, match="pollTimeoutMs") as refused:
            reader(spark, address, "orders", **{"kafkaConsumer.pollTimeoutMs": "1500"}).count()
    assert f"{address} did not answer API_VERSIONS in time" in str(refused.value)


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`copying(bootstrap, source, target)`: the gated copy; what it says is in a file."""
    started: list[subprocess.Popen[bytes]] = []

    def start(bootstrap: str, source: str, target: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(GATED), bootstrap, source, target, str(tmp_path)]
        with (tmp_path / "said").open("ab") as logged:
            started.append(subprocess.Popen(command, stdout=logged, stderr=logged, process_group=0))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            # The JVM is no member of the group: Spark's launcher makes one of its own.
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    pass
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_broker_killed_under_a_batch_is_told_of_by_driver_task_and_progress(
    start_broker: Callable[..., BrokerProcess],
    unique: Callable[..., str],
    eventually: Callable[..., Any],
    copying: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    broker, source, target = start_broker(), unique("from"), unique("to")
    create(broker.bootstrap, source, target)
    produce(broker.bootstrap, source, 5)
    process = copying(broker.bootstrap, source, target)

    def logged(*words: str) -> bool:
        assert process.poll() is None, (tmp_path / "said").read_text()[-4000:]
        text = (tmp_path / "said").read_text()
        return all(word in text for word in words)

    eventually(lambda: logged() and (tmp_path / "begun").exists(), timeout=PATIENCE)
    broker.kill()
    eventually(lambda: logged(f"{broker.bootstrap} cannot be reached"), timeout=PATIENCE)
    (tmp_path / "gate").touch()
    waits = "The writing of Spark partition 0 waits for a broker"
    eventually(lambda: logged(waits, f"{broker.bootstrap}: Connection refused"), timeout=PATIENCE)
    broker.start()
    eventually(lambda: logged() and log_end(broker.bootstrap, target) == 5, timeout=PATIENCE)
    eventually(lambda: logged("The writing of Spark partition 0 goes on after"), timeout=PATIENCE)

    def reported() -> list[dict[str, Any]]:
        assert logged()
        try:
            found: list[dict[str, Any]] = json.loads((tmp_path / "progress").read_text())
        except (FileNotFoundError, ValueError):
            return []
        return found

    [found] = eventually(reported, timeout=PATIENCE)
    assert f"{broker.bootstrap}: Connection refused" in found["lastOutage"]["reason"]
