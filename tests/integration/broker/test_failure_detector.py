"""Who is taken for dead, by what happens at real addresses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from ottla.broker import failure_detector
from ottla.broker.failure_detector import FailureDetector
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host, Membership, Registration
from ottla.cluster.registry import Registry
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


class Bench:
    """Broker 1, the controller, watches broker 2."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.registry = Registry(StoreHandle(store))
        self.members = Membership(self.registry)
        self.address = Address()
        self.deaths: list[BaseException] = []
        self.detector = FailureDetector(
            self.registry,
            1,
            "PLAINTEXT",
            Tasks(lambda name, error: self.deaths.append(error)),
        )

    async def register(self, incarnation: str = "a") -> Registration:
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", self.address.port)
        about = Host((endpoint,), incarnation=incarnation)
        if self.registry.image.controller_id != 1:
            await self.registry.campaign(1)
        registration = await self.members.register(2, about)
        await self.members.admit(2, registration.broker.epoch)
        return registration

    def fenced(self) -> bool:
        return self.registry.image.broker_states[2].fenced

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
        await registration.session.lost


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


async def test_who_was_fenced_wrongly_is_left_to_its_session_for_a_while(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.register("a")
    await bench.until(lambda: bench.address.accepted == 1)
    bench.address.close()
    await bench.until(bench.fenced)
    await bench.address.open()
    with caplog.at_level(logging.WARNING):
        await bench.register("a")  # the same process: it has lived on
    assert "lives" in caplog.text
    before = bench.address.accepted
    await bench.until(lambda: bench.address.accepted > before)
    refused = asyncio.Event()
    original = bench.detector._fence

    async def note(broker: object) -> None:
        await original(broker)
        refused.set()

    bench.detector._fence = note
    bench.address.close()
    async with asyncio.timeout(10):
        await refused.wait()
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
