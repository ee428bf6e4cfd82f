"""The state of a consumer group: members, epochs, who is to own what and who does (KIP-848).

Three epochs tell how far things have come. The *group epoch* grows when something happens that
calls for a new assignment: a member comes, goes or changes its subscription, a subscribed topic
changes. The *target epoch* is the group epoch for which an assignor has shared out the partitions.
A *member's epoch* is the target it has reached, and it reaches one only after it has given up what
the target does not give it. So each moves towards its target on its own, nobody waits for all, and
a partition is given to its next owner when the previous one has let go of it.

State changes only in `apply`, entry by entry; `consumer` decides, and never touches it. What
is asked often (who holds a partition, which topics are subscribed) is kept up to date there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from ottla.coordinator.group import journal
from ottla.coordinator.group.assignors import NO_PARTITIONS, Partitions
from ottla.coordinator.group.group import CONSUMER_PROTOCOL, ExpiryBase, GroupType
from ottla.coordinator.group.journal import (
    ClassicFacet,
    ConsumerGroupEntry,
    ConsumerMemberEntry,
    ConsumerMemberSnapshot,
    ConsumerTopicsEntry,
    CurrentAssignment,
    CurrentAssignmentEntry,
    RegexEntry,
    ResolvedRegex,
    TargetAssignmentEntry,
    TargetEpochEntry,
)
from ottla.coordinator.shard import Record, Written
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId

LEFT_EPOCH = -1
"""The epoch a member sends to leave."""
AWAY_EPOCH = -2
"""The epoch a static member sends to leave for a while, and has until it is back."""
MEMBER_EPOCH_COMMITS = 9
"""The version of OffsetCommit that first carries a member epoch."""

ConsumerEntry = (
    ConsumerGroupEntry
    | ConsumerTopicsEntry
    | ConsumerMemberEntry
    | TargetEpochEntry
    | TargetAssignmentEntry
    | CurrentAssignmentEntry
    | RegexEntry
)


class MemberState(IntEnum):
    """How far a member is on its way to its target; the numbers are those of the records."""

    STABLE = 0
    """It has what it may have at its epoch."""
    UNREVOKED = 1
    """It has to give up partitions first, and has not reported that it did."""
    UNRELEASED = 2
    """It waits for partitions that others have not given up yet."""
    UNKNOWN = 127
    """A newer coordinator has written something that this one does not know."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ConsumerMember(NamedTuple):
    """One member: who it is, what it wants, and what it has."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicFacet | None = None
    """Set while it speaks the classic protocol."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    """What it has been told to give up; nobody else may have it yet."""

    def has_reached(self, target_epoch: int) -> bool:
        return self.epoch == target_epoch and self.state is MemberState.STABLE

    def about(self) -> ConsumerMemberSnapshot:
        """Who it is and what it wants, as the journal keeps it."""
        return ConsumerMemberSnapshot(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            tuple(sorted(self.topics)),
            self.regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
        )

    def holdings(self) -> CurrentAssignment:
        """What it has, as the journal keeps it."""
        return CurrentAssignment(
            self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking
        )

    def told(self, about: ConsumerMemberSnapshot, topics: frozenset[str]) -> ConsumerMember:
        """The member with these changes to its description; `topics` are those it subscribes to."""
        return ConsumerMember(
            self.id,
            about.instance_id,
            about.rack_id,
            about.client_id,
            about.client_host,
            topics,
            about.regex,
            about.rebalance_timeout_ms,
            about.server_assignor,
            about.classic,
            self.epoch,
            self.previous_epoch,
            self.state,
            self.assigned,
            self.revoking,
        )

    def holding(self, current: CurrentAssignment) -> ConsumerMember:
        """The member when it has this."""
        # In most heartbeats of a rebalance: `_replace` would take three times as long.
        return ConsumerMember(
            self.id,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topics,
            self.regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
            current.member_epoch,
            current.previous_member_epoch,
            current.state if type(current.state) is MemberState else MemberState(current.state),
            current.assigned,
            current.pending_revocation,
        )


_GONE = CurrentAssignment(LEFT_EPOCH, LEFT_EPOCH, MemberState.STABLE, {}, {})


class ConsumerGroup:
    """One group; a `group.Group`."""

    type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str) -> None:
        # from the journal
        self.id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.has_topics_record = False
        # derived from that
        self.static: dict[str, str] = {}
        self.owners: dict[TopicId, dict[int, str]] = {}
        self.assignors: Counter[str] = Counter()
        self.regexes: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        self.classic_members = 0
        self._names: Counter[str] = Counter()
        # Members mostly want the same: then it is the same object, and compared in no time.
        self._wanted: dict[frozenset[str], frozenset[str]] = {}
        # soft: the image for which the metadata hash was last compared, and at which epoch. A
        # comparison whose record could not be written does not count: the epoch is behind then.
        self.compared_image: object = None
        self.compared_epoch = 0

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.id!r} epoch {self.epoch} of {len(self.members)} members>"

    # ------------------------------------------------------------------ what others ask

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(member.has_reached(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def is_empty(self) -> bool:
        return not self.members

    def member(self, member_id: str) -> ConsumerMember:
        """UNKNOWN_MEMBER_ID unless there is one."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.id}.",
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = self.static.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members[member_id]

    def check_static(self, member_id: str, instance_id: str) -> ConsumerMember:
        """The member with that instance id, if it is the one of that member id."""
        member = self.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.id}.",
            )
        return member

    def owner(self, topic: TopicId, partition: int) -> str | None:
        """Who has the partition, or has still to give it up."""
        held = self.owners.get(topic)
        return None if held is None else held.get(partition)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names a member subscribes to, those that its pattern has found among them."""
        resolved = self.resolved.get(member.regex) if member.regex else None
        if resolved is None:
            return member.topics
        return member.topics | resolved.topics if member.topics else resolved.topics

    def subscribed_topics(
        self,
        *,
        without: Iterable[ConsumerMember] = (),
        plus: ConsumerMember | None = None,
        resolved: Mapping[str, ResolvedRegex] | None = None,
    ) -> set[str]:
        """All names the group subscribes to, or would if some members were not or one was there."""
        leaving: Counter[str] = Counter()
        for member in without:
            leaving.update(member.topics)
        names = {name for name, count in self._names.items() if count > leaving[name]}
        if plus is not None:
            names |= plus.topics
        for match in (self.resolved if resolved is None else resolved).values():
            names |= match.topics
        return names

    def is_subscribed(self, topic: str) -> bool:
        return topic in self._names or any(
            topic in match.topics for match in self.resolved.values()
        )

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        api_version: int,
        transactional: bool = False,
    ) -> None:
        # An administrator, or a consumer that assigns its partitions itself.
        if epoch < 0 and not self.members:
            return
        # A transaction of a producer that knows no group epochs: it is fenced by its own.
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return
        member = self.member(member_id)
        if not transactional and member.classic is None and api_version < MEMBER_EPOCH_COMMITS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the modern group "
                "protocol",
            )
        self._check_epoch(member, epoch)

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        self._check_epoch(self.member(member_id or ""), epoch)

    def _check_epoch(self, member: ConsumerMember, epoch: int) -> None:
        if epoch == member.epoch:
            return
        if member.classic is not None:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"The received generation id {epoch} does not match the expected member epoch "
                f"{member.epoch}.",
            )
        raise KafkaError(
            ErrorCode.STALE_MEMBER_EPOCH,
            f"The received member epoch {epoch} does not match the expected member epoch "
            f"{member.epoch}.",
        )

    def check_offset_delete(self) -> None:
        """Always allowed; the offsets of subscribed topics are kept all the same."""

    def check_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def expiry_base(self) -> ExpiryBase | None:
        return lambda offset: offset.commit_timestamp_ms

    def should_expire(self) -> bool:
        return not self.members

    def tombstones(self) -> list[Record]:
        return [encode(entry) for entry in self.end()]

    def end(self) -> Iterator[ConsumerEntry]:
        """The entries that make the group gone, in the order in which they make sense."""
        for member_id in self.members:
            yield CurrentAssignmentEntry(self.id, member_id, None)
        for member_id in self.targets:
            yield TargetAssignmentEntry(self.id, member_id, None)
        yield TargetEpochEntry(self.id, None)
        for member_id in self.members:
            yield ConsumerMemberEntry(self.id, member_id, None)
        for regex in self.resolved:
            yield RegexEntry(self.id, regex, None)
        if self.has_topics_record:
            yield ConsumerTopicsEntry(self.id, present=False)
        yield ConsumerGroupEntry(self.id, None)

    # ------------------------------------------------------------------ what changes it

    def apply(self, entry: ConsumerEntry) -> None:  # noqa: C901, PLR0912 - one branch for each kind of entry
        """Replay one entry. Deleting what is not there is nothing: compaction may have been."""
        if isinstance(entry, CurrentAssignmentEntry):  # most are; `match` would take longer
            if entry.value is not None:
                self._hand_over(entry.member_id, entry.value)
            elif entry.member_id in self.members:
                self._hand_over(entry.member_id, _GONE)
            return
        if isinstance(entry, TargetAssignmentEntry):
            if entry.value is None:
                self.targets.pop(entry.member_id, None)
            else:
                self.targets[entry.member_id] = entry.value
        elif isinstance(entry, ConsumerMemberEntry):
            if entry.value is not None:
                self._introduce(entry.member_id, entry.value)
            elif (member := self.members.pop(entry.member_id, None)) is not None:
                self._forget_subscription(member)
                self._forget_holdings(member)
        elif isinstance(entry, ConsumerGroupEntry):
            self.epoch = entry.epoch or 0
            self.metadata_hash = entry.metadata_hash
        elif isinstance(entry, TargetEpochEntry):
            self.target_epoch = LEFT_EPOCH if entry.epoch is None else entry.epoch
        elif isinstance(entry, RegexEntry):
            if entry.value is None:
                self.resolved.pop(entry.regex, None)
            else:
                self.resolved[entry.regex] = entry.value
        else:
            self.has_topics_record = entry.present

    def _introduce(self, member_id: str, about: ConsumerMemberSnapshot) -> None:
        old = self.members.get(member_id)
        if old is not None:
            self._forget_subscription(old)
        topics = frozenset(about.topics)
        topics = self._wanted.setdefault(topics, topics)
        member = (old or ConsumerMember(member_id)).told(about, topics)
        self.members[member_id] = member
        for name in topics:
            self._names[name] += 1
        if member.regex:
            self.regexes[member.regex] += 1
        if member.server_assignor is not None:
            self.assignors[member.server_assignor] += 1
        if member.classic is not None:
            self.classic_members += 1
            self.classic_protocols.update(name for name, _ in member.classic.protocols)
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if len(self._wanted) > 16 + 2 * len(self.members):
            self._wanted = {member.topics: member.topics for member in self.members.values()}

    def _forget_subscription(self, member: ConsumerMember) -> None:
        _uncount(self._names, member.topics)
        if member.regex:
            _uncount(self.regexes, (member.regex,))
        if member.server_assignor is not None:
            _uncount(self.assignors, (member.server_assignor,))
        if member.classic is not None:
            self.classic_members -= 1
            _uncount(self.classic_protocols, (name for name, _ in member.classic.protocols))
        instance = member.instance_id
        if instance is not None and self.static.get(instance) == member.id:
            del self.static[instance]

    def _hand_over(self, member_id: str, holdings: CurrentAssignment) -> None:
        old = self.members.get(member_id) or ConsumerMember(member_id)
        member = self.members[member_id] = old.holding(holdings)
        if member.assigned is old.assigned and member.revoking is old.revoking:
            return
        self._forget_holdings(old)
        for holding in (member.assigned, member.revoking):
            for topic, partitions in holding.items():
                held = self.owners.get(topic)
                if held is None:
                    held = self.owners[topic] = {}
                for partition in partitions:
                    held[partition] = member_id

    def _forget_holdings(self, member: ConsumerMember) -> None:
        for holding in (member.assigned, member.revoking):
            for topic, partitions in holding.items():
                held = self.owners.get(topic)
                if held is None:
                    continue
                for partition in partitions:
                    # Not when another has it by now: in a compacted log the later record counts.
                    if held.get(partition) == member.id:
                        del held[partition]
                if not held:
                    del self.owners[topic]

    # ------------------------------------------------------------------ what must hold

    def validate(self) -> None:
        owners: dict[tuple[TopicId, int], str] = {}
        for member in self.members.values():
            for one in _each(member):
                assert one not in owners, f"{one} is with {owners[one]} and with {member.id}"
                owners[one] = member.id
            assert member.epoch <= max(self.epoch, 0), f"{member} is ahead of the group"
            assert bool(member.revoking) == (member.state is MemberState.UNREVOKED), member
        indexed = {(t, p): owner for t, held in self.owners.items() for p, owner in held.items()}
        assert indexed == owners, "the index of owners is wrong"
        assert self.target_epoch <= self.epoch
        assert self.targets.keys() <= self.members.keys(), "a target for nobody"
        shared_out = Counter(
            (t, p) for target in self.targets.values() for t in target for p in target[t]
        )
        assert not shared_out or max(shared_out.values()) == 1, "two members shall own a partition"
        members = self.members.values()
        assert self.static == {m.instance_id: m.id for m in members if m.instance_id is not None}
        assert self._names == Counter(name for member in members for name in member.topics)
        assert self.regexes == Counter(member.regex for member in members if member.regex)
        assert self.resolved.keys() <= self.regexes.keys(), "a pattern that nobody subscribes to"
        assert self.classic_members == sum(member.classic is not None for member in members)


def _each(member: ConsumerMember) -> Iterator[tuple[TopicId, int]]:
    for held in (member.assigned, member.revoking):
        for topic, partitions in held.items():
            for partition in partitions:
                yield topic, partition


def _uncount(counts: Counter[str], names: Iterable[str]) -> None:
    for name in names:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


def encode(entry: ConsumerEntry) -> Record:
    """The record that says the same."""
    return Written.of(_record(entry), entry)


def _record(entry: ConsumerEntry) -> Record:  # noqa: C901, PLR0911 - one branch for each kind of entry
    group_id = entry.group_id
    if isinstance(entry, CurrentAssignmentEntry):  # most are; `match` would take longer
        if entry.value is None:
            return journal.current_assignment_tombstone(group_id, entry.member_id)
        return journal.current_assignment(group_id, entry.member_id, entry.value)
    if isinstance(entry, TargetAssignmentEntry):
        if entry.value is None:
            return journal.target_assignment_tombstone(group_id, entry.member_id)
        return journal.target_assignment(group_id, entry.member_id, entry.value)
    if isinstance(entry, ConsumerMemberEntry):
        if entry.value is None:
            return journal.consumer_member_tombstone(group_id, entry.member_id)
        return journal.consumer_member(group_id, entry.member_id, entry.value)
    if isinstance(entry, ConsumerGroupEntry):
        if entry.epoch is None:
            return journal.consumer_group_tombstone(group_id)
        return journal.consumer_group(group_id, entry.epoch, entry.metadata_hash)
    if isinstance(entry, TargetEpochEntry):
        if entry.epoch is None:
            return journal.target_epoch_tombstone(group_id)
        return journal.target_epoch(group_id, entry.epoch)
    if isinstance(entry, RegexEntry):
        if entry.value is None:
            return journal.regex_tombstone(group_id, entry.regex)
        return journal.regex(group_id, entry.regex, entry.value)
    return journal.consumer_topics_tombstone(group_id)
