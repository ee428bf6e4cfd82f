"""A pid file names the process that holds it, and nobody once that is gone."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.runtime.pid_file import clear, hold, holder, release

HOLD = """
import os, subprocess, sys
from ottla.runtime.pid_file import hold
hold(sys.argv[1])
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "broker.pid")


@pytest.fixture
def other(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the file, and has a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_it_names_its_holder_until_that_is_killed(
    path: str, other: subprocess.Popen[bytes]
) -> None:
    assert holder(path) == other.pid
    assert Path(path).read_text() == f"{other.pid}\n"
    other.kill()
    other.wait()
    # The child that the process has left behind holds nothing.
    assert holder(path) is None


def test_a_held_file_is_not_for_a_second_one(path: str, other: subprocess.Popen[bytes]) -> None:
    with pytest.raises(BlockingIOError, match="another process holds it"):
        hold(path)
    assert holder(path) == other.pid


def test_what_another_process_has_left_can_be_held(path: str) -> None:
    Path(path).write_text("1\n")
    assert holder(path) is None
    descriptor = hold(path)
    assert Path(path).read_text() == f"{os.getpid()}\n"
    os.close(descriptor)


def test_a_file_that_is_given_back_is_gone(path: str) -> None:
    release(path, hold(path))
    assert not Path(path).exists()


def test_a_file_that_goes_while_it_is_locked_is_not_taken_for_held(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last holder ends between the two steps: whoever came next would hold another file."""
    lock = fcntl.lockf
    gone = iter([True])

    def late(descriptor: int, operation: int) -> None:
        if next(gone, False):
            os.unlink(path)
        lock(descriptor, operation)

    monkeypatch.setattr("ottla.runtime.pid_file.fcntl.lockf", late)
    descriptor = hold(path)
    assert Path(path).read_text() == f"{os.getpid()}\n"
    assert os.path.samestat(os.stat(path), os.fstat(descriptor))
    os.close(descriptor)


def test_what_nobody_holds_can_be_cleared_away(path: str, other: subprocess.Popen[bytes]) -> None:
    clear(path)
    assert holder(path) == other.pid
    other.kill()
    other.wait()
    clear(path)
    assert not Path(path).exists()
    clear(path)


def test_what_is_no_folder_holds_nothing(path: str) -> None:
    Path(path).touch()
    assert holder(f"{path}/supervisor.pid") is None


def test_a_file_that_is_not_there_is_held_by_nobody(path: str) -> None:
    assert holder(path) is None
