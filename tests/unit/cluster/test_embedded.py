from __future__ import annotations

import asyncio
import errno
import logging
import threading
from pathlib import Path

import pytest

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.journal import DamagedStore
from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    Op,
    Set,
    Unavailable,
    holder_key,
)
from ottla.runtime.files import OsFileSystem
from ottla.testing.files import MemoryFileSystem

FOLDER = "/data/metadata"


async def entries(store: EmbeddedStore) -> dict[str, Entry]:
    return dict((await store.read("")).entries)


def journals(files: MemoryFileSystem) -> list[str]:
    return [f"{FOLDER}/{name}" for name in files.listdir(FOLDER) if name.startswith("journal-")]


def syncs(files: MemoryFileSystem) -> int:
    return sum(done.kind == "sync" and "/journal-" in done.path for done in files.journal)


class SlowDisk(MemoryFileSystem):
    """A disk on which every sync waits for permission."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def _change(self, kind: str, path: str, size: int = 0) -> tuple[int, OSError | None]:
        if kind == "sync" and size == 0 and "/journal-" in path:
            self.waiting.set()
            assert self.gate.wait(60)
        return super()._change(kind, path, size)


async def test_commits_that_wait_together_share_one_sync() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    before = syncs(files)
    await asyncio.gather(*(store.commit(Create(f"k{number}", b"")) for number in range(50)))
    assert syncs(files) - before == 1
    assert len(await entries(store)) == 50
    await store.close()


async def test_commits_that_arrive_during_a_sync_share_the_next() -> None:
    files = SlowDisk()
    files.gate.set()
    store = await EmbeddedStore.open(files, FOLDER)
    files.gate.clear()
    files.waiting.clear()
    before = syncs(files)
    first = asyncio.ensure_future(store.commit(Create("first", b"")))
    await asyncio.to_thread(files.waiting.wait)
    later = [asyncio.ensure_future(store.commit(Create(f"k{n}", b""))) for n in range(20)]
    await asyncio.sleep(0)
    assert not first.done()
    files.gate.set()
    await asyncio.gather(first, *later)
    assert syncs(files) - before == 2
    await store.close()


async def test_nothing_is_visible_before_it_is_durable_and_the_loop_goes_on() -> None:
    files = SlowDisk()
    files.gate.set()
    store = await EmbeddedStore.open(files, FOLDER)
    files.gate.clear()
    files.waiting.clear()
    commit = asyncio.ensure_future(store.commit(Create("a", b"")))
    rival = asyncio.ensure_future(store.commit(Create("a", b"rival")))
    await asyncio.to_thread(files.waiting.wait)
    for _ in range(10):
        await asyncio.sleep(0)  # the loop turns while the disk does not
        assert await entries(store) == {}
        assert not commit.done()
        assert not rival.done(), "a conflict is told only when its cause can be seen"
    files.gate.set()
    await commit
    with pytest.raises(Conflict):
        await rival
    assert await entries(store) == {"a": Entry(b"", 0)}
    await store.close()


async def test_changes_of_ephemeral_keys_never_touch_the_disk() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    before = files.operations
    session = await store.join("brokers/1", b"v0")
    await store.commit(Set("brokers/1", b"v1", 0))
    await store.commit(Check("brokers/1", 1))
    await session.release()
    await store.join("brokers/1", b"again")
    await store.commit(Delete("brokers/1", 0))
    assert files.operations == before
    await store.close()


async def test_a_key_may_change_between_ephemeral_and_durable() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    await store.commit(Create("k", b"durable"))
    # Both in one batch: what reaches the disk is the difference.
    await asyncio.gather(store.commit(Delete("k", 0)), store.join("k", b"ephemeral"))
    assert (await entries(store))["k"].value == b"ephemeral"
    reopened = await EmbeddedStore.open(files.killed(), FOLDER)
    assert await entries(reopened) == {}
    await reopened.close()
    await asyncio.gather(store.commit(Delete("k", 0)), store.commit(Create("k", b"again")))
    reopened = await EmbeddedStore.open(files.killed(), FOLDER)
    assert await entries(reopened) == {"k": Entry(b"again", 0)}
    await reopened.close()
    await store.close()


async def test_a_full_disk_fails_the_commit_and_not_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    await store.commit(Create("a", b"0"))
    files.fail("*/journal-*", errno.ENOSPC, operations=["append"], times=1, torn=10)
    with pytest.raises(Unavailable, match="No space left"):
        await store.commit(Set("a", b"1", 0))
    assert await entries(store) == {"a": Entry(b"0", 0)}
    await store.commit(Set("a", b"2", 0))
    await store.close()
    store = await EmbeddedStore.open(files, FOLDER)
    assert await entries(store) == {"a": Entry(b"2", 1)}
    await store.close()
    assert "refused a metadata commit" in caplog.text
    assert "unfinished" not in caplog.text


async def test_a_full_disk_keeps_nobody_waiting_for_an_office_for_ever() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    files.fail("*/journal-*", errno.ENOSPC, operations=["append"], times=1)
    unlucky, next_one = await asyncio.gather(
        store.campaign("controller", b"unlucky"),
        store.campaign("controller", b"next"),
        return_exceptions=True,
    )
    assert isinstance(unlucky, Unavailable)
    assert not isinstance(next_one, BaseException)
    assert (await entries(store))[holder_key("controller")].value == b"next"
    await store.close()


async def test_a_sync_that_failed_is_the_end_of_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    session = await store.join("brokers/1", b"")
    term = await store.campaign("controller", b"")
    waiting = asyncio.ensure_future(store.campaign("controller", b""))
    watch = store.watch("")
    await anext(watch)
    await asyncio.sleep(0)
    files.fail("*/journal-*", errno.EIO, operations=["sync"], times=1)
    with pytest.raises(Unavailable, match="journal"):
        await store.commit(Create("a", b""))
    # The disk works again, but what it holds is unknown: no second try.
    with pytest.raises(Unavailable):
        await store.commit(Create("b", b""))
    with pytest.raises(Unavailable):
        await store.read("")
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await anext(watch)
    assert session.lost.happened
    assert term.lost.happened
    await session.release()
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    await store.close()


async def test_a_write_that_cannot_be_undone_is_the_end_of_the_store() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    files.fail("*/journal-*", errno.ENOSPC, operations=["append"], times=1, torn=10)
    files.fail("*/journal-*", errno.EIO, operations=["truncate"])
    with pytest.raises(Unavailable):
        await store.commit(Create("a", b""))
    with pytest.raises(Unavailable):
        await store.commit(Create("a", b""))
    await store.close()


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "metadata")
    store = await EmbeddedStore.open(OsFileSystem(), folder)
    with pytest.raises(BlockingIOError):
        await EmbeddedStore.open(OsFileSystem(), folder)
    await store.close()
    store = await EmbeddedStore.open(OsFileSystem(), folder)
    await store.close()


async def test_initial_contents_are_for_a_new_store_only() -> None:
    files = MemoryFileSystem()
    assert not EmbeddedStore.exists(files, FOLDER)
    store = await EmbeddedStore.open(files, FOLDER, initial={"a": b"first"})
    assert await entries(store) == {"a": Entry(b"first", 0)}
    assert (await store.read("")).revision > 0
    await store.close()
    assert EmbeddedStore.exists(files, FOLDER)
    store = await EmbeddedStore.open(files, FOLDER, initial={"b": b"ignored"})
    assert await entries(store) == {"a": Entry(b"first", 0)}
    await store.close()


async def test_the_journal_is_replaced_by_a_snapshot_when_it_has_grown() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER, journal_limit=2_000)
    session = await store.join("brokers/1", b"not for the disk")
    await store.commit(Create("n", b""))
    for number in range(200):
        await store.commit(Set("n", b"x" * 100, number))
    assert sum(files.size(path) for path in journals(files)) < 2_500
    assert len(files.listdir(FOLDER)) == 3, "one snapshot, one journal, the lock"
    assert not session.lost.happened
    await store.close()
    store = await EmbeddedStore.open(files, FOLDER)
    assert await entries(store) == {"n": Entry(b"x" * 100, 200)}
    await store.close()


@pytest.mark.parametrize("step", ["create", "rename", "sync_dir", "append"])
async def test_a_rotation_that_fails_loses_nothing_and_is_tried_again(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER, journal_limit=300)
    await store.commit(Create("n", b""))
    pattern = "*/snapshot-*" if step in ("rename", "append") else "*"
    files.fail(pattern, errno.ENOSPC, operations=[step], times=2)
    for number in range(40):
        await store.commit(Set("n", b"%d" % number, number))
        for disk in (files.killed(), files.power_lost()):
            copy = await EmbeddedStore.open(disk, FOLDER)
            assert await entries(copy) == {"n": Entry(b"%d" % number, number + 1)}
            await copy.close()
    assert caplog.text.count("no snapshot of the metadata could be made") == 2
    await store.close()
    store = await EmbeddedStore.open(files, FOLDER)
    assert await entries(store) == {"n": Entry(b"39", 40)}
    await store.close()
    assert len(files.listdir(FOLDER)) == 3, "the debris is gone"


async def test_an_unfinished_last_write_is_cut_off_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    await store.commit(Create("a", b""))
    size = files.size(journals(files)[0])
    await store.commit(Create("b", b""))
    await store.close()
    file = files.open(journals(files)[0])
    file.truncate(file.size() - 3)
    file.close()
    store = await EmbeddedStore.open(files, FOLDER)
    assert await entries(store) == {"a": Entry(b"", 0)}
    assert files.size(journals(files)[0]) == size
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert journals(files)[0] in record.getMessage()
    await store.close()


async def test_damage_in_the_middle_is_an_error_that_names_the_file() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    for key in "abc":
        await store.commit(Create(key, b""))
    await store.close()
    (path,) = journals(files)
    file = files.open(path)
    file.pwrite(b"\xff", file.size() // 2)
    file.close()
    with pytest.raises(DamagedStore, match=path) as caught:
        await EmbeddedStore.open(files, FOLDER)
    assert caught.value.path == path
    assert "backup" in str(caught.value), "it says what to do"
    # Refusing does not lock, and changes nothing.
    with pytest.raises(DamagedStore):
        await EmbeddedStore.open(files, FOLDER)


async def test_damage_to_several_frames_is_not_taken_for_one_unfinished_write() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    for key in "abc":
        await store.commit(Create(key, b""))
    await store.close()
    (path,) = journals(files)
    file = files.open(path)
    third = file.size() // 3
    file.pwrite(b"\xff", 2 * third - 1)  # the end of the second frame's body
    file.pwrite(b"\xff", 2 * third)  # the beginning of the third frame's header
    file.close()
    with pytest.raises(DamagedStore, match="others follow"):
        await EmbeddedStore.open(files, FOLDER)


async def test_an_office_goes_to_whoever_waited_longest() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    term = await store.campaign("controller", b"first")
    order = []

    async def stand(name: str) -> None:
        mine = await store.campaign("controller", name.encode())
        order.append(name)
        await mine.release()

    standing = [asyncio.ensure_future(stand(name)) for name in ("second", "third")]
    await asyncio.sleep(0)
    releasing = asyncio.ensure_future(term.release())
    standing.append(asyncio.ensure_future(stand("latecomer")))  # in one batch with the release
    await asyncio.gather(releasing, *standing)
    assert order == ["second", "third", "latecomer"]
    await store.close()


async def test_a_damaged_snapshot_is_an_error_that_names_the_file() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER, initial={"a": b"precious"})
    await store.close()
    (name,) = (name for name in files.listdir(FOLDER) if name.startswith("snapshot-"))
    file = files.open(f"{FOLDER}/{name}")
    file.pwrite(b"\xff", file.size() - 1)
    file.close()
    with pytest.raises(DamagedStore, match=name):
        await EmbeddedStore.open(files, FOLDER)


async def test_missing_files_are_noticed() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    await store.commit(Create("a", b""))
    await store.close()
    without_journal = files.killed()
    (journal,) = journals(without_journal)
    without_journal.remove(journal)
    with pytest.raises(DamagedStore, match=journal):
        await EmbeddedStore.open(without_journal, FOLDER)
    without_snapshot = files.killed()
    (snapshot,) = (n for n in without_snapshot.listdir(FOLDER) if n.startswith("snapshot-"))
    without_snapshot.remove(f"{FOLDER}/{snapshot}")
    with pytest.raises(DamagedStore, match=journal):
        await EmbeddedStore.open(without_snapshot, FOLDER)


async def test_a_journal_of_another_place_is_refused() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    await store.commit(Create("a", b""))
    await store.commit(Create("b", b""))
    await store.close()
    (path,) = journals(files)
    data = files.read_bytes(path)
    files.write_atomic(path, data[len(data) // 2 :])  # the first frame is gone
    with pytest.raises(DamagedStore, match="number 2 where 1 belongs"):
        await EmbeddedStore.open(files, FOLDER)


async def test_a_queue_of_mixed_requests_is_judged_in_order() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    requests: list[tuple[Op, ...]] = [
        (Create("a", b"0"),),
        (Set("a", b"1", 0),),
        (Set("a", b"lost", 0),),
        (Delete("a", 1), Create("b", b"")),
        (Check("a", 1),),
        (Create("a", b"again"), Check("b", 0)),
    ]
    results = await asyncio.gather(
        *(store.commit(*ops) for ops in requests), return_exceptions=True
    )
    assert [isinstance(result, Conflict) for result in results] == [
        False, False, True, False, True, False,
    ]  # fmt: skip
    good = [result for result in results if isinstance(result, int)]
    assert good == sorted(set(good)), "each change has a revision of its own"
    assert await entries(store) == {"a": Entry(b"again", 0), "b": Entry(b"", 0)}
    await store.close()


async def test_a_commit_cancelled_before_its_turn_does_not_happen() -> None:
    files = MemoryFileSystem()
    store = await EmbeddedStore.open(files, FOLDER)
    commit = asyncio.ensure_future(store.commit(Create("a", b"")))
    await asyncio.sleep(0)
    commit.cancel()
    await store.commit(Create("b", b""))
    assert sorted(await entries(store)) == ["b"]
    await store.close()


async def test_closing_waits_for_the_write_under_way() -> None:
    files = SlowDisk()
    files.gate.set()
    store = await EmbeddedStore.open(files, FOLDER)
    files.gate.clear()
    files.waiting.clear()
    commit = asyncio.ensure_future(store.commit(Create("a", b"")))
    await asyncio.to_thread(files.waiting.wait)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    assert not closing.done()
    files.gate.set()
    await closing
    await commit
    store = await EmbeddedStore.open(files, FOLDER)
    assert sorted(await entries(store)) == ["a"]
    await store.close()


async def test_a_join_that_completes_while_the_store_closes_is_lost_at_once() -> None:
    files = SlowDisk()
    files.gate.set()
    store = await EmbeddedStore.open(files, FOLDER)
    files.gate.clear()
    files.waiting.clear()
    commit = asyncio.ensure_future(store.commit(Create("a", b"")))
    joining = asyncio.ensure_future(store.join("brokers/1", b""))
    await asyncio.to_thread(files.waiting.wait)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    files.gate.set()
    await asyncio.gather(closing, commit)
    assert (await joining).lost.happened
