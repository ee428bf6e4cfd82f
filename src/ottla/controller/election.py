"""Which replica leads, which are in sync, which may lead after them (KIP-966). No I/O.

Three sets of a partition's replicas decide about its records:

    isr             in sync: they have every record below the high watermark, and are live
    elr             eligible: they left an ISR that was below min.insync.replicas; the high
                    watermark has not moved since, so they have every record below it too
    last_known_elr  were in one of the two once, and may have lost records since

A leader comes from the ISR; if that is empty, from the ELR. Both elections are clean: nothing that
was acknowledged with `acks=all` is lost. Where nobody is left, the partition waits. Whether it may
be led by any other replica is for the topic to say (`unclean.leader.election.enable`), or for all
of those who were last known to be eligible: once each of them has reported what it has, there is
nothing better to wait for (`recover`). Others are asked as well: those who were eligible may have
lost everything since.

`min.insync.replicas` counts up to the number of replicas, as in Kafka: more can never be in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from ottla.model.topic import NO_LEADER, PartitionState
from ottla.replication.isr import NOBODY, Rules, eligible


class LogEnd(NamedTuple):
    """What a replica reports about its log; the greater one has more of the partition's history."""

    last_epoch: int
    end_offset: int

    def __str__(self) -> str:
        return f"up to offset {self.end_offset}, last epoch {self.last_epoch}"


def settle(
    state: PartitionState,
    live: Collection[int],
    rules: Rules,
    *,
    lost: Collection[int] = NOBODY,
    absent: Collection[int] = NOBODY,
) -> PartitionState:
    """The state to be in while `live` brokers may lead; the same object if it is in it already.

    `lost` brokers may have lost records: they are trusted with nothing until they have caught up.
    `absent` ones count as live, and may come back without their records: they keep what they have,
    and are not elected. Where nobody else could be, nothing changes, unless somebody has lost
    records: then the absent ones, who may have them, are eligible and waited for.
    """
    in_sync = tuple(each for each in state.isr if each in live and each not in lost)
    elr, last_known = eligible(state, in_sync, rules, lost=lost)
    there = [each for each in live if each not in absent]
    if in_sync:
        leader = state.leader
        if leader not in in_sync:
            leader = _first(state.replicas, [each for each in in_sync if each in there])
        if leader != NO_LEADER:
            return _changed(state, leader, in_sync, elr, last_known)
        if not any(each in lost for each in (*state.isr, *state.elr)):
            return state
        elr, last_known = eligible(state, NOBODY, rules, lost=lost)
    leader = _first(state.replicas, [each for each in elr if each in there])
    if leader != NO_LEADER:
        others = tuple(each for each in elr if each != leader)
        if min(rules.min_insync, len(state.replicas)) <= 1:
            return _changed(state, leader, (leader,), (), ())
        return _changed(state, leader, (leader,), others, last_known)
    if rules.unclean and not any(each in absent for each in elr):
        whole = [each for each in there if each not in lost]
        leader = _first(state.replicas, whole)
        if leader == NO_LEADER:
            leader = _first(state.replicas, there)
        if leader != NO_LEADER:
            return _uncleanly_led_by(state, leader)
    return _changed(state, NO_LEADER, (), elr, last_known)


def prefer(state: PartitionState, live: Collection[int]) -> PartitionState:
    """Led by the first of its replicas, if that is live and in sync; else the same object."""
    preferred = state.replicas[0]
    if preferred == state.leader or preferred not in state.isr or preferred not in live:
        return state
    return _changed(state, preferred, state.isr, state.elr, state.last_known_elr)


def recover(
    state: PartitionState, reports: Mapping[int, LogEnd], *, force: bool = False
) -> PartitionState:
    """Led by whoever has most of it, once all that were last known to be eligible have reported.

    Of all replicas that have: a log that has been cut to nothing is not better than an old one. The
    highest last epoch counts first, then the longest log. With `force` an operator has given up
    all who did not report, be they eligible: the others decide alone. The same object while there
    is somebody to wait for, and where there is a leader or (without `force`) somebody eligible.
    """
    if state.leader != NO_LEADER or state.isr or (state.elr and not force):
        return state
    awaited = state.replicas if force else state.last_known_elr or state.replicas
    reported = [each for each in state.replicas if each in reports]
    if not reported or (not force and any(each not in reports for each in awaited)):
        return state
    most = max(reported, key=lambda each: (reports[each], each in awaited))
    return _uncleanly_led_by(state, most)


def is_unclean(
    before: PartitionState, after: PartitionState, lost: Collection[int] = NOBODY
) -> bool:
    """Whether the partition has got a leader that may lack acknowledged records."""
    if after.leader == NO_LEADER or after.leader_epoch == before.leader_epoch:
        return False
    return after.leader not in (*before.isr, *before.elr) or after.leader in lost


def awaited(state: PartitionState, live: Collection[int]) -> tuple[int, ...]:
    """Whom a partition without a leader waits for; nobody if it has one."""
    if state.leader != NO_LEADER:
        return ()
    return tuple(
        each for each in state.elr or state.last_known_elr or state.replicas if each not in live
    )


def _first(replicas: tuple[int, ...], candidates: Collection[int]) -> int:
    return next((each for each in replicas if each in candidates), NO_LEADER)


def _uncleanly_led_by(state: PartitionState, leader: int) -> PartitionState:
    """Led by a replica that may lack records: what it has is the partition from now on, so nobody
    else is in sync, nor eligible, before having caught up with it. The epoch is a new one even for
    who has led before: it goes on from less, and others must not take that for what they have."""
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        isr=(leader,),
        elr=(),
        last_known_elr=(),
    )


def _changed(
    state: PartitionState,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    last_known: tuple[int, ...],
) -> PartitionState:
    elected = leader != state.leader
    if not elected and (isr, elr, last_known) == (state.isr, state.elr, state.last_known_elr):
        return state
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + elected,
        partition_epoch=state.partition_epoch + 1,
        isr=isr,
        elr=elr,
        last_known_elr=last_known,
    )
