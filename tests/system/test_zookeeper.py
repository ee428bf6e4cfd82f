"""The store on ZooKeeper while connections, sessions and servers end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ottla.cluster.store import (
    Conflict,
    Create,
    MetadataStore,
    Set,
    StoreFailed,
    Unavailable,
    epoch_key,
    holder_key,
)
from ottla.cluster.zookeeper.address import Access, Tls, parse_address, read_access
from ottla.cluster.zookeeper.store import ZooKeeperStore
from ottla.testing.process import LOOPBACK, free_port
from ottla.testing.zookeeper import ZooKeeperProcess, ensemble

SHORT = 5.0
"""A session that is lost while a test waits, and not because the test gets no processor."""
LONG = 20.0


class Proxy:
    """A way to ZooKeeper that can be cut, and that can lose what comes back."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_cut = False
        self.loses_answers = False
        self.loses_requests = False
        self.lost = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End every connection, and let nobody in."""
        self.is_cut = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        self.is_cut = self.loses_answers = self.loses_requests = False

    async def stop(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        ways = [
            asyncio.ensure_future(self._pump(reader, far_writer, lambda: self.loses_requests)),
            asyncio.ensure_future(self._pump(far_reader, writer, lambda: self.loses_answers)),
        ]
        self._tasks |= set(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, far_writer):
            each.transport.abort()
            self._writers.discard(each)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        loses: Callable[[], bool],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if loses():
                    self.lost += len(data)
                    continue
                writer.write(data)
                await writer.drain()


@pytest.fixture
async def proxy(zookeeper: str) -> AsyncIterator[Proxy]:
    way = Proxy(zookeeper)
    await way.start()
    yield way
    await way.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper of the test's own, to be killed."""
    with ZooKeeperProcess(tmp_path / "zookeeper") as server:
        server.start()
        yield server


async def open_store(address: str, chroot: str = "", session: float = LONG) -> ZooKeeperStore:
    return await ZooKeeperStore.open(
        parse_address(f"{address}/{chroot}"), session_timeout=session, connect_timeout=120.0
    )


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 120)


async def gone(store: MetadataStore, key: str) -> None:
    async for _ in store.watch(key):
        if key not in (await store.read(key)).entries:
            return


async def happened(loss) -> None:
    await loss


# --- connections ----------------------------------------------------------------------------------


async def test_a_short_cut_ends_no_session_and_misses_no_change(zookeeper, proxy, unique):
    chroot = unique()
    far, near = await open_store(proxy.address, chroot), await open_store(zookeeper, chroot)
    session = await far.join("brokers/1", b"")
    term = await far.campaign("controller", b"far")
    watch = far.watch("topics")
    await anext(watch)
    for number in range(5):
        proxy.cut()
        await near.commit(Create(f"topics/{number}", b""))
        assert far.mirror.entries.get(f"topics/{number}") is None
        proxy.heal()
        await soon(anext(watch))
        assert f"topics/{number}" in (await far.read("topics")).entries
    assert not session.lost.happened
    assert not term.lost.happened
    await far.commit(term.fence, Create("still", b"ours"))
    assert far.follower.full_loads == 1
    await far.close()
    await near.close()


async def test_while_the_connection_is_down_no_read_answers(zookeeper, proxy, unique):
    chroot = unique()
    far, near = (
        await open_store(proxy.address, chroot, session=SHORT),
        await open_store(zookeeper, chroot),
    )
    await near.commit(Create("a", b"1"))
    assert (await far.read("a")).entries["a"].value == b"1"
    proxy.cut()
    reading = asyncio.ensure_future(far.read("a"))
    await near.commit(Set("a", b"2", 0))
    with pytest.raises(Unavailable, match="no connection"):
        await soon(reading)
    assert not far.connected
    with pytest.raises(Unavailable):
        await soon(far.commit(Set("a", b"3", 1)))
    waiting = asyncio.ensure_future(far.read("a"))
    proxy.heal()
    with contextlib.suppress(Unavailable):
        await soon(waiting)
    await soon(asyncio.ensure_future(_online(far)))
    assert (await far.read("a")).entries["a"].value == b"2"
    await far.close()
    await near.close()


async def _online(store: ZooKeeperStore) -> None:
    await store.wait_online()


async def test_a_commit_whose_answer_was_lost_is_found_among_the_changes(zookeeper, proxy, unique):
    chroot = unique()
    far, near = await open_store(proxy.address, chroot), await open_store(zookeeper, chroot)
    await far.commit(Create("a", b"0"))
    proxy.loses_answers = True
    committing = asyncio.ensure_future(far.commit(Set("a", b"1", 0)))
    joining = asyncio.ensure_future(far.join("brokers/1", b"me"))
    async for _ in near.watch(""):
        entries = (await near.read("")).entries
        if entries["a"].value == b"1" and "brokers/1" in entries:
            break
    proxy.cut()
    proxy.heal()
    await soon(committing)
    session = await soon(joining)
    assert not session.lost.happened
    await session.release()
    assert dict((await near.read("brokers")).entries) == {}
    await far.commit(Set("a", b"2", 1))
    await far.close()
    await near.close()


async def test_a_commit_that_never_arrived_is_not_made_later(zookeeper, proxy, unique):
    chroot = unique()
    far, near = await open_store(proxy.address, chroot), await open_store(zookeeper, chroot)
    await far.commit(Create("a", b"0"))
    proxy.loses_requests = True
    committing = asyncio.ensure_future(far.commit(Set("a", b"1", 0)))
    while not proxy.lost:
        await asyncio.sleep(0.01)
    proxy.cut()
    proxy.heal()
    with pytest.raises(Unavailable, match="not among the changes"):
        await soon(committing)
    assert (await near.read("a")).entries["a"].value == b"0"
    await far.commit(Set("a", b"1", 0))
    await far.close()
    await near.close()


async def test_no_update_is_lost_or_doubled_over_many_cuts(zookeeper, proxy, unique):
    chroot = unique()
    far, near = await open_store(proxy.address, chroot), await open_store(zookeeper, chroot)
    await near.commit(Create("counter", b"0"))
    acknowledged = 0

    async def add(store: MetadataStore, times: int) -> None:
        nonlocal acknowledged
        done = 0
        while done < times:
            try:
                value, version = (await store.read("counter")).entries["counter"]
                await store.commit(Set("counter", b"%d" % (int(value) + 1), version))
            except (Conflict, Unavailable):
                continue  # not among the changes means that it did not happen
            done += 1
            acknowledged += 1

    adding = asyncio.gather(*(add(store, 10) for store in (far, near) for _ in range(2)))
    pause, before = 0.03, 0
    while not adding.done():
        await asyncio.sleep(pause)
        proxy.loses_answers = not proxy.loses_answers
        if not proxy.loses_answers:
            proxy.cut()
            proxy.heal()
            # where it takes longer to connect than to be cut off again, nobody would ever be done
            pause, before = 0.03 if acknowledged > before else 2 * pause, acknowledged
    await soon(adding)
    assert acknowledged == 40
    assert (await near.read("counter")).entries["counter"] == (b"40", 40)
    await far.close()
    await near.close()


# --- sessions -------------------------------------------------------------------------------------


async def test_an_expired_session_is_lost_and_seen_by_others(zookeeper, proxy, unique):
    chroot = unique()
    far, near = (
        await open_store(proxy.address, chroot, session=SHORT),
        await open_store(zookeeper, chroot),
    )
    session = await far.join("brokers/1", b"far")
    term = await far.campaign("controller", b"far")
    await near.commit(Create("state", b"0"))
    standing = asyncio.ensure_future(near.campaign("controller", b"near"))
    before = await near.read("brokers")
    proxy.cut()
    await soon(gone(near, "brokers/1"))
    assert (await near.read("brokers")).revision > before.revision
    new = await soon(standing)
    assert new.epoch > term.epoch
    assert not session.lost.happened, "nobody could tell it yet"
    proxy.heal()
    await soon(asyncio.gather(happened(session.lost), happened(term.lost)))
    with pytest.raises(Conflict):
        await soon(far.commit(term.fence, Set("state", b"stale", 0)))
    again = await soon(far.join("brokers/1", b"far again"))
    assert (await near.read("brokers")).entries["brokers/1"].value == b"far again"
    await session.release()
    await term.release()
    assert not again.lost.happened
    assert not new.lost.happened
    await far.close()
    await near.close()


async def test_who_waits_for_a_role_stays_in_line_over_a_lost_session(zookeeper, proxy, unique):
    chroot = unique()
    far, near = (
        await open_store(proxy.address, chroot, session=SHORT),
        await open_store(zookeeper, chroot),
    )
    term = await near.campaign("controller", b"near")
    presence = await far.join("brokers/1", b"far")
    standing = asyncio.ensure_future(far.campaign("controller", b"far"))
    while not await near.connection.exists(".lines/controller"):
        await asyncio.sleep(0.01)
    while not await near.connection.children(".lines/controller"):
        await asyncio.sleep(0.01)
    proxy.cut()
    await soon(gone(near, "brokers/1"))
    proxy.heal()
    await soon(happened(presence.lost))
    assert not standing.done()
    await term.release()
    won = await soon(standing)
    assert won.epoch == term.epoch + 1
    await far.close()
    await near.close()


# --- servers --------------------------------------------------------------------------------------


async def test_a_killed_server_that_comes_back_has_kept_everything(own: ZooKeeperProcess):
    one, other = await open_store(own.address), await open_store(own.address)
    session = await one.join("brokers/1", b"one")
    term = await one.campaign("controller", b"one")
    for number in range(20):
        await one.commit(Create(f"topics/{number}", b"x"))
    watch = other.watch("topics")
    await anext(watch)
    own.kill()
    late = asyncio.ensure_future(one.commit(Create("topics/late", b"x")))
    await asyncio.to_thread(own.start)
    with contextlib.suppress(Unavailable):
        await soon(late)
    await soon(_online(one))
    await one.commit(term.fence, Create("topics/new", b"x"))
    while "topics/new" not in (await other.read("topics")).entries:
        await soon(anext(watch))
    assert len((await other.read("topics")).entries) in (21, 22)
    assert not session.lost.happened
    assert not term.lost.happened
    assert sorted(await keys(other, "controller")) == [
        epoch_key("controller"),
        holder_key("controller"),
    ]
    await one.close()
    await other.close()


async def keys(store: MetadataStore, prefix: str) -> list[str]:
    return list((await store.read(prefix)).entries)


async def follow(store: MetadataStore) -> None:
    """As the registry does; a state of another store must never be among what is seen."""
    async for _ in store.watch(""):
        with contextlib.suppress(Unavailable):
            assert "cluster" in await keys(store, "")


async def test_a_wiped_server_is_never_taken_for_the_old_one(own: ZooKeeperProcess):
    store = await open_store(own.address, session=SHORT)
    await store.commit(Create("cluster", b"id"))
    session = await store.join("brokers/1", b"")
    own.kill()
    own.wipe()
    await asyncio.to_thread(own.start)
    fresh = await open_store(own.address)
    assert not (await fresh.read("")).entries
    with pytest.raises(Unavailable):
        await soon(store.read(""))
    # ZooKeeper turns away a client that has seen more than it knows; once it knows as much, the
    # old session is over and the new store is there, and neither may be mistaken for the old.
    for number in range(30):
        await fresh.commit(Create(f"other/{number}", b""))
    with pytest.raises(Unavailable, match="not what this process knows"):
        await soon(follow(store))
    assert session.lost.happened
    with pytest.raises(StoreFailed, match="not what this process knows"):
        await store.read("")
    await store.close()
    await fresh.close()


async def commits_are_seen_on_every_server(addresses: list[str]) -> None:
    """A follower may be behind its leader; a read must not be.

    The leader answers a sync of its own clients at once, a moment before it applies a commit.
    """
    stores = [await open_store(address, "everywhere") for address in addresses]
    for number in range(60):
        writer = stores[number % len(stores)]
        revision = await writer.commit(Create(f"key/{number}", b""))
        for snapshot in await asyncio.gather(*(store.read("key") for store in stores)):
            assert snapshot.revision >= revision
            assert len(snapshot.entries) == number + 1
    for store in stores:
        await store.close()


async def test_an_ensemble_goes_on_when_its_leader_is_killed(tmp_path: Path):
    servers = ensemble(tmp_path, 3)
    try:
        for server in servers:
            server.launch()
        modes = [await asyncio.to_thread(server.wait_serving) for server in servers]
        assert sorted(modes) == ["follower", "follower", "leader"]
        followers = [
            server.address
            for server, mode in zip(servers, modes, strict=True)
            if mode == "follower"
        ]
        await commits_are_seen_on_every_server(followers)
        everywhere = ",".join(server.address for server in servers)
        one, other = [await open_store(everywhere, "counter") for _ in range(2)]
        await one.commit(Create("counter", b"0"))
        session = await one.join("brokers/1", b"one")
        killed = False
        done = 0
        while done < 60:
            store = (one, other)[done % 2]
            try:
                value, version = (await soon(store.read("counter"))).entries["counter"]
                assert int(value) >= done, "an acknowledged commit was seen no more"
                await soon(store.commit(Set("counter", b"%d" % (int(value) + 1), version)))
            except (Unavailable, Conflict):
                continue
            done += 1
            if done == 20 and not killed:
                killed = True
                servers[modes.index("leader")].kill()
        for store in (one, other):
            value, version = (await soon(store.read("counter"))).entries["counter"]
            assert (int(value), version) == (60, 60)
        assert not session.lost.happened
        await one.close()
        await other.close()
    finally:
        for server in servers:
            server.kill()


# --- who is let in --------------------------------------------------------------------------------


async def test_tls_is_spoken_and_the_server_is_checked(tmp_path: Path):
    certificates = Path(__file__).parent / "tls"
    port = free_port()
    settings = {
        "secureClientPort": port,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": certificates / "server.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": certificates / "ca.pem",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "none",
    }
    file = tmp_path / "client.properties"
    file.write_text(
        "zookeeper.ssl.client.enable=true\n"
        f"zookeeper.ssl.truststore.location={certificates / 'ca.pem'}\n"
        "zookeeper.digest.username=ottla\n"
        "zookeeper.digest.password=secret\n"
    )
    address = parse_address(f"{LOOPBACK}:{port}/ottla")
    with ZooKeeperProcess(tmp_path / "zookeeper", settings=settings) as server:
        server.start()
        store = await ZooKeeperStore.open(address, read_access(file), connect_timeout=60.0)
        await store.commit(Create("a", b"1"))
        assert (await store.read("a")).entries["a"].value == b"1"
        await store.commit(*(Create(f"many/{number}", b"x" * 50) for number in range(500)))
        second = await ZooKeeperStore.open(address, read_access(file), connect_timeout=60.0)
        assert len((await second.read("many")).entries) == 500
        await second.close()
        await store.close()
        stranger = Access(tls=Tls())  # whose authorities are the system's
        with pytest.raises(Unavailable, match="no ZooKeeper answers"):
            await ZooKeeperStore.open(address, stranger, connect_timeout=2.0)


async def test_a_session_is_as_long_as_zookeeper_allows(zookeeper: str) -> None:
    """Whoever waits for a session's time has to know how long that is."""
    store = await open_store(zookeeper, "limits", session=86_400.0)
    other = await open_store(zookeeper, "limits", session=LONG)
    assert 0 < store.session_seconds < 86_400.0
    assert other.session_seconds == pytest.approx(LONG)
    await store.close()
    await other.close()
