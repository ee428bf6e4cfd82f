"""In-sync replicas: the high watermark, who leaves, who joins; by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.model.topic import PartitionState
from ottla.replication.isr import InSyncReplicas, Rules, with_isr

STATE = PartitionState(
    leader=1, leader_epoch=5, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3)
)
LAG = 1_000.0


def anybody(broker: int, epoch: int) -> bool:
    return True


def nobody(broker: int, epoch: int) -> bool:
    return False


def replicas(state: PartitionState = STATE, *, start: int = 0, min_insync: int = 2):
    return InSyncReplicas(1, state, start, Rules(min_insync), now_ms=0.0)


def mark(isr: InSyncReplicas, end: int, current: int = 0, now: float = 0.0, may=anybody) -> int:
    return isr.high_watermark(current, end, now, LAG, may)


def fetch(isr: InSyncReplicas, end: int, now: float = 0.0, epoch: int = 1, **offsets: int) -> None:
    for broker, offset in offsets.items():
        isr.fetched(int(broker[1:]), epoch, offset, end, now)


# -- the high watermark


def test_the_mark_is_where_the_slowest_in_sync_replica_is():
    isr = replicas()
    fetch(isr, 100, b2=80, b3=90)
    assert mark(isr, 100) == 80
    fetch(isr, 100, b2=100)
    assert mark(isr, 100, 80) == 90


def test_a_follower_that_was_not_heard_of_holds_the_mark():
    isr = replicas()
    fetch(isr, 100, b2=100)
    assert mark(isr, 100, current=40) == 40


def test_the_mark_never_goes_back():
    isr = replicas()
    fetch(isr, 100, b2=30, b3=30)
    assert mark(isr, 100, current=50) == 50


@pytest.mark.parametrize("proposed", [(1, 2), (1, 3)])
def test_while_a_removal_is_in_flight_the_removed_one_counts(proposed: tuple[int, ...]):
    isr = replicas()
    fetch(isr, 100, b2=100, b3=70)
    isr.proposed(proposed)
    assert mark(isr, 100) == 70
    isr.refused()
    assert mark(isr, 100) == 70


def test_a_removal_counts_when_the_store_has_confirmed_it():
    isr = replicas()
    fetch(isr, 100, b2=100, b3=70)
    isr.proposed((1, 2))
    isr.confirmed(with_isr(STATE, (1, 2), Rules(2)), 0.0)
    assert mark(isr, 100, may=nobody) == 100


def test_while_an_addition_is_in_flight_the_added_one_counts():
    isr = replicas(replace(STATE, isr=(1, 2)))
    fetch(isr, 50, b3=50)
    fetch(isr, 100, b2=100)
    isr.proposed((1, 2, 3))
    assert mark(isr, 100, may=nobody) == 50


def test_who_is_about_to_join_holds_the_mark_so_that_it_can():
    isr = replicas(replace(STATE, isr=(1, 2)))
    fetch(isr, 60, b3=60)
    fetch(isr, 100, b2=100)
    assert mark(isr, 100, current=50) == 60
    assert mark(isr, 100, current=50, may=nobody) == 100, "it may not join"
    assert mark(isr, 100, current=70) == 100, "it is behind already"
    assert mark(isr, 100, current=50, now=LAG + 1) == 100, "it is slow"


def test_below_the_minimum_the_mark_stands_still():
    isr = replicas(replace(STATE, isr=(1,), elr=(2, 3)))
    fetch(isr, 100, b2=100, b3=100)
    assert mark(isr, 100, current=40) == 40


def test_the_mark_stands_still_while_a_set_below_the_minimum_is_proposed():
    isr = replicas(replace(STATE, isr=(1, 2)))
    fetch(isr, 100, b2=100)
    isr.proposed((1,))
    assert not isr.enough
    assert mark(isr, 100, current=40) == 40


def test_the_mark_stands_still_while_the_store_calls_anybody_eligible():
    """min.insync.replicas has become smaller: those who left do not get what comes now."""
    isr = replicas(replace(STATE, isr=(1,), elr=(2, 3)), min_insync=1)
    assert mark(isr, 100, current=40, may=nobody) == 40
    isr.confirmed(with_isr(isr.state, (1,), isr.rules), 0.0)
    assert mark(isr, 100, current=40, may=nobody) == 100


def test_a_minimum_above_the_number_of_replicas_counts_as_that_number():
    single = PartitionState(1, 0, 0, (1,), (1,))
    assert InSyncReplicas(1, single, 0, Rules(3), 0.0).enough


# -- who leaves


def test_who_has_not_been_caught_up_for_too_long_leaves():
    isr = replicas()
    fetch(isr, 100, now=500.0, b2=100, b3=90)
    assert isr.to_remove(0, 110, LAG, LAG) == frozenset()
    assert isr.to_remove(0, 110, LAG + 1, LAG) == {3}
    assert isr.to_remove(0, 100, 9 * LAG, LAG) == {3}, "at the end, one is in sync for ever"


def test_who_asks_for_what_was_the_end_at_its_last_fetch_was_caught_up_then():
    isr = replicas()
    for now in range(0, 5_000, 100):
        fetch(isr, now, now=float(now), b2=now - 100, b3=0)
    assert isr.to_remove(0, 4_900, 4_900.0, LAG) == {3}


def test_who_asks_for_less_than_the_mark_leaves_at_once_and_is_not_eligible():
    isr = replicas(replace(STATE, isr=(1, 2)))
    fetch(isr, 100, b2=99)
    assert isr.to_remove(99, 100, 0.0, LAG) == frozenset()
    assert isr.to_remove(100, 100, 0.0, LAG) == {2}
    assert isr.lacking(100) == {2}
    after = with_isr(isr.state, isr.without({2}), isr.rules, lost=isr.lacking(100))
    assert (after.isr, after.elr, after.last_known_elr) == ((1,), (), (2,))


def test_who_only_lags_stays_eligible():
    after = with_isr(replace(STATE, isr=(1, 2)), (1,), Rules(2))
    assert (after.isr, after.elr, after.last_known_elr) == ((1,), (2,), ())


def test_who_was_to_join_and_lags_before_it_has_is_not_to_join_any_more():
    isr = replicas(replace(STATE, isr=(1, 2)))
    fetch(isr, 100, b2=100, b3=100)
    isr.proposed((1, 2, 3))
    fetch(isr, 110, now=LAG, b2=110)
    assert isr.to_remove(100, 110, LAG, LAG) == frozenset()
    assert isr.to_remove(100, 110, LAG + 1, LAG) == {3}
    isr.refused()
    assert isr.to_remove(100, 110, LAG + 1, LAG) == frozenset(), "nobody waits for it"


# -- who joins


@pytest.fixture
def shrunk() -> InSyncReplicas:
    return replicas(replace(STATE, isr=(1, 2)), start=60)


def test_one_joins_at_the_mark_and_at_the_first_offset_of_the_epoch(shrunk: InSyncReplicas):
    fetch(shrunk, 100, b3=59)
    assert not shrunk.may_add(3, 50, anybody), "the leader's epoch begins at 60"
    fetch(shrunk, 100, b3=60)
    assert shrunk.may_add(3, 50, anybody)
    assert not shrunk.may_add(3, 61, anybody), "below the mark"
    assert shrunk.with_((3,)) == (1, 2, 3)


def test_one_joins_only_under_the_epoch_it_is_live_with(shrunk: InSyncReplicas):
    fetch(shrunk, 100, epoch=4, b3=100)
    assert shrunk.may_add(3, 0, lambda broker, epoch: (broker, epoch) == (3, 4))
    assert not shrunk.may_add(3, 0, lambda broker, epoch: epoch == 5)


def test_another_life_of_a_broker_says_nothing_about_the_next(shrunk: InSyncReplicas):
    fetch(shrunk, 100, epoch=4, b3=100)
    fetch(shrunk, 100, epoch=5, b3=0)
    assert not shrunk.may_add(3, 0, anybody)
    fetch(shrunk, 100, epoch=4, b3=100)
    assert shrunk.followers[3].end == 0, "a late request of the life before"


def test_nobody_joins_while_a_change_is_in_flight_nor_twice(shrunk: InSyncReplicas):
    fetch(shrunk, 100, b2=100, b3=100)
    assert not shrunk.may_add(2, 0, anybody)
    shrunk.proposed((1,))
    assert not shrunk.may_add(3, 0, anybody)


def test_replicas_come_and_go_with_the_state():
    isr = replicas()
    isr.confirmed(replace(STATE, partition_epoch=10, replicas=(1, 3, 4), isr=(1, 3)), 0.0)
    assert set(isr.followers) == {3, 4}
    isr.validate()


def test_nothing_changes_in_a_state_that_is_right():
    assert with_isr(STATE, STATE.isr, Rules(2)) is STATE


def test_the_lowest_start_is_that_of_the_live_replicas_and_unknown_until_all_were_heard_of():
    isr = replicas()
    isr.followers[2].start, isr.followers[3].start = 40, 20
    assert isr.lowest_start(30, live={1, 2, 3}) == 20
    assert isr.lowest_start(30, live={1, 2}) == 30
    fresh = replicas()
    assert fresh.lowest_start(30, live={1, 2, 3}) == -1
