"""The store on ZooKeeper keeps the contract, with few requests, also for who is late.

Sessions, connections and servers that end are the subject of `system/test_zookeeper.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ottla.cluster.store import Conflict, Create, Delete, Session, Set, StoreError, Unavailable
from ottla.cluster.zookeeper.address import Access, parse_address
from ottla.cluster.zookeeper.connection import Broken
from ottla.cluster.zookeeper.mirror import SetNode
from ottla.cluster.zookeeper.nodes import INLINE_BYTES
from ottla.cluster.zookeeper.store import ZooKeeperStore
from ottla.testing.check_store import CHECKS, StoreCheck

Connect = Callable[..., Awaitable[ZooKeeperStore]]


@pytest.fixture
async def connect(zookeeper: str, unique: Callable[..., str]) -> AsyncIterator[Connect]:
    """`connect()`: one more client of a store of this test's own."""
    chroot = unique("store")
    opened: list[ZooKeeperStore] = []

    async def open_store(**options: object) -> ZooKeeperStore:
        where = parse_address(f"{zookeeper}/{options.pop('chroot', chroot)}")
        store = await ZooKeeperStore.open(where, session_timeout=20.0, **options)
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        await store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_keeps_the_contract(check: StoreCheck, connect: Connect):
    await check(connect)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def hold_up(store: ZooKeeperStore) -> asyncio.Event:
    """Let a client learn nothing until the event is set."""
    gate = asyncio.Event()
    catch_up = store.follower.round

    async def held_up(*, synced: bool) -> None:
        await gate.wait()
        await catch_up(synced=synced)

    store.follower.round = held_up
    return gate


async def test_a_change_among_ten_thousand_partitions_costs_others_a_few_requests(connect: Connect):
    leader, other = await connect(), await connect()
    states = b'{"v":1,"p":[' + b",".join([b"[1,0,0,[1,2,3],[1,2,3]]"] * 64) + b"]}"
    keys = [f"partitions/{topic}/{chunk}" for topic in range(16) for chunk in range(10)]
    for start in range(0, len(keys), 20):
        await leader.commit(*(Create(key, states) for key in keys[start : start + 20]))
    assert len((await other.read("")).entries) * 64 > 10_000

    watch = other.watch("partitions")
    await anext(watch)
    await other.read("")
    before = other.connection.requests
    for version in range(10):
        await leader.commit(Set(keys[0], states + b" " * version, version))
        await anext(watch)
        snapshot = await other.read("")
        assert snapshot.entries[keys[0]].version == version + 1
    each = (other.connection.requests - before) / 10
    assert each <= 8, "watch, count, change, new watch, and the read's sync and count"
    assert other.follower.full_loads == 1


async def test_reads_of_an_unchanged_store_cost_a_sync_and_a_look(connect: Connect):
    store = await connect()
    await store.commit(Create("a", b"1"))
    await store.read("")
    before = store.connection.requests
    for _ in range(5):
        await store.read("")
    assert store.connection.requests - before <= 10
    before = store.connection.requests
    await asyncio.gather(*(store.read("") for _ in range(100)))
    assert store.connection.requests - before <= 4, "readers that come together share a round"


async def test_who_is_too_far_behind_reads_everything_once(connect: Connect):
    writer = await connect(changes_kept=5)
    late = await connect(changes_kept=5)
    term = await writer.campaign("controller", b"writer")
    watch = late.watch("key")
    await anext(watch)
    gate = hold_up(late)
    for number in range(40):
        await writer.commit(Create(f"key/{number}", b"%d" % number), term.fence)
    await until(lambda: writer.follower.kept <= 10)
    gate.set()
    assert await late.read("key") == await writer.read("key")
    assert late.follower.full_loads == 2
    await anext(watch)


async def test_a_presence_whose_change_was_trimmed_unread_is_kept_all_the_same(connect: Connect):
    writer, late = await connect(changes_kept=5), await connect()
    term = await writer.campaign("controller", b"writer")
    await late.read("")
    gate = hold_up(late)
    joining = asyncio.ensure_future(late.join("brokers/1", b"late"))
    async for _ in writer.watch("brokers"):
        if (await writer.read("brokers")).entries:
            break
    for number in range(40):
        await writer.commit(Create(f"key/{number}", b""), term.fence)
    await until(lambda: writer.follower.kept <= 10)
    gate.set()
    session = await joining
    assert late.follower.full_loads == 2
    assert not session.lost.happened
    await writer.commit(Delete("brokers/1", 0))
    await asyncio.wait_for(_lost(session), 60)


async def test_a_presence_comes_with_other_changes_or_not_at_all(connect: Connect):
    store = await connect()
    await store.commit(Create("state", b"0"))
    with pytest.raises(Conflict):
        await store.join("brokers/1", b"", Set("state", b"1", 7))
    assert sorted((await store.read("")).entries) == ["state"]
    session = await store.join("brokers/1", b"", Set("state", b"1", 0))
    assert (await store.read("state")).entries["state"].value == b"1"
    await session.release()
    assert sorted((await store.read("")).entries) == ["state"]


async def _lost(session: Session) -> None:
    await session.lost


async def test_nodes_that_somebody_else_wrote_are_found_when_they_are_in_the_way(connect: Connect):
    store, other = await connect(), await connect()
    await store.commit(Create("partitions/one/0", b"x"), Create("topics/one", b"x"))
    await other.connection.create("partitions/one/stranger", b"by hand")
    await store.commit(Delete("partitions/one/0", 0))
    assert sorted((await store.read("")).entries) == ["partitions/one/stranger", "topics/one"]
    await other.connection.multi([SetNode("topics/one", b"by hand", 0)])
    with pytest.raises(Conflict, match="at version 1"):
        await store.commit(Set("topics/one", b"y", 0))
    await store.commit(Set("topics/one", b"y", 1))


async def test_changes_are_trimmed_by_whoever_holds_a_role(connect: Connect):
    one, other = await connect(changes_kept=10), await connect(changes_kept=10)
    for number in range(30):
        await one.commit(Create(f"key/{number}", b""))
    assert len(await one.connection.children(".changes")) == 30, "nobody holds a role"
    await other.campaign("controller", b"other")
    await one.commit(Create("key/last", b""))
    await until(lambda: other.follower.kept <= 20)
    assert len(await one.connection.children(".changes")) <= 20
    assert len((await one.read("key")).entries) == 31
    assert one.follower.full_loads == 1, "a trim behind everybody's back costs nobody a thing"


async def test_refused_commits_leave_no_gap_in_the_numbers(connect: Connect):
    one, other = await connect(), await connect()
    for number in range(20):
        await one.commit(Create(f"key/{number}", b""))
        with pytest.raises(Conflict):
            await other.commit(Create(f"key/{number}", b""), Create(f"more/{number}", b""))
    assert other.follower.full_loads == one.follower.full_loads == 1


async def test_large_values_come_whole_beside_small_changes(connect: Connect):
    writer, reader = await connect(), await connect()
    large = b"x" * (INLINE_BYTES * 3)
    await writer.commit(Create("large", large), Create("twin", large))

    async def write() -> None:
        for version in range(30):
            value = large + b"%d" % version
            await writer.commit(Set("large", value, version), Set("twin", value, version))
            await writer.commit(Create(f"small/{version}", b""))

    writing = asyncio.ensure_future(write())
    while not writing.done():
        entries = (await reader.read("")).entries
        assert entries["large"] == entries["twin"]
    await writing
    assert (await reader.read("")).entries == (await writer.read("")).entries
    assert reader.follower.full_loads == 1


async def test_commits_at_the_same_time_do_not_conflict_over_directories(connect: Connect):
    one, other = await connect(), await connect()
    for number in range(10):
        await asyncio.gather(
            one.commit(Create(f"dir/{number}/a", b"")), other.commit(Create(f"dir/{number}/b", b""))
        )
        await asyncio.gather(
            one.commit(Delete(f"dir/{number}/a", 0)),
            other.commit(Create(f"dir/{number}/c", b"")),
            other.commit(Delete(f"dir/{number}/b", 0)),
        )
    assert sorted((await one.read("")).entries) == [f"dir/{number}/c" for number in range(10)]


async def test_a_commit_of_more_than_a_packet_is_refused_before_it_is_sent(connect: Connect):
    store = await connect()
    with pytest.raises(ValueError, match="divide it"):
        await store.commit(*(Create(f"key/{number}", b"") for number in range(8_000)))
    assert not (await store.read("")).entries
    assert store.connected


async def test_keys_where_the_store_keeps_other_things_are_refused(connect: Connect):
    store = await connect()
    for key in (".changes/x", ".lines", "zookeeper", "zookeeper/quota"):
        with pytest.raises(ValueError, match="other things"):
            await store.commit(Create(key, b""))


async def test_a_chroot_that_holds_something_else_is_refused(connect: Connect, unique):
    first = await connect(chroot=unique())
    await first.connection.create("brokers")
    await first.connection.delete(".changes")
    with pytest.raises(StoreError, match=r"no metadata of Ottla but brokers.*chroot of its own"):
        await connect(chroot=first._address.chroot[1:])


async def test_a_chroot_is_not_made_by_who_only_looks(connect: Connect, unique):
    name = unique()
    with pytest.raises(StoreError, match=f"there is no /{name}"):
        await connect(chroot=name, create=False)


async def test_nobody_at_the_address_is_said_with_the_address():
    where = parse_address("127.0.0.1:1/x")
    with pytest.raises(Unavailable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 .*zookeeper"):
        await ZooKeeperStore.open(where, connect_timeout=0.5)


async def test_with_credentials_nobody_else_may_read_or_write(zookeeper: str, unique):
    where = parse_address(f"{zookeeper}/{unique()}")
    owner = await ZooKeeperStore.open(where, Access("ottla", "secret"))
    await owner.commit(Create("a", b"1"))
    with pytest.raises(Unavailable, match="another user"):
        await ZooKeeperStore.open(where, Access("ottla", "wrong"))
    again = await ZooKeeperStore.open(where, Access("ottla", "secret"))
    assert (await again.read("a")).entries["a"].value == b"1"
    await again.close()
    await owner.close()


async def test_waiting_for_a_role_does_not_stir_everybody(connect: Connect):
    holder = await connect()
    term = await holder.campaign("controller", b"holder")
    waiting = [await connect() for _ in range(4)]
    standing = [asyncio.ensure_future(each.campaign("controller", b"")) for each in waiting[:1]]
    for number, each in enumerate(waiting[1:], start=1):
        while len(await holder.connection.children(".lines/controller")) < number:
            await asyncio.sleep(0.01)
        standing.append(asyncio.ensure_future(each.campaign("controller", b"")))
    while len(await holder.connection.children(".lines/controller")) < len(waiting):
        await asyncio.sleep(0.01)
    await term.release()
    elected = []
    while len(elected) < len(standing):
        done, _ = await asyncio.wait(
            [each for each in standing if each not in elected],
            return_when=asyncio.FIRST_COMPLETED,
            timeout=60,
        )
        assert len(done) == 1, "one at a time"
        (won,) = done
        elected.append(won)
        await won.result().release()
    assert elected == standing, "first come, first served"
    assert [each.result().epoch for each in elected] == [2, 3, 4, 5]


async def test_one_who_stands_in_line_and_does_nothing_holds_nobody_up(connect: Connect):
    holder, dead, living = await connect(), await connect(), await connect()
    term = await holder.campaign("controller", b"holder")
    await dead.connection.create(".lines/controller/dead-", ephemeral=True, sequence=True)
    standing = asyncio.ensure_future(living.campaign("controller", b"living"))
    line = holder.connection.children
    async with asyncio.timeout(60):
        while len(await line(".lines/controller")) < 2:
            await asyncio.sleep(0.01)
    await term.release()
    async with asyncio.timeout(60):  # the session of the dead one lasts as long as the test
        assert (await standing).epoch == term.epoch + 1


@pytest.mark.parametrize("cut_off", [True, False], ids=["cut off", "cancelled"])
async def test_a_role_that_could_not_be_given_back_at_once_is_given_back_later(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, cut_off: bool
):
    holder, other = await connect(), await connect()
    term = await holder.campaign("controller", b"holder")
    asked = asyncio.Event()

    async def never_sent(_: object) -> list[object]:
        asked.set()
        if not cut_off:
            await asyncio.Event().wait()
        raise Broken("the connection ended")

    with monkeypatch.context() as patched:
        patched.setattr(holder.connection, "multi", never_sent)
        releasing = asyncio.ensure_future(term.release())
        await asked.wait()
        if not cut_off:
            patched.undo()
            releasing.cancel()
        with pytest.raises(Unavailable if cut_off else asyncio.CancelledError):
            await releasing
    async with asyncio.timeout(60):  # the session of the holder lasts as long as the test
        assert (await other.campaign("controller", b"other")).epoch == term.epoch + 1
        await term.lost
