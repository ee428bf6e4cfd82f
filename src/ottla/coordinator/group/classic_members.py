"""Members of a consumer group that still speak the classic protocol (KIP-848's migration).

They take part in the new protocol by the requests of the old one. A member's epoch is its
generation, and every Join is answered at once, for there is nobody to wait for. Sync brings what
the member owns by now. Heartbeat tells it to join again whenever there is something for it to do: a
new epoch, partitions to give up, partitions that have become free. All are followers; the broker
assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.classic import ALIVE, REBALANCING, ClassicMachine
from ottla.coordinator.group.clocks import Clocks
from ottla.coordinator.group.commands import Heartbeat, Join, Joined, Leave, Leaver, Sync, Synced
from ottla.coordinator.group.consumer_group import ConsumerGroup, ConsumerMember, MemberState
from ottla.coordinator.group.consumer_protocol import Subscription, read_subscription
from ottla.coordinator.group.group import CONSUMER_PROTOCOL, ShardState
from ottla.coordinator.group.journal import ClassicFacet
from ottla.coordinator.group.migration import Downgrade, assignment_of, downgrade
from ottla.coordinator.group.revision import Revision, check_room
from ottla.coordinator.group.subscribable_topics import SubscribableTopics
from ottla.coordinator.shard import Now, Result
from ottla.errors import ErrorCode, KafkaError

Remove = Callable[[ConsumerGroup, Sequence[ConsumerMember], object, Now, str], Result]


class ClassicMembers:
    """Join, Sync, Heartbeat and Leave for consumer groups."""

    def __init__(
        self,
        state: ShardState,
        classic: ClassicMachine,
        topics: Callable[[], SubscribableTopics],
        clocks: Clocks,
        remove: Remove,
    ) -> None:
        self._state = state
        self._classic = classic
        self._topics = topics
        self._clocks = clocks
        self._remove = remove

    # ------------------------------------------------------------------ join

    def join(self, group: ConsumerGroup, command: Join, now: Now) -> Result:
        try:
            return self._join(group, command, now)
        except KafkaError as error:
            return Result(Joined(command.member_id, error.code))

    def _join(self, group: ConsumerGroup, command: Join, now: Now) -> Result:
        member_id = command.member_id or self._state.new_id()
        check_room(group, member_id, self._state.config())
        _check_protocols(group, command)
        if not command.member_id and command.instance_id is None and command.id_required:
            return Result(Joined(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        wants = _subscription(command)
        revision = Revision(group, self._topics(), self._state.config())
        self._admit(group, command, member_id, revision)
        changes: dict[str, object] = {
            "topics": frozenset(wants.topics),
            "regex": "",
            "rebalance_timeout_ms": command.rebalance_timeout_ms,
            "client_id": command.client.id,
            "client_host": command.client.host,
            "classic": ClassicFacet(command.session_timeout_ms, command.protocols),
        }
        if command.instance_id is not None:
            changes["instance_id"] = command.instance_id
        if wants.rack_id:
            changes["rack_id"] = wants.rack_id
        revision.update(now, changes)
        converted = self._converted(group, revision, now)
        if converted is not None:
            return self._join_converted(group, command, revision, converted)
        revision.renew(new_epoch=revision.resubscribed)
        self._state.counts.consumer_rebalances += revision.epoch > group.epoch
        revision.retarget()
        revision.reconcile(self._owned(wants))

        def written(error: KafkaError | None, now: Now) -> Result | None:
            if error is not None:
                return Result(Joined(command.member_id, error.code))
            self._clocks.after_join(revision, now)
            return None

        if not revision.records:
            self._clocks.after_join(revision, now)
        return Result(
            _joined(revision.member, command),
            revision.records,
            after=written if revision.records else None,
            work=revision.work,
        )

    def _admit(
        self, group: ConsumerGroup, command: Join, member_id: str, revision: Revision
    ) -> None:
        if command.instance_id is None:
            # Whoever brings an id was given it by us: MEMBER_ID_REQUIRED leaves no trace here.
            revision.admit(group.members.get(member_id) or ConsumerMember(member_id))
        elif command.member_id:
            revision.admit(group.check_static(member_id, command.instance_id))
        else:
            static = group.static_member(command.instance_id)
            if static is None:
                revision.admit(ConsumerMember(member_id))
            else:
                revision.admit_in_place_of(static, member_id)

    def _owned(self, wants: Subscription) -> Partitions:
        topics = self._topics().image.topics
        return {
            topics[name].id: frozenset(partitions)
            for name, partitions in wants.owned
            if name in topics
        }

    def _converted(self, group: ConsumerGroup, revision: Revision, now: Now) -> Downgrade | None:
        """The last member of the new protocol comes back as one of the old: so does the group."""
        replaced = revision.replaced
        if replaced is None or replaced.classic is not None:
            return None
        return downgrade(
            group, [replaced], self._topics(), self._state.config(), now, instead=revision.member
        )

    def _join_converted(
        self, group: ConsumerGroup, command: Join, revision: Revision, converted: Downgrade
    ) -> Result:
        # Of a group at rest everybody keeps what they have. But somebody must know that it leads:
        # nobody else asks for a rebalance when there are new partitions.
        quietly = (
            command.can_skip_assignment
            and not revision.resubscribed
            and _is_at_rest(group, revision.replaced, self._topics())
        )
        if quietly:
            converted.keep_quiet()

        def written(error: KafkaError | None, now: Now) -> Result:
            if error is not None:
                return Result(Joined(command.member_id, error.code))
            self._clocks.forget(group.id, [*group.members.values(), revision.member])
            classic = converted.begin(self._state, self._classic, now)
            if quietly:  # it finds its old assignment when it syncs
                return Result(classic.joined(revision.member.id, members=True, skip=True))
            reply = _joined(revision.member, command)._replace(
                generation=classic.generation, protocol_name=classic.protocol_name
            )
            why = f"static member {revision.member.id} is back"
            begun = self._classic.begin_rebalance(classic, now, why)
            return replace(begun, reply=reply)

        return Result(records=converted.records, after=written)

    # ------------------------------------------------------------------ sync, heartbeat, leave

    def sync(self, group: ConsumerGroup, command: Sync, now: Now) -> Result:
        member = _classic_member(group, command)
        facet = member.classic
        assert facet is not None
        name, metadata = facet.protocols[0]
        if command.protocol_type not in (None, CONSUMER_PROTOCOL) or command.protocol_name not in (
            None,
            name,
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._clocks.await_join(group.id, member, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._clocks.after_sync(group.id, member, now)
        assignment = assignment_of(member.assigned, metadata, self._topics())
        return Result(Synced(command.protocol_type, command.protocol_name, assignment))

    def heartbeat(self, group: ConsumerGroup, command: Heartbeat, now: Now) -> Result:
        member = _classic_member(group, command)
        assert member.classic is not None
        self._clocks.heard_of(group.id, member.id, now, member.classic.session_timeout_ms)
        if (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and not _must_wait(group, member))
        ):
            self._clocks.await_join(group.id, member, now)
            return REBALANCING
        return ALIVE

    def leave(self, group: ConsumerGroup, command: Leave, now: Now) -> Result:
        codes: list[ErrorCode] = []
        leaving: dict[str, ConsumerMember] = {}
        for leaver in command.members:
            try:
                member = _leaver(group, leaver)
            except KafkaError as error:
                codes.append(error.code)
            else:
                codes.append(ErrorCode.NONE)
                leaving[member.id] = member
        reasons = ", ".join(leaver.reason for leaver in command.members if leaver.reason)
        why = f"it left: {reasons}" if reasons else "it left"
        return self._remove(group, list(leaving.values()), codes, now, why)


def _check_protocols(group: ConsumerGroup, command: Join) -> None:
    """A protocol that all classic members have, as a classic group would demand."""
    names = [name for name, _ in command.protocols]
    common = any(group.classic_protocols[name] == group.classic_members for name in names)
    if command.protocol_type != CONSUMER_PROTOCOL or not common:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _subscription(command: Join) -> Subscription:
    try:
        return read_subscription(command.protocols[0][1])
    except ValueError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None


def _joined(member: ConsumerMember, command: Join) -> Joined:
    return Joined(
        member.id,
        generation=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=command.protocols[0][0],
    )


def _classic_member(group: ConsumerGroup, command: Sync | Heartbeat) -> ConsumerMember:
    """Who sends it, provided that it is of the classic protocol and of this generation."""
    if command.instance_id is None:
        member = group.member(command.member_id)
    else:
        member = group.check_static(command.member_id, command.instance_id)
    if member.classic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.id} does not use the classic protocol."
        )
    if command.generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _leaver(group: ConsumerGroup, leaver: Leaver) -> ConsumerMember:
    if leaver.instance_id is None:
        return group.member(leaver.member_id)
    if leaver.member_id:
        return group.check_static(leaver.member_id, leaver.instance_id)
    member = group.static_member(leaver.instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _is_at_rest(
    group: ConsumerGroup, replaced: ConsumerMember | None, topics: SubscribableTopics
) -> bool:
    """Whether all but the one who is replaced have their share of the topics as they are now."""
    return (
        group.target_epoch == group.epoch
        and group.metadata_hash == topics.hash(group.subscribed_topics())
        and all(
            member.has_reached(group.epoch)
            for member in group.members.values()
            if member is not replaced
        )
    )


def _must_wait(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether anything of its target that it has not got is still with somebody else."""
    return any(
        group.owner(topic, partition) is not None
        for topic, partitions in group.targets.get(member.id, {}).items()
        for partition in partitions - member.assigned.get(topic, frozenset())
    )
