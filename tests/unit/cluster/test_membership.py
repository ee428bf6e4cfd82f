"""Registering, admitting and fencing brokers, over the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ottla.cluster import membership
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.membership import Host, Membership
from ottla.cluster.registry import Registry
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker, Endpoint, LostPartition
from ottla.model.features import supported
from ottla.model.ids import TopicId
from ottla.model.topic import PartitionState, Topic
from ottla.testing.files import MemoryFileSystem

ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092)
ABOUT = Host((ENDPOINT,), "r1", "machine", ("folder-1",), "boot-1")


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")
    yield store
    await store.close()


@pytest.fixture
def registry(store: EmbeddedStore) -> Registry:
    return Registry(store)


@pytest.fixture
def members(registry: Registry) -> Membership:
    return Membership(registry)


async def test_brokers_come_and_go_with_ever_higher_epochs(
    members: Membership, registry: Registry
) -> None:
    one = await members.register(1, ABOUT)
    assert one.broker == Broker(
        1, one.broker.epoch, {"PLAINTEXT": ENDPOINT}, "r1", "machine", supported()
    )
    two = await members.register(2, Host())
    assert two.broker.epoch > one.broker.epoch
    assert registry.image.registrations == {1: one.broker, 2: two.broker}
    await one.session.release()
    await registry.load()
    assert registry.image.registrations == {2: two.broker}
    again = await members.register(1, ABOUT)
    assert again.broker.epoch > two.broker.epoch


async def test_brokers_that_register_together_go_one_after_the_other(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    pauses: list[float] = []

    async def wait(seconds: float) -> None:
        turns.append(seconds)
        await asyncio.sleep(0)

    def none_of_it(_: Registry, seconds: float) -> float:
        pauses.append(seconds)
        return 0.0

    monkeypatch.setattr(membership, "asyncio", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(Registry, "any_part_of", none_of_it)
    brokers = (0, 4, 8, 101)
    made = await asyncio.gather(
        *(Membership(Registry(store)).register(each, ABOUT) for each in brokers)
    )
    assert len({each.broker.epoch for each in made}) == 4
    first_wait = dict.fromkeys(turns)
    assert list(first_wait) == pytest.approx([0.04, 0.08, 0.01]), "a hundred have turns"
    assert len(pauses) == len(turns) - 3, "who loses again waits for a random moment, too"


async def test_among_many_brokers_who_loses_a_race_waits_longer(
    members: Membership, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def none_of_it(seconds: float) -> float:
        pauses.append(seconds)
        return 0.0

    monkeypatch.setattr(registry, "any_part_of", none_of_it)
    for broker in range(30):
        if broker in (1, 10):
            await registry.let_others_go(1)
        await members.register(broker, Host())
    for lost in (1, 2, 100):
        await registry.let_others_go(lost)
    assert pauses == pytest.approx([0.01, 0.01, 0.03, 0.06, 0.96])


async def test_a_broker_is_live_when_the_controller_has_admitted_it(
    members: Membership, registry: Registry
) -> None:
    one = await members.register(1, ABOUT)
    assert registry.image.brokers == {}
    assert registry.image.broker_states[1].fenced
    assert await members.admit(1, one.broker.epoch)
    assert registry.image.brokers == {1: one.broker}
    await one.session.release()
    await registry.load()
    assert registry.image.brokers == {}, "without a registration nobody is live"
    assert not registry.image.broker_states[1].fenced, "which the controller has to take note of"
    assert await members.note_departure(1, one.broker.epoch)
    assert registry.image.broker_states[1].fenced


async def test_an_earlier_registration_is_neither_admitted_nor_fenced(
    members: Membership, registry: Registry
) -> None:
    one = await members.register(1, ABOUT)
    await one.session.release()
    two = await members.register(1, ABOUT)
    assert not await members.admit(1, one.broker.epoch)
    assert not await members.fence(1, one.broker.epoch)
    assert not await members.note_departure(1, one.broker.epoch)
    assert await members.admit(1, two.broker.epoch)
    assert not two.session.lost.happened
    assert not await members.note_departure(1, two.broker.epoch), "it is there"
    assert registry.image.brokers == {1: two.broker}


async def test_a_fenced_broker_has_lost_its_session(
    members: Membership, registry: Registry
) -> None:
    one = await members.register(1, ABOUT)
    await members.admit(1, one.broker.epoch)
    assert await members.fence(1, one.broker.epoch)
    assert one.session.lost.happened
    assert registry.image.brokers == registry.image.registrations == {}
    assert registry.image.broker_states[1].fenced


async def test_who_died_after_its_session_had_ended_is_fenced(
    members: Membership, registry: Registry
) -> None:
    """As while a controller waits for brokers to come back after an outage of the store."""
    one = await members.register(1, ABOUT)
    await members.admit(1, one.broker.epoch)
    await one.session.release()
    await registry.load()
    assert await members.fence(1, one.broker.epoch)
    assert registry.image.broker_states[1].fenced
    assert registry.image.registrations == {}


@pytest.mark.parametrize(("again", "remembered"), [("a", True), ("b", False)])
async def test_a_process_that_was_taken_for_dead_is_known_to_live(
    members: Membership, registry: Registry, again: str, remembered: bool
) -> None:
    one = await members.register(1, replace(ABOUT, incarnation="a"))
    await members.admit(1, one.broker.epoch)
    await members.fence(1, one.broker.epoch)
    new = await members.register(1, replace(ABOUT, incarnation=again))
    assert registry.image.broker_states[1].seen_dead is remembered
    await members.admit(1, new.broker.epoch)
    assert registry.image.broker_states[1].seen_dead is remembered
    # When all sessions have ended with the store, it is like any other.
    await new.session.release()
    await members.register(1, replace(ABOUT, incarnation=again))
    assert not registry.image.broker_states[1].seen_dead


async def test_who_left_by_itself_was_not_taken_for_dead(
    members: Membership, registry: Registry
) -> None:
    one = await members.register(1, ABOUT)
    await members.admit(1, one.broker.epoch)
    await one.session.release()
    await registry.load()
    await members.note_departure(1, one.broker.epoch)
    await members.register(1, ABOUT)
    assert not registry.image.broker_states[1].seen_dead


async def test_an_id_in_use_is_refused(members: Membership) -> None:
    await members.register(1, ABOUT)
    with pytest.raises(KafkaError) as caught:
        await members.register(1, replace(ABOUT, directories=("another",)), take_over=True)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


async def test_who_has_the_same_folders_takes_over_a_stale_registration(
    members: Membership, registry: Registry
) -> None:
    stale = await members.register(1, ABOUT)
    with pytest.raises(KafkaError):
        await members.register(1, ABOUT)
    with pytest.raises(KafkaError):
        await members.register(1, replace(ABOUT, host="another"), take_over=True)
    term = await registry.campaign(1)
    await registry.load()
    assert registry.image.controller_id == 1
    fresh = await members.register(1, ABOUT, take_over=True)
    assert stale.session.lost.happened
    assert term.lost.happened
    assert registry.image.registrations == {1: fresh.broker}
    assert registry.image.controller_id == -1


async def test_the_role_of_another_is_not_taken_over(
    members: Membership, registry: Registry
) -> None:
    await members.register(1, ABOUT)
    term = await registry.campaign(2)
    await members.register(1, ABOUT, take_over=True)
    assert not term.lost.happened


KILLED = replace(ABOUT, clean=False)
STOPPED = replace(ABOUT, clean=True)


@pytest.mark.parametrize(
    ("again", "lost"),
    [
        (STOPPED, False),
        (KILLED, False),
        (replace(KILLED, boot_id="boot-2"), True),
        (replace(STOPPED, boot_id="boot-2"), False),
        (replace(STOPPED, directories=("folder-2",)), True),
        (replace(STOPPED, directories=("folder-1", "folder-2")), True),
        (replace(KILLED, lost=True), True),
    ],
    ids=["stopped", "killed", "power loss", "restarted machine", "another folder", "one more",
         "a log was cut"],
)  # fmt: skip
async def test_what_a_broker_may_have_lost(
    members: Membership, registry: Registry, again: Host, lost: bool
) -> None:
    one = await members.register(1, ABOUT)
    await members.admit(1, one.broker.epoch)
    await one.session.release()
    two = await members.register(1, again)
    assert registry.image.broker_states[1].lost is lost
    # It stands until the controller has admitted the broker, whatever happens before.
    await two.session.release()
    three = await members.register(1, replace(again, clean=True, lost=False))
    assert registry.image.broker_states[1].lost is lost
    await members.admit(1, three.broker.epoch)
    assert not registry.image.broker_states[1].lost


async def test_a_broker_without_a_folder_that_it_had_may_have_lost_all(
    members: Membership, registry: Registry
) -> None:
    def emptied() -> bool:
        return registry.image.broker_states[1].emptied

    two = replace(STOPPED, directories=("folder-1", "folder-2"))
    for about, expected in ((ABOUT, False), (two, False), (STOPPED, True), (STOPPED, True)):
        registration = await members.register(1, about)
        assert emptied() is expected
        await registration.session.release()
    last = await members.register(1, STOPPED)
    await members.admit(1, last.broker.epoch)
    assert not emptied()


PARTITION = LostPartition(TopicId(bytes(16)), 3)
ANOTHER = LostPartition(TopicId(bytes(16)), 4)


async def test_partitions_that_lost_records_are_known_until_the_broker_is_admitted(
    members: Membership, registry: Registry
) -> None:
    def lost() -> frozenset[LostPartition]:
        assert not registry.image.broker_states[1].lost
        return registry.image.broker_states[1].lost_partitions

    one = await members.register(1, replace(ABOUT, lost_partitions=frozenset({PARTITION})))
    assert lost() == {PARTITION}
    await one.session.release()
    two = await members.register(1, replace(ABOUT, lost_partitions=frozenset({ANOTHER})))
    assert lost() == {PARTITION, ANOTHER}
    await members.admit(1, two.broker.epoch)
    assert not lost()
    await two.session.release()
    await members.register(1, ABOUT)
    assert not lost()


async def test_who_comes_back_after_its_disk_has_failed_may_have_lost_records(
    members: Membership, registry: Registry
) -> None:
    first = replace(ABOUT, incarnation="one")
    one = await members.register(1, first)
    await members.admit(1, one.broker.epoch)
    assert await members.note_failure(1, one.broker.epoch)
    await one.session.release()
    two = await members.register(1, replace(first, clean=True))
    assert not registry.image.broker_states[1].lost, "it lives on, and knows what it has lost"
    await members.admit(1, two.broker.epoch)
    await two.session.release()
    assert not await members.note_failure(1, one.broker.epoch)
    three = await members.register(1, replace(ABOUT, incarnation="two"))
    assert registry.image.broker_states[1].lost
    await members.admit(1, three.broker.epoch)
    await three.session.release()
    await members.register(1, replace(ABOUT, incarnation="three"))
    assert not registry.image.broker_states[1].lost


async def test_a_broker_that_stops_says_so(members: Membership, registry: Registry) -> None:
    one = await members.register(1, ABOUT)
    await members.admit(1, one.broker.epoch)
    assert await members.announce_stop(1, one.broker.epoch)
    assert registry.image.broker_states[1].stopping
    await one.session.release()
    await members.register(1, ABOUT)
    assert not registry.image.broker_states[1].stopping


async def test_a_broker_that_is_gone_and_holds_nothing_is_forgotten(
    members: Membership, registry: Registry
) -> None:
    with pytest.raises(KafkaError, match="Broker ID 1 is not currently registered"):
        await members.forget(1)
    one = await members.register(1, ABOUT)
    with pytest.raises(KafkaError, match="Broker 1 is running: stop it first"):
        await members.forget(1)
    await one.session.release()
    state = PartitionState(2, 0, 0, (2, 1), (2,))
    topic = Topic("t", registry.new_id(), (state,))
    await registry.create_topics([topic])
    with pytest.raises(KafkaError, match="has replicas of 1 partition"):
        await members.forget(1)
    assert 1 in registry.image.broker_states
    await registry.delete_topic(topic.id)
    await members.forget(1)
    assert 1 not in registry.image.broker_states
    again = await members.register(1, ABOUT)
    assert again.broker.epoch > one.broker.epoch
