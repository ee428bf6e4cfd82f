"""Kill -9 of everything in turn under a running stream: nothing is missing afterwards."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

PROGRAM = Path(__file__).parent / "copy_program.py"
TIMEOUT = 300.0


class Traffic:
    """Sends numbered records until it is told to stop; knows which were acknowledged, and where."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.places: dict[str, bytes] = {}
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.005):
            number += 1
            value = b"record %d" % number
            self._producer.produce(self._topic, value, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            place = f"{message.topic()}/{message.partition()}/{message.offset()}"
            self.places[place] = message.value()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT) == 0


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`copying(bootstrap, topic)`: the program, with what it prints in a file."""
    started: list[subprocess.Popen[bytes]] = []
    home = tmp_path / "copy"
    home.mkdir()

    def start(bootstrap: str, topic: str) -> subprocess.Popen[bytes]:
        with (home / "said").open("ab") as output:
            command = [sys.executable, str(PROGRAM), bootstrap, topic, str(home)]
            words = ["spark.ui.enabled=false", f"spark.local.dir={home / 'local'}"]
            started.append(
                subprocess.Popen([*command, *words], stdout=output, stderr=output, process_group=0)
            )
        return started[-1]

    yield start
    for process in started:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill -9 of a driver and of all that it has started."""
    if process.poll() is None:
        # The JVM is no member of the group: Spark's launcher makes one of its own.
        for child in psutil.Process(process.pid).children(recursive=True):
            with_suppressed(child)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def with_suppressed(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def workers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The Python processes that run Spark's tasks and plan its batches."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            parent = child.parent()
            if (
                parent
                and "pyspark.daemon" in child.cmdline()
                and "pyspark.daemon" in parent.cmdline()
            ):
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


def test_nothing_is_missing_after_worker_broker_and_driver_were_killed(
    start_broker, unique, eventually, copying, tmp_path
):
    broker = start_broker(settings={"num.partitions": "3"})
    topic = unique()
    traffic = Traffic(broker.bootstrap, topic)
    table = tmp_path / "copy" / "rows.db"

    def rows() -> int:
        if not table.exists():
            return 0
        with sqlite3.connect(f"file:{table}?mode=ro", uri=True) as found:
            try:
                (count,) = found.execute("SELECT count(*) FROM records").fetchone()
            except sqlite3.OperationalError:
                count = 0
        found.close()
        return int(count)

    def goes_on() -> None:
        before = rows()
        eventually(lambda: rows() > before, timeout=TIMEOUT)

    try:
        driver = copying(broker.bootstrap, topic)
        goes_on()
        killed = workers(driver)
        assert killed, "there was no worker to kill"
        for worker in killed:
            with_suppressed(worker)
        goes_on()
        broker.kill()
        broker.start()
        goes_on()
        end(driver)
        driver = copying(broker.bootstrap, topic)
        goes_on()
    finally:
        traffic.stop()
    eventually(lambda: rows() >= len(traffic.places), timeout=TIMEOUT)
    end(driver)
    with sqlite3.connect(table) as found:
        kept = dict(found.execute("SELECT place, value FROM records"))
        (changed,) = found.execute("SELECT count(*) FROM records WHERE NOT same").fetchone()
    found.close()
    assert not traffic.places.keys() - kept.keys(), "acknowledged, and not in the table"
    assert all(kept[place] == value for place, value in traffic.places.items())
    assert changed == 0, "a record that was read again was another"
