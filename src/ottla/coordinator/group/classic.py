"""The classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, as Kafka 4.2 does them.

A rebalance in two phases. Everybody joins; when all have, or time is up, the generation begins and
each is told so, the leader with everybody's subscription. Then everybody syncs; the leader brings
the assignments, which are written down and handed out.

This module handles the members' requests; how a rebalance proceeds, and how long it may take, is in
phases.py. The generation lives in memory from the end of the join phase on, and is in
the log once the leader has synced.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.coordinator.group import journal
from ottla.coordinator.group.classic_group import ClassicGroup, ClassicMember, State
from ottla.coordinator.group.commands import Heartbeat, Join, Joined, Leave, Leaver, Sync, Synced
from ottla.coordinator.group.group import ShardState, Timer
from ottla.coordinator.group.journal import GroupEntry, GroupSnapshot
from ottla.coordinator.group.phases import SESSION, SYNC, Outcome, Phases
from ottla.coordinator.shard import Answer, Now, Parked, Record, Result
from ottla.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000

ALIVE = Result(ErrorCode.NONE)
REBALANCING = Result(ErrorCode.REBALANCE_IN_PROGRESS)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A group that was loaded has to be rebalanced."""

    group_id: str
    why: str


class ClassicMachine:
    """The classic groups of a shard."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._phases = Phases(state)
        self.timeouts = self._phases.timeouts

    # ------------------------------------------------------------------ join

    def join(self, group: ClassicGroup | None, command: Join, now: Now) -> Result:  # noqa: PLR0911 - one branch for each way to join, in Kafka's order
        if group is None:
            return self.create(command, now)
        if not self._accepts(group, command.member_id):
            return self._turn_away(group, command, now)
        if not group.supports(command.protocol_type, (name for name, _ in command.protocols)):
            return _refused(command.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not command.member_id:
            return self._join_without_id(group, command, now)
        if command.member_id in group.pending:
            # A static member is never given an id first, so this one has no instance id.
            if command.instance_id is not None:
                return _refused(command.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            return self._add(group, command, command.member_id, now)
        return self._join_again(group, command, now)

    def create(self, command: Join, now: Now, first: Sequence[Record] = ()) -> Result:
        """A new group, and its first member. That there is a group is written down before.

        `first` are records that go before that: the end of what had its id.
        """
        if command.member_id:
            return _refused(command.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if not command.protocol_type or not command.protocols:
            return _refused("", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        empty = GroupSnapshot("", 0, None, None, now.wall_ms)

        def created(error: KafkaError | None, now: Now) -> Result:
            if error is not None:
                return _refused("", error.code)
            group = self._state.groups[command.group_id]
            assert isinstance(group, ClassicGroup)
            return self.join(group, command, now)

        return Result(records=[*first, journal.group(command.group_id, empty)], after=created)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether `group.max.size` leaves room."""
        limit = self._state.config().group_max_size
        if group.state is State.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is State.PREPARING:
            # Counted are those who have joined: so the last to join are turned away when the limit
            # was lowered and the group is too large already.
            joined = member is not None and member.awaiting_join is not None
            return joined or group.awaiting_joins < limit
        return member is not None or len(group.members) < limit

    def _turn_away(self, group: ClassicGroup, command: Join, now: Now) -> Result:
        out = Outcome()
        self._phases.forget(group, command.member_id)
        if group.initial_delay is None:
            self._phases.complete_join_if_all(group, out, now)
        return out.result(Joined("", ErrorCode.GROUP_MAX_SIZE_REACHED))

    def _join_without_id(self, group: ClassicGroup, command: Join, now: Now) -> Result:
        instance_id = command.instance_id
        prefix = command.client.id if instance_id is None else instance_id
        member_id = f"{prefix}-{self._state.new_id()}"
        if instance_id is not None:
            old_id = group.static_members.get(instance_id)
            if old_id is not None:
                return self._replace(group, command, old_id, member_id, now)
            return self._add(group, command, member_id, now)
        if command.id_required:
            group.pending.add(member_id)
            self._phases.expect(group.id, member_id, now.ms + command.session_timeout_ms)
            return _refused(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        return self._add(group, command, member_id, now)

    def _add(self, group: ClassicGroup, command: Join, member_id: str, now: Now) -> Result:
        parked = Parked()
        member = ClassicMember(
            member_id,
            command.instance_id,
            command.client.id,
            command.client.host,
            command.rebalance_timeout_ms,
            command.session_timeout_ms,
            command.protocol_type,
            command.protocols,
        )
        member.is_new = True
        if group.initial_delay is not None:
            group.added_meanwhile = True
        group.add(member, parked)
        # It cannot send heartbeats before it knows its id, and its client may be gone without our
        # noticing: the first Join is given a time-out of its own, and the client tries again.
        self._phases.expect(group.id, member_id, now.ms + NEW_MEMBER_TIMEOUT_MS)
        out = Outcome()
        self._phases.rebalance(group, out, now, f"new member {member_id}", command.reason)
        return out.result(parked)

    def _join_again(self, group: ClassicGroup, command: Join, now: Now) -> Result:
        member_id = command.member_id
        try:
            group.check_member(member_id, command.instance_id)
        except KafkaError as error:
            return _refused(member_id, error.code)
        member = group.members[member_id]
        leads = group.leader == member_id
        changed = command.protocols != member.protocols
        if group.state is State.COMPLETING and not changed:
            # It may not have got the answer to its first Join.
            return Result(group.joined(member_id, members=leads))
        if group.state is State.STABLE and not changed and not leads:
            return Result(group.joined(member_id))
        # It joins the rebalance, or wants one: it offers something else, or it leads and sees that
        # the topics have changed.
        parked = Parked()
        out = Outcome()
        if member.awaiting_join is not None:
            # The client gave up on its first request; should it still be there, it may try again.
            out.answers.append(
                (member.awaiting_join, Joined(member_id, ErrorCode.REBALANCE_IN_PROGRESS))
            )
        group.update(
            member,
            command.protocols,
            command.rebalance_timeout_ms,
            command.session_timeout_ms,
            parked,
        )
        self._phases.rebalance(group, out, now, f"member {member_id} joins again", command.reason)
        return out.result(parked)

    # ------------------------------------------------------------------ static members

    def _replace(
        self, group: ClassicGroup, command: Join, old_id: str, new_id: str, now: Now
    ) -> Result:
        """A static member comes back under a new id; whoever has the old one is fenced."""
        if (
            group.state is State.STABLE
            and group.select_protocol((old_id, command.protocols)) == group.protocol_name
        ):
            return self._replace_quietly(group, command, old_id, new_id, now)
        out = Outcome()
        parked = Parked()
        member = self._rename(group, old_id, new_id, out.answers)
        group.update(
            member,
            command.protocols,
            command.rebalance_timeout_ms,
            command.session_timeout_ms,
            parked,
        )
        self._phases.touch(group, member, now)
        self._phases.rebalance(group, out, now, f"static member {new_id} is back", command.reason)
        return out.result(parked)

    def _replace_quietly(
        self, group: ClassicGroup, command: Join, old_id: str, new_id: str, now: Now
    ) -> Result:
        """In a stable group, without a rebalance: it gets the assignment it had."""
        old_leader = group.leader or ""
        snapshot = group.snapshot()
        metadata = dict(command.protocols)[snapshot.protocol or ""]
        snapshot = snapshot._replace(
            leader=new_id if old_id == old_leader else old_leader,
            members=tuple(
                member._replace(
                    member_id=new_id,
                    rebalance_timeout_ms=command.rebalance_timeout_ms,
                    session_timeout_ms=command.session_timeout_ms,
                    subscription=metadata,
                )
                if member.member_id == old_id
                else member
                for member in snapshot.members
            ),
        )

        def replaced(error: KafkaError | None, now: Now) -> Result:
            if error is not None:
                return Result(
                    group.joined("")._replace(error=error.code, leader=old_leader, members=())
                )
            self._state.deadlines.cancel(Timer(SESSION, group.id, old_id))
            member = group.members[new_id]
            group.update(
                member,
                command.protocols,
                command.rebalance_timeout_ms,
                command.session_timeout_ms,
                None,
            )
            group.pending_sync.discard(old_id)
            self._phases.touch(group, member, now)
            logger.info("group %r: static member %r replaces %r", group.id, new_id, old_id)
            if not command.can_skip_assignment:
                # Under the leader's old id the new one takes itself for a follower, and takes the
                # assignment it gets instead of making one.
                return Result(group.joined(new_id)._replace(leader=old_leader))
            leads = group.leader == new_id
            return Result(group.joined(new_id, members=leads, skip=leads))

        return Result(records=[journal.group(group.id, snapshot)], after=replaced)

    def _rename(
        self, group: ClassicGroup, old_id: str, new_id: str, answers: list[Answer]
    ) -> ClassicMember:
        old = group.members[old_id]
        waiting = group.take_join(old)
        if waiting is not None:
            answers.append((waiting, Joined(old_id, ErrorCode.FENCED_INSTANCE_ID)))
        if old.awaiting_sync is not None:
            answers.append((old.awaiting_sync, KafkaError(ErrorCode.FENCED_INSTANCE_ID)))
            old.awaiting_sync = None
        self._state.deadlines.cancel(Timer(SESSION, group.id, old_id))
        return group.rename(old_id, new_id)

    # ------------------------------------------------------------------ sync

    def sync(self, group: ClassicGroup, command: Sync, now: Now) -> Result:
        member_id = command.member_id
        group.check_member(member_id, command.instance_id)
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if _differ(command.protocol_type, group.protocol_type or None) or _differ(
            command.protocol_name, group.protocol_name
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is State.PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        member = group.members[member_id]
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._state.deadlines.cancel(Timer(SYNC, group.id))
        if group.state is State.STABLE:
            return Result(_synced(group, member))
        superseded: list[Answer] = []
        if member.awaiting_sync is not None:
            # The client gave up on its first request, as with Join.
            superseded = [(member.awaiting_sync, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))]
        parked = member.awaiting_sync = Parked()
        if group.leader != member_id:
            return Result(parked, answers=superseded)
        return self._assign(group, command, parked)

    def _assign(self, group: ClassicGroup, command: Sync, parked: Parked) -> Result:
        """The leader's assignments: written down first, then handed out."""
        given = dict(command.assignments)
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def written(error: KafkaError | None, now: Now) -> Result:
            out = Outcome()
            if error is not None:
                self._phases.fail_syncs(group, error, out, now)
                self._phases.prepare(
                    group, out, now, f"the assignment could not be written: {error}"
                )
                return out.result(parked)
            self._state.counts.classic_rebalances += 1
            for member in group.members.values():
                if member.awaiting_sync is not None:
                    out.answers.append((member.awaiting_sync, _synced(group, member)))
                    member.awaiting_sync = None
                    self._phases.touch(group, member, now)
            return out.result(parked)

        record = journal.group(group.id, group.snapshot(assignments))
        return Result(parked, [record], after=written)

    # ------------------------------------------------------------------ heartbeat, leave

    def heartbeat(self, group: ClassicGroup, command: Heartbeat, now: Now) -> Result:
        member = group.members.get(command.member_id)
        if member is None or command.instance_id is not None:
            group.check_member(command.member_id, command.instance_id)
            member = group.members[command.member_id]
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        self._phases.touch(group, member, now)
        return REBALANCING if group.state is State.PREPARING else ALIVE

    def leave(self, group: ClassicGroup, command: Leave, now: Now) -> Result:
        out = Outcome()
        codes = [self._leave(group, leaver, out) for leaver in command.members]
        gone = [
            leaver.member_id or leaver.instance_id or ""
            for leaver, code in zip(command.members, codes, strict=True)
            if code is ErrorCode.NONE
        ]
        if gone and group.state is not State.EMPTY:
            self._phases.rebalance(group, out, now, f"left: {', '.join(gone)}")
        return out.result(codes)

    def _leave(self, group: ClassicGroup, leaver: Leaver, out: Outcome) -> ErrorCode:
        member_id = leaver.member_id
        if not member_id:
            # A tool removes a static member, whose id it need not know.
            member_id = group.static_members.get(leaver.instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending:
            try:
                group.check_member(member_id, leaver.instance_id)
            except KafkaError as error:
                return error.code
        self._phases.drop(group, member_id, out)
        return ErrorCode.NONE

    def touch(self, group: ClassicGroup, member_id: str, now: Now) -> None:
        """A commit is a sign of life as well, though not in the middle of a rebalance."""
        member = group.members.get(member_id)
        if member is not None and group.state is not State.COMPLETING:
            self._phases.touch(group, member, now)

    def begin_rebalance(self, group: ClassicGroup, now: Now, why: str) -> Result:
        """`prepare` from outside: of a group that has just become a classic one."""
        out = Outcome()
        self._phases.prepare(group, out, now, why)
        return out.result()

    # ------------------------------------------------------------------ coming and going

    def replay(self, entry: GroupEntry) -> None:
        groups = self._state.groups
        group = groups.get(entry.group_id)
        if entry.value is None:
            if group is not None:
                del groups[entry.group_id]
            if isinstance(group, ClassicGroup):
                self._phases.stop_clocks(group)
            return
        if not isinstance(group, ClassicGroup):
            group = groups[entry.group_id] = ClassicGroup(entry.group_id, entry.value.since_ms)
        group.install(entry.value)

    def rebalance(self, command: Rebalance, now: Now) -> Result:
        group = self._state.groups.get(command.group_id)
        assert isinstance(group, ClassicGroup)
        return self.begin_rebalance(group, now, command.why)

    def loaded(self, now: Now) -> list[Rebalance]:
        """Members have a session's time to be heard of."""
        limit = self._state.config().group_max_size
        unsettled = []
        for group in self._state.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    self._phases.touch(group, member, now)
                count = len(group.members)
                if group.members and group.leader is None:
                    group.leader = next(iter(group.members))
                    unsettled.append(Rebalance(group.id, "it has become a classic group"))
                elif count > limit:
                    why = f"{count} members are more than group.max.size"
                    unsettled.append(Rebalance(group.id, why))
        return unsettled

    def dismiss(self, group: ClassicGroup, code: ErrorCode) -> list[Answer]:
        """Everybody who waits is told so, and the group's clocks stop: it is lost, or becomes
        another kind of group."""
        answers: list[Answer] = []
        for member in group.members.values():
            parked = group.take_join(member)
            if parked is not None:
                answers.append((parked, Joined(member.member_id, code)))
            if member.awaiting_sync is not None:
                answers.append((member.awaiting_sync, KafkaError(code)))
                member.awaiting_sync = None
        self._phases.stop_clocks(group)
        return answers


def _refused(member_id: str, code: ErrorCode) -> Result:
    return Result(Joined(member_id, code))


def _synced(group: ClassicGroup, member: ClassicMember) -> Synced:
    return Synced(group.protocol_type or None, group.protocol_name, member.assignment)


def _differ(told: str | None, known: str | None) -> bool:
    return told is not None and known is not None and told != known
