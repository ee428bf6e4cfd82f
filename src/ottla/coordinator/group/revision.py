"""What one command changes of a consumer group, decided before anything is written.

A heartbeat, or the Join of a member that still speaks the classic protocol, goes through the same
steps: the member says who it is (`admit`) and what it wants (`update`), which may call for a new
group epoch (`renew`), that for a new target (`retarget`), and the member moves on towards its
target (`reconcile`). The group itself stays as it is until the entries are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group import patterns, reconcile
from ottla.coordinator.group.assignors import (
    ASSIGNORS,
    NO_PARTITIONS,
    Assignor,
    Partitions,
    Subscriber,
)
from ottla.coordinator.group.commands import PatternsResolved
from ottla.coordinator.group.consumer_group import (
    ConsumerEntry,
    ConsumerGroup,
    ConsumerMember,
    encode,
)
from ottla.coordinator.group.journal import (
    ConsumerGroupEntry,
    ConsumerMemberEntry,
    ConsumerTopicsEntry,
    CurrentAssignmentEntry,
    RegexEntry,
    ResolvedRegex,
    TargetAssignmentEntry,
    TargetEpochEntry,
)
from ottla.coordinator.group.subscribable_topics import SubscribableTopics
from ottla.coordinator.shard import Now, Record, Work
from ottla.errors import ErrorCode, KafkaError

MATCH_AGAIN_MS = 10_000
"""Patterns are matched against new topics no more often than this, however many are made."""


class Revision:
    """The changes, and the member as it will be."""

    def __init__(
        self,
        group: ConsumerGroup,
        topics: SubscribableTopics,
        config: BrokerConfig,
        first: Sequence[Record] = (),
    ) -> None:
        self._group = group
        self._topics = topics
        self._config = config
        self._resolved = group.resolved
        # who it is about
        self.before: ConsumerMember
        self.member: ConsumerMember
        self.replaced: ConsumerMember | None = None
        # the group's next state
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self._target: Partitions | None = None
        # what happened
        self.records: list[Record] = list(first)
        self.resubscribed = False
        self.calls_for_assignment = False
        self.moved = False
        self.work: tuple[Work, ...] = ()

    @property
    def group_id(self) -> str:
        return self._group.id

    def _add(self, entry: ConsumerEntry) -> None:
        self.records.append(encode(entry))

    # ------------------------------------------------------------------ who

    def admit(self, member: ConsumerMember) -> None:
        """The member as it is in the group, or a new one."""
        self.before = self.member = member

    def admit_in_place_of(self, replaced: ConsumerMember, member_id: str) -> None:
        """A static member is back under another id: it gets all that the old one had."""
        group_id = self._group.id
        for entry in leave(self._group, replaced):
            self._add(entry)
        member = replaced._replace(id=member_id, epoch=0, previous_epoch=0)
        target = self._group.targets.get(replaced.id, NO_PARTITIONS)
        self._add(ConsumerMemberEntry(group_id, member_id, member.about()))
        self._add(TargetAssignmentEntry(group_id, member_id, target))
        self._add(CurrentAssignmentEntry(group_id, member_id, member.holdings()))
        self.replaced = replaced
        self.before = self.member = member

    # ------------------------------------------------------------------ what it wants

    def update(self, now: Now, changes: Mapping[str, Any]) -> None:
        """Take over what the member reports about itself."""
        before = self.before
        if not changes and not self._group.regexes and before.id in self._group.members:
            return  # most heartbeats change nothing
        new = {name: value for name, value in changes.items() if value != getattr(before, name)}
        self.member = member = before._replace(**new) if new else before
        if new or (member.id not in self._group.members and self.replaced is None):
            self._add(ConsumerMemberEntry(self._group.id, member.id, member.about()))
        if member.topics != before.topics:
            self.resubscribed = self.calls_for_assignment = True
        if member.regex != before.regex:
            self._change_regex(before.regex, member.regex)
        if self._group.regexes or member.regex:
            self._match_patterns(now)

    def _change_regex(self, old: str | None, new: str | None) -> None:
        group = self._group
        if not old and not new:
            return  # null and empty mean the same
        self.resubscribed = True
        if old and group.regexes[old] == 1:
            self._add(RegexEntry(group.id, old, None))
            self._resolved = {
                regex: group.resolved[regex] for regex in group.resolved if regex != old
            }
        if not new:
            self.calls_for_assignment = True
        elif not group.regexes[new]:
            try:
                patterns.check(new)
            except patterns.InvalidPattern as error:
                raise KafkaError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{new}` is not a valid regular expression: {error}.",
                ) from None
        elif new in group.resolved:
            # Others subscribe to it already. When it is not resolved yet, its resolution will call
            # for an assignment.
            self.calls_for_assignment = True

    def _match_patterns(self, now: Now) -> None:
        """See whether the group's patterns have to be matched (again), and if so ask for it."""
        group, old, new = self._group, self.before.regex, self.member.regex
        wanted = set(group.regexes)
        if old and old != new and group.regexes[old] == 1:
            wanted.discard(old)
        if new:
            wanted.add(new)
        if not wanted:
            return
        known = [group.resolved[regex] for regex in wanted if regex in group.resolved]
        if len(known) == len(wanted):
            age_ms = now.wall_ms - min(match.timestamp_ms for match in known)
            version = min(match.version for match in known)
            renewed = version < self._topics.newest_topic_revision and age_ms > MATCH_AGAIN_MS
            if not renewed and age_ms <= self._config.group_consumer_regex_refresh_interval_ms:
                return
        image = self._topics.image
        self.work = (
            Work(
                ("patterns", group.id),
                partial(patterns.resolve, tuple(sorted(wanted)), image.topics),
                lambda matches, failure: PatternsResolved(
                    group.id, matches or {}, image.revision, now.wall_ms, failure
                ),
            ),
        )

    # ------------------------------------------------------------------ what follows

    def renew(self, *, new_epoch: bool) -> None:
        """A new group epoch: if one is called for, or if a subscribed topic has changed."""
        group = self._group
        image = self._topics.image
        compared = group.compared_image is image and group.compared_epoch <= group.epoch
        if not new_epoch and compared:
            return
        gone = self.replaced or group.members.get(self.before.id)
        names = group.subscribed_topics(
            without=() if gone is None else (gone,), plus=self.member, resolved=self._resolved
        )
        metadata_hash = self._topics.hash(names)
        if new_epoch or metadata_hash != group.metadata_hash:
            self.epoch = group.epoch + 1
            self._add(ConsumerGroupEntry(group.id, self.epoch, metadata_hash))
        if group.has_topics_record:
            self._add(ConsumerTopicsEntry(group.id, present=False))
        group.compared_image, group.compared_epoch = image, self.epoch

    def retarget(self) -> None:
        """A new target for everybody, unless there is one for this epoch."""
        group, member = self._group, self.member
        if self.epoch <= group.target_epoch:
            holder = member if self.replaced is None else self.replaced
            self._target = group.targets.get(holder.id, NO_PARTITIONS)
            return
        subscribers = self._subscribers()
        different = {
            id(subscriber.topics): subscriber.topics for subscriber in subscribers.values()
        }
        wanted = frozenset().union(*different.values())
        targets = self._assignor().assign(subscribers, self._topics.assignable(wanted))
        written = group.targets.keys() | ({member.id} if self.replaced is not None else set())
        for member_id, target in targets.items():
            if target is not subscribers[member_id].owned or member_id not in written:
                self._add(TargetAssignmentEntry(group.id, member_id, target))
        self._add(TargetEpochEntry(group.id, self.epoch))
        self.target_epoch = self.epoch
        self._target = targets[member.id]

    def _subscribers(self) -> dict[str, Subscriber]:
        group, topics, replaced = self._group, self._topics, self.replaced
        members = {member.id: member for member in group.members.values() if member is not replaced}
        members[self.member.id] = self.member
        before = None if replaced is None else group.targets.get(replaced.id)
        subscribers = {}
        for member in members.values():
            target = group.targets.get(member.id, NO_PARTITIONS)
            if before is not None and member is self.member:
                target = before
            subscribers[member.id] = Subscriber(
                topics.ids(group.topics_of(member)), target, member.instance_id, member.rack_id
            )
        return subscribers

    def _assignor(self) -> Assignor:
        """The one that most members ask for, of those asked for equally often the first served."""
        votes = dict(self._group.assignors)
        gone = self.replaced or self._group.members.get(self.member.id)  # it may keep its id
        if gone is not None and gone.server_assignor is not None:
            votes[gone.server_assignor] -= 1
        choice = self.member.server_assignor
        if choice is not None:
            votes[choice] = votes.get(choice, 0) + 1
        return ASSIGNORS[preferred(votes, self._config)]

    def reconcile(self, owned: Partitions | None) -> None:
        """The member's next step to its target."""
        member = self.member
        if not self.resubscribed and member.has_reached(self.target_epoch):
            return
        assert self._target is not None
        holds = reconcile.step(
            member,
            target=self._target,
            target_epoch=self.target_epoch,
            subscribed=self._topics.ids(self._group.topics_of(member)),
            taken=self._group.owners,
            owned=owned,
            resubscribed=self.resubscribed,
        )
        if holds is not None:
            self.member = member.holding(holds)
            self.moved = True
            self._add(CurrentAssignmentEntry(self._group.id, member.id, holds))


def preferred(votes: dict[str, int], config: BrokerConfig) -> str:
    """The name of the assignor for these votes."""
    served = [name for name in config.group_consumer_assignors if name in ASSIGNORS] or list(
        ASSIGNORS
    )
    return max(served, key=lambda name: votes.get(name, 0))


def check_room(group: ConsumerGroup, member_id: str, config: BrokerConfig) -> None:
    """GROUP_MAX_SIZE_REACHED if this would be one member too many."""
    limit = config.group_consumer_max_size
    if len(group.members) >= limit and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )


def leave(group: ConsumerGroup, member: ConsumerMember) -> list[ConsumerEntry]:
    """The entries that make a member gone."""
    return [
        CurrentAssignmentEntry(group.id, member.id, None),
        TargetAssignmentEntry(group.id, member.id, None),
        ConsumerMemberEntry(group.id, member.id, None),
    ]


def dismiss(
    group: ConsumerGroup, members: Sequence[ConsumerMember], topics: SubscribableTopics
) -> list[Record]:
    """Some members are gone: so are patterns only they had, and the others need a new target."""
    entries = [entry for member in members for entry in leave(group, member)]
    resolved = dict(group.resolved)
    for regex in {member.regex for member in members if member.regex}:
        only_theirs = group.regexes[regex] == sum(member.regex == regex for member in members)
        if only_theirs and resolved.pop(regex, None) is not None:
            entries.append(RegexEntry(group.id, regex, None))
    names = group.subscribed_topics(without=members, resolved=resolved)
    entries.append(ConsumerGroupEntry(group.id, group.epoch + 1, topics.hash(names)))
    return [encode(entry) for entry in entries]


def accept_matches(
    group: ConsumerGroup, found: PatternsResolved, topics: SubscribableTopics
) -> list[Record]:
    """What the patterns of a group match by now; another match calls for a new assignment."""
    resolved = dict(group.resolved)
    entries: list[ConsumerEntry] = []
    differs = False
    for regex, matched in found.matches.items():
        if group.regexes[regex]:
            old = resolved.get(regex)
            differs = differs or matched != (frozenset() if old is None else old.topics)
            resolved[regex] = ResolvedRegex(matched, found.revision, found.at_ms)
            entries.append(RegexEntry(group.id, regex, resolved[regex]))
    if entries:
        metadata_hash = topics.hash(group.subscribed_topics(resolved=resolved))
        if differs or metadata_hash != group.metadata_hash:
            entries.append(ConsumerGroupEntry(group.id, group.epoch + 1, metadata_hash))
    return [encode(entry) for entry in entries]
