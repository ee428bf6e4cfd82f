"""What the controller plans for an image: departures, partitions, arrivals, questions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.controller.election import LogEnd
from ottla.controller.machine import (
    BrokerChange,
    plan,
    plan_forced,
    plan_preferred,
    plan_recovery,
)
from ottla.model.broker import Broker, BrokerState, LostPartition
from ottla.model.features import FORMATS, TRANSACTIONS
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState, Topic
from ottla.replication.isr import Rules

TOPIC_ID = TopicId(bytes(16))
TP = TopicPartition("t", 0)
LED = PartitionState(leader=1, leader_epoch=5, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3))
LIVE = {each: BrokerState(each, fenced=False) for each in (1, 2, 3)}


def two(_: Topic) -> Rules:
    return Rules(2)


def image(
    *partitions: PartitionState,
    states: dict[int, BrokerState] | None = None,
    there: set[int] | None = None,
) -> ClusterImage:
    """Brokers `there` are registered under the epochs of their states."""
    states = LIVE if states is None else states
    registrations = {
        each: Broker(each, states[each].epoch, {}) for each in (states if there is None else there)
    }
    topic = Topic("t", TOPIC_ID, partitions)
    return ClusterImage(
        brokers={each: registrations[each] for each in registrations if not states[each].fenced},
        registrations=registrations,
        broker_states=states,
        topics={"t": topic},
        topic_names={TOPIC_ID: "t"},
    )


def test_a_cluster_as_it_should_be_needs_nothing() -> None:
    todo = plan(image(LED), two)
    assert not todo
    assert not todo.to_ask


def test_who_is_gone_departs_and_its_partitions_are_led_elsewhere() -> None:
    todo = plan(image(LED, there={2, 3}), two)
    assert todo.departures == [BrokerChange(1, 1)]
    [change] = todo.partitions
    assert change.before is LED
    assert (change.after.leader, change.after.isr) == (2, (2, 3))
    assert not todo.arrivals


def test_a_plan_relies_on_those_who_are_in_sync_after_it() -> None:
    todo = plan(image(LED, there={2, 3}), two)
    assert todo.relied_on == {2: LIVE[2], 3: LIVE[3]}


def test_who_cannot_read_what_is_finalized_is_not_admitted_and_does_not_lead() -> None:
    """One of an older version that was away when the others agreed on more, as behind a cut."""
    states = LIVE | {3: BrokerState(7)}
    now = image(replace(LED, leader=3), states=states)
    older, newer = {FORMATS: (0, 1)}, {FORMATS: (0, 1), TRANSACTIONS: (0, 2)}
    levels = {"metadata.version": 29, FORMATS: 1, TRANSACTIONS: 2}
    now.registrations[3] = replace(now.registrations[3], features=older)
    todo = plan(now, two, levels=levels)
    assert not todo.arrivals
    assert list(todo.shut_out) == [BrokerChange(3, 7)]
    [change] = todo.partitions
    assert (change.after.leader, change.after.isr) == (1, (1, 2))
    assert plan(now, two, levels=levels | {TRANSACTIONS: 0}).arrivals == [BrokerChange(3, 7)]
    now.registrations[3] = replace(now.registrations[3], features=newer)
    todo = plan(now, two, levels=levels)
    assert (todo.arrivals, todo.shut_out) == ([BrokerChange(3, 7)], {})


def test_while_patient_nobody_is_taken_for_dead() -> None:
    assert not plan(image(LED, there={2}), two, patient=True)


def test_while_patient_only_those_who_are_there_are_elected() -> None:
    dead = {**LIVE, 1: BrokerState(1, fenced=True)}
    [change] = plan(image(LED, states=dead, there={3}), two, patient=True).partitions
    assert (change.after.leader, change.after.isr) == (3, (2, 3)), "2 may come back empty"
    # Nobody who is there: the one that died may be the only one with all records.
    assert not plan(image(LED, states=dead, there=set()), two, patient=True)
    orphan = replace(LED, leader=NO_LEADER, isr=(), elr=(2,))
    assert not plan(image(orphan, states=dead, there={3}), two, patient=True)
    lost = replace(LED, leader=NO_LEADER, isr=(), last_known_elr=(2,))
    todo = plan(image(lost, states=dead, there={3}), two, patient=True)
    assert not todo.partitions
    assert not todo.to_ask


@pytest.mark.parametrize("unclean", [False, True])
def test_while_patient_a_leader_that_has_lost_records_gives_way_before_it_arrives(
    unclean: bool,
) -> None:
    """The only other one in sync is away, and will be back with all records."""
    states = {**LIVE, 1: BrokerState(7, lost=True)}
    in_sync = replace(LED, isr=(1, 2))
    alone = replace(LED, isr=(2,), elr=(1,), leader=2)
    waiting = replace(LED, isr=(), elr=(1, 2), leader=NO_LEADER)

    def rules(_: Topic) -> Rules:
        return Rules(2, unclean=unclean)

    todo = plan(
        image(in_sync, alone, waiting, states=states, there={1, 3}),
        rules,
        patient=True,
    )
    assert [(each.after.leader, each.after.isr, each.after.elr) for each in todo.partitions] == [
        (NO_LEADER, (), (2,)),
        (2, (2,), ()),
        (NO_LEADER, (), (2,)),
    ]
    assert todo.arrivals == [BrokerChange(1, 7)]
    # The next look, with the leader admitted, and the one after the other one has come back.
    after = [each.after for each in todo.partitions]
    later = {**LIVE, 1: BrokerState(7, fenced=False)}
    assert not plan(image(*after, states=later, there={1, 3}), rules, patient=True)
    back = plan(image(*after, states=later), rules)
    assert [each.after.leader for each in back.partitions] == [2, 2]
    assert not back.unclean


def test_patience_does_not_keep_anybody_from_arriving() -> None:
    states = {**LIVE, 3: BrokerState(7)}
    todo = plan(image(LED, states=states, there={2, 3}), two, patient=True)
    assert todo.arrivals == [BrokerChange(3, 7)]
    assert not todo.departures
    assert not todo.partitions


def test_who_comes_back_whole_stays_in_sync() -> None:
    todo = plan(image(LED, states={**LIVE, 1: BrokerState(7)}), two)
    assert todo.arrivals == [BrokerChange(1, 7)]
    assert not todo.partitions


def test_who_may_have_lost_records_leaves_every_set_before_it_arrives() -> None:
    alone = replace(LED, isr=(1,), elr=(2, 3))
    states = {**LIVE, 2: BrokerState(7, lost=True)}
    todo = plan(image(LED, alone, states=states), two)
    assert [(each.after.isr, each.after.elr) for each in todo.partitions] == [
        ((1, 3), ()),
        ((1,), (3,)),
    ]
    assert todo.partitions[1].after.last_known_elr == (2,)
    assert todo.arrivals == [BrokerChange(2, 7)]


def test_who_has_lost_records_of_one_partition_keeps_its_place_in_the_others() -> None:
    lost = BrokerState(7, lost_partitions=frozenset({LostPartition(TOPIC_ID, 1)}))
    todo = plan(image(LED, LED, states={**LIVE, 1: lost}), two)
    [change] = todo.partitions
    assert (change.partition, change.after.leader, change.after.isr) == (1, 2, (2, 3))
    assert todo.arrivals == [BrokerChange(1, 7)]


def test_a_leader_that_may_lack_records_is_to_be_reported() -> None:
    alone = replace(LED, isr=(1,))
    eligible = replace(LED, leader=NO_LEADER, isr=(), elr=(1,))
    single = replace(alone, replicas=(1,))
    states = {**LIVE, 1: BrokerState(7, lost=True)}
    todo = plan(
        image(LED, alone, eligible, single, states=states), lambda _: Rules(2, unclean=True)
    )
    assert {(each.partition, each.after.leader) for each in todo.unclean} == {(1, 2), (2, 2)}
    todo = plan(image(LED, alone, eligible, single, states=states), two)
    assert not todo.unclean, "who leads is found out later"
    assert {each.partition for each in todo.to_ask} == {1, 2}
    assert not plan(image(LED, eligible, there={1, 2}), two).unclean
    gone = plan(image(LED, there=set()), lambda _: Rules(2, unclean=True))
    assert not gone.unclean
    orphan = replace(LED, leader=NO_LEADER, isr=(), elr=(3,))
    todo = plan(image(orphan, there={1, 2}), lambda _: Rules(2, unclean=True))
    assert [each.after.leader for each in todo.unclean] == [1]


def test_who_is_fenced_and_not_there_is_not_asked_to_leave_again() -> None:
    states = {**LIVE, 1: BrokerState(1, fenced=True)}
    state = replace(LED, leader=2, isr=(2, 3))
    assert not plan(image(state, states=states, there={2, 3}), two)


def test_who_stops_leads_nothing_and_is_not_in_sync() -> None:
    states = {**LIVE, 1: BrokerState(1, fenced=False, stopping=True)}
    todo = plan(image(LED, states=states), two)
    [change] = todo.partitions
    assert (change.after.leader, change.after.isr) == (2, (2, 3))
    assert not todo.departures


def test_only_the_topics_that_changed_are_looked_at_while_all_brokers_stay() -> None:
    orphan = replace(LED, leader=NO_LEADER, isr=(), elr=(1,))
    assert not plan(image(orphan), two, topics=())
    assert len(plan(image(orphan), two, topics=("t", "gone")).partitions) == 1


def test_a_change_of_brokers_concerns_every_topic() -> None:
    assert plan(image(LED, there={2, 3}), two, topics=()).partitions


LOST = replace(LED, leader=NO_LEADER, isr=(), last_known_elr=(1, 3))


def test_replicas_are_asked_once_all_that_could_have_most_are_there() -> None:
    assert plan(image(LOST), two).to_ask == {TP: (1, 2, 3)}
    gone = {**LIVE, 3: BrokerState(3, fenced=True)}
    assert not plan(image(LOST, states=gone, there={1, 2}), two).to_ask
    alone = replace(LOST, last_known_elr=(1,))
    todo = plan(image(alone, states=gone, there={1, 2}), two)
    assert todo.to_ask == {TP: (1, 2)}, "whoever is there may have more"
    assert not todo.partitions


def test_when_all_who_were_eligible_have_lost_everything_all_replicas_are_waited_for() -> None:
    alone = replace(LED, isr=(1,))
    states = {**LIVE, 1: BrokerState(7, lost=True, emptied=True)}
    todo = plan(image(alone, states=states, there={1, 2}), lambda _: Rules(1))
    [change] = todo.partitions
    assert change.after.leader == NO_LEADER
    assert change.after.last_known_elr == ()
    assert not todo.to_ask
    assert plan(image(alone, states=states), lambda _: Rules(1)).to_ask == {TP: (1, 2, 3)}


def test_somebody_eligible_is_waited_for_and_nobody_asked() -> None:
    waiting = replace(LED, leader=NO_LEADER, isr=(), elr=(1,), last_known_elr=(3,))
    gone = {**LIVE, 1: BrokerState(1, fenced=True)}
    todo = plan(image(waiting, states=gone, there={2, 3}), two)
    assert not todo
    assert not todo.to_ask


def test_a_recovery_is_planned_when_all_have_reported() -> None:
    assert plan_recovery(image(LOST), TP, {1: LogEnd(5, 10)}) is None
    change = plan_recovery(image(LOST), TP, {1: LogEnd(5, 10), 3: LogEnd(5, 11)})
    assert change is not None
    assert change.after.leader == 3
    assert plan_recovery(image(LOST), TopicPartition("t", 1), {}) is None
    assert plan_recovery(image(LOST), TopicPartition("gone", 0), {}) is None


def test_who_was_seen_dead_and_lives_is_admitted_after_others_lead() -> None:
    """Its address refuses, whoever is right: it is back before anybody has taken its place."""
    survivor = {**LIVE, 1: BrokerState(1, fenced=True, seen_dead=True)}
    todo = plan(image(LED, states=survivor), two)
    assert [each.after.leader for each in todo.partitions] == [2]
    assert [each.broker for each in todo.arrivals] == [1]
    restarted = {**LIVE, 1: BrokerState(1, fenced=True)}
    assert not plan(image(LED, states=restarted), two).partitions


def test_preferred_leaders_are_live_in_sync_and_stay() -> None:
    moved = replace(LED, leader=2)
    assert [each.after.leader for each in plan_preferred(image(LED, moved))] == [1]
    assert plan_preferred(image(moved), [TopicPartition("t", 1)]) == []
    stopping = {**LIVE, 1: BrokerState(1, fenced=False, stopping=True)}
    assert plan_preferred(image(moved, states=stopping)) == []
    assert plan_preferred(image(moved, there={2, 3})) == []


def test_an_election_on_request_looks_at_no_other_topics() -> None:
    """A request of thousands is cut into pieces, and a cluster may have very many partitions."""

    class Unseen(Topic):
        @property
        def partitions(self) -> tuple[PartitionState, ...]:
            raise AssertionError("it was looked at")

    found = image(replace(LED, leader=2))
    other = Unseen.__new__(Unseen)
    both = replace(found, topics={**found.topics, "u": other})
    assert [each.after.leader for each in plan_preferred(both, [TP])] == [1]


def test_an_unclean_election_on_request_is_for_partitions_without_a_leader() -> None:
    ends = {1: LogEnd(5, 10), 2: LogEnd(5, 11), 3: LogEnd(4, 90)}
    assert plan_forced(image(LED), TP, ends, Rules(2)) is None
    assert plan_forced(image(LOST), TopicPartition("gone", 0), ends, Rules(2)) is None
    change = plan_forced(image(LOST), TP, ends, Rules(2))
    assert change is not None
    assert change.after.leader == 2, "the one with most, whoever was last known to be eligible"
    assert plan_forced(image(LOST), TP, {}, Rules(2, unclean=True)) is None, "nobody answers"
    nobody = {each: BrokerState(each, fenced=True) for each in (1, 2, 3)}
    assert plan_forced(image(LOST, states=nobody, there=set()), TP, ends, Rules(2)) is None


def test_an_election_by_force_takes_whoever_is_certain_to_have_everything() -> None:
    waiting = replace(LED, leader=NO_LEADER, isr=(), elr=(1,), last_known_elr=(3,))
    ends = {1: LogEnd(4, 10), 3: LogEnd(5, 90)}
    change = plan_forced(image(waiting), TP, ends, Rules(2, unclean=True))
    assert change is not None
    assert (change.after.leader, change.after.last_known_elr) == (1, (3,))
    del ends[1]
    change = plan_forced(image(waiting), TP, ends, Rules(2))
    assert change is not None
    assert change.after.leader == 3, "an operator has given up the other"


def test_plans_tell_which_elections_may_lose_records() -> None:
    clean = plan(image(LED, there={2, 3}), two)
    assert not clean.unclean
    allowed = plan(image(LOST), lambda _: Rules(2, unclean=True))
    assert allowed.unclean == {*allowed.partitions}


def test_the_only_replica_stays_what_it_is_whatever_it_has_lost() -> None:
    only = replace(LED, replicas=(1,), isr=(1,))
    states = {**LIVE, 1: BrokerState(7, lost=True)}
    todo = plan(image(only, states=states), two)
    assert not todo.partitions
    assert todo.arrivals == [BrokerChange(1, 7)]
    nobody = replace(only, leader=NO_LEADER, isr=(), elr=(1,))
    [change] = plan(image(nobody, states=states), two).partitions
    assert change.after.leader == 1
    assert change.after.leader_epoch == nobody.leader_epoch + 1, "clients have to notice"
