"""The disk in memory fails exactly as it is told to."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.runtime.files import FileSystem, OsFileSystem
from ottla.testing.files import Crashed, MemoryFileSystem


@pytest.fixture(params=["memory", "os"])
def any_fs(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    """Both implementations: what holds for the machine's disk holds for the simulated one."""
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    fs = MemoryFileSystem()
    fs.makedirs("/root")
    return fs, "/root"


class TestLikeADisk:
    def test_appends_reads_and_patches(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        file = fs.open(f"{root}/f", create=True)
        file.append(b"hello")
        file.append(memoryview(b" world"))
        file.pwrite(b"J", 0)
        assert file.pread(5, 0) == b"Jello"
        assert file.pread(50, 6) == b"world"
        assert file.pread(5, 99) == b""
        buffer = bytearray(20)
        assert file.pread_into(buffer, 6) == 5
        assert buffer[:5] == b"world"
        assert file.size() == fs.size(f"{root}/f") == 11
        file.truncate(5)
        file.append(b"!")
        assert fs.read_bytes(f"{root}/f") == b"Jello!"
        file.truncate(8)
        assert fs.read_bytes(f"{root}/f") == b"Jello!\0\0"
        file.close()
        file.close()

    def test_opening_puts_the_end_where_appends_go(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        fs.write_atomic(f"{root}/f", b"abc")
        file = fs.open(f"{root}/f")
        file.append(b"d")
        file.close()
        assert fs.read_bytes(f"{root}/f") == b"abcd"

    def test_names(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        fs.makedirs(f"{root}/a/b")
        fs.makedirs(f"{root}/a/b")
        fs.write_atomic(f"{root}/a/f", b"1")
        fs.write_atomic(f"{root}/a/g", b"2")
        fs.rename(f"{root}/a/f", f"{root}/a/g")
        assert fs.listdir(f"{root}/a") == ["b", "g"]
        assert fs.read_bytes(f"{root}/a/g") == b"1"
        assert fs.is_dir(f"{root}/a/b")
        assert not fs.is_dir(f"{root}/a/g")
        assert fs.exists(f"{root}/a/g")
        fs.remove(f"{root}/a/g")
        assert not fs.exists(f"{root}/a/g")
        fs.remove_tree(f"{root}/a")
        assert fs.listdir(root) == []

    def test_missing_things_are_file_not_found(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        for call in (
            lambda: fs.open(f"{root}/x"),
            lambda: fs.size(f"{root}/x"),
            lambda: fs.read_bytes(f"{root}/x"),
            lambda: fs.remove(f"{root}/x"),
            lambda: fs.listdir(f"{root}/x"),
            lambda: fs.rename(f"{root}/x", f"{root}/y"),
            lambda: fs.mtime_ms(f"{root}/x"),
            lambda: fs.set_mtime_ms(f"{root}/x", 1),
            lambda: fs.sync_dir(f"{root}/x"),
        ):
            with pytest.raises(FileNotFoundError):
                call()

    def test_a_file_can_be_made_older(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        fs.write_atomic(f"{root}/f", b"abc")
        fs.set_mtime_ms(f"{root}/f", 1_600_000_000_123)
        fs.rename(f"{root}/f", f"{root}/g")
        assert fs.mtime_ms(f"{root}/g") == 1_600_000_000_123

    def test_an_open_file_outlives_its_name(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        fs.write_atomic(f"{root}/f", b"abc")
        file = fs.open(f"{root}/f")
        fs.rename(f"{root}/f", f"{root}/g")
        fs.remove(f"{root}/g")
        assert file.pread(3, 0) == b"abc"
        file.close()

    def test_a_lock_is_taken_once(self, any_fs: tuple[FileSystem, str]) -> None:
        fs, root = any_fs
        lock = fs.lock(f"{root}/.lock")
        with pytest.raises(BlockingIOError):
            fs.lock(f"{root}/.lock")
        lock.release()
        fs.lock(f"{root}/.lock").release()


class TestCrash:
    def test_the_dying_write_leaves_its_first_bytes(self) -> None:
        fs = MemoryFileSystem()
        file = fs.open("/f", create=True)
        file.append(b"one")
        fs.crash_at(fs.operations, torn=2)
        with pytest.raises(Crashed):
            file.append(b"two")
        with pytest.raises(Crashed):
            file.append(b"three")
        with pytest.raises(Crashed):
            fs.read_bytes("/f")
        assert fs.killed().read_bytes("/f") == b"onetw"

    def test_a_killed_process_holds_no_lock(self) -> None:
        fs = MemoryFileSystem()
        fs.lock("/.lock")
        fs.killed().lock("/.lock")

    def test_the_copy_and_the_original_are_apart(self) -> None:
        fs = MemoryFileSystem()
        file = fs.open("/f", create=True)
        copy = fs.killed()
        file.append(b"late")
        assert copy.read_bytes("/f") == b""


class TestPowerCut:
    def disk(self) -> MemoryFileSystem:
        fs = MemoryFileSystem()
        file = fs.open("/f", create=True)
        file.append(b"safe")
        file.sync()
        fs.sync_dir("/")
        file.append(b"lost")
        return fs

    def test_what_was_not_synced_is_gone(self) -> None:
        assert self.disk().power_lost().read_bytes("/f") == b"safe"

    def test_or_some_of_it_survives(self) -> None:
        assert self.disk().power_lost(survives=lambda *_: 3).read_bytes("/f") == b"safelos"

    def test_or_it_is_zeros(self) -> None:
        lost = self.disk().power_lost(survives=lambda *_: 1, zeros=True)
        assert lost.read_bytes("/f") == b"safel\0\0\0"

    def test_a_synced_file_whose_name_was_not_is_gone(self) -> None:
        fs = MemoryFileSystem()
        file = fs.open("/f", create=True)
        file.append(b"x")
        file.sync()
        assert fs.power_lost().listdir("/") == []
        assert fs.power_lost(names=True).read_bytes("/f") == b"x"

    def test_a_rename_that_was_not_synced_is_undone(self) -> None:
        fs = self.disk()
        fs.rename("/f", "/g")
        assert fs.power_lost().listdir("/") == ["f"]
        assert fs.power_lost(names=True).listdir("/") == ["g"]

    def test_an_atomic_write_survives(self) -> None:
        fs = MemoryFileSystem()
        fs.write_atomic("/f", b"1")
        assert fs.power_lost().read_bytes("/f") == b"1"

    def test_what_was_durable_before_a_kill_still_is(self) -> None:
        fs = self.disk().killed()
        assert fs.read_bytes("/f") == b"safelost"
        assert fs.power_lost().read_bytes("/f") == b"safe"

    def test_a_cut_that_was_not_synced_may_come_back(self) -> None:
        fs = self.disk()
        fs.open("/f").truncate(1)
        assert fs.power_lost().read_bytes("/f") == b"safe"


class TestFaults:
    def test_after_some_successes_for_some_times(self) -> None:
        fs = MemoryFileSystem()
        file = fs.open("/x.log", create=True)
        fs.fail("*.log", errno.ENOSPC, operations=["append"], after=2, times=1)
        results = []
        for number in range(4):
            try:
                file.append(b"%d" % number)
            except OSError as error:
                results.append(error.errno)
        assert results == [errno.ENOSPC]
        assert fs.read_bytes("/x.log") == b"013"

    def test_a_torn_write_keeps_its_first_bytes_and_raises(self) -> None:
        fs = MemoryFileSystem()
        file = fs.open("/f", create=True)
        fs.fail("/f", errno.EIO, operations=["append"], torn=3)
        with pytest.raises(OSError, match="Input/output"):
            file.append(b"abcdef")
        assert fs.read_bytes("/f") == b"abc"

    def test_a_read_only_folder_can_be_read(self) -> None:
        fs = MemoryFileSystem()
        fs.makedirs("/d")
        fs.write_atomic("/d/f", b"1")
        fs.read_only("/d")
        assert fs.read_bytes("/d/f") == b"1"
        changes: tuple[Callable[[], object], ...] = (
            lambda: fs.remove("/d/f"),
            lambda: fs.rename("/d/f", "/d/g"),
            lambda: fs.write_atomic("/d/f", b"2"),
            lambda: fs.open("/d/f").append(b"x"),
            lambda: fs.makedirs("/d/e"),
        )
        for change in changes:
            with pytest.raises(OSError, match="Read-only"):
                change()
        fs.heal()
        fs.remove("/d/f")

    def test_descriptors_are_counted(self) -> None:
        fs = MemoryFileSystem()
        file = fs.open("/f", create=True)
        assert fs.open_files == 1
        with pytest.raises(OSError, match="descriptor"):
            file.fileno()
        del file
        assert fs.open_files == 0
