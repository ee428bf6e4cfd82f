"""Membership in the cluster: gained, kept through losses and outages, given up with the store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from typing import Any

import pytest

from ottla.broker import lifecycle
from ottla.broker.lifecycle import Lifecycle, load_in_time
from ottla.cluster import layout
from ottla.cluster.contact import StoreContact
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host
from ottla.cluster.registry import Registry
from ottla.cluster.store import Delete, MetadataStore, StoreFailed, Unavailable
from ottla.controller.election import LogEnd
from ottla.controller.service import Controller
from ottla.controller.topics import TopicDefaults
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.replication.isr import Rules
from ottla.runtime.clock import SystemClock
from ottla.runtime.tasks import Tasks
from ottla.testing.files import MemoryFileSystem

LIMIT = 10
SESSION = 0.04


async def nobody_answers(partition: TopicPartition, replicas: object) -> dict[int, LogEnd]:
    return {}


class Unreliable(StoreHandle):
    """A handle whose named methods fail as long as `error` says so."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.error: Exception | None = None
        self.failing: tuple[str, ...] = ()
        self.failures = 0
        self.session = math.inf

    def fail(self, error: Exception, *methods: str) -> None:
        self.error, self.failing = error, methods

    def heal(self) -> None:
        self.error = None

    def _check(self, method: str) -> None:
        if self.error is not None and method in self.failing:
            self.failures += 1
            raise self.error

    @property
    def session_seconds(self) -> float:
        return self.session

    async def join(self, key: str, value: bytes, *ops: Any) -> Any:
        self._check("join")
        return await super().join(key, value, *ops)

    async def commit(self, *ops: Any) -> Any:
        self._check("commit")
        return await super().commit(*ops)

    async def read(self, prefix: str) -> Any:
        self._check("read")
        return await super().read(prefix)

    async def campaign(self, role: str, value: bytes) -> Any:
        self._check("campaign")
        return await super().campaign(role, value)


class Member:
    """A broker, as far as its membership goes."""

    def __init__(self, store: EmbeddedStore, node_id: int, folder: str = "folder") -> None:
        self.store = Unreliable(store)
        self.registry = Registry(self.store)
        self.controller = Controller(
            self.registry,
            node_id,
            defaults=lambda: TopicDefaults(1, 1),
            check_topic_config=accept,
            rng=Random(node_id),
            rules_of=lambda topic: Rules(min_insync=1),
            ask_log_ends=nobody_answers,
        )
        self.deaths: list[tuple[str, BaseException | None]] = []
        self.epochs: list[int] = []
        self.certain_until: list[float] = []
        self.contact = StoreContact(SystemClock())
        self.lifecycle = Lifecycle(
            self.registry,
            self.controller,
            Tasks(lambda what, error: self.deaths.append((what, error))),
            self.contact,
            node_id=node_id,
            about=Host(directories=(f"{folder}-{node_id}",)),
            on_registered=self.epochs.append,
            on_certain=self.certain_until.append,
        )

    async def start(self) -> None:
        await self.registry.load()
        await self.lifecycle.start()
        async with asyncio.timeout(LIMIT):
            await self.lifecycle.wait_ready()

    async def stop(self) -> None:
        await self.lifecycle.stop()
        await self.store.close()


def accept(config: Mapping[str, str]) -> None:
    pass


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FIRST_PAUSE", 0.0)


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(MemoryFileSystem(), "/metadata")
    yield store
    await store.close()


@pytest.fixture
async def member(store: EmbeddedStore) -> AsyncIterator[Member]:
    member = Member(store, 1)
    await member.start()
    yield member
    await member.stop()


def test_the_first_broker_is_ready_when_it_is_the_controller(member: Member) -> None:
    assert member.controller.active
    assert set(member.registry.image.brokers) == {1}


async def test_a_second_broker_is_ready_beside_the_controller(
    store: EmbeddedStore, member: Member
) -> None:
    second = Member(store, 2)
    await second.start()
    assert not second.controller.active
    assert second.registry.image.controller_id == 1
    await until(lambda: set(member.registry.image.brokers) == {1, 2})
    await second.stop()
    await until(lambda: set(member.registry.image.brokers) == {1})


async def test_a_broker_is_not_ready_while_nobody_is_controller(store: EmbeddedStore) -> None:
    # Whom an earlier run of the same broker left behind is no controller.
    stale = await store.campaign(layout.CONTROLLER, layout.encode_holder(1))
    member = Member(store, 1)
    await member.registry.load()
    await member.lifecycle.start()
    ready = asyncio.ensure_future(member.lifecycle.wait_ready())
    await until(lambda: member.registry.image.controller_id == 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not ready.done()
    await stale.release()
    async with asyncio.timeout(LIMIT):
        await ready
    assert member.controller.active
    await member.stop()


async def test_an_id_in_use_is_refused(store: EmbeddedStore, member: Member) -> None:
    second = Member(store, 1, folder="another")
    with pytest.raises(KafkaError) as refused:
        await second.start()
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    await second.stop()
    assert set(member.registry.image.brokers) == {1}


async def delete_registration(store: EmbeddedStore) -> None:
    entry = (await store.read(layout.broker_key(1))).entries[layout.broker_key(1)]
    await store.commit(Delete(layout.broker_key(1), entry.version))


async def test_a_session_is_certain_for_as_long_as_the_store_keeps_it_after_each_look(
    store: EmbeddedStore,
) -> None:
    member = Member(store, 1)
    member.store.session = SESSION
    begun = SystemClock().monotonic()
    await member.start()
    await until(lambda: len(member.certain_until) > 2)
    assert begun + SESSION <= member.certain_until[0] < member.certain_until[-1]
    assert member.certain_until[-1] <= SystemClock().monotonic() + SESSION
    # A look at the store after which it was not there, or not ours, makes nothing certain.
    member.store.fail(Unavailable("away"), "read")
    failures, count = member.store.failures, len(member.certain_until)
    await until(lambda: member.store.failures > failures + 3)
    assert len(member.certain_until) <= count + 1
    member.store.heal()
    await until(lambda: len(member.certain_until) > count + 1)
    await member.stop()


async def test_a_lost_registration_is_made_anew_with_a_new_epoch(
    store: EmbeddedStore, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        before = member.registry.image.brokers[1].epoch
        await delete_registration(store)
        await until(
            lambda before=before: (
                1 in member.registry.image.brokers
                and member.registry.image.brokers[1].epoch > before
            )
        )
    assert not member.deaths
    assert "registered anew" in caplog.text


async def test_a_registration_lost_in_an_outage_comes_back_with_the_store(
    store: EmbeddedStore, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    member.store.fail(Unavailable("no connection"), "commit")
    before = member.registry.image.brokers[1].epoch
    await delete_registration(store)
    await until(lambda: member.store.failures > 3)
    member.store.heal()
    await until(lambda: 1 in member.registry.image.brokers)
    assert member.registry.image.brokers[1].epoch > before
    assert not member.deaths
    assert caplog.text.count("no connection") == 1, "an outage is logged once"


async def test_the_beginning_and_the_end_of_an_outage_are_logged_once_and_known_meanwhile(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    member = Member(store, 1)
    member.store.session = SESSION
    await member.start()
    assert member.contact.away_since_ms is None
    begun = SystemClock().now_ms()
    member.store.fail(Unavailable("no connection"), "read", "campaign")
    other = Registry(store)
    await other.load()
    await other.set_broker_config("", {"log.retention.hours": "1"})
    await until(lambda: member.contact.away_since_ms is not None)
    assert begun <= (member.contact.away_since_ms or 0) <= SystemClock().now_ms()
    failures = member.store.failures
    await until(lambda: member.store.failures > failures + 10)
    member.store.heal()
    await until(lambda: member.contact.away_since_ms is None)
    assert caplog.text.count("the metadata store cannot be used: no connection") == 1
    assert caplog.text.count("the metadata store answers again, after 0 s") == 1
    await member.stop()


async def test_a_registration_that_is_refused_is_no_outage(
    store: EmbeddedStore, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "the id is in use")
    member.store.fail(refusal, "join")
    before = member.registry.image.brokers[1].epoch
    await delete_registration(store)
    await until(lambda: member.store.failures > 3)
    assert member.contact.away_since_ms is None
    member.store.heal()
    await until(lambda: 1 in member.registry.image.brokers)
    assert member.registry.image.brokers[1].epoch > before
    assert caplog.text.count("the id is in use; the broker tries again") == 1
    assert "the metadata store cannot be used" not in caplog.text


async def test_the_metadata_is_followed_again_after_an_outage(
    store: EmbeddedStore, member: Member
) -> None:
    other = Registry(store)
    await other.load()
    member.store.fail(Unavailable("no connection"), "read", "campaign")
    await other.set_broker_config("", {"log.retention.hours": "1"})
    await until(lambda: member.store.failures > 3)
    assert not member.registry.image.broker_configs
    member.store.heal()
    await until(lambda: member.registry.image.broker_configs)
    assert not member.deaths


async def test_a_role_lost_in_an_outage_is_stood_for_again(
    store: EmbeddedStore, member: Member
) -> None:
    epoch = member.controller.epoch
    member.store.fail(Unavailable("no connection"), "campaign")
    key = f"{layout.CONTROLLER}/holder"
    entry = (await store.read(key)).entries[key]
    await store.commit(Delete(key, entry.version))
    await until(lambda: member.store.failures > 3)
    assert not member.controller.active
    member.store.heal()
    await until(lambda: member.controller.active)
    assert member.controller.epoch > epoch
    assert not member.deaths


async def test_a_controller_that_is_not_registered_again_yet_takes_nobody_for_dead(
    store: EmbeddedStore,
) -> None:
    """The store was away, and with it every session; the role is won before any registration."""
    members = {number: Member(store, number) for number in (1, 2)}
    for member in members.values():
        await member.start()
        member.store.session = 3_600.0
    first, second = members.values()
    states = dict(first.registry.image.broker_states)
    for member in members.values():
        member.store.fail(Unavailable("no connection"), "join", "campaign")
    keys = [layout.broker_key(1), layout.broker_key(2), f"{layout.CONTROLLER}/holder"]
    entries = (await store.read("")).entries
    await store.commit(*(Delete(key, entries[key].version) for key in keys))
    await until(lambda: min(member.store.failures for member in members.values()) > 3)
    second.store.failing = ("join",)
    await until(lambda: second.controller.active)
    # Who comes is admitted, after all that is to be done about those who are gone.
    third = Member(store, 3)
    await third.start()
    assert {number: third.registry.image.broker_states[number] for number in (1, 2)} == states
    for member in members.values():
        member.store.heal()
    await until(lambda: set(third.registry.image.brokers) == {1, 2, 3})
    for member in (third, *members.values()):
        await member.stop()


async def test_a_store_that_does_not_come_back_is_the_end(
    store: EmbeddedStore, member: Member
) -> None:
    member.store.fail(StoreFailed("the journal failed"), "read", "commit", "campaign")
    await delete_registration(store)
    await until(lambda: len(member.deaths) == 2)
    assert {what for what, _ in member.deaths} == {"staying registered", "following the metadata"}
    assert all(isinstance(error, StoreFailed) for _, error in member.deaths)


@pytest.mark.parametrize("method", ["read", "join", "campaign"])
async def test_a_store_that_goes_away_during_the_start_is_waited_for(
    method: str, store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    member = Member(store, 1)
    await member.registry.load()
    member.store.fail(Unavailable("no connection"), method)
    starting = asyncio.ensure_future(member.lifecycle.start(patience=LIMIT))
    await until(lambda: member.store.failures > 3)
    assert "the metadata store cannot be used: no connection" in caplog.text
    member.store.heal()
    async with asyncio.timeout(LIMIT):
        await starting
        await member.lifecycle.wait_ready()
    assert not member.deaths
    await member.stop()


async def test_a_store_that_stays_away_during_the_start_ends_it(store: EmbeddedStore) -> None:
    member = Member(store, 1)
    await member.registry.load()
    member.store.fail(Unavailable("no connection"), "join")
    with pytest.raises(Unavailable, match="no connection"):
        await member.lifecycle.start(patience=0.05)
    assert member.store.failures > 1
    await member.stop()


async def test_metadata_that_is_read_again_during_the_start_is_waited_for_too(
    store: EmbeddedStore,
) -> None:
    member = Member(store, 1)
    member.store.fail(Unavailable("no connection"), "read")
    loading = asyncio.ensure_future(load_in_time(member.registry, member.contact, LIMIT))
    await until(lambda: member.store.failures > 3)
    member.store.heal()
    async with asyncio.timeout(LIMIT):
        assert await loading is member.registry.image
    member.store.fail(Unavailable("no connection"), "read")
    with pytest.raises(Unavailable, match="no connection"):
        await load_in_time(member.registry, member.contact, 0.0)
    await member.stop()


async def test_an_outage_during_the_start_is_not_waited_for(store: EmbeddedStore) -> None:
    member = Member(store, 1)
    member.store.fail(Unavailable("no connection"), "campaign")
    await member.registry.load()
    await member.lifecycle.start()
    await until(lambda: member.deaths)
    assert member.deaths[0][0] == "running the controller"
    await member.stop()
