"""When a leader is certain that nobody else leads, and when its successor may speak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.model.topic import PartitionState
from ottla.replication.isr import InSyncReplicas, Rules
from ottla.replication.lease import DRIFT_MS, LEASE_MS, Succession, certain

THREE = PartitionState(1, 5, 0, replicas=(1, 2, 3), isr=(1, 2, 3))
ALONE = replace(THREE, isr=(1,))
TWO = replace(THREE, replicas=(1, 2), isr=(1, 2))
ONE = replace(THREE, replicas=(1,), isr=(1,))


@pytest.mark.parametrize(
    ("state", "min_insync", "fresh", "session", "expected"),
    [
        (THREE, 2, {2}, False, True),  # 3 alone can acknowledge nothing
        (THREE, 2, set(), True, False),  # 2 and 3 may have gone on without us
        (THREE, 1, {2}, True, False),  # 3 alone could
        (THREE, 1, {2, 3}, False, True),
        (replace(THREE, isr=(1, 2)), 1, {2}, False, True),  # 3 is not elected next
        (replace(THREE, isr=(1, 2), elr=(3,)), 1, {2}, False, False),  # but it may be, if eligible
        (THREE, 3, set(), True, True),  # nothing is acknowledged without us
        (THREE, 3, set(), False, False),  # unless the minimum is another by now
        (THREE, 9, set(), True, True),  # more than there are replicas is as many
        (ALONE, 2, set(), False, False),
        (ALONE, 2, set(), True, True),  # nobody else can be elected
        (TWO, 1, {2}, False, True),
        (TWO, 1, set(), True, False),
        (TWO, 2, set(), True, True),
        (ONE, 1, set(), True, True),
        (ONE, 1, set(), False, False),
    ],
)
def test_who_has_to_vouch(
    state: PartitionState, min_insync: int, fresh: set[int], session: bool, expected: bool
) -> None:
    assert certain(1, state, min_insync, fresh, session_alive=session) is expected


def test_who_is_about_to_join_may_be_elected_next() -> None:
    assert certain(1, ALONE, 1, set(), session_alive=True)
    assert not certain(1, ALONE, 1, set(), joining=(1, 2), session_alive=True)


def leader(min_insync: int = 2) -> InSyncReplicas:
    return InSyncReplicas(1, THREE, 0, Rules(min_insync), now_ms=0.0)


def test_a_follower_vouches_for_when_it_was_answered_not_for_when_its_fetch_is_read() -> None:
    led = leader()
    led.fetched(2, 2, 0, 0, now_ms=10_000.0, asked_after_ms=100.0)
    assert not led.certain(10_000.0, session_alive=False)
    led.fetched(2, 2, 0, 0, now_ms=10_001.0, asked_after_ms=10_000.0)
    assert led.certain(10_000.0 + LEASE_MS - 1, session_alive=False)
    assert not led.certain(10_000.0 + LEASE_MS, session_alive=False)


def test_a_first_fetch_vouches_for_nothing() -> None:
    led = leader()
    led.fetched(2, 2, 0, 0, now_ms=10.0)
    assert not led.certain(10.0, session_alive=False)


def test_an_earlier_life_of_a_follower_vouches_for_nothing() -> None:
    led = leader()
    led.fetched(2, 7, 0, 0, now_ms=10.0, asked_after_ms=5.0)
    led.fetched(2, 6, 0, 0, now_ms=2_000.0, asked_after_ms=1_900.0)
    assert not led.certain(2_000.0, session_alive=False)


def test_a_successor_waits_for_a_second_after_enough_have_come_over() -> None:
    led = leader()
    assert not led.has_succeeded(0.0)
    assert not led.has_succeeded(60_000.0), "alone it can acknowledge nothing"
    led.fetched(2, 2, 0, 0, now_ms=60_000.0)
    assert not led.has_succeeded(60_000.0)
    assert not led.has_succeeded(60_000.0 + LEASE_MS)
    assert led.has_succeeded(60_000.0 + LEASE_MS + DRIFT_MS)


def test_who_is_new_does_not_make_enough_who_have_come_over() -> None:
    """An earlier leader may be certain because of 3, which has not come over; 4 has never vouched
    for anybody."""
    moving = replace(THREE, replicas=(4, 2, 3, 1), adding=(4,))
    led = InSyncReplicas(1, moving, 0, Rules(2), now_ms=0.0)
    led.fetched(4, 4, 0, 0, now_ms=0.0)
    assert not led.has_succeeded(0.0)
    assert not led.has_succeeded(60_000.0)
    led.fetched(3, 3, 0, 0, now_ms=60_000.0)
    assert not led.has_succeeded(60_000.0)
    assert led.has_succeeded(60_000.0 + LEASE_MS + DRIFT_MS)


def test_a_successor_waits_for_nobody_when_all_have_come_over() -> None:
    led = leader()
    led.fetched(2, 2, 0, 0, now_ms=10.0)
    led.fetched(3, 3, 0, 0, now_ms=11.0)
    assert led.has_succeeded(11.0)


@pytest.mark.parametrize("state", [replace(THREE, leader_epoch=0), ONE])
def test_who_has_no_predecessor_waits_for_nobody(state: PartitionState) -> None:
    assert Succession(state).is_over(1, state, 2, 0.0)
