"""Groups that change from the classic protocol to the consumer protocol and back, while they work.

A classic group of consumers becomes a consumer group when the first member of the new protocol
joins it; its members stay and are served as before (`classic_members`), each with its generation as
its epoch and its assignment as its target. A consumer group becomes a classic one when its last
member of the new protocol has gone and classic ones are left; they are made to rebalance, unless
that was a static member which comes back at once, and everybody has their share already.
An empty group of either kind is simply replaced by one of the other kind.

`group.consumer.migration.policy` says which of the two ways is open. Where the way is closed the
newcomer is refused with GROUP_ID_NOT_FOUND, for a group of that kind there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group import journal
from ottla.coordinator.group.assignors import NO_PARTITIONS, Partitions
from ottla.coordinator.group.classic import ClassicMachine
from ottla.coordinator.group.classic_group import ClassicGroup, ClassicMember
from ottla.coordinator.group.consumer_group import (
    ConsumerEntry,
    ConsumerGroup,
    ConsumerMember,
    encode,
)
from ottla.coordinator.group.consumer_protocol import (
    read_assignment,
    read_assignment_user_data,
    read_subscription,
    read_version,
    write_assignment,
)
from ottla.coordinator.group.group import CONSUMER_PROTOCOL, Group, ShardState
from ottla.coordinator.group.journal import (
    ClassicFacet,
    ConsumerGroupEntry,
    ConsumerMemberEntry,
    CurrentAssignmentEntry,
    TargetAssignmentEntry,
    TargetEpochEntry,
)
from ottla.coordinator.group.subscribable_topics import SubscribableTopics
from ottla.coordinator.shard import Answer, Now, Record, Result
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId

logger = logging.getLogger(__name__)

UPGRADES = frozenset({"upgrade", "bidirectional"})
DOWNGRADES = frozenset({"downgrade", "bidirectional"})


@dataclass(slots=True)
class Opened:
    """A consumer group to work on: it is there, or these records bring it into being first."""

    group: ConsumerGroup
    records: list[Record] = field(default_factory=list)
    was: ClassicGroup | None = None


def open_group(
    group_id: str,
    known: Group | None,
    *,
    create: bool,
    topics: SubscribableTopics,
    config: BrokerConfig,
) -> Opened:
    """The consumer group of that id, if need be a new one, or one made of a classic group."""
    if isinstance(known, ConsumerGroup):
        return Opened(known)
    if not create:
        what = "not found" if known is None else "is not a consumer group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
    if known is None:
        return Opened(ConsumerGroup(group_id))
    assert isinstance(known, ClassicGroup)
    if known.is_empty():
        return Opened(ConsumerGroup(group_id), known.tombstones(), known)
    return _upgrade(known, topics, config)


def dismiss_waiting(opened: Opened, classic: ClassicMachine) -> list[Answer]:
    """Those who waited for the classic group's rebalance find another kind of group."""
    if opened.was is None:
        return []
    return classic.dismiss(opened.was, ErrorCode.REBALANCE_IN_PROGRESS)


# --- classic to consumer --------------------------------------------------------------------------


def _upgrade(classic: ClassicGroup, topics: SubscribableTopics, config: BrokerConfig) -> Opened:
    def refuse(why: str) -> KafkaError:
        logger.info("group %s is not upgraded: %s", classic.id, why)
        return KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {classic.id} to consumer group because {why}.",
        )

    if config.group_consumer_migration_policy.lower() not in UPGRADES:
        raise refuse("online upgrade is disabled")
    if classic.protocol_type != CONSUMER_PROTOCOL:
        raise refuse("the group does not use the consumer embedded protocol")
    if len(classic.members) > config.group_consumer_max_size:
        raise refuse("the group size exceeds the consumer group maximum size")
    try:
        if any(
            read_assignment_user_data(member.assignment)
            for member in classic.members.values()
            if member.assignment
        ):
            raise refuse(
                "an unsupported custom assignor is in use. Please refer to the documentation or "
                "switch to a default assignor before re-attempting the upgrade"
            )
        members = _converted(classic, topics)
    except ValueError:
        raise refuse("the embedded consumer protocol is malformed") from None

    # Worked on as it will be once these entries have been replayed.
    group = ConsumerGroup(classic.id)
    records = classic.tombstones()
    for entry in _beginning(classic, members, topics):
        group.apply(entry)
        records.append(encode(entry))
    logger.info("group %s becomes a consumer group at epoch %d", group.id, group.epoch)
    return Opened(group, records, classic)


def _converted(classic: ClassicGroup, topics: SubscribableTopics) -> list[ConsumerMember]:
    members = []
    subscriptions = {}
    for member in classic.members.values():
        offered = dict(member.protocols)
        name = classic.protocol_name
        subscriptions[member.member_id] = read_subscription(
            offered[name] if name in offered else member.protocols[0][1]
        )
    # A partition has one owner here. Of a clients' assignor that gave it to several, the first
    # counts; all of them join again soon. In the middle of a rebalance there may be no assignment,
    # but cooperative members keep what they own, and have told it when they joined.
    taken: dict[TopicId, frozenset[int]] = {}
    held: dict[str, dict[TopicId, frozenset[int]]] = {each: {} for each in classic.members}
    claims = [
        *(
            (member.member_id, read_assignment(member.assignment))
            for member in classic.members.values()
            if member.assignment
        ),
        *(
            (member_id, {name: list(partitions) for name, partitions in wants.owned})
            for member_id, wants in subscriptions.items()
        ),
    ]
    for member_id, claimed in claims:
        for topic, partitions in _to_ids(claimed, topics).items():
            if free := partitions - taken.get(topic, frozenset()):
                held[member_id][topic] = held[member_id].get(topic, frozenset()) | free
                taken[topic] = taken.get(topic, frozenset()) | free
    for member in classic.members.values():
        wants = subscriptions[member.member_id]
        members.append(
            ConsumerMember(
                member.member_id,
                member.instance_id,
                wants.rack_id or None,
                member.client_id,
                member.client_host,
                frozenset(wants.topics),
                "",
                member.rebalance_timeout_ms,
                None,
                ClassicFacet(member.session_timeout_ms, member.protocols),
                classic.generation,
                classic.generation,
                assigned=held[member.member_id],
            )
        )
    return members


def _to_ids(assignment: dict[str, list[int]], topics: SubscribableTopics) -> Partitions:
    result = {}
    for name, partitions in assignment.items():
        topic = topics.image.topics.get(name)
        if topic is not None:
            there = frozenset(
                partition for partition in partitions if 0 <= partition < len(topic.partitions)
            )
            if there:
                result[topic.id] = there
    return result


def _beginning(
    classic: ClassicGroup, members: list[ConsumerMember], topics: SubscribableTopics
) -> list[ConsumerEntry]:
    names = {name for member in members for name in member.topics}
    return [
        *(ConsumerMemberEntry(classic.id, member.id, member.about()) for member in members),
        ConsumerGroupEntry(classic.id, classic.generation, topics.hash(names)),
        *(TargetAssignmentEntry(classic.id, member.id, member.assigned) for member in members),
        TargetEpochEntry(classic.id, classic.generation),
        *(CurrentAssignmentEntry(classic.id, member.id, member.holdings()) for member in members),
    ]


# --- consumer to classic --------------------------------------------------------------------------


class Downgrade:
    """A consumer group on its way to become a classic one."""

    def __init__(self, group: ConsumerGroup, classic: ClassicGroup) -> None:
        self._classic = classic
        self.records: list[Record] = [
            *group.tombstones(),
            # Without a leader: whoever loads this has to begin the rebalance.
            journal.group(classic.id, classic.snapshot()._replace(leader=None)),
        ]

    def keep_quiet(self) -> None:
        """There will be no rebalance."""
        self.records[-1] = journal.group(self._classic.id, self._classic.snapshot())

    def begin(self, state: ShardState, machine: ClassicMachine, now: Now) -> ClassicGroup:
        """The records are written: start the clocks of the classic group's members."""
        group = state.groups[self._classic.id]
        assert isinstance(group, ClassicGroup)
        group.leader = self._classic.leader
        for member in self._classic.members.values():
            # A record has room for one protocol of each member; they support more.
            group.update(
                group.members[member.member_id],
                member.protocols,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                None,
            )
            machine.touch(group, member.member_id, now)
        logger.info("group %s becomes a classic group", group.id)
        return group

    def rebalance(self, state: ShardState, machine: ClassicMachine, now: Now, why: str) -> Result:
        """The same, and everybody must join again."""
        return machine.begin_rebalance(self.begin(state, machine, now), now, why)


def downgrade(
    group: ConsumerGroup,
    gone: Collection[ConsumerMember],
    topics: SubscribableTopics,
    config: BrokerConfig,
    now: Now,
    *,
    instead: ConsumerMember | None = None,
) -> Downgrade | None:
    """The downgrade of a consumer group that some members leave; None if it stays what it is.

    `instead` is a static member that comes in place of the one who goes.
    """
    leaving = {member.id for member in gone}
    left = [member for member in group.members.values() if member.id not in leaving]
    if instead is not None:
        left.append(instead)
    if not left or any(member.classic is None for member in left):
        return None
    if config.group_consumer_migration_policy.lower() not in DOWNGRADES:
        logger.info("group %s is not downgraded: that is disabled", group.id)
        return None
    if len(left) > config.group_max_size:
        logger.info("group %s is not downgraded: it is larger than group.max.size", group.id)
        return None
    classic = ClassicGroup(group.id, now.wall_ms)
    for member in left:
        assert member.classic is not None
        classic.add(
            ClassicMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                CONSUMER_PROTOCOL,
                member.classic.protocols,
            )
        )
    if instead is not None:
        classic.leader = instead.id  # the only one who can be told so now
    classic.generation = group.epoch
    classic.protocol_name = classic.select_protocol()
    for member in left:
        if member is instead:
            replaced = group.static.get(member.instance_id or "", member.id)
            share = group.targets.get(replaced, NO_PARTITIONS)
        else:
            share = _held(member)
        converted = classic.members[member.id]
        converted.assignment = assignment_of(
            share, converted.metadata(classic.protocol_name), topics
        )
    return Downgrade(group, classic)


def _held(member: ConsumerMember) -> Partitions:
    """What a member may be working on: should the group be upgraded again it is nobody else's."""
    if not member.revoking:
        return member.assigned
    return {
        topic: member.assigned.get(topic, frozenset()) | member.revoking.get(topic, frozenset())
        for topic in member.assigned.keys() | member.revoking.keys()
    }


def assignment_of(partitions: Partitions, metadata: bytes, topics: SubscribableTopics) -> bytes:
    """An assignment as a client of the classic protocol reads it, which has sent `metadata`."""
    named = {
        name: sorted(partitions[topic])
        for topic in partitions
        if (name := topics.name(topic)) is not None
    }
    return write_assignment(named, read_version(metadata))
