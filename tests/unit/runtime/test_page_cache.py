"""What is in the page cache, of a real file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.runtime.page_cache import PageCache

SIZE = 8 << 20


@pytest.fixture
def fd(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    return os.open(path, os.O_RDONLY)


def evict(fd: int) -> None:
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def test_what_was_written_is_there_and_what_was_evicted_is_not(fd: int) -> None:
    cache = PageCache()
    if cache.holds(fd, 0, SIZE) is None:
        return  # this kernel does not tell
    assert cache.holds(fd, 0, SIZE)
    assert cache.holds(fd, 5000, 1)
    evict(fd)
    assert not cache.holds(fd, 0, SIZE)
    os.pread(fd, 1, 0)
    assert cache.holds(fd, 0, 1)
    assert not cache.holds(fd, 0, SIZE), "one page of it is missing"


def test_asking_does_not_make_the_kernel_read(fd: int) -> None:
    cache = PageCache()
    evict(fd)
    for position in range(0, SIZE, 4096):
        assert not cache.holds(fd, position, 4096)


def test_a_kernel_without_the_call_is_asked_once(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PageCache()
    monkeypatch.setattr("ottla.runtime.page_cache._CACHESTAT", 100_000)
    assert cache.holds(fd, 0, SIZE) is None
    monkeypatch.undo()
    assert cache.holds(fd, 0, SIZE) is None


def test_a_file_system_that_keeps_its_pages_elsewhere_is_found_out(fd: int) -> None:
    cache = PageCache()
    cache.was_read(fd, 0, SIZE)
    assert cache.holds(fd, 0, SIZE) is not False, "they are there, and counted"
    evict(fd)
    cache.was_read(fd, 0, SIZE)  # and yet not a page is there
    assert cache.holds(fd, 0, SIZE) is None
