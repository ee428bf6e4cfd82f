"""The embedded store loses nothing committed, wherever a crash comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.journal import DamagedStore
from ottla.cluster.store import (
    Create,
    Delete,
    Entry,
    Op,
    Set,
    Snapshot,
    StoreError,
)
from ottla.testing.files import Crashed, MemoryFileSystem

FOLDER = "/data/metadata"

State = dict[str, Entry]
Disk = Callable[[MemoryFileSystem], MemoryFileSystem]

# What the next process may find. A file's unsynced end can survive in part, or read as zeros.
DISKS: dict[str, Disk] = {
    "killed": lambda files: files.killed(),
    "power lost": lambda files: files.power_lost(),
    "power lost, names kept": lambda files: files.power_lost(names=True),
    "power lost, all written": lambda files: files.power_lost(survives=lambda _, size: size),
    "power lost, half written": lambda files: files.power_lost(
        survives=lambda _, size: size // 2, names=True
    ),
    "power lost, zeros": lambda files: files.power_lost(zeros=True, names=True),
    "power lost, half zeros": lambda files: files.power_lost(
        survives=lambda _, size: size // 2, zeros=True
    ),
}


def histories(groups: list[list[list[tuple[str, bool]]]]) -> list[list[list[Op]]]:
    """Groups of commits, each commit touching keys: (key, keep it). Versions are filled in."""
    state: State = {}
    serial = itertools.count()
    result: list[list[list[Op]]] = []
    for group in groups:
        result.append([])
        for commit in group:
            ops: list[Op] = []
            for key, keep in dict(commit).items():
                entry = state.get(key)
                value = b"%d" % next(serial)
                if entry is None:
                    ops.append(Create(key, value))
                    state[key] = Entry(value, 0)
                elif keep:
                    ops.append(Set(key, value, entry.version))
                    state[key] = Entry(value, entry.version + 1)
                else:
                    ops.append(Delete(key, entry.version))
                    del state[key]
            result[-1].append(ops)
    return result


def states(commits: list[list[Op]]) -> Iterator[State]:
    """The state before the first commit, after it, after the second, …"""
    state: State = {}
    yield dict(state)
    for ops in commits:
        for op in ops:
            match op:
                case Create(key, value):
                    state[key] = Entry(value, 0)
                case Set(key, value, version):
                    state[key] = Entry(value, version + 1)
                case Delete(key, _):
                    del state[key]
        yield dict(state)


async def live(files: MemoryFileSystem, history: list[list[list[Op]]], limit: int) -> int:
    """Live through a history; returns how many commits were acknowledged before a crash."""
    acknowledged = 0
    try:
        store = await EmbeddedStore.open(files, FOLDER, journal_limit=limit)
    except Crashed:
        return 0
    for group in history:
        # The commits of a group wait for the disk together.
        results = await asyncio.gather(
            *(store.commit(*ops) for ops in group), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                assert isinstance(result, StoreError), result
            else:
                acknowledged += 1
    await store.close()
    return acknowledged


async def found(files: MemoryFileSystem) -> Snapshot:
    store = await EmbeddedStore.open(files, FOLDER)
    snapshot = await store.read("")
    # What was read must not be forgotten, even if the next thing that happens is a power cut.
    later = await EmbeddedStore.open(files.power_lost(), FOLDER)
    assert (await later.read("")).entries == snapshot.entries
    await later.close()
    # It must also be usable: a write after recovery must survive the next recovery.
    if "after" not in snapshot.entries:
        await store.commit(Create("after", b""))
    await store.close()
    store = await EmbeddedStore.open(files.power_lost(), FOLDER)
    again = await store.read("")
    await store.close()
    assert again.entries == {**snapshot.entries, "after": Entry(b"", 0)}
    return snapshot


def check(
    history: list[list[list[Op]]], limit: int, crash_at: int, torn: int, disks: dict[str, Disk]
) -> None:
    files = MemoryFileSystem()
    files.crash_at(crash_at, torn=torn)
    acknowledged = asyncio.run(live(files, history, limit))
    possible = list(states([ops for group in history for ops in group]))
    for name, disk in disks.items():
        entries = asyncio.run(found(disk(files))).entries
        assert dict(entries) in possible[acknowledged:], (
            f"crash at {crash_at} (+{torn} bytes), {name}: {acknowledged} acknowledged, "
            f"found {dict(entries)}"
        )


def operations(history: list[list[list[Op]]], limit: int) -> int:
    files = MemoryFileSystem()
    asyncio.run(live(files, history, limit))
    return files.operations


def test_a_crash_at_any_operation_loses_no_commit() -> None:
    history = histories(
        [
            [[("a", True)], [("b", True), ("c", True)]],
            [[("a", True)]],
            [[("b", False)], [("b", True)], [("c", True)]],
            [[("a", False), ("b", True)]],
        ]
    )
    for limit in (1 << 20, 100):
        count = operations(history, limit)
        assert count > 10
        for crash_at in range(count):
            for torn in (0, 1, 30):
                check(history, limit, crash_at, torn, DISKS)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(
        st.lists(
            st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=1, max_size=3),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=6,
    ),
    limit=st.sampled_from([1, 60, 200, 1 << 20]),
    data=st.data(),
)
def test_a_crash_in_any_history_loses_no_commit(
    groups: list[list[list[tuple[str, bool]]]], limit: int, data: st.DataObject
) -> None:
    history = histories(groups)
    crash_at = data.draw(st.integers(0, operations(history, limit)), label="crash at")
    torn = data.draw(st.integers(0, 120), label="torn")
    name = data.draw(st.sampled_from(sorted(DISKS)), label="disk")
    check(history, limit, crash_at, torn, {name: DISKS[name]})


@settings(max_examples=200, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_rot_is_refused_or_only_costs_the_last_frame(where: float, mask: int) -> None:
    history = histories([[[("a", True)]], [[("b", True)]], [[("c", True)]]])
    files = MemoryFileSystem()
    asyncio.run(live(files, history, 1 << 20))
    (journal,) = (name for name in files.listdir(FOLDER) if name.startswith("journal"))
    file = files.open(f"{FOLDER}/{journal}")
    position = int(where * file.size())
    (byte,) = file.pread(1, position)
    file.pwrite(bytes((byte ^ mask,)), position)
    last_frame = file.size() - file.size() // 3
    file.close()
    if position < last_frame:
        with pytest.raises(DamagedStore, match=journal):
            asyncio.run(found(files))
    else:
        # A damaged last frame cannot be told from one whose write was cut short.
        entries = asyncio.run(found(files)).entries
        assert dict(entries) == list(states([ops for group in history for ops in group]))[2]
