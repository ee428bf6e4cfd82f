"""One step of a member towards its target: what to take from it, what to give it, and its epoch.

A member reaches the target's epoch only when it owns nothing that the target does not give it.
Partitions of its target that others still hold are left out for the time being (UNRELEASED); each
heartbeat looks again. What it must give up it keeps in `revoking` until it reports that it owns
it no more (UNREVOKED), because a partition is nobody else's before that.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Set

from ottla.coordinator.group.assignors import NO_PARTITIONS, Partitions
from ottla.coordinator.group.consumer_group import ConsumerMember, MemberState
from ottla.coordinator.group.journal import CurrentAssignment
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId

NONE = frozenset[int]()

Taken = Mapping[TopicId, Container[int]]
"""The partitions that are in somebody's hands."""


def step(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    subscribed: Set[TopicId],
    taken: Taken,
    owned: Partitions | None,
    resubscribed: bool,
) -> CurrentAssignment | None:
    """What the member has after this heartbeat; None if nothing is different.

    `owned` is what the member says it owns, None if it did not say. `subscribed` are the topics it
    wants now, which with `resubscribed` are not those the target was made for: what it no longer
    wants is taken from it at once.
    """
    match member.state:
        case MemberState.STABLE:
            if member.epoch != target_epoch:
                return _advance(member, target, target_epoch, subscribed, taken, owned)
            return _drop_unwanted(member, subscribed, owned) if resubscribed else None
        case MemberState.UNREVOKED:
            if _still_owns(owned, member.revoking):
                return _drop_unwanted(member, subscribed, owned) if resubscribed else None
            return _advance(member, target, target_epoch, subscribed, taken, owned)
        case MemberState.UNRELEASED:
            return _advance(member, target, target_epoch, subscribed, taken, owned)
        case MemberState.UNKNOWN:
            # What it owns cannot be told from the records. It can begin anew with nothing.
            if owned is None or any(owned.values()):
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. The member must abandon all "
                    "its partitions and rejoin.",
                )
            return _advance(member, target, target_epoch, subscribed, taken, owned)


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether a member has to be thought of as owning any of these: if it says so, or is silent."""
    if owned is None:
        return True
    return any(not owned[topic].isdisjoint(revoking.get(topic, NONE)) for topic in owned)


def _advance(
    member: ConsumerMember,
    target: Partitions,
    target_epoch: int,
    subscribed: Set[TopicId],
    taken: Taken,
    owned: Partitions | None,
) -> CurrentAssignment | None:
    kept: dict[TopicId, frozenset[int]] = {}
    revoking: dict[TopicId, frozenset[int]] = {}
    gained: dict[TopicId, frozenset[int]] = {}
    waiting = False
    for topic in target.keys() | member.assigned.keys():
        wanted = target.get(topic, NONE) if topic in subscribed else NONE
        has = member.assigned.get(topic, NONE)
        if stays := has & wanted:
            kept[topic] = stays
        if goes := has - wanted:
            revoking[topic] = goes
        if comes := wanted - has:
            # What it gave up and now gets back is free for it, though not for others.
            own = member.revoking.get(topic, NONE)
            held = taken.get(topic, NONE)
            free = frozenset(
                [partition for partition in comes if partition not in held or partition in own]
            )
            waiting = waiting or len(free) < len(comes)
            if free:
                gained[topic] = free
    if revoking and _still_owns(owned, revoking):
        return _changed(member, MemberState.UNREVOKED, member.epoch, kept, revoking)
    for topic, partitions in gained.items():
        kept[topic] = kept.get(topic, NONE) | partitions
    state = MemberState.UNRELEASED if waiting else MemberState.STABLE
    return _changed(member, state, target_epoch, kept, NO_PARTITIONS)


def _drop_unwanted(
    member: ConsumerMember, subscribed: Set[TopicId], owned: Partitions | None
) -> CurrentAssignment | None:
    """Take from a member the topics it has just unsubscribed from, whatever its target says."""
    unwanted = {
        topic: member.assigned[topic] for topic in member.assigned if topic not in subscribed
    }
    if not unwanted:
        return None
    kept = {
        topic: partitions for topic, partitions in member.assigned.items() if topic in subscribed
    }
    revoking = dict(member.revoking)
    for topic, partitions in unwanted.items():
        revoking[topic] = revoking.get(topic, NONE) | partitions
    # Its epochs stay as they are: this is no step towards a target.
    epoch, previous = member.epoch, member.previous_epoch
    if _still_owns(owned, revoking):
        return CurrentAssignment(epoch, previous, MemberState.UNREVOKED, kept, revoking)
    return CurrentAssignment(epoch, previous, MemberState.STABLE, kept, NO_PARTITIONS)


def _changed(
    member: ConsumerMember,
    state: MemberState,
    epoch: int,
    assigned: Partitions,
    revoking: Partitions,
) -> CurrentAssignment | None:
    if (
        state is member.state
        and epoch == member.epoch
        and assigned == member.assigned
        and revoking == member.revoking
    ):
        return None
    return CurrentAssignment(epoch, member.epoch, state, assigned, revoking)
