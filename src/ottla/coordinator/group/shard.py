"""GroupShard: the groups and offsets of one partition of `__consumer_offsets`.

It owns no rules. Commands go to the machine that knows them, by the kind of the command and of the
group; records go to the machine that wrote them; so do time-outs. The machines share `ShardState`.

A group of the consumer protocol may have members that speak the classic one: their Join, Sync,
Heartbeat and Leave go to the consumer machine. An empty group of one kind is replaced by a group of
the other kind when a member of that kind joins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from ottla.cluster.registry import ImageChange
from ottla.coordinator.group import journal
from ottla.coordinator.group.classic import ClassicMachine, Rebalance
from ottla.coordinator.group.classic_group import ClassicGroup, State
from ottla.coordinator.group.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribedGroup,
    DescribedMember,
    DescribeGroup,
    FetchOffsets,
    ForgetTopicIds,
    ForgetTopics,
    Heartbeat,
    Join,
    Joined,
    Leave,
    ListedGroup,
    ListGroups,
    Sync,
)
from ottla.coordinator.group.consumer import ConsumerMachine
from ottla.coordinator.group.consumer_group import ConsumerGroup
from ottla.coordinator.group.group import Group, ShardState, Timer
from ottla.coordinator.group.journal import GroupEntry, OffsetEntry
from ottla.coordinator.group.offsets import OffsetMachine
from ottla.coordinator.shard import Answer, Now, Result
from ottla.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

EXPIRE = Timer("expire-offsets", "")


class GroupShard:
    """One shard; implements `coordinator.shard.Shard`."""

    def __init__(
        self,
        state: ShardState,
        consumer: Callable[[ShardState, ClassicMachine], ConsumerMachine] | None = None,
    ) -> None:
        self.state = state
        self.classic = ClassicMachine(state)
        self.offsets = OffsetMachine(state)
        self.consumer = None if consumer is None else consumer(state, self.classic)
        self._commands: dict[type, Callable[[Any, Now], Result]] = {
            Heartbeat: self._heartbeat,
            CommitOffsets: self._commit,
            FetchOffsets: self.offsets.fetch,
            Join: self._join,
            Sync: self._sync,
            Leave: self._leave,
            DeleteOffsets: self.offsets.delete,
            ListGroups: self._list,
            DescribeGroup: self._describe,
            DeleteGroup: self._delete,
            ForgetTopics: self.offsets.forget_topics,
            ForgetTopicIds: self.offsets.forget_topic_ids,
            Rebalance: self.classic.rebalance,
            ImageChange: self._image_changed,
            Timer: self._timeout,
        }
        self._timeouts: dict[str, Callable[[Timer, Now], Result]] = {
            **self.classic.timeouts,
            EXPIRE.kind: self._expire,
        }
        self._replayers: dict[type, Callable[[Any], None]] = {GroupEntry: self.classic.replay}
        if self.consumer is not None:
            self._commands.update(self.consumer.commands)
            self._timeouts.update(self.consumer.timeouts)
            self._replayers.update(self.consumer.replayers)

    @property
    def groups(self) -> dict[str, Group]:
        return self.state.groups

    # ------------------------------------------------------------------ Shard

    def handle(self, command: Any, now: Now) -> Result:
        return self._commands[type(command)](command, now)

    def subject(self, command: Any) -> str | None:
        """The group; a command without one, as are time-outs of the whole shard, is about all."""
        return getattr(command, "group_id", None) or None

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int = -1,
        producer_id: int = -1,
        meaning: Any = None,
    ) -> None:
        try:
            entry = journal.decode(key, value) if meaning is None else meaning
        except ValueError as error:
            # Kafka fails the load here, and with it every group of the shard. One that cannot be
            # read harms the others less when it is left out.
            logger.error(
                "a record of the groups' log at offset %d is unreadable: %s", offset, error
            )
            return
        if isinstance(entry, OffsetEntry):
            self.offsets.replay(entry, offset, producer_id)
        elif entry is not None:
            replayer = self._replayers.get(type(entry))
            if replayer is not None:
                replayer(entry)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed=committed)

    def loaded(self, now: Now) -> Iterable[Any]:
        commands: list[Any] = []
        self._schedule_expiry(now)
        gone = self.offsets.topic_ids() - self.state.image.topic_names.keys()
        if gone:
            # Deleted while nobody coordinated this shard. A new topic of the same name must not
            # begin where the old one was left.
            commands.append(ForgetTopicIds(frozenset(gone)))
        commands += self.classic.loaded(now)
        if self.consumer is not None:
            commands += self.consumer.loaded(now)
        return commands

    @property
    def next_due_ms(self) -> int | None:
        return self.state.deadlines.next_ms

    def due(self, now: Now) -> list[Any]:
        return list(self.state.deadlines.pop_due(now.ms))

    def unload(self, error: KafkaError) -> list[Answer]:
        answers = []
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                answers += self.classic.dismiss(group, error.code)
        if self.consumer is not None:
            answers += self.consumer.unload(error)
        return answers

    def validate(self) -> None:
        """Assert the invariants; for tests."""
        for group in self.groups.values():
            group.validate()

    # ------------------------------------------------------------------ the classic protocol

    def _join(self, command: Join, now: Now) -> Result:
        group = self.groups.get(command.group_id)
        if group is None or isinstance(group, ClassicGroup):
            return self.classic.join(group, command, now)
        assert self.consumer is not None
        assert isinstance(group, ConsumerGroup)
        if not group.is_empty():
            return self.consumer.classic_join(group, command, now)
        if command.member_id:
            return Result(Joined(command.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
        return self.classic.create(command, now, first=group.tombstones())

    def _sync(self, command: Sync, now: Now) -> Result:
        group = self.groups.get(command.group_id)
        if group is None or group.is_empty():
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(group, ClassicGroup):
            return self.classic.sync(group, command, now)
        assert self.consumer is not None
        assert isinstance(group, ConsumerGroup)
        return self.consumer.classic_sync(group, command, now)

    def _heartbeat(self, command: Heartbeat, now: Now) -> Result:
        group = self.state.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(group, ClassicGroup):
            return self.classic.heartbeat(group, command, now)
        assert self.consumer is not None
        assert isinstance(group, ConsumerGroup)
        return self.consumer.classic_heartbeat(group, command, now)

    def _leave(self, command: Leave, now: Now) -> Result:
        group = self.groups.get(command.group_id)
        if group is None:
            return Result([ErrorCode.UNKNOWN_MEMBER_ID] * len(command.members))
        if isinstance(group, ClassicGroup):
            return self.classic.leave(group, command, now)
        assert self.consumer is not None
        assert isinstance(group, ConsumerGroup)
        return self.consumer.classic_leave(group, command, now)

    # ------------------------------------------------------------------ offsets

    def _commit(self, command: CommitOffsets, now: Now) -> Result:
        result = self.offsets.commit(command, now)
        group = self.groups.get(command.group_id)
        if isinstance(group, ClassicGroup) and command.member_id:
            self.classic.touch(group, command.member_id, now)
        return result

    def _expire(self, timer: Timer, now: Now) -> Result:
        self._schedule_expiry(now)
        return self.offsets.expire(now)

    def _schedule_expiry(self, now: Now) -> None:
        interval = self.state.config().offsets_retention_check_interval_ms
        self.state.deadlines.set(EXPIRE, now.ms + interval)

    # ------------------------------------------------------------------ groups as a whole

    def _list(self, command: ListGroups, now: Now) -> Result:
        return Result(
            [
                ListedGroup(group.id, group.protocol_type, group.state_name, group.type.value)
                for group in self.groups.values()
                if (not command.states or group.state_name.lower() in command.states)
                and (not command.types or group.type.value in command.types)
            ]
        )

    def _describe(self, command: DescribeGroup, now: Now) -> Result:
        group = self.groups.get(command.group_id)
        if not isinstance(group, ClassicGroup):
            what = "not found" if group is None else "is not a classic group"
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {command.group_id} {what}.",
            )
        stable = group.state is State.STABLE
        name = group.protocol_name if stable else None
        return Result(
            DescribedGroup(
                group.id,
                group.state_name,
                group.protocol_type,
                name or "",
                tuple(
                    DescribedMember(
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        member.metadata(name) if stable else b"",
                        member.assignment,
                    )
                    for member in group.members.values()
                ),
            )
        )

    def _delete(self, command: DeleteGroup, now: Now) -> Result:
        group = self.groups.get(command.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} not found.")
        group.check_delete()
        return Result(None, [*self.offsets.tombstones(group.id), *group.tombstones()])

    # ------------------------------------------------------------------ time, and the cluster

    def _timeout(self, timer: Timer, now: Now) -> Result:
        return self._timeouts[timer.kind](timer, now)

    def _image_changed(self, change: ImageChange, now: Now) -> Result:
        self.state.image = change.new
        result = None
        if self.consumer is not None:
            result = self.consumer.image_changed(change, now)
        return result or Result()
