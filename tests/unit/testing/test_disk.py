"""The test broker's disk: what it refuses, what it delays, and what a power cut leaves."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

from ottla.testing.disk import Disk, DiskSession


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def session(disk: Disk) -> DiskSession:
    return DiskSession(disk)


def test_a_power_cut_leaves_what_was_synced(
    tmp_path: Path, disk: Disk, session: DiskSession
) -> None:
    path = str(tmp_path / "a.log")
    file = session.open(path, create=True)
    session.sync_dir(str(tmp_path))
    file.append(b"synced")
    file.sync()
    file.append(b" and not")
    disk.lose_unsynced()
    assert Path(path).read_bytes() == b"synced"


def test_a_power_cut_takes_names_that_their_folder_did_not_sync(
    tmp_path: Path, disk: Disk, session: DiskSession
) -> None:
    session.makedirs(str(tmp_path / "kept"))
    session.makedirs(str(tmp_path / "lost" / "deep"))
    session.sync_dir(str(tmp_path))
    session.makedirs(str(tmp_path / "late"))
    for name in ("kept/a", "lost/deep/b", "late/c"):
        session.open(str(tmp_path / name), create=True).sync()
    session.sync_dir(str(tmp_path / "kept"))
    disk.lose_unsynced()
    found = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))
    assert found == ["kept", "kept/a", "lost"]


def test_a_file_that_was_there_before_is_durable(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"old")
    DiskSession(disk).open(str(path)).append(b" new")
    disk.lose_unsynced()
    assert path.read_bytes() == b"old"


def test_what_is_durable_is_known_across_sessions_and_renames(tmp_path: Path, disk: Disk) -> None:
    first = DiskSession(disk)
    first.makedirs(str(tmp_path / "old"))
    first.open(str(tmp_path / "old" / "a"), create=True).append(b"unsynced")
    first.rename(str(tmp_path / "old"), str(tmp_path / "new"))
    first.sync_dir(str(tmp_path))
    first.sync_dir(str(tmp_path / "new"))
    first.cut()
    second = DiskSession(disk)
    second.open(str(tmp_path / "new" / "a")).append(b"!")
    disk.lose_unsynced()
    assert (tmp_path / "new" / "a").read_bytes() == b""


def test_a_replaced_file_is_durable(tmp_path: Path, disk: Disk, session: DiskSession) -> None:
    session.write_atomic(str(tmp_path / "meta"), b"one")
    session.write_atomic(str(tmp_path / "meta"), b"longer")
    disk.lose_unsynced()
    assert (tmp_path / "meta").read_bytes() == b"longer"


def test_truncating_below_what_was_synced_is_durable(
    tmp_path: Path, disk: Disk, session: DiskSession
) -> None:
    file = session.open(str(tmp_path / "a"), create=True)
    session.sync_dir(str(tmp_path))
    file.append(b"123456")
    file.sync()
    file.truncate(2)
    file.append(b"xyz")
    disk.lose_unsynced()
    assert (tmp_path / "a").read_bytes() == b"12"


def test_a_full_disk_takes_what_fits_and_then_nothing(
    tmp_path: Path, disk: Disk, session: DiskSession
) -> None:
    file = session.open(str(tmp_path / "a"), create=True)
    disk.fill(room=3)
    with pytest.raises(OSError, match="No space left") as raised:
        file.append(b"12345")
    assert raised.value.errno == errno.ENOSPC
    assert (tmp_path / "a").read_bytes() == b"123"
    for attempt in (
        lambda: session.open(str(tmp_path / "b"), create=True),
        lambda: session.makedirs(str(tmp_path / "folder")),
        lambda: session.write_atomic(str(tmp_path / "c"), b"c"),
        lambda: file.pwrite(b"9", 0),
    ):
        with pytest.raises(OSError, match="No space left"):
            attempt()
    assert not (tmp_path / "c").exists()
    disk.free()
    file.append(b"45")
    assert (tmp_path / "a").read_bytes() == b"12345"


def test_one_folder_can_be_full_alone(tmp_path: Path, disk: Disk, session: DiskSession) -> None:
    for name in ("one", "two"):
        session.makedirs(str(tmp_path / name))
    disk.fill(0, str(tmp_path / "one"))
    with pytest.raises(OSError, match="No space left"):
        session.open(str(tmp_path / "one" / "a"), create=True)
    session.open(str(tmp_path / "two" / "a"), create=True).append(b"fits")


def test_a_cut_session_changes_nothing_and_frees_its_locks(tmp_path: Path, disk: Disk) -> None:
    dead = DiskSession(disk)
    file = dead.open(str(tmp_path / "a"), create=True)
    dead.lock(str(tmp_path / ".lock"))
    with pytest.raises(BlockingIOError):
        DiskSession(disk).lock(str(tmp_path / ".lock"))
    dead.cut()
    DiskSession(disk).lock(str(tmp_path / ".lock")).release()
    for attempt in (
        lambda: file.append(b"x"),
        lambda: file.truncate(0),
        lambda: dead.remove(str(tmp_path / "a")),
        lambda: dead.write_atomic(str(tmp_path / "b"), b""),
        lambda: dead.lock(str(tmp_path / ".other")),
    ):
        with pytest.raises(OSError, match="dead"):
            attempt()
    assert (tmp_path / "a").read_bytes() == b""


def test_a_slow_disk_waits_until_it_is_quickened(
    tmp_path: Path, disk: Disk, session: DiskSession
) -> None:
    file = session.open(str(tmp_path / "a"), create=True)
    disk.slow(60, ["sync"])
    file.append(b"at once")
    syncing = threading.Thread(target=file.sync)
    syncing.start()
    syncing.join(0.05)
    assert syncing.is_alive()
    disk.quicken()
    syncing.join(60)
    assert not syncing.is_alive()


def test_each_write_to_a_slow_disk_takes_so_long(
    tmp_path: Path, disk: Disk, session: DiskSession
) -> None:
    file = session.open(str(tmp_path / "a"), create=True)
    disk.slow(0.02, ["write"])
    started = time.monotonic()
    file.append(b"1")
    file.append(b"2")
    assert time.monotonic() - started >= 0.04


def test_a_disk_does_not_know_every_operation(disk: Disk) -> None:
    with pytest.raises(ValueError, match="write, sync, read"):
        disk.slow(1, ["wrtie"])
