"""A full disk at the checkpoint: the pipeline says so, waits, and goes on; every row is there once.

The disk is a real one, of a few pages, where this process may mount one. Where it may not, Spark's
Java may not write files for a while, which is what it is told by a full disk, in other words.
"""

from __future__ import annotations

import json
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

import ottla
from ottla.pipelines.connectors.assemble import way_of
from ottla.pipelines.connectors.contract import Batch
from ottla.pipelines.connectors.spec.check import read_file
from ottla.pipelines.connectors.spec.values import PipelineSpec
from ottla.pipelines.driver import run as runs
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles
from ottla.pipelines.driver.home import Home
from ottla.pipelines.driver.progress import State

PATIENCE = 300.0


class Disk(Protocol):
    path: Path
    says: str

    def fill(self) -> None: ...

    def free(self) -> None: ...


class Mounted:
    """A file system of 64 pages."""

    says = "No space left on device"

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
        subprocess.run(words, check=True, capture_output=True)

    def fill(self) -> None:
        with (self.path / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass  # there is no room for another

    def free(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


class Limited:
    """A folder in which a process may not write while the disk is to be full."""

    says = "File too large"

    def __init__(self, path: Path, process: int) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self._process = process
        self._before = resource.prlimit(process, resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        resource.prlimit(self._process, resource.RLIMIT_FSIZE, (0, self._before[1]))

    def free(self) -> None:
        resource.prlimit(self._process, resource.RLIMIT_FSIZE, self._before)

    def close(self) -> None:
        self.free()


@pytest.fixture
def disk(spark: Any, tmp_path: Path) -> Iterator[Disk]:
    made: Mounted | Limited
    try:
        made = Mounted(tmp_path / "disk")
    except (OSError, subprocess.CalledProcessError):  # it is not for everybody
        process = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        made = Limited(tmp_path / "disk", process)
    yield made
    made.close()


class ThenFull:
    """A sink after whose write the disk is full, when it is told to."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.then: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def write(self, rows: Any, batch: Batch) -> None:
        self._sink.write(rows, batch)
        then, self.then = self.then, None
        if then is not None:
            then()


def copying(bootstrap: str, name: str, out: Path) -> PipelineSpec:
    """A pipeline from a topic that is made here into files."""
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(name)
    file = out.with_suffix(".yaml")
    document = {
        "name": name,
        "bootstrap": bootstrap,
        "source": {"topic": {"name": name, "format": {"json": {"schema": "id long"}}}},
        "sink": {"files": {"path": str(out), "format": "json"}},
        "trigger": "100ms",
    }
    file.write_text(json.dumps(document))
    return read_file(file, {})


def test_a_full_disk_at_the_checkpoint_is_named_and_nothing_is_lost_or_there_twice(
    spark: Any,
    disk: Disk,
    bootstrap: str,
    unique: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    monkeypatch.setattr(runs, "_SPACE_PAUSE", 0.5)
    name, out = unique(), tmp_path / "out"
    spec = copying(bootstrap, name, out)
    way = way_of(spec)
    sink = ThenFull(way.sink)
    home = Home(disk.path, name)
    checkpoint = Checkpoint(name, LocalFiles(home.folder / "checkpoint"))
    driver = runs.Driver(spec, replace(way, sink=sink), home, session=spark)
    thread = threading.Thread(target=driver.run)

    def send(first: int) -> None:
        with ottla.Producer(bootstrap) as producer:
            for number in range(first, first + 5):
                producer.post(name, json.dumps({"id": number}))

    def found() -> list[int]:
        lines = [line for each in out.glob("*.json") for line in each.read_text().splitlines()]
        return sorted(json.loads(line)["id"] for line in lines)

    def done(count: int) -> bool:
        return found() == list(range(count)) and checkpoint.unfinished is None

    def waits() -> None:
        # It looks for space again and again, and does not wait meanwhile: one look has it all.
        def told_now() -> str:
            figures = driver.figures()
            waiting = figures.waiting if figures.state is State.WAITING else None
            return waiting if waiting and f"pipeline {name} waits for space" in waiting else ""

        told = eventually(told_now, timeout=PATIENCE)
        assert str(home.folder / "checkpoint") in told
        assert "free some, and it goes on by itself" in told
        assert disk.says in told

    thread.start()
    try:
        send(0)
        eventually(lambda: done(5), timeout=PATIENCE)
        disk.fill()
        send(5)
        waits()  # the batch cannot be planned
        assert done(5)
        disk.free()
        eventually(lambda: done(10), timeout=PATIENCE)
        sink.then = disk.fill
        send(10)
        waits()  # the batch is written, and that cannot be noted
        assert checkpoint.unfinished is not None
        disk.free()
        eventually(lambda: done(15), timeout=PATIENCE)
    finally:
        disk.free()
        driver.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert driver.figures().state is State.STOPPED
    assert found() == list(range(15))
