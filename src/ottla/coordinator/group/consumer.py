"""The consumer protocol (KIP-848), as Kafka 4.2 does it: the heartbeat is its only request.

A member joins, changes its subscription, reports what it owns, and leaves by that request; the
answer tells it its epoch and, when that has changed, what it is to own. There is no moment at which
all members must be present: see `consumer_group` for the epochs, `revision` for what a heartbeat
sets in motion, `reconcile` for how a partition changes hands, `clocks` for how long it may take.

A member that is removed is fenced: it must drop everything and join anew. Most heartbeats say
nothing new; those cost a few comparisons and no record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ottla.cluster.registry import ImageChange
from ottla.coordinator.group import reconcile
from ottla.coordinator.group.assignors import NO_PARTITIONS, Partitions
from ottla.coordinator.group.classic import ClassicMachine
from ottla.coordinator.group.classic_members import ClassicMembers
from ottla.coordinator.group.clocks import JOIN, REBALANCE, SESSION, SYNC, Clocks, Overrides
from ottla.coordinator.group.commands import (
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    DescribedConsumer,
    DescribedConsumerGroup,
    NamedPartitions,
    PatternsResolved,
)
from ottla.coordinator.group.consumer_group import (
    AWAY_EPOCH,
    LEFT_EPOCH,
    ConsumerEntry,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    encode,
)
from ottla.coordinator.group.group import Client, Group, ShardState, Timer
from ottla.coordinator.group.journal import (
    ConsumerGroupEntry,
    ConsumerMemberEntry,
    ConsumerTopicsEntry,
    CurrentAssignment,
    CurrentAssignmentEntry,
    RegexEntry,
    TargetAssignmentEntry,
    TargetEpochEntry,
)
from ottla.coordinator.group.migration import dismiss_waiting, downgrade, open_group
from ottla.coordinator.group.revision import (
    Revision,
    accept_matches,
    check_room,
    dismiss,
    preferred,
)
from ottla.coordinator.group.subscribable_topics import SubscribableTopics
from ottla.coordinator.shard import Answer, Now, Result
from ottla.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_WHY = {
    SESSION: "it has not been heard of",
    JOIN: "it did not join again in time",
    SYNC: "it did not ask for its assignment in time",
}


def _no_overrides(_: str) -> Mapping[str, str]:
    return {}


class ConsumerMachine:
    """The consumer groups of a shard."""

    def __init__(
        self, state: ShardState, classic: ClassicMachine, overrides: Overrides = _no_overrides
    ) -> None:
        self._state = state
        self._classic = classic
        self._clocks = Clocks(state, overrides)
        self._subscribable = SubscribableTopics(state.image)
        members = ClassicMembers(state, classic, self._topics, self._clocks, self._remove)
        self.classic_join = members.join
        self.classic_sync = members.sync
        self.classic_heartbeat = members.heartbeat
        self.classic_leave = members.leave
        self.commands: Mapping[type, Callable[[Any, Now], Result]] = {
            ConsumerHeartbeat: self.heartbeat,
            DescribeConsumerGroup: self.describe,
            PatternsResolved: self.patterns_resolved,
        }
        self.timeouts: Mapping[str, Callable[[Timer, Now], Result]] = {
            SESSION: self._on_silence,
            JOIN: self._on_silence,
            SYNC: self._on_silence,
            REBALANCE: self._on_rebalance_timeout,
        }
        self.replayers: Mapping[type, Callable[[Any], None]] = dict.fromkeys(
            (
                ConsumerGroupEntry,
                ConsumerTopicsEntry,
                ConsumerMemberEntry,
                TargetEpochEntry,
                TargetAssignmentEntry,
                CurrentAssignmentEntry,
                RegexEntry,
            ),
            self.replay,
        )

    def _topics(self) -> SubscribableTopics:
        """The topics of the newest image."""
        self._subscribable.follow(self._state.image)
        return self._subscribable

    # ------------------------------------------------------------------ heartbeat

    def heartbeat(self, beat: ConsumerHeartbeat, now: Now) -> Result:
        group = self._state.groups.get(beat.group_id)
        if isinstance(group, ConsumerGroup):
            member = group.members.get(beat.member_id)
            if member is not None and self._says_nothing_new(beat, group, member):
                return self._go_on(group, member, beat.owned, now)
        if beat.epoch in (LEFT_EPOCH, AWAY_EPOCH):
            return self._leave(beat, now)
        return self._beat(beat, group, now)

    def _go_on(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None, now: Now
    ) -> Result:
        """It is there, or takes its next step towards its target.

        What `_beat` would do too. Nearly all heartbeats are such, in a rebalance as well, so this
        must not cost much.
        """
        before = member.state
        holds = None
        if before is not MemberState.STABLE or member.epoch != group.epoch:
            holds = self._step(group, member, owned)
        settings = self._clocks.settings.of(group.id)
        self._clocks.heard_of(group.id, member.id, now, settings.consumer_session_timeout_ms)
        interval_ms = settings.consumer_heartbeat_interval_ms
        if holds is None:
            return Result(ConsumerAlive(member.id, member.epoch, interval_ms))
        entry = CurrentAssignmentEntry(group.id, member.id, holds)
        shown = None if holds.assigned == member.assigned else holds.assigned
        reply = ConsumerAlive(member.id, holds.member_epoch, interval_ms, shown)
        waits = before is MemberState.UNREVOKED or holds.state is MemberState.UNREVOKED
        after = partial(self._stepped, group, member.id) if waits else None
        return Result(reply, [encode(entry)], after=after)

    def _step(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None
    ) -> CurrentAssignment | None:
        """What it has after its next step, if anything is different."""
        target = group.targets.get(member.id, NO_PARTITIONS)
        if member.state is MemberState.STABLE and target == member.assigned:
            # Others came or went, and this member keeps what it has: only its epoch moves on.
            return CurrentAssignment(
                group.epoch, member.epoch, MemberState.STABLE, member.assigned, member.revoking
            )
        return reconcile.step(
            member,
            target=target,
            target_epoch=group.target_epoch,
            subscribed=self._topics().ids(member.topics),
            taken=group.owners,
            owned=owned,
            resubscribed=False,
        )

    def _stepped(
        self, group: ConsumerGroup, member_id: str, error: KafkaError | None, now: Now
    ) -> None:
        """It has to give something up from now on, or no longer."""
        if error is None:
            self._clocks.await_revocation(group.id, group.members[member_id], now)

    def _says_nothing_new(
        self, beat: ConsumerHeartbeat, group: ConsumerGroup, member: ConsumerMember
    ) -> bool:
        """It tells at most what it owns, and there is nothing to find out about the group."""
        return (
            beat.epoch == member.epoch
            and beat.epoch > 0  # it neither joins, nor says again that it is away
            and group.epoch == group.target_epoch
            and group.compared_image is self._state.image
            and group.compared_epoch <= group.epoch
            and not group.regexes
            and _wants_the_same(beat, member)
        )

    def _beat(self, beat: ConsumerHeartbeat, known: Group | None, now: Now) -> Result:
        joins = beat.epoch == 0
        if not beat.member_id:
            beat = beat._replace(member_id=self._state.new_id())
        topics, config = self._topics(), self._state.config()
        opened = open_group(beat.group_id, known, create=joins, topics=topics, config=config)
        group = opened.group
        check_room(group, beat.member_id, config)
        revision = Revision(group, topics, config, opened.records)
        _admit(beat, group, revision)
        revision.update(now, {} if _wants_the_same(beat, revision.before) else _changes_in(beat))
        # What was a classic group's has been shared out by its leader, perhaps long ago, or perhaps
        # not to its end.
        begins = group.epoch == 0 or opened.was is not None
        revision.renew(new_epoch=begins or revision.calls_for_assignment)
        self._state.counts.consumer_rebalances += revision.epoch > group.epoch
        revision.retarget()
        revision.reconcile(beat.owned)

        member = revision.member
        settings = self._clocks.settings.of(group.id)
        session_ms = settings.consumer_session_timeout_ms
        tells_all = (
            beat.rebalance_timeout_ms != -1
            and (beat.topics is not None or beat.regex is not None)
            and beat.owned is not None
        )
        show = joins or tells_all or member.assigned != revision.before.assigned
        reply = ConsumerAlive(
            member.id,
            member.epoch,
            settings.consumer_heartbeat_interval_ms,
            member.assigned if show else None,
        )
        if not revision.records:
            self._clocks.after_heartbeat(revision, now, session_ms)
            return Result(reply, work=revision.work)

        def written(error: KafkaError | None, now: Now) -> Result | None:
            if error is not None:
                return None
            answers = dismiss_waiting(opened, self._classic)
            if opened.was is not None:
                self._clocks.start(group, now)
            self._clocks.after_heartbeat(revision, now, session_ms)
            return Result(reply, answers=answers) if answers else None

        return Result(reply, revision.records, after=written, work=revision.work)

    # ------------------------------------------------------------------ leaving

    def _leave(self, beat: ConsumerHeartbeat, now: Now) -> Result:
        group = self._group(beat.group_id)
        reply = ConsumerAlive(beat.member_id, beat.epoch)
        if beat.instance_id is None:
            return self._remove(group, [group.member(beat.member_id)], reply, now, "it left")
        member = group.check_static(beat.member_id, beat.instance_id)
        if beat.epoch == LEFT_EPOCH:
            return self._remove(group, [member], reply, now, "it left")
        # It keeps its partitions until it is back or its session ends, but works on none of them:
        # those it had still to give up are free now.
        away = member._replace(epoch=AWAY_EPOCH, state=MemberState.STABLE, revoking=NO_PARTITIONS)
        entry = CurrentAssignmentEntry(group.id, member.id, away.holdings())

        def written(error: KafkaError | None, now: Now) -> None:
            if error is None:
                self._clocks.went_away(group.id, member)

        return Result(reply, [encode(entry)], after=written)

    def _remove(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        reply: object,
        now: Now,
        why: str,
        timer: Timer | None = None,
    ) -> Result:
        """Members are gone, by their own will or not. With the last that speaks the new protocol
        the group becomes a classic one, if others are there and the policy allows it."""
        if not members:
            return Result(reply)
        gone = ", ".join(member.id for member in members)
        logger.info("group %s: member %s is gone: %s", group.id, gone, why)
        topics = self._topics()
        converted = downgrade(group, members, topics, self._state.config(), now)
        if converted is not None:
            records = converted.records
        else:
            records = dismiss(group, members, topics)

        def written(error: KafkaError | None, now: Now) -> Result | None:
            if error is not None:
                if timer is not None:
                    self._clocks.again(timer, now)
                return None
            self._clocks.forget(group.id, members)
            if converted is None:
                return None
            self._clocks.forget(group.id, group.members.values())
            begun = converted.rebalance(self._state, self._classic, now, f"gone: {gone}")
            return replace(begun, reply=reply)

        return Result(reply, records, after=written)

    # ------------------------------------------------------------------ time-outs

    def _on_silence(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        if not isinstance(group, ConsumerGroup) or timer.member_id not in group.members:
            return Result()
        member = group.members[timer.member_id]
        return self._remove(group, [member], None, now, _WHY[timer.kind], timer)

    def _on_rebalance_timeout(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        if not isinstance(group, ConsumerGroup):
            return Result()
        member = group.members.get(timer.member_id)
        if member is None or member.state is not MemberState.UNREVOKED:
            return Result()
        why = f"it has not given up its partitions within {member.rebalance_timeout_ms} ms"
        return self._remove(group, [member], None, now, why, timer)

    # ------------------------------------------------------------------ patterns, description

    def patterns_resolved(self, found: PatternsResolved, now: Now) -> Result:
        """The patterns of a group have been matched; the next heartbeats bring what follows."""
        group = self._state.groups.get(found.group_id)
        if found.failure is not None:
            logger.error(
                "group %s: its patterns could not be matched",
                found.group_id,
                exc_info=found.failure,
            )
        elif isinstance(group, ConsumerGroup):
            return Result(records=accept_matches(group, found, self._topics()))
        return Result()

    def describe(self, command: DescribeConsumerGroup, now: Now) -> Result:
        group = self._group(command.group_id)
        return Result(
            DescribedConsumerGroup(
                group.id,
                group.state_name,
                group.epoch,
                group.target_epoch,
                preferred(group.assignors, self._state.config()),
                tuple(self._described(group, member) for member in group.members.values()),
            )
        )

    def _described(self, group: ConsumerGroup, member: ConsumerMember) -> DescribedConsumer:
        return DescribedConsumer(
            member.id,
            member.instance_id,
            member.rack_id,
            member.epoch,
            Client(member.client_id, member.client_host),
            tuple(sorted(member.topics)),
            member.regex,
            self._named(member.assigned),
            self._named(group.targets.get(member.id, NO_PARTITIONS)),
            member.classic is not None,
        )

    def _named(self, partitions: Partitions) -> tuple[NamedPartitions, ...]:
        topics = self._topics()
        return tuple(
            NamedPartitions(topic, name, tuple(sorted(partitions[topic])))
            for topic in partitions
            if (name := topics.name(topic)) is not None
        )

    # ------------------------------------------------------------------ the groups

    def _group(self, group_id: str) -> ConsumerGroup:
        """GROUP_ID_NOT_FOUND unless it is there and of this kind."""
        group = self._state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        what = "not found" if group is None else "is not a consumer group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")

    def replay(self, entry: ConsumerEntry) -> None:
        groups = self._state.groups
        group = groups.get(entry.group_id)
        if not isinstance(group, ConsumerGroup):
            if _deletes(entry):
                return  # compaction may leave the end of something without its beginning
            group = groups[entry.group_id] = ConsumerGroup(entry.group_id)
        if isinstance(entry, ConsumerGroupEntry) and entry.epoch is None:
            del groups[entry.group_id]
            self._clocks.forget(group.id, group.members.values())
        else:
            group.apply(entry)

    def loaded(self, now: Now) -> list[Any]:
        """Members have a whole session to send a heartbeat, and the whole rebalance timeout to give
        up partitions."""
        for group in self._state.groups.values():
            if isinstance(group, ConsumerGroup):
                self._clocks.start(group, now)
        return []

    def image_changed(self, change: ImageChange, now: Now) -> Result | None:
        """Nothing yet: a group's next heartbeat finds that it was compared with another image."""
        return None

    def unload(self, error: KafkaError) -> list[Answer]:
        """Nobody waits here."""
        return []


def _admit(beat: ConsumerHeartbeat, group: ConsumerGroup, revision: Revision) -> None:
    """Who sends the heartbeat, if they may."""
    joins = beat.epoch == 0
    if beat.instance_id is None:
        known = group.members.get(beat.member_id)
        if known is None and not joins:
            group.member(beat.member_id)  # says that it is unknown
        revision.admit(ConsumerMember(beat.member_id) if known is None else _checked(beat, known))
    elif not joins:
        revision.admit(_checked(beat, group.check_static(beat.member_id, beat.instance_id)))
    else:
        static = group.static_member(beat.instance_id)
        if static is None:
            revision.admit(group.members.get(beat.member_id) or ConsumerMember(beat.member_id))
        elif static.classic is None and static.epoch != AWAY_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join "
                f"the group because the instance id is owned by {static.id} member.",
            )
        else:
            revision.admit_in_place_of(static, beat.member_id)


def _checked(beat: ConsumerHeartbeat, member: ConsumerMember) -> ConsumerMember:
    """FENCED_MEMBER_EPOCH unless the member and we are at the same epoch.

    A member may be one step behind, when the answer that took it on got lost, provided that it
    owns nothing it has not got. One that begins anew, at 0, may always.
    """
    if beat.epoch in (0, member.epoch):
        return member
    if beat.epoch > member.epoch:
        relation = "greater"
    elif beat.epoch == member.previous_epoch and _has_all(member, beat.owned):
        return member
    else:
        relation = "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({beat.epoch}) than the one "
        f"known by the group coordinator ({member.epoch}). The member must abandon all its "
        "partitions and rejoin.",
    )


def _has_all(member: ConsumerMember, owned: Partitions | None) -> bool:
    if owned is None:
        return False
    return all(owned[topic] <= member.assigned.get(topic, frozenset()) for topic in owned)


def _wants_the_same(beat: ConsumerHeartbeat, member: ConsumerMember) -> bool:
    """Whether it says nothing about itself, as most heartbeats do."""
    return (
        beat.topics is None
        and beat.regex is None
        and beat.rack_id is None
        and beat.server_assignor is None
        and beat.rebalance_timeout_ms == -1
        and beat.instance_id == member.instance_id
        and member.classic is None
        and beat.client.id == member.client_id
        and beat.client.host == member.client_host
    )


def _changes_in(beat: ConsumerHeartbeat) -> dict[str, object]:
    """What the member says about itself; what it leaves out stays."""
    fields: dict[str, object] = {
        "instance_id": beat.instance_id,
        "rack_id": beat.rack_id,
        "rebalance_timeout_ms": None
        if beat.rebalance_timeout_ms == -1
        else beat.rebalance_timeout_ms,
        "server_assignor": beat.server_assignor,
        "topics": None if beat.topics is None else frozenset(beat.topics),
        "regex": beat.regex,
        "client_id": beat.client.id,
        "client_host": beat.client.host,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    changes["classic"] = None
    return changes


def _deletes(entry: ConsumerEntry) -> bool:
    match entry:
        case ConsumerGroupEntry() | TargetEpochEntry():
            return entry.epoch is None
        case ConsumerTopicsEntry():
            return not entry.present
        case _:
            return entry.value is None
