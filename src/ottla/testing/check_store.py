"""The contract of `MetadataStore`, as checks that any implementation must pass.

An implementation is handed in as `connect`: an async function that returns a client of one and the
same store. Clients may be separate (two ZooKeeper connections) or, where a store is shared within a
process, one object returned twice. The store is empty at the beginning of a check; after every
client is closed, `connect` finds what was durable.

    @pytest.mark.parametrize("check", CHECKS)
    async def test_my_store(check, connect):
        await check(connect)

`check_store` runs them all against fresh stores. A check that waits for something the store owes
waits at most `PATIENCE` seconds, so that a broken store fails instead of hanging.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from ottla.cluster.store import (
    MAX_COMMIT_BYTES,
    Check,
    Conflict,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Op,
    Revision,
    Set,
    StoreClosed,
    epoch_key,
    holder_key,
)

PATIENCE = 20.0

Connect = Callable[[], Awaitable[MetadataStore]]
StoreCheck = Callable[[Connect], Awaitable[None]]
T = TypeVar("T")
E = TypeVar("E", bound=Exception)


async def check_store(fresh: Callable[[], Awaitable[Connect]]) -> None:
    """Run every check, each against the store that a new `connect` from `fresh` leads to."""
    for check in CHECKS:
        await check(await fresh())


# --- reading and committing -----------------------------------------------------------------------


async def an_empty_store_reads_as_empty(connect: Connect) -> None:
    store = await connect()
    snapshot = await store.read("")
    _same(dict(snapshot.entries), {}, "a new store holds nothing")
    await store.close()


async def versions_count_the_sets_of_a_key(connect: Connect) -> None:
    store = await connect()
    await store.commit(Create("a", b"0"))
    _same(await _entries(store), {"a": Entry(b"0", 0)}, "a created key is at version 0")
    await store.commit(Set("a", b"1", 0))
    await store.commit(Set("a", b"2", 1))
    _same(await _entries(store), {"a": Entry(b"2", 2)}, "every set adds one")
    await store.commit(Delete("a", 2))
    _same(await _entries(store), {}, "a deleted key is gone")
    await store.commit(Create("a", b"again"))
    _same(await _entries(store), {"a": Entry(b"again", 0)}, "a key created again starts over")
    await store.close()


async def a_condition_that_does_not_hold_is_a_conflict(connect: Connect) -> None:
    store = await connect()
    await store.commit(Create("a", b"0"))
    await store.commit(Set("a", b"1", 0))
    wrong: list[Op] = [
        Create("a", b"x"),
        Set("a", b"x", 0),
        Set("a", b"x", 2),
        Set("b", b"x", 0),
        Delete("a", 0),
        Delete("b", 0),
        Check("a", 0),
        Check("b", 0),
    ]
    for op in wrong:
        conflict = await _raises(Conflict, store.commit(op))
        _same(conflict.key, op.key, f"{op} names the key it failed on")
    await store.commit(Check("a", 1))
    _same(await _entries(store), {"a": Entry(b"1", 1)}, "refused commits change nothing")
    await store.close()


async def a_commit_is_all_or_nothing(connect: Connect) -> None:
    store = await connect()
    await store.commit(Create("a", b"0"), Create("b", b"0"), Create("c", b"0"))
    before = await _entries(store)
    for failing in (Create("c", b"x"), Set("c", b"x", 7), Delete("c", 7), Check("c", 7)):
        for position in range(4):
            ops: list[Op] = [Set("a", b"x", 0), Delete("b", 0), Create("d", b"x")]
            ops.insert(position, failing)
            await _raises(Conflict, store.commit(*ops))
            _same(await _entries(store), before, f"nothing of {ops} happened")
    await store.commit(Set("a", b"1", 0), Delete("b", 0), Create("d", b"1"), Check("c", 0))
    _same(
        await _entries(store),
        {"a": Entry(b"1", 1), "c": Entry(b"0", 0), "d": Entry(b"1", 0)},
        "all of a good commit happened",
    )
    await store.close()


async def a_commit_that_can_never_succeed_is_a_value_error(connect: Connect) -> None:
    store = await connect()
    await _raises(ValueError, store.commit(Create("a", b""), Check("a", 0)))
    for key in ("", "/a", "a/", "a//b", "a/../b", ".", "caf\u00e9", "a\nb"):
        await _raises(ValueError, store.commit(Create(key, b"")))
    await _raises(ValueError, store.commit(Create("a", bytes(MAX_COMMIT_BYTES + 1))))
    await store.commit(Create("a", bytes(MAX_COMMIT_BYTES - 1)))
    await store.close()


async def a_prefix_names_whole_segments(connect: Connect) -> None:
    store = await connect()
    keys = ["topics", "topics/a", "topics/a.b", "topics/a/x", "topics2", "other/topics"]
    await store.commit(*(Create(key, key.encode()) for key in keys))
    _same(
        sorted(await _entries(store, "topics")),
        ["topics", "topics/a", "topics/a.b", "topics/a/x"],
        "a prefix covers itself and what is below",
    )
    _same(sorted(await _entries(store, "topics/a")), ["topics/a", "topics/a/x"], "and no namesake")
    _same(sorted(await _entries(store)), sorted(keys), "the empty prefix covers everything")
    _same(await _entries(store, "nothing"), {}, "an unknown prefix is empty, not an error")
    await store.close()


async def racing_compare_and_sets_lose_no_update(connect: Connect) -> None:
    clients = [await connect() for _ in range(3)]
    await clients[0].commit(Create("counter", b"0"))

    async def add(store: MetadataStore, times: int) -> None:
        for _ in range(times):
            while True:
                value, version = (await store.read("counter")).entries["counter"]
                try:
                    await store.commit(Set("counter", b"%d" % (int(value) + 1), version))
                except Conflict:
                    continue
                break

    await _soon(asyncio.gather(*(add(store, 20) for store in clients for _ in range(2))))
    _same(
        await _entries(clients[-1]),
        {"counter": Entry(b"120", 120)},
        "every increment is there, and none twice",
    )
    await _close(clients)


async def reads_are_consistent_and_never_go_backwards(connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    await writer.commit(Create("x", b"0"), Create("y", b"0"))

    async def write() -> None:
        for number in range(1, 60):
            value = b"%d" % number
            await writer.commit(Set("x", value, number - 1), Set("y", value, number - 1))

    writing = asyncio.ensure_future(write())
    last = Revision(0)
    newest = 0
    while not writing.done():
        snapshot = await reader.read("")
        x, y = snapshot.entries["x"], snapshot.entries["y"]
        _same(x, y, "both halves of a commit are seen together")
        _true(snapshot.revision >= last, "revisions do not go backwards")
        _true(int(x.value) >= newest, "nor do values")
        if int(x.value) > newest:
            _true(snapshot.revision > last, "a changed state has a new revision")
        last, newest = snapshot.revision, int(x.value)
        await asyncio.sleep(0)
    await writing
    await _close([writer, reader])


async def a_finished_commit_is_seen_by_every_later_read(connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    for number in range(20):
        revision = await writer.commit(Create(f"key/{number}", b""))
        snapshot = await reader.read("key")
        _true(snapshot.revision >= revision, "a read after a commit is not older than it")
        _same(len(snapshot.entries), number + 1, "and shows what was committed")
    await _close([writer, reader])


async def durable_keys_survive_and_ephemeral_ones_do_not(connect: Connect) -> None:
    store = await connect()
    await store.commit(Create("durable", b"0"), Create("gone", b"0"))
    await store.commit(Set("durable", b"1", 0), Delete("gone", 0))
    session = await store.join("present", b"me")
    _same(sorted(await _entries(store)), ["durable", "present"], "both are there")
    await store.close()
    _true(session.lost.happened, "closing loses the session")
    store = await connect()
    _same(await _entries(store), {"durable": Entry(b"1", 1)}, "only the durable one is left")
    await store.close()


# --- watching -------------------------------------------------------------------------------------


async def a_watch_reports_at_once_and_after_each_change(connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    watch = reader.watch("topics")
    await _next(watch)
    for number in range(10):
        revision = await writer.commit(Create(f"topics/{number}", b""))
        reported = await _next(watch)
        snapshot = await reader.read("topics")
        _true(snapshot.revision >= reported, "a read is not older than the report before it")
        while snapshot.revision < revision:
            await _next(watch)
            snapshot = await reader.read("topics")
        _true(f"topics/{number}" in snapshot.entries, "the reported change can be read")
    await _close([writer, reader])


async def a_watch_is_level_triggered(connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    watch = reader.watch("a")
    await _next(watch)
    # Nobody is waiting on the watch while these happen: they must be reported all the same.
    for number in range(5):
        await writer.commit(Create(f"a/{number}", b""))
    await _until(reader, watch, "a", lambda keys: len(keys) == 5)
    await writer.commit(Delete("a/0", 0))
    await _until(reader, watch, "a", lambda keys: len(keys) == 4)
    await _close([writer, reader])


async def a_watch_never_misses_the_last_change(connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    total = 100

    async def write() -> None:
        await writer.commit(Create("n", b"0"))
        for number in range(total):
            await writer.commit(Set("n", b"%d" % (number + 1), number))
            if number % 7 == 0:
                await asyncio.sleep(0)

    async def follow() -> None:
        async for _ in reader.watch("n"):
            entry = (await reader.read("n")).entries.get("n")
            if entry is not None and int(entry.value) == total:
                return

    await _soon(asyncio.gather(write(), follow()))
    await _close([writer, reader])


async def a_watch_ignores_other_prefixes(connect: Connect) -> None:
    writer, reader = await connect(), await connect()
    await writer.commit(Create("mine", b""))
    watch = reader.watch("mine")
    await _next(watch)
    waiting = asyncio.ensure_future(_next(watch))
    for number in range(10):  # enough of them for a wrong report to arrive meanwhile
        await writer.commit(Create(f"other/{number}", b""), Create(f"mine{number}", b""))
    _true(not waiting.done(), "a change elsewhere is not reported")
    await writer.commit(Set("mine", b"", 0))
    await waiting
    await _close([writer, reader])


async def a_watch_sees_presence_come_and_go(connect: Connect) -> None:
    one, other = await connect(), await connect()
    watch = other.watch("brokers")
    session = await one.join("brokers/1", b"")
    await _until(other, watch, "brokers", lambda keys: keys == {"brokers/1"})
    await session.release()
    await _until(other, watch, "brokers", lambda keys: not keys)
    await _close([one, other])


async def a_watch_ends_when_the_store_is_closed(connect: Connect) -> None:
    store = await connect()
    watch = store.watch("")
    await _next(watch)
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    await store.close()
    _same(await _soon(waiting), None, "the iteration is over")


# --- presence -------------------------------------------------------------------------------------


async def presence_is_exclusive_until_released(connect: Connect) -> None:
    one, other = await connect(), await connect()
    session = await one.join("brokers/1", b"one")
    _same(session.key, "brokers/1", "a session knows its key")
    _same(await _entries(other), {"brokers/1": Entry(b"one", 0)}, "others see it")
    await _raises(Conflict, other.join("brokers/1", b"other"))
    _true(not session.lost.happened, "a refused rival takes nothing away")
    await session.release()
    await _soon(session.lost)
    await session.release()
    again = await other.join("brokers/1", b"other")
    _same(await _entries(one), {"brokers/1": Entry(b"other", 0)}, "the place was free")
    _true(not again.lost.happened, "and the old session has no say in the new one")
    await session.release()
    _same(sorted(await _entries(other)), ["brokers/1"], "not even by releasing once more")
    await _close([one, other])


async def a_presence_comes_with_other_changes_or_not_at_all(connect: Connect) -> None:
    one, other = await connect(), await connect()
    await one.commit(Create("state", b"0"))
    await _raises(Conflict, one.join("brokers/1", b"", Set("state", b"1", 7)))
    _same(await _entries(other), {"state": Entry(b"0", 0)}, "neither was done")
    session = await one.join("brokers/1", b"", Set("state", b"1", 0), Create("more", b""))
    _same(sorted(await _entries(other)), ["brokers/1", "more", "state"], "all of it was done")
    await _raises(Conflict, other.join("brokers/1", b"", Set("state", b"2", 1)))
    _same((await _entries(other))["state"], Entry(b"1", 1), "a refused presence changes nothing")
    await session.release()
    _same(sorted(await _entries(other)), ["more", "state"], "only the presence was ephemeral")
    await _close([one, other])


async def deleting_a_presence_loses_its_session(connect: Connect) -> None:
    one, other = await connect(), await connect()
    session = await one.join("brokers/1", b"one")
    waiting = [asyncio.ensure_future(_wait(session.lost)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await _raises(Conflict, other.commit(Delete("brokers/1", 5)))
    _true(not session.lost.happened, "a delete that was refused does not fence")
    await other.commit(Delete("brokers/1", 0))
    await _soon(waiting[1])
    _true(session.lost.happened, "a fenced session knows it")
    _same(await _entries(one), {}, "and its key is gone")
    await one.join("brokers/1", b"again")
    await _close([one, other])


async def a_presence_is_an_ordinary_key_otherwise(connect: Connect) -> None:
    store = await connect()
    session = await store.join("brokers/1", b"v0")
    await store.commit(Check("brokers/1", 0), Create("durable", b""))
    await store.commit(Set("brokers/1", b"v1", 0))
    await _raises(Conflict, store.commit(Check("brokers/1", 0)))
    await _raises(Conflict, store.commit(Create("brokers/1", b"")))
    _same((await _entries(store))["brokers/1"], Entry(b"v1", 1), "it can be updated")
    _true(not session.lost.happened, "by which the session is not lost")
    await session.release()
    await _raises(Conflict, store.commit(Check("brokers/1", 1)))
    await store.close()


async def a_cancelled_join_leaves_nothing_behind(connect: Connect) -> None:
    store = await connect()
    for steps in range(6):
        joining = asyncio.ensure_future(store.join("brokers/1", b""))
        for _ in range(steps):
            await asyncio.sleep(0)
        won = joining.done()
        joining.cancel()
        if won:
            await joining.result().release()
        watch = store.watch("brokers")
        await _until(store, watch, "brokers", lambda keys: not keys)
    await store.join("brokers/1", b"")
    await store.close()


# --- roles ----------------------------------------------------------------------------------------


async def terms_have_strictly_increasing_epochs(connect: Connect) -> None:
    store = await connect()
    epochs = []
    for _ in range(3):
        term = await _soon(store.campaign("controller", b"me"))
        epochs.append(term.epoch)
        await term.release()
        await _soon(term.lost)
    await store.close()
    store = await connect()
    epochs.append((await _soon(store.campaign("controller", b"me"))).epoch)
    await store.close()
    store = await connect()
    epochs.append((await _soon(store.campaign("controller", b"me"))).epoch)
    other = await _soon(store.campaign("another", b"me"))
    _true(epochs[0] >= 1, "the first epoch is at least 1")
    _true(
        all(earlier < later for earlier, later in pairwise(epochs)),
        f"epochs grow, over restarts too: {epochs}",
    )
    _true(other.epoch >= 1, "each role counts its own epochs")
    await store.close()


async def a_role_has_one_holder_at_a_time(connect: Connect) -> None:
    clients = [await connect() for _ in range(3)]
    holding = 0
    served: list[int] = []

    async def serve(store: MetadataStore) -> None:
        nonlocal holding
        for _ in range(3):
            term = await store.campaign("controller", b"")
            holding += 1
            _same(holding, 1, "nobody else holds the role")
            await store.commit(term.fence)
            served.append(term.epoch)
            holding -= 1
            await term.release()

    await _soon(asyncio.gather(*(serve(store) for store in clients)))
    _same(served, sorted(set(served)), "terms follow one another, each with a later epoch")
    _same(len(served), 9, "and everybody had their turns")
    await _close(clients)


async def the_holder_of_a_role_can_be_read(connect: Connect) -> None:
    one, other = await connect(), await connect()
    term = await _soon(one.campaign("controller", b"one"))
    entries = await _entries(other, "controller")
    _same(entries[holder_key("controller")].value, b"one", "the holder")
    _same(entries[epoch_key("controller")].value, b"one", "who began the newest term")
    _same(term.fence, Check(epoch_key("controller"), entries[epoch_key("controller")].version), "")
    await term.release()
    _same(sorted(await _entries(other)), [epoch_key("controller")], "a vacant role")
    await _close([one, other])


async def a_deposed_holder_is_fenced(connect: Connect) -> None:
    one, other = await connect(), await connect()
    await one.commit(Create("state", b"0"))
    old = await _soon(one.campaign("controller", b"one"))
    await one.commit(old.fence, Set("state", b"1", 0))
    standing = asyncio.ensure_future(other.campaign("controller", b"other"))
    await asyncio.sleep(0)
    holder = (await other.read("controller")).entries[holder_key("controller")]
    await other.commit(Delete(holder_key("controller"), holder.version))
    await _soon(old.lost)
    new = await _soon(standing)
    _true(new.epoch > old.epoch, "the new term has a later epoch")
    await _raises(Conflict, one.commit(old.fence, Set("state", b"stale", 1)))
    await other.commit(new.fence, Set("state", b"2", 1))
    _same((await _entries(one))["state"].value, b"2", "only the newest term can write")
    await old.release()
    _true(not new.lost.happened, "the deposed one cannot end its successor's term")
    await _close([one, other])


async def a_cancelled_campaign_leaves_the_line(connect: Connect) -> None:
    one, other = await connect(), await connect()
    for steps in range(6):
        term = await _soon(one.campaign("controller", b"one"))
        impatient = asyncio.ensure_future(other.campaign("controller", b"impatient"))
        for _ in range(steps):
            await asyncio.sleep(0)
        patient = asyncio.ensure_future(other.campaign("controller", b"patient"))
        releasing = asyncio.ensure_future(term.release())
        for _ in range(steps):
            await asyncio.sleep(0)
        won = impatient.done()
        impatient.cancel()
        if won:
            await impatient.result().release()
        await releasing
        next_term = await _soon(patient)
        holder = (await other.read("controller")).entries[holder_key("controller")]
        _same(holder.value, b"patient", "the one who stayed was elected")
        await next_term.release()
    await _close([one, other])


async def a_closed_store_says_so(connect: Connect) -> None:
    store = await connect()
    term = await _soon(store.campaign("controller", b""))
    waiting = asyncio.ensure_future(store.campaign("controller", b""))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    _true(term.lost.happened, "closing ends a term")
    await _raises(StoreClosed, waiting)
    await _raises(StoreClosed, store.read(""))
    await _raises(StoreClosed, store.commit(Create("a", b"")))
    await _raises(StoreClosed, store.join("a", b""))
    await _raises(StoreClosed, store.campaign("a", b""))
    await term.release()


CHECKS: tuple[StoreCheck, ...] = (
    an_empty_store_reads_as_empty,
    versions_count_the_sets_of_a_key,
    a_condition_that_does_not_hold_is_a_conflict,
    a_commit_is_all_or_nothing,
    a_commit_that_can_never_succeed_is_a_value_error,
    a_prefix_names_whole_segments,
    racing_compare_and_sets_lose_no_update,
    reads_are_consistent_and_never_go_backwards,
    a_finished_commit_is_seen_by_every_later_read,
    durable_keys_survive_and_ephemeral_ones_do_not,
    a_watch_reports_at_once_and_after_each_change,
    a_watch_is_level_triggered,
    a_watch_never_misses_the_last_change,
    a_watch_ignores_other_prefixes,
    a_watch_sees_presence_come_and_go,
    a_watch_ends_when_the_store_is_closed,
    presence_is_exclusive_until_released,
    a_presence_comes_with_other_changes_or_not_at_all,
    deleting_a_presence_loses_its_session,
    a_presence_is_an_ordinary_key_otherwise,
    a_cancelled_join_leaves_nothing_behind,
    terms_have_strictly_increasing_epochs,
    a_role_has_one_holder_at_a_time,
    the_holder_of_a_role_can_be_read,
    a_deposed_holder_is_fenced,
    a_cancelled_campaign_leaves_the_line,
    a_closed_store_says_so,
)


# --- how a check fails ----------------------------------------------------------------------------


def _true(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"broken promise: {what}")


def _same(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise AssertionError(f"broken promise: {what}: expected {expected!r}, got {actual!r}")


async def _raises(kind: type[E], awaitable: Awaitable[object]) -> E:
    try:
        result = await _soon(awaitable)
    except kind as error:
        return error
    raise AssertionError(f"broken promise: expected {kind.__name__}, got {result!r}")


async def _soon(awaitable: Awaitable[T]) -> T:
    """What the store owes within reason."""
    return await asyncio.wait_for(_wait(awaitable), PATIENCE)


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _next(watch: AsyncIterator[Revision]) -> Revision:
    return await _soon(anext(watch))


async def _until(
    store: MetadataStore,
    watch: AsyncIterator[Revision],
    prefix: str,
    satisfied: Callable[[set[str]], bool],
) -> None:
    """Follow `watch` until a read shows what is wanted: all that a level-triggered watch owes."""
    while not satisfied(set(await _entries(store, prefix))):
        await _next(watch)


async def _entries(store: MetadataStore, prefix: str = "") -> dict[str, Entry]:
    return dict((await store.read(prefix)).entries)


async def _close(clients: Sequence[MetadataStore]) -> None:
    for store in clients:
        await store.close()
