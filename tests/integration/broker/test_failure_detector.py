"""Who is taken for dead, by what happens at real addresses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from ottla.broker import failure_detector
from ottla.broker.failure_detector import FailureDetector
from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host, Membership, Registration
from ottla.cluster.registry import Registry
from ottla.cluster.store import Delete, Op, Revision, Unavailable, holder_key
from ottla.model.broker import Endpoint
from ottla.runtime.tasks import Tasks
from ottla.testing.files import MemoryFileSystem


class Address:
    """Somebody who accepts connections, hangs up on them, or is gone."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)

    def hang_up(self) -> None:
        writers, self.writers = self.writers, []
        for writer in writers:
            writer.close()

    def close(self) -> None:
        """Refuse from now on, and end what there is, as the kernel does for a dead process."""
        if self._server is not None:
            self._server.close()
        self.hang_up()


class FlakyStore(StoreHandle):
    """A store that is out of reach for so many commits."""

    failures = 0

    async def commit(self, *ops: Op) -> Revision:
        if self.failures:
            self.failures -= 1
            raise Unavailable("no answer")
        return await super().commit(*ops)


class Bench:
    """Broker 1, the controller, watches broker 2."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.store = FlakyStore(store)
        self.registry = Registry(self.store)
        self.members = Membership(self.registry)
        self.address = Address()
        self.deaths: list[BaseException | None] = []
        self.detector = self._detector(self.registry)

    def _detector(self, registry: Registry) -> FailureDetector:
        tasks = Tasks(lambda name, error: self.deaths.append(error))
        return FailureDetector(registry, 1, "PLAINTEXT", tasks)

    async def replace_controller(self) -> None:
        """Another process is controller: what it knows is in the metadata."""
        await self.detector.stop()
        registry = Registry(StoreHandle(self._store))
        await registry.load()
        self.registry, self.members = registry, Membership(registry)
        self.detector = self._detector(registry)
        self.detector.start()

    async def fence_wrongly(self) -> None:
        """Broker 2 is taken for dead, and registers as the same process again."""
        await self.register("a")
        await self.until(lambda: self.address.accepted == 1)
        self.address.close()
        await self.until(self.fenced)
        await self.address.open()
        await self.register("a")

    async def refuse(self) -> None:
        """Wait until the address is watched; then let it refuse, until that was noticed."""
        before = self.address.accepted
        await self.until(lambda: self.address.accepted > before or bool(self.address.writers))
        refused = asyncio.Event()
        original = self.detector._fence

        async def note(broker: object) -> None:
            await original(broker)
            refused.set()

        self.detector._fence = note
        self.address.close()
        async with asyncio.timeout(60):
            await refused.wait()

    async def register(self, incarnation: str = "a", *, campaigning: bool = True) -> Registration:
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", self.address.port)
        about = Host((endpoint,), incarnation=incarnation)
        if campaigning and self.registry.image.controller_id != 1:
            await self.registry.campaign(1)
        registration = await self.members.register(2, about)
        await self.members.admit(2, registration.broker.epoch)
        return registration

    def fenced(self) -> bool:
        return self.registry.image.broker_states[2].fenced

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.001)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "PROBE_PAUSE"):
        monkeypatch.setattr(failure_detector, name, 0.005)
    store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")
    made = Bench(store)
    await made.address.open()
    made.detector.start()
    yield made
    await made.detector.stop()
    made.address.close()
    await store.close()
    assert not made.deaths


async def test_who_ends_and_refuses_is_fenced_with_its_registration(bench: Bench) -> None:
    registration = await bench.register()
    await bench.until(lambda: bench.address.accepted == 1)
    bench.address.close()
    await bench.until(bench.fenced)
    assert 2 not in bench.registry.image.registrations
    async with asyncio.timeout(60):
        await registration.session.lost


async def test_who_was_stopping_is_not_called_dead(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    registration = await bench.register()
    await bench.until(lambda: bench.address.accepted == 1)
    await bench.members.announce_stop(2, registration.broker.epoch)
    bench.address.close()
    await bench.until(bench.fenced)
    await bench.until(lambda: "broker 2 has stopped" in caplog.text)
    assert not any(record.levelno > logging.INFO for record in caplog.records)


async def test_who_died_while_the_store_was_away_is_fenced_when_it_is_back(bench: Bench) -> None:
    await bench.register()
    await bench.until(lambda: bench.address.accepted == 1)
    bench.store.failures = 2
    bench.address.close()
    await bench.until(bench.fenced)
    assert not bench.store.failures


async def test_who_hangs_up_and_accepts_again_is_not_fenced(bench: Bench) -> None:
    await bench.register()
    for hung_up in range(3):
        # One that watches; after each end another one, and before it one that probes.
        await bench.until(lambda count=1 + 2 * hung_up: bench.address.accepted == count)
        bench.address.hang_up()
    assert not bench.fenced()


async def test_who_was_never_reached_is_not_fenced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.address.close()
    tried = 0
    opened = failure_detector.Channel.open

    async def count(*args: object, **options: object) -> object:
        nonlocal tried
        tried += 1
        return await opened(*args, **options)

    monkeypatch.setattr(failure_detector.Channel, "open", count)
    await bench.register()
    await bench.until(lambda: tried > 10)
    assert not bench.fenced()


@pytest.mark.parametrize("who", ["the same controller", "another one"])
async def test_who_was_fenced_wrongly_is_left_to_its_session_for_a_while(
    bench: Bench, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    with caplog.at_level(logging.WARNING):
        await bench.fence_wrongly()
        assert "broker 2 lives" in caplog.text
        if who == "another one":
            await bench.replace_controller()
        for _ in range(2):
            await bench.refuse()
            assert not bench.fenced()
            await bench.address.open()
    assert caplog.text.count("only its session decides\n") == 1, "it is said once"


async def test_after_that_while_it_is_watched_as_any_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "TRUST_SECONDS", 0.0)
    await bench.fence_wrongly()
    await bench.refuse()
    assert bench.fenced()


async def test_who_hangs_up_and_dies_before_it_is_reached_again_is_fenced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.register()
    await bench.until(lambda: bench.address.accepted == 1)
    refuses = bench.detector._refuses

    async def die_afterwards(endpoint: Endpoint) -> bool:
        refused = await refuses(endpoint)
        bench.address.close()
        return refused

    monkeypatch.setattr(bench.detector, "_refuses", die_afterwards)
    bench.address.hang_up()
    await bench.until(bench.fenced)


async def test_a_dying_controller_is_fenced_by_who_watched_it_though_another_has_its_role(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "PROBE_PAUSE", 0.1)
    await bench.register()
    await bench.until(lambda: bench.address.accepted == 1)
    bench.address.close()
    await bench.until(lambda: bool(bench.detector._suspects))
    # The role goes before the registration does; who has it now has never reached broker 2.
    role = holder_key(layout.CONTROLLER)
    await bench.registry.store.commit(Delete(role, 0))
    await bench.registry.store.campaign(layout.CONTROLLER, layout.encode_holder(3))
    await bench.registry.load()
    assert bench.registry.image.controller_id == 3
    await bench.until(bench.fenced)


async def test_who_dies_with_the_controller_is_fenced_by_who_takes_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "WITNESS_PAUSE", 0.005)
    tried = 0
    opened = failure_detector.Channel.open

    async def count(*args: object, **options: object) -> object:
        nonlocal tried
        tried += 1
        return await opened(*args, **options)

    term = await bench.registry.store.campaign(layout.CONTROLLER, layout.encode_holder(3))
    await bench.registry.load()
    await bench.register(campaigning=False)
    await bench.until(lambda: bench.address.accepted == 1)
    monkeypatch.setattr(failure_detector.Channel, "open", count)
    bench.address.close()
    await bench.until(lambda: tried > 10)
    assert not bench.fenced(), "that is for the controller to do"
    await term.release()
    await bench.registry.campaign(1)
    await bench.until(bench.fenced)


async def test_in_a_large_cluster_only_the_controller_is_watched_by_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "SMALL", 0)
    await bench.registry.store.campaign(layout.CONTROLLER, layout.encode_holder(3))
    await bench.registry.load()
    await bench.register(campaigning=False)
    assert not bench.detector._watched


async def test_who_accepts_only_to_hang_up_is_not_tried_without_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    class Loop:
        """asyncio, as the detector sees it."""

        sleep = staticmethod(note)

        def __getattr__(self, name: str) -> object:
            return getattr(asyncio, name)

    monkeypatch.setattr(failure_detector, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(failure_detector, "LONGEST_PAUSE", 5.0)
    monkeypatch.setattr(failure_detector, "asyncio", Loop())
    await bench.register()
    while len(pauses) < 8:
        bench.address.hang_up()
        await sleep(0.001)
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert not bench.fenced()


async def test_another_process_under_the_same_id_is_not_trusted(bench: Bench) -> None:
    await bench.register("a")
    await bench.until(lambda: bench.address.accepted == 1)
    bench.address.close()
    await bench.until(bench.fenced)
    await bench.address.open()
    await bench.register("b")
    before = bench.address.accepted
    await bench.until(lambda: bench.address.accepted > before)
    bench.address.close()
    await bench.until(bench.fenced)
