"""Kill -9 of a driver with its Spark, at named points: the next run loses nothing, doubles nothing.

Each run is a process of its own (`driven_copy.py`), on the folder that the killed one has left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles

PROGRAM = Path(__file__).parent / "driven_copy.py"


class Copy:
    """A pipeline from a topic into files, a process for each of its runs."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap, self.topic, self.folder = bootstrap, topic, folder
        self.out = folder / "out"
        self.checkpoint = Checkpoint("copy", LocalFiles(folder / "state" / "copy" / "checkpoint"))
        with DirectAdmin(bootstrap) as admin:
            admin.create_topic(NewTopic(topic, 1, 1))
        self.sent = [str(number) for number in range(25)]
        with Producer(bootstrap) as producer:
            for value in self.sent:
                producer.post(topic, value.encode(), partition=0)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROGRAM), str(self.folder / "state"), self.bootstrap]
        command += [self.topic, str(self.out), "--once", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def killed(self, point: str) -> None:
        done = self.run("--kill", point)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def copied(self) -> list[str]:
        """All values in all files, in the order of the batches."""
        files = [path for path in self.out.iterdir() if path.name[-1:].isdigit()]
        files.sort(key=lambda path: int(path.name.rpartition("-")[2]))
        return [line for path in files for line in path.read_text().split()]

    def attempts(self) -> list[tuple[int, bool]]:
        lines = (self.out / "attempts").read_text().splitlines()
        return [(int(number), replayed == "True") for _, number, replayed in map(str.split, lines)]

    def committed(self) -> int | None:
        with Groups(self.bootstrap) as groups:
            found = groups.offsets("ottla-copy")
        place = found.get(TopicPartition(self.topic, 0))
        return None if place is None else place.offset


@pytest.fixture
def copy(start_broker: Any, unique: Callable[..., str], tmp_path: Path) -> Copy:
    # A broker of its own: every copy has the same group.
    return Copy(start_broker().bootstrap, unique(), tmp_path)


def test_a_driver_killed_around_its_sink_and_its_commit_log_loses_and_doubles_nothing(
    copy: Copy,
) -> None:
    copy.killed("before-sink:1")
    assert copy.checkpoint.unfinished == 1
    assert copy.copied() == copy.sent[:10]
    copy.killed("after-sink:1")
    assert copy.checkpoint.unfinished == 1, "written, and Spark does not know"
    assert copy.copied() == copy.sent[:20]
    copy.killed("after-commit-log:1")
    assert copy.checkpoint.finished == 1
    assert copy.committed() == 10, "the group has not been told of batch 1"
    planned = copy.checkpoint.unfinished == 2  # Spark may have gone on before the kill
    done = copy.run()
    assert done.returncode == 0, done.stderr
    assert copy.copied() == copy.sent
    assert copy.attempts() == [(0, False), (1, True), (1, True), (2, planned)]
    assert copy.committed() == len(copy.sent)
