"""The phases of a rebalance, and the clocks that run in them.

    join    everybody must join again. It ends when all have, or when time is up
    sync    the generation has begun; its members fetch what the leader assigns. It ends when all
            have, or when time is up

How long things may take, and what happens then:

    session      a member is silent: it is removed. Not while it waits for us
    new member   its first Join waits too long: it is removed, its client comes again
    pending id   an id that was given out (KIP-394) is not used: it is forgotten
    join         not all have joined within the longest rebalance timeout: those who have not are
                 removed, except static members, whose sessions decide
    initial      an empty group waits a while before its first rebalance, and again a while when
                 somebody came meanwhile, but never longer than the rebalance timeout
    sync         a member has not asked for its assignment: it is removed

All are `Timer`s in the shard's deadlines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ottla.coordinator.group import journal
from ottla.coordinator.group.classic_group import ClassicGroup, ClassicMember, State
from ottla.coordinator.group.commands import Joined
from ottla.coordinator.group.group import ShardState, Timer
from ottla.coordinator.shard import Answer, Now, Record, Result
from ottla.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

SESSION = "session"
JOIN = "join"
SYNC = "sync"


class Outcome:
    """What is being gathered for a Result."""

    __slots__ = ("answers", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.answers: list[Answer] = []

    def result(self, reply: object = None) -> Result:
        """The only record there can be says that the group is empty. When it cannot be written the
        group is empty all the same: until then the log has a generation whose members will not be
        heard of."""
        if not self.records:
            return Result(reply, answers=self.answers)

        def settled(error: KafkaError | None, now: Now) -> Result | None:
            if error is None:
                return None
            logger.warning("that a group is empty could not be written: %s", error)
            return Result(reply, answers=self.answers)

        return Result(reply, self.records, self.answers, settled)


class Phases:
    """Leads classic groups through their rebalances."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.timeouts: Mapping[str, Callable[[Timer, Now], Result]] = {
            SESSION: self._on_session_timeout,
            JOIN: self._on_join_timeout,
            SYNC: self._on_sync_timeout,
        }

    # ------------------------------------------------------------------ the join phase

    def rebalance(
        self, group: ClassicGroup, out: Outcome, now: Now, why: str, told: str | None = None
    ) -> None:
        """Begin a rebalance; when one is under way, see whether all have joined."""
        if group.state is not State.PREPARING:
            self.prepare(group, out, now, why if told is None else f"{why}: {told}")
        elif group.initial_delay is None:
            self.complete_join_if_all(group, out, now)

    def prepare(self, group: ClassicGroup, out: Outcome, now: Now, why: str) -> None:
        """Everybody must join again."""
        if group.state is State.COMPLETING:
            self.fail_syncs(group, KafkaError(ErrorCode.REBALANCE_IN_PROGRESS), out, now)
        self._end_sync_phase(group)
        # Ids and reasons are the clients' own words, hence the quotes and the limit.
        logger.info(
            "group %r: rebalance after generation %d: %.400r", group.id, group.generation, why
        )
        if group.state is State.EMPTY:
            delay = self._state.config().group_initial_rebalance_delay_ms
            group.initial_delay = (delay, max(group.rebalance_timeout_ms - delay, 0))
            group.added_meanwhile = False
            self._state.deadlines.set(Timer(JOIN, group.id), now.ms + delay)
        group.to(State.PREPARING, now.wall_ms)
        if group.initial_delay is None and not self.complete_join_if_all(group, out, now):
            self._await_joins(group, now)

    def _await_joins(self, group: ClassicGroup, now: Now) -> None:
        self._state.deadlines.set(Timer(JOIN, group.id), now.ms + group.rebalance_timeout_ms)

    def complete_join_if_all(self, group: ClassicGroup, out: Outcome, now: Now) -> bool:
        if group.state is not State.PREPARING or not group.all_joined():
            return False
        self.complete_join(group, out, now)
        return True

    def complete_join(self, group: ClassicGroup, out: Outcome, now: Now) -> None:
        """Whoever has joined makes the next generation."""
        self._state.deadlines.cancel(Timer(JOIN, group.id))
        late = [
            member
            for member in group.members.values()
            if member.awaiting_join is None and member.instance_id is None
        ]
        for member in late:
            self.forget(group, member.member_id)
        if late:
            logger.info(
                "group %r: did not join in time: %.400r",
                group.id,
                ", ".join(member.member_id for member in late),
            )
        group.initial_delay = None
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has joined: their sessions decide.
            self._await_joins(group, now)
            return
        group.begin_generation(now.wall_ms)
        if not group.members:
            logger.info("group %r: empty, generation %d", group.id, group.generation)
            out.records.append(journal.group(group.id, group.snapshot()))
            return
        logger.info(
            "group %r: generation %d has %d members",
            group.id,
            group.generation,
            len(group.members),
        )
        for member in group.members.values():
            parked = group.take_join(member)
            if parked is not None:
                leads = group.leader == member.member_id
                out.answers.append((parked, group.joined(member.member_id, members=leads)))
            member.is_new = False
            group.pending_sync.add(member.member_id)
            self.touch(group, member, now)
        self._state.deadlines.set(Timer(SYNC, group.id), now.ms + group.rebalance_timeout_ms)

    # ------------------------------------------------------------------ the sync phase

    def fail_syncs(self, group: ClassicGroup, error: KafkaError, out: Outcome, now: Now) -> None:
        """Those who wait for an assignment of this generation will not get one."""
        for member in group.members.values():
            member.assignment = b""
            if member.awaiting_sync is not None:
                out.answers.append((member.awaiting_sync, error))
                member.awaiting_sync = None
                self.touch(group, member, now)

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        self._state.deadlines.cancel(Timer(SYNC, group.id))

    # ------------------------------------------------------------------ time-outs

    def _on_session_timeout(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        out = Outcome()
        if not isinstance(group, ClassicGroup):
            return out.result()
        member = group.members.get(timer.member_id)
        if member is not None and member.may_be_silent:
            return out.result()  # its clock starts again when it is answered
        if member is None and timer.member_id not in group.pending:
            return out.result()
        logger.info("group %r: member %r has not been heard of", group.id, timer.member_id)
        self.drop(group, timer.member_id, out)
        if group.state is State.PREPARING:
            self.complete_join_if_all(group, out, now)
        elif member is not None:
            self.rebalance(group, out, now, f"silent: {timer.member_id}")
        return out.result()

    def _on_join_timeout(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        out = Outcome()
        if not isinstance(group, ClassicGroup) or group.state is not State.PREPARING:
            return out.result()
        if group.initial_delay is not None and group.added_meanwhile:
            delay, left = group.initial_delay
            if left:
                most = self._state.config().group_initial_rebalance_delay_ms
                group.added_meanwhile = False
                group.initial_delay = (min(most, left), max(left - delay, 0))
                self._state.deadlines.set(timer, now.ms + group.initial_delay[0])
                return out.result()
        self.complete_join(group, out, now)
        return out.result()

    def _on_sync_timeout(self, timer: Timer, now: Now) -> Result:
        group = self._state.groups.get(timer.group_id)
        out = Outcome()
        if not isinstance(group, ClassicGroup) or not group.pending_sync:
            return out.result()
        late = sorted(group.pending_sync)
        for member_id in late:
            self.forget(group, member_id)
        self.prepare(group, out, now, f"did not sync: {', '.join(late)}")
        return out.result()

    def touch(self, group: ClassicGroup, member: ClassicMember, now: Now) -> None:
        """It has been heard of, or answered: its session starts anew."""
        self.expect(group.id, member.member_id, now.ms + member.session_timeout_ms)

    def expect(self, group_id: str, member_id: str, at_ms: int) -> None:
        self._state.deadlines.set(Timer(SESSION, group_id, member_id), at_ms)

    def forget(self, group: ClassicGroup, member_id: str) -> None:
        self._state.deadlines.cancel(Timer(SESSION, group.id, member_id))
        group.remove(member_id)

    def drop(self, group: ClassicGroup, member_id: str, out: Outcome) -> None:
        """Remove a member; if its client still waits for the answer to a Join, it may come anew."""
        member = group.members.get(member_id)
        if member is not None:
            parked = group.take_join(member)
            if parked is not None:
                out.answers.append((parked, Joined("", ErrorCode.UNKNOWN_MEMBER_ID)))
            if member.awaiting_sync is not None:
                out.answers.append((member.awaiting_sync, KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)))
                member.awaiting_sync = None
        self.forget(group, member_id)

    def stop_clocks(self, group: ClassicGroup) -> None:
        cancel = self._state.deadlines.cancel
        for member_id in (*group.members, *group.pending):
            cancel(Timer(SESSION, group.id, member_id))
        cancel(Timer(JOIN, group.id))
        cancel(Timer(SYNC, group.id))
