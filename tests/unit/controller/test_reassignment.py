"""Moving partitions to other replicas, as KIP-455 has it; by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.controller.election import settle
from ottla.controller.machine import electable, plan
from ottla.controller.reassignment import begin, cancel, complete, ongoing, plan_reassignment
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker, BrokerState
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState, Topic
from ottla.replication.isr import Rules, with_isr

TWO = Rules(min_insync=2)
ALL = frozenset(range(1, 8))
STATE = PartitionState(
    leader=1, leader_epoch=5, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3)
)
TP = TopicPartition("t", 0)


def image(state: PartitionState, brokers: int = 6) -> ClusterImage:
    known = range(1, brokers + 1)
    topic = Topic("t", TopicId(bytes(16)), (state,))
    there = {each: Broker(each, each, {}) for each in known}
    return ClusterImage(
        brokers=there,
        registrations=there,
        broker_states={each: BrokerState(each, fenced=False) for each in known},
        topics={"t": topic},
        topic_names={topic.id: "t"},
    )


def test_new_replicas_come_first_and_join_the_old_ones() -> None:
    begun = begin(STATE, (4, 5, 2), ALL)
    assert begun.replicas == (4, 5, 2, 1, 3)
    assert (begun.adding, begun.removing) == ((4, 5), (1, 3))
    assert (begun.target, begun.original) == ((4, 5, 2), (2, 1, 3))
    assert (begun.leader, begun.leader_epoch, begun.isr) == (1, 5, (1, 2, 3))
    assert begun.partition_epoch == 10


def test_it_is_done_when_the_whole_target_is_in_sync() -> None:
    begun = begin(STATE, (4, 5, 2), ALL)
    nearly = with_isr(begun, (4, 2, 1, 3), TWO)
    assert complete(nearly, ALL) is nearly
    done = complete(with_isr(nearly, (4, 5, 2, 1, 3), TWO), ALL)
    assert (done.replicas, done.isr) == ((4, 5, 2), (4, 5, 2))
    assert not done.reassigning
    assert (done.leader, done.leader_epoch) == (4, 6), "the leader was one of those that went"


def test_a_leader_that_stays_leads_on_under_a_new_epoch() -> None:
    begun = begin(STATE, (4, 1, 2), ALL)
    done = complete(with_isr(begun, (4, 1, 2, 3), TWO), ALL)
    assert (done.leader, done.leader_epoch) == (1, 6)


def test_more_replicas_need_no_new_epoch() -> None:
    begun = begin(STATE, (1, 2, 3, 4), ALL)
    done = complete(with_isr(begun, (1, 2, 3, 4), TWO), ALL)
    assert (done.replicas, done.leader_epoch) == ((1, 2, 3, 4), 5)


def test_fewer_replicas_are_done_at_once() -> None:
    done = begin(STATE, (3, 2), ALL)
    assert (done.replicas, done.isr, done.leader) == ((3, 2), (2, 3), 3)
    assert (done.leader_epoch, done.partition_epoch) == (6, 10)


def test_another_order_is_no_reassignment() -> None:
    done = begin(STATE, (3, 1, 2), ALL)
    assert not done.reassigning
    assert (done.replicas, done.leader, done.leader_epoch) == ((3, 1, 2), 1, 5)


def test_the_same_replicas_change_nothing() -> None:
    assert begin(STATE, (1, 2, 3), ALL) is STATE
    begun = begin(STATE, (4, 5, 6), ALL)
    assert begin(begun, (4, 5, 6), ALL) is begun


def test_it_is_not_done_while_one_of_the_target_is_away() -> None:
    ready = with_isr(begin(STATE, (4, 5, 2), ALL), (4, 5, 2, 1, 3), TWO)
    assert complete(ready, ALL - {4}) is ready, "it may come back without its records"


def test_replicas_on_their_way_change_nothing_about_what_must_be_in_sync() -> None:
    single = replace(STATE, replicas=(1,), isr=(1,))
    begun = begin(single, (2, 3, 4), ALL)
    assert begun.minimum(2) == 1, "else nothing would be accepted until they have caught up"
    assert begin(STATE, (4,), ALL).minimum(2) == 2
    assert not begun.under_replicated
    assert replace(begin(STATE, (4, 5, 6), ALL), isr=(1, 4)).under_replicated


def test_a_cancelled_one_is_where_it_was() -> None:
    begun = with_isr(begin(STATE, (4, 5, 6), ALL), (4, 1, 2, 3), TWO)
    back = cancel(begun, ALL, TWO)
    assert back is not None
    assert (back.replicas, back.isr, back.leader) == ((1, 2, 3), (1, 2, 3), 1)
    assert back.leader_epoch == 6, "who was added may not know yet"
    assert not back.reassigning


def test_who_was_being_added_leads_no_longer_once_it_is_cancelled() -> None:
    begun = with_isr(begin(STATE, (4, 5, 6), ALL), (4, 1, 2, 3), TWO)
    back = cancel(replace(begun, leader=4), ALL - {1}, TWO)
    assert back is not None
    assert (back.leader, back.isr) == (2, (1, 2, 3))


def test_it_is_not_cancelled_where_only_new_replicas_have_everything() -> None:
    begun = replace(begin(STATE, (4, 5, 6), ALL), leader=4, isr=(4, 5))
    assert cancel(begun, ALL, TWO) is None
    forced = cancel(begun, ALL, Rules(2, unclean=True))
    assert forced is not None
    assert (forced.leader, forced.isr, forced.replicas) == (1, (1,), (1, 2, 3))


def test_one_that_waits_for_the_eligible_can_be_cancelled() -> None:
    begun = replace(begin(STATE, (4, 5, 6), ALL), leader=NO_LEADER, isr=(), elr=(2,))
    back = cancel(begun, ALL, TWO)
    assert back is not None
    assert (back.leader, back.elr, back.replicas) == (NO_LEADER, (2,), (1, 2, 3))


def test_who_was_being_added_is_fenced_though_the_leader_that_stays_is_about_to_stop() -> None:
    """4 deletes its log. A fetch that it sent before must not count, should it be added again."""
    begun = with_isr(begin(STATE, (4, 5, 6), ALL), (4, 1), TWO)
    back = cancel(begun, ALL - {1}, TWO)
    assert back is not None
    assert (back.leader, back.isr, back.leader_epoch) == (1, (1,), 6)
    again = begin(back, (4, 5, 6), ALL)
    assert again.leader_epoch > begun.leader_epoch


@pytest.mark.parametrize("last_known", [(4, 5), (1, 4), ()])
def test_it_is_not_cancelled_where_those_who_go_may_have_more(last_known: tuple[int, ...]) -> None:
    """All of them may have lost something: who has most is not known before they are asked."""
    begun = begin(STATE, (4, 5, 6), ALL)
    waiting = replace(begun, leader=NO_LEADER, isr=(), elr=(), last_known_elr=last_known)
    assert cancel(waiting, ALL, TWO) is None
    forced = cancel(waiting, ALL, Rules(2, unclean=True))
    assert forced is not None
    assert forced.leader == 1
    assert cancel(replace(waiting, last_known_elr=(2, 3)), ALL, TWO) is not None


def test_a_replaced_one_is_cancelled_to_where_the_first_began() -> None:
    first = begin(STATE, (4, 5, 6), ALL)
    second = begin(first, (1, 2, 7), ALL)
    assert second.target == (1, 2, 7)
    assert second.removing == (3, 4, 5, 6)
    back = cancel(second, ALL, TWO)
    assert back is not None
    assert {*back.replicas} == {1, 2, 3}
    told = ongoing(image(second, 7), None)[TP]
    assert told.adding == (7,), "those that go again are not on their way"


def test_the_controller_completes_what_is_ready() -> None:
    ready = with_isr(begin(STATE, (4, 5, 2), ALL), (4, 5, 2, 1, 3), TWO)
    [change] = plan(image(ready), lambda _: TWO).partitions
    assert change.after.replicas == (4, 5, 2)
    assert not plan(image(begin(STATE, (4, 5, 2), ALL)), lambda _: TWO)


@pytest.mark.parametrize(
    ("partition", "replicas", "code", "text"),
    [
        (TopicPartition("u", 0), (1,), "UNKNOWN_TOPIC_OR_PARTITION", "a topic named u"),
        (TopicPartition("t", 1), (1,), "UNKNOWN_TOPIC_OR_PARTITION", "find partition t:1"),
        (TP, (), "INVALID_REPLICA_ASSIGNMENT", "an empty replica list"),
        (TP, (1, 9), "INVALID_REPLICA_ASSIGNMENT", "includes broker 9, but no such broker"),
        (TP, (1, -2), "INVALID_REPLICA_ASSIGNMENT", "includes broker -2, but no such broker"),
        (TP, (1, 2, 1), "INVALID_REPLICA_ASSIGNMENT", "the broker 1 more than once"),
        (TP, None, "NO_REASSIGNMENT_IN_PROGRESS", "No partition reassignment is in progress."),
        (TP, (1, 2), "INVALID_REPLICATION_FACTOR", "is changed from 3 to 2"),
    ],
)
def test_what_cannot_be_is_refused_as_kafka_does(
    partition: TopicPartition, replicas: tuple[int, ...] | None, code: str, text: str
) -> None:
    now = image(STATE)
    with pytest.raises(KafkaError, match=text) as caught:
        plan_reassignment(now, partition, replicas, electable(now), TWO, allow_factor_change=False)
    assert caught.value.code is ErrorCode[code]


def test_a_broker_that_is_away_may_get_replicas() -> None:
    now = image(STATE)
    now = replace(now, brokers={each: now.brokers[each] for each in (1, 2, 3)})
    _, after = plan_reassignment(now, TP, (1, 2, 4), electable(now), TWO)
    assert after.adding == (4,)


def test_an_unclean_election_gives_nothing_to_a_replica_that_may_be_empty() -> None:
    """The topic allows that some records are lost, not that all of them are."""
    any_leader = Rules(2, unclean=True)
    begun = replace(begin(STATE, (4, 5, 6), ALL), isr=(1,))
    assert settle(begun, ALL - {1}, any_leader).leader == 2, "it lacks what it had no time for"
    single = begin(replace(STATE, replicas=(1,), isr=(1,)), (4,), ALL)
    away = settle(single, ALL - {1}, any_leader)
    assert (away.leader, away.elr) == (NO_LEADER, (1,)), "the broker is only being restarted"
    assert settle(away, ALL, any_leader).leader == 1


def test_a_new_replica_that_was_in_sync_may_lead_uncleanly() -> None:
    begun = replace(begin(STATE, (4, 5, 6), ALL), leader=4, isr=(4,))
    after = settle(begun, {4, 5, 6}, Rules(2, unclean=True), lost={4})
    assert (after.leader, after.leader_epoch) == (4, 6)


def test_only_what_is_asked_for_is_listed() -> None:
    now = image(begin(STATE, (4, 5, 6), ALL))
    assert [*ongoing(now, None)] == [TP]
    assert not ongoing(now, {"t": [1], "u": [0]})
    found = ongoing(now, {"t": [0]})[TP]
    assert found == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
