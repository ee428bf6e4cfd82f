"""Who leads and who is in sync, as KIP-966 has it; by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.controller.election import LogEnd, awaited, is_unclean, prefer, recover, settle
from ottla.model.topic import NO_LEADER, PartitionState
from ottla.replication.isr import Rules, with_isr

TWO = Rules(min_insync=2)
STATE = PartitionState(
    leader=1, leader_epoch=5, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3)
)


def led(state: PartitionState) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return state.leader, state.isr, state.elr, state.last_known_elr


def test_nothing_changes_while_everybody_is_there() -> None:
    assert settle(STATE, {1, 2, 3}, TWO) is STATE


def test_the_next_in_sync_replica_leads_under_a_new_epoch() -> None:
    after = settle(STATE, {2, 3}, TWO)
    assert led(after) == (2, (2, 3), (), ())
    assert (after.leader_epoch, after.partition_epoch) == (6, 10)


def test_a_follower_that_leaves_changes_no_leader_epoch() -> None:
    after = settle(STATE, {1, 3}, TWO)
    assert led(after) == (1, (1, 3), (), ())
    assert (after.leader_epoch, after.partition_epoch) == (5, 10)


def test_who_leaves_an_isr_below_the_minimum_stays_eligible() -> None:
    after = settle(STATE, {3}, TWO)
    assert led(after) == (3, (3,), (1, 2), ())


def test_the_last_one_to_leave_is_eligible_and_leads_again() -> None:
    alone = settle(STATE, {3}, TWO)
    nobody = settle(alone, set(), TWO)
    assert led(nobody) == (NO_LEADER, (), (1, 2, 3), ())
    assert nobody.leader_epoch == alone.leader_epoch + 1
    again = settle(nobody, {2}, TWO)
    assert led(again) == (2, (2,), (1, 3), ())


def test_an_isr_that_reaches_the_minimum_again_ends_eligibility() -> None:
    alone = settle(STATE, {3}, TWO)
    assert led(with_isr(alone, (3, 1), TWO)) == (3, (3, 1), (), ())


def test_who_may_have_lost_records_is_neither_in_sync_nor_eligible() -> None:
    alone = settle(STATE, {3}, TWO)
    after = settle(alone, {2, 3}, TWO, lost={2})
    assert led(after) == (3, (3,), (1,), (2,))
    # The last one too: then nobody may lead.
    empty = settle(replace(alone, elr=()), {3}, TWO, lost={3})
    assert led(empty) == (NO_LEADER, (), (), (3,))


def test_a_minimum_above_the_number_of_replicas_counts_as_that_number() -> None:
    single = PartitionState(1, 0, 0, replicas=(1,), isr=(1,))
    gone = settle(single, set(), TWO)
    assert led(gone) == (NO_LEADER, (), (1,), ())
    assert led(settle(gone, {1}, TWO)) == (1, (1,), (), ())


def test_unclean_election_is_only_for_those_who_ask_for_it() -> None:
    only_one = replace(STATE, isr=(1,))
    lost = {"lost": {1}}
    assert settle(only_one, {2, 3}, Rules(1), **lost).leader == NO_LEADER
    after = settle(only_one, {2, 3}, Rules(1, unclean=True), **lost)
    assert led(after) == (2, (2,), (), ())


def test_unclean_election_takes_a_damaged_replica_last() -> None:
    only_one = replace(STATE, isr=(1,))
    assert settle(only_one, {1, 3}, Rules(1, unclean=True), lost={1}).leader == 3
    assert settle(only_one, {1}, Rules(1, unclean=True), lost={1}).leader == 1
    away = settle(only_one, {1}, Rules(1, unclean=True), lost={1}, absent={1})
    assert away.leader == NO_LEADER, "nobody is there"


def test_who_has_lost_records_keeps_no_place_though_the_leader_is_dead_and_the_others_absent() -> (
    None
):
    """It is about to be admitted, and could be elected from then on."""
    after = settle(replace(STATE, leader=3), {1, 2}, TWO, lost={1}, absent={2})
    assert led(after) == (NO_LEADER, (), (2, 3), (1,))


def test_who_leads_again_with_less_does_so_under_a_new_epoch() -> None:
    """Or followers, who have records of the old one that it has lost, would not notice."""
    only_one = replace(STATE, isr=(1,))
    after = settle(only_one, {1}, Rules(1, unclean=True), lost={1})
    assert led(after) == (1, (1,), (), ())
    assert after.leader_epoch == only_one.leader_epoch + 1


def test_an_eligible_replica_comes_before_an_unclean_election() -> None:
    waiting = replace(STATE, leader=NO_LEADER, isr=(), elr=(1,))
    assert settle(waiting, {1, 2}, Rules(2, unclean=True)).leader == 1


@pytest.mark.parametrize(
    ("state", "live", "leader"),
    [
        (replace(STATE, leader=2), {1, 2, 3}, 1),
        (replace(STATE, leader=2, isr=(2, 3)), {1, 2, 3}, 2),
        (replace(STATE, leader=2), {2, 3}, 2),
        (STATE, {1, 2, 3}, 1),
    ],
    ids=["in sync", "not in sync", "not live", "leads already"],
)
def test_the_preferred_leader(state: PartitionState, live: set[int], leader: int) -> None:
    after = prefer(state, live)
    assert after.leader == leader
    assert (after is state) == (leader == state.leader)
    assert after.isr == state.isr


OFFLINE = replace(STATE, leader=NO_LEADER, isr=(), last_known_elr=(1, 3))


def test_recovery_waits_until_all_that_were_last_eligible_have_reported() -> None:
    assert recover(OFFLINE, {1: LogEnd(4, 100), 2: LogEnd(9, 900)}) is OFFLINE
    assert awaited(OFFLINE, {1, 2}) == (3,)


@pytest.mark.parametrize(
    ("reports", "leader"),
    [
        ({1: LogEnd(4, 100), 3: LogEnd(5, 90)}, 3),
        ({1: LogEnd(5, 100), 3: LogEnd(5, 90)}, 1),
        ({1: LogEnd(5, 100), 2: LogEnd(5, 100), 3: LogEnd(5, 90)}, 1),
        ({1: LogEnd(-1, 0), 2: LogEnd(4, 80), 3: LogEnd(-1, 0)}, 2),
        ({3: LogEnd(5, 90), 2: LogEnd(4, 100), 1: LogEnd(5, 80)}, 3),
    ],
    ids=[
        "the higher epoch",
        "the longer log",
        "of equals one that was eligible",
        "one that was not, where the others have nothing left",
        "not one with an older epoch",
    ],
)
def test_recovery_takes_who_has_most(reports: dict[int, LogEnd], leader: int) -> None:
    after = recover(OFFLINE, reports)
    assert led(after) == (leader, (leader,), (), ())
    assert after.leader_epoch == OFFLINE.leader_epoch + 1


def test_an_operator_can_give_up_who_never_returns() -> None:
    assert recover(OFFLINE, {2: LogEnd(3, 10)}, force=True).leader == 2
    assert recover(OFFLINE, {1: LogEnd(4, 1), 2: LogEnd(9, 9)}, force=True).leader == 2
    assert recover(OFFLINE, {}, force=True) is OFFLINE
    # Also who is certain to have everything, and does not come back.
    eligible = replace(OFFLINE, elr=(3,), last_known_elr=(1,))
    after = recover(eligible, {1: LogEnd(4, 1), 2: LogEnd(4, 2)}, force=True)
    assert led(after) == (2, (2,), (), ())


def test_recovery_is_not_for_partitions_that_have_somebody() -> None:
    reports = {each: LogEnd(9, 9) for each in (1, 2, 3)}
    assert recover(STATE, reports, force=True) is STATE
    eligible = replace(OFFLINE, elr=(2,))
    assert recover(eligible, reports) is eligible
    assert awaited(eligible, {1, 3}) == (2,)
    assert awaited(STATE, set()) == ()


def test_an_election_is_unclean_when_the_leader_may_lack_records() -> None:
    assert not is_unclean(STATE, replace(STATE, leader=2, leader_epoch=STATE.leader_epoch + 1))
    assert not is_unclean(STATE, replace(STATE, leader=NO_LEADER, leader_epoch=99, isr=()))
    assert not is_unclean(STATE, replace(STATE, isr=(1,))), "nobody was elected"
    elected = replace(OFFLINE, leader=3, leader_epoch=99)
    assert is_unclean(OFFLINE, elected)
    assert not is_unclean(replace(OFFLINE, elr=(3,)), elected)
    assert is_unclean(replace(OFFLINE, elr=(3,)), elected, lost={3})


def test_a_leader_that_lost_records_does_not_lead_on_while_the_others_are_absent() -> None:
    before = PartitionState(1, 5, 9, (1, 2, 3), (1, 2, 3))
    after = settle(before, {1, 2, 3}, Rules(2), lost={1}, absent={2, 3})
    assert (after.leader, after.isr, set(after.elr)) == (NO_LEADER, (), {2, 3})
    back = settle(after, {1, 2}, Rules(2))
    assert (back.leader, back.isr) == (2, (2,))
