"""The consumer protocol (KIP-848), as Kafka 4.2 does it: one heartbeat that says and brings all.

A member joins, changes its mind, reports what it owns, and leaves by the same request; the answer
tells it its epoch and, when that has changed, what it shall own. There is no moment at which all
members must be present: see `consumer_group` for the epochs, `revision` for what a heartbeat sets
in motion, `reconcile` for how a partition changes hands.

How long things may take, and what happens then (a removed member is fenced: it must drop
everything and join anew):

    session      a member is silent: it is removed, static or not
    rebalance    it was told to give up partitions and has not: it is removed
    join, sync   the same for members that speak the classic protocol; see `migration`

Most heartbeats say nothing new. Those cost a few comparisons and no record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ottla.config.broker import BrokerConfig
from ottla.config.group import GroupConfig
from ottla.coordinator.group.assignors import NO_PARTITIONS, Partitions
from ottla.coordinator.group.consumer_commands import (
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
from ottla.coordinator.group.journal import ConsumerGroupEntry, CurrentAssignmentEntry
from ottla.coordinator.group.members import Client, Group, ShardState, Timer
from ottla.coordinator.group.migration import Migration
from ottla.coordinator.group.revision import Revision, accept_matches, dismiss, preferred
from ottla.coordinator.group.subscriptions import SubscribableTopics
from ottla.coordinator.shard import Now, Record, Result
from ottla.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

SESSION = "consumer-session"
REBALANCE = "consumer-rebalance"
JOIN = "consumer-join"
SYNC = "consumer-sync"

Overrides = Callable[[str], Mapping[str, str]]
"""What has been set for a group of its own."""


class ConsumerMachine:
    """The consumer groups of a shard."""

    def __init__(
        self, state: ShardState, migration: Migration, overrides: Overrides = lambda _: {}
    ) -> None:
        self._state = state
        self._migration = migration
        self._overrides = overrides
        self._topics = SubscribableTopics(state.image)
        self._broker_config: BrokerConfig | None = None
        self._group_configs: dict[str, tuple[Mapping[str, str], GroupConfig]] = {}
        self.timeouts: Mapping[str, Callable[[Timer, Now], Result]] = {
            SESSION: self._on_silence,
            REBALANCE: self._on_rebalance_timeout,
            JOIN: self._on_silence,
            SYNC: self._on_silence,
        }

    @property
    def topics(self) -> SubscribableTopics:
        """The topics of the shard's newest image."""
        self._topics.look(self._state.image)
        return self._topics

    # ------------------------------------------------------------------ heartbeat

    def heartbeat(self, it: ConsumerHeartbeat, now: Now) -> Result:
        group = self._state.groups.get(it.group_id)
        if isinstance(group, ConsumerGroup) and self._says_nothing_new(it, group):
            settings = self.settings(group.id)
            self._expect(SESSION, group.id, it.member_id, now, settings.consumer_session_timeout_ms)
            return Result(
                ConsumerAlive(it.member_id, it.epoch, settings.consumer_heartbeat_interval_ms)
            )
        if it.epoch in (LEFT_EPOCH, AWAY_EPOCH):
            return self._leave(it, now)
        return self._beat(it, group, now)

    def _says_nothing_new(self, it: ConsumerHeartbeat, group: ConsumerGroup) -> bool:
        member = group.members.get(it.member_id)
        return (
            member is not None
            and it.epoch == member.epoch == group.epoch == group.target_epoch
            and member.state is MemberState.STABLE
            and it.topics is None
            and it.regex is None
            and it.rack_id is None
            and it.server_assignor is None
            and it.rebalance_timeout_ms == -1
            and it.instance_id == member.instance_id
            and member.classic is None
            and group.compared_image is self._state.image
            and group.compared_epoch <= group.epoch
            and not group.regexes
            and it.client.id == member.client_id
            and it.client.host == member.client_host
        )

    def _beat(self, it: ConsumerHeartbeat, known: Group | None, now: Now) -> Result:
        joins = it.epoch == 0
        opened = self._migration.open(it.group_id, known, create=joins, topics=self.topics)
        group = opened.group
        self.check_room(group, it.member_id)
        revision = Revision(group, self.topics, self._state.config(), opened.records)
        self._admit(it, group, revision)
        wishes: dict[str, object] = {
            "client_id": it.client.id,
            "client_host": it.client.host,
            "classic": None,
        }
        if it.instance_id is not None:
            wishes["instance_id"] = it.instance_id
        if it.rack_id is not None:
            wishes["rack_id"] = it.rack_id
        if it.rebalance_timeout_ms != -1:
            wishes["rebalance_timeout_ms"] = it.rebalance_timeout_ms
        if it.server_assignor is not None:
            wishes["server_assignor"] = it.server_assignor
        if it.topics is not None:
            wishes["topics"] = frozenset(it.topics)
        if it.regex is not None:
            wishes["regex"] = it.regex
        revision.update(now, **wishes)
        revision.renew(new_epoch=group.epoch == 0 or revision.calls_for_assignment)
        revision.retarget()
        revision.reconcile(it.owned)

        member = revision.member
        settings = self.settings(group.id)
        tells_all = (
            it.rebalance_timeout_ms != -1
            and (it.topics is not None or it.regex is not None)
            and it.owned is not None
        )
        show = joins or tells_all or member.assigned != revision.before.assigned

        def written(error: KafkaError | None, now: Now) -> None:
            if error is None:
                opened.begin(self, now)
                self._watch(revision, settings.consumer_session_timeout_ms, now)

        if revision.records:
            after = written
        else:
            after = None
            self._watch(revision, settings.consumer_session_timeout_ms, now)
        return Result(
            ConsumerAlive(
                member.id,
                member.epoch,
                settings.consumer_heartbeat_interval_ms,
                member.assigned if show else None,
            ),
            revision.records,
            opened.answers,
            after,
            revision.work,
        )

    def _admit(self, it: ConsumerHeartbeat, group: ConsumerGroup, revision: Revision) -> None:
        joins = it.epoch == 0
        if it.instance_id is None:
            if joins and it.member_id not in group.members:
                revision.admit(ConsumerMember(it.member_id))
                return
            member = group.member(it.member_id)
            _check_epoch(it, member)
            revision.admit(member)
            return
        static = group.static_member(it.instance_id)
        if not joins:
            member = self.check_static(static, it.member_id, it.instance_id)
            _check_epoch(it, member)
            revision.admit(member)
        elif static is None:
            revision.admit(group.members.get(it.member_id) or ConsumerMember(it.member_id))
        elif static.classic is None and static.epoch != AWAY_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {it.member_id} with instance id {it.instance_id} cannot join the "
                f"group because the instance id is owned by {static.id} member.",
            )
        elif static.id == it.member_id:
            revision.admit(replace(static, epoch=0, previous_epoch=0))
        else:
            revision.admit_in_place_of(static, it.member_id)

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        """GROUP_MAX_SIZE_REACHED if this would be one member too many."""
        limit = self._state.config().group_consumer_max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    @staticmethod
    def check_static(
        member: ConsumerMember | None, member_id: str, instance_id: str
    ) -> ConsumerMember:
        """The member with that instance id, if it is who it says it is."""
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
            )
        if member.id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.id}.",
            )
        return member

    # ------------------------------------------------------------------ leaving

    def _leave(self, it: ConsumerHeartbeat, now: Now) -> Result:
        group = self.group(it.group_id)
        reply = ConsumerAlive(it.member_id, it.epoch)
        if it.instance_id is None:
            return self.remove(group, [group.member(it.member_id)], reply, now, "it left")
        member = self.check_static(
            group.static_member(it.instance_id), it.member_id, it.instance_id
        )
        if it.epoch != AWAY_EPOCH:
            return self.remove(group, [member], reply, now, "it left")
        # It keeps its partitions until it is back or its session ends, but works on none of
        # them: those it had still to give up are free now.
        away = replace(
            member, epoch=AWAY_EPOCH, state=MemberState.STABLE, revoking=NO_PARTITIONS
        )
        entry = CurrentAssignmentEntry(group.id, member.id, away.holdings())

        def written(error: KafkaError | None, now: Now) -> None:
            if error is None:
                self._cancel(REBALANCE, group.id, member.id)

        return Result(reply, [encode(entry)], after=written)

    def remove(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        reply: object,
        now: Now,
        why: str,
    ) -> Result:
        """Members are gone, by their own will or not. With the last that speaks the new protocol
        the group becomes a classic one, if that is allowed and others are there."""
        if not members:
            return Result(reply)
        logger.info(
            "group %s: member %s is gone: %s", group.id, ", ".join(it.id for it in members), why
        )
        downgrade = self._migration.downgrade(group, members, self.topics, now)
        if downgrade is not None:
            records: list[Record] = downgrade.records
        else:
            records = dismiss(group, members, self.topics)

        def written(error: KafkaError | None, now: Now) -> Result | None:
            if error is not None:
                return None
            self.forget_timers(group, members)
            if downgrade is None:
                return None
            self.forget_timers(group, group.members.values())
            begun = downgrade.begin(now)
            return replace(begun, reply=reply)

        return Result(reply, records, after=written)

    # ------------------------------------------------------------------ time-outs

    def _on_silence(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        if not isinstance(group, ConsumerGroup) or timer.member_id not in group.members:
            return Result()
        why = {
            SESSION: "it has not been heard of",
            JOIN: "it did not join again in time",
            SYNC: "it did not ask for its assignment in time",
        }[timer.kind]
        return self.remove(group, [group.members[timer.member_id]], None, now, why)

    def _on_rebalance_timeout(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        if not isinstance(group, ConsumerGroup):
            return Result()
        member = group.members.get(timer.member_id)
        if member is None or member.state is not MemberState.UNREVOKED:
            return Result()
        why = f"it has not given up its partitions within {member.rebalance_timeout_ms} ms"
        return self.remove(group, [member], None, now, why)

    def _watch(self, revision: Revision, session_timeout_ms: int, now: Now) -> None:
        """Start the clocks of a member after its heartbeat."""
        group_id, member = revision.group_id, revision.member
        self._expect(SESSION, group_id, member.id, now, session_timeout_ms)
        if revision.moved:
            if member.state is MemberState.UNREVOKED:
                self._expect(REBALANCE, group_id, member.id, now, member.rebalance_timeout_ms)
            else:
                self._cancel(REBALANCE, group_id, member.id)
        if revision.replaced is not None:
            for kind in self.timeouts:
                self._cancel(kind, group_id, revision.replaced.id)

    def _expect(self, kind: str, group_id: str, member_id: str, now: Now, after_ms: int) -> None:
        self._state.deadlines.set(Timer(kind, group_id, member_id), now.ms + after_ms)

    def _cancel(self, kind: str, group_id: str, member_id: str) -> None:
        self._state.deadlines.cancel(Timer(kind, group_id, member_id))

    # ------------------------------------------------------------------ patterns, description

    def patterns_resolved(self, found: PatternsResolved, now: Now) -> Result:
        """The patterns of a group have been matched; the next heartbeats bring what follows."""
        group = self._state.groups.get(found.group_id)
        if found.failure is not None:
            logger.error(
                "group %s: its patterns could not be matched", found.group_id, exc_info=found.failure
            )
            return Result()
        if not isinstance(group, ConsumerGroup):
            return Result()
        return Result(records=accept_matches(group, found, self.topics))

    def describe(self, command: DescribeConsumerGroup) -> Result:
        group = self.group(command.group_id)
        config = self._state.config()
        return Result(
            DescribedConsumerGroup(
                group.id,
                group.state_name,
                group.epoch,
                group.target_epoch,
                preferred(group.assignors, config),
                tuple(self._described(group, it) for it in group.members.values()),
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
        topics = self.topics
        return tuple(
            NamedPartitions(topic, name, tuple(sorted(partitions[topic])))
            for topic in partitions
            if (name := topics.name(topic)) is not None
        )

    # ------------------------------------------------------------------ the groups

    def group(self, group_id: str) -> ConsumerGroup:
        """GROUP_ID_NOT_FOUND unless it is there and of this kind."""
        group = self._state.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        return group

    def settings(self, group_id: str) -> GroupConfig:
        """The settings of a group: its own where it has any, the broker's elsewhere."""
        config = self._state.config()
        if config is not self._broker_config:
            self._broker_config = config
            self._group_configs.clear()
        overrides = self._overrides(group_id)
        known = self._group_configs.get(group_id if overrides else "")
        if known is None or known[0] != overrides:
            known = (overrides, GroupConfig.resolve(overrides, config))
            self._group_configs[group_id if overrides else ""] = known
        return known[1]

    def replay(self, entry: ConsumerEntry) -> None:
        groups = self._state.groups
        group = groups.get(entry.group_id)
        if not isinstance(group, ConsumerGroup):
            if _deletes(entry):
                return  # compaction may have left the end of something without its beginning
            group = groups[entry.group_id] = ConsumerGroup(entry.group_id)
        if isinstance(entry, ConsumerGroupEntry) and entry.epoch is None:
            del groups[entry.group_id]
            self.forget_timers(group, group.members.values())
            return
        group.apply(entry)

    def loaded(self, now: Now) -> None:
        """Members have a session's time to be heard of, and as long as before to let go."""
        for group in self._state.groups.values():
            if isinstance(group, ConsumerGroup):
                self.watch_all(group, now)

    def watch_all(self, group: ConsumerGroup, now: Now) -> None:
        """Start the clocks of a group that has just been loaded, or come into being."""
        session_ms = self.settings(group.id).consumer_session_timeout_ms
        for member in group.members.values():
            classic = member.classic
            self._expect(
                SESSION,
                group.id,
                member.id,
                now,
                session_ms if classic is None else classic.session_timeout_ms,
            )
            if member.state is MemberState.UNREVOKED and classic is None:
                self._expect(REBALANCE, group.id, member.id, now, member.rebalance_timeout_ms)
