"""How long members of consumer groups may take for what, and the settings that say so.

    session      silence; every heartbeat, Join and Sync starts it anew
    rebalance    to give up partitions, once told to
    join         for a classic member, to join again once told to
    sync         for a classic member, to ask for its assignment after it has joined

Whatever comes, the member is removed; when that cannot be written, it is tried again soon. A clock
that was started for a change that could not be written does no harm: it finds a member that is not
there, or not in that state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ottla.config.broker import BrokerConfig
from ottla.config.group import GroupConfig
from ottla.coordinator.group.consumer_group import ConsumerGroup, ConsumerMember, MemberState
from ottla.coordinator.group.group import ShardState, Timer
from ottla.coordinator.group.revision import Revision
from ottla.coordinator.shard import Now

SESSION = "consumer-session"
REBALANCE = "consumer-rebalance"
JOIN = "consumer-join"
SYNC = "consumer-sync"

RETRY_MS = 500

Overrides = Callable[[str], Mapping[str, str]]
"""What has been set for a group of its own; mostly nothing."""


class GroupSettings:
    """The settings of groups: their own where they have any, the broker's elsewhere."""

    def __init__(self, broker: Callable[[], BrokerConfig], overrides: Overrides) -> None:
        self._broker = broker
        self._overrides = overrides
        # as of this broker configuration
        self._config: BrokerConfig | None = None
        self._default = GroupConfig()
        self._own: dict[str, tuple[Mapping[str, str], GroupConfig]] = {}

    def of(self, group_id: str) -> GroupConfig:
        config = self._broker()
        if config is not self._config:
            self._config = config
            self._default = GroupConfig.resolve({}, config)
            self._own.clear()
        overrides = self._overrides(group_id)
        if not overrides:
            return self._default
        known = self._own.get(group_id)
        if known is None or known[0] != overrides:
            known = self._own[group_id] = (overrides, GroupConfig.resolve(overrides, config))
        return known[1]


class Clocks:
    """The deadlines of a shard's consumer groups."""

    def __init__(self, state: ShardState, overrides: Overrides) -> None:
        self._deadlines = state.deadlines
        self.settings = GroupSettings(state.config, overrides)

    def heard_of(self, group_id: str, member_id: str, now: Now, session_ms: int) -> None:
        """A sign of life."""
        self._deadlines.set(Timer(SESSION, group_id, member_id), now.ms + session_ms)

    def after_heartbeat(self, revision: Revision, now: Now, session_ms: int) -> None:
        group_id, member = revision.group_id, revision.member
        if revision.replaced is not None:
            self.forget(group_id, [revision.replaced])
        self.heard_of(group_id, member.id, now, session_ms)
        if revision.moved:
            self.await_revocation(group_id, member, now)
        if revision.before.classic is not None:
            # It has changed over to the new protocol.
            self._cancel(JOIN, group_id, member.id)
            self._cancel(SYNC, group_id, member.id)

    def after_join(self, revision: Revision, now: Now) -> None:
        group_id, member = revision.group_id, revision.member
        assert member.classic is not None
        if revision.replaced is not None:
            self.forget(group_id, [revision.replaced])
        self.heard_of(group_id, member.id, now, member.classic.session_timeout_ms)
        # What it has to give up it gives up by joining again, for which it has its own clock.
        self._cancel(REBALANCE, group_id, member.id)
        self._cancel(JOIN, group_id, member.id)
        sync = Timer(SYNC, group_id, member.id)
        self._deadlines.set(sync, now.ms + member.rebalance_timeout_ms)

    def after_sync(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        assert member.classic is not None
        self._cancel(SYNC, group_id, member.id)
        self.heard_of(group_id, member.id, now, member.classic.session_timeout_ms)

    def await_join(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """It is told to join again, and was perhaps told before: the first time counts."""
        timer = Timer(JOIN, group_id, member.id)
        if timer not in self._deadlines:
            self._deadlines.set(timer, now.ms + member.rebalance_timeout_ms)

    def went_away(self, group_id: str, member: ConsumerMember) -> None:
        """A static member left for a while: only its session goes on."""
        self._cancel(REBALANCE, group_id, member.id)

    def again(self, timer: Timer, now: Now) -> None:
        """What was due could not be written."""
        self._deadlines.set(timer, now.ms + RETRY_MS)

    def forget(self, group_id: str, members: Iterable[ConsumerMember]) -> None:
        for member in members:
            for kind in (SESSION, REBALANCE, JOIN, SYNC):
                self._cancel(kind, group_id, member.id)

    def start(self, group: ConsumerGroup, now: Now) -> None:
        """Of a group that has just been loaded, or come into being with its members."""
        session_ms = self.settings.of(group.id).consumer_session_timeout_ms
        for member in group.members.values():
            if member.classic is not None:
                self.heard_of(group.id, member.id, now, member.classic.session_timeout_ms)
            else:
                self.heard_of(group.id, member.id, now, session_ms)
                self.await_revocation(group.id, member, now)

    def await_revocation(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """Its time to give up partitions runs, if it has to."""
        timer = Timer(REBALANCE, group_id, member.id)
        if member.state is MemberState.UNREVOKED:
            self._deadlines.set(timer, now.ms + member.rebalance_timeout_ms)
        else:
            self._deadlines.cancel(timer)

    def _cancel(self, kind: str, group_id: str, member_id: str) -> None:
        self._deadlines.cancel(Timer(kind, group_id, member_id))
