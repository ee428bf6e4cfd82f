"""The machine's files: reading what is in the page cache, or a whole file; making folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ottla.runtime.files import CachedReads, ColdRead, OsFile, OsFileSystem


@pytest.fixture
def file(tmp_path: Path) -> OsFile:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 64)
    return OsFileSystem().open(str(path))


def answers(monkeypatch: pytest.MonkeyPatch, answer: int | OSError) -> None:
    """What the kernel says to a read that must not wait."""

    def preadv(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        assert flags == os.RWF_NOWAIT
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "preadv", preadv)


def test_what_is_in_memory_is_read(file: OsFile) -> None:
    assert file.pread_cached(4, 256) == b"\x00\x01\x02\x03"
    assert CachedReads(file).pread(4, 256) == b"\x00\x01\x02\x03"


def test_the_end_of_the_file_is_not_cold(file: OsFile) -> None:
    assert file.pread_cached(100, file.size() - 2) == b"\xfe\xff"
    assert file.pread_cached(100, file.size()) == b""


def test_what_is_not_in_memory_is_cold(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, BlockingIOError(errno.EAGAIN, "cold"))
    with pytest.raises(ColdRead):
        file.pread_cached(10, 0)


def test_what_is_half_in_memory_is_cold(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, 5)
    with pytest.raises(ColdRead):
        file.pread_cached(10, 0)


def test_a_file_system_that_cannot_say_is_read(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, OSError(errno.EOPNOTSUPP, "no"))
    assert file.pread_cached(2, 1) == b"\x01\x02"


def test_an_error_of_the_disk_stays_one(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        file.pread_cached(2, 1)


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_file_is_read_whole(tmp_path: Path, size: int):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 300)
    os.truncate(path, size)
    assert OsFileSystem().read_bytes(str(path)) == path.read_bytes()


def test_a_file_that_does_not_know_its_size_is_read_whole():
    text = OsFileSystem().read_bytes("/proc/self/limits")
    assert text.startswith(b"Limit")
    assert text.count(b"\n") > 10


def test_a_folder_where_a_file_should_be_is_named(tmp_path: Path):
    (tmp_path / "folder-here").mkdir()
    with pytest.raises(IsADirectoryError, match="folder-here"):
        OsFileSystem().read_bytes(f"{tmp_path}/folder-here")


def test_a_folder_says_whether_it_was_made(tmp_path: Path):
    fs = OsFileSystem()
    assert fs.makedirs(f"{tmp_path}/a/b")
    assert fs.makedirs(f"{tmp_path}/a/c")
    assert not fs.makedirs(f"{tmp_path}/a/c")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{tmp_path}/file")
