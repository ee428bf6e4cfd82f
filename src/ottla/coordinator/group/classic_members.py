"""Members of a consumer group that still speak the classic protocol (KIP-848's migration).

They are led through the new protocol in the words of the old one. A member's epoch is its
generation, and every Join is answered at once, for there is nobody to wait for. Sync brings what the
member owns by now. Heartbeat tells it to join again whenever there is something for it to do: a new
epoch, partitions to give up, partitions that have become free. All are followers; the
broker assigns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.commands import Heartbeat, Join, Joined, Leave, Leaver, Sync, Synced
from ottla.coordinator.group.consumer_group import ConsumerGroup, ConsumerMember, MemberState
from ottla.coordinator.group.journal import ClassicFacet
from ottla.coordinator.group.members import CONSUMER_PROTOCOL
from ottla.coordinator.group.migration import assignment_of, downgrade
from ottla.coordinator.group.revision import Revision
from ottla.coordinator.group.subscription import Subscription, read_subscription
from ottla.coordinator.shard import Now, Result
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.coordinator.group.consumer import ConsumerMachine

_ALIVE = Result()


class ClassicMembers:
    """Join, Sync, Heartbeat and Leave for consumer groups."""

    def __init__(self, machine: ConsumerMachine) -> None:
        self._machine = machine

    # ------------------------------------------------------------------ join

    def join(self, group: ConsumerGroup, command: Join, now: Now) -> Result:
        try:
            return self._join(group, command, now)
        except KafkaError as error:
            return Result(Joined(command.member_id, error.code))

    def _join(self, group: ConsumerGroup, command: Join, now: Now) -> Result:
        machine = self._machine
        is_new = not command.member_id
        member_id = machine.state.new_id() if is_new else command.member_id
        machine.check_room(group, member_id)
        _check_protocols(group, command)
        if is_new and command.instance_id is None and command.id_required:
            return Result(Joined(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        try:
            wants = read_subscription(command.protocols[0][1])
        except ValueError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None

        revision = Revision(group, machine.topics, machine.state.config())
        self._admit(group, command, member_id, revision)
        revision.update(now, **_wishes(command, wants))
        changed = revision.resubscribed
        revision.renew(new_epoch=changed)
        replaced = revision.replaced
        if replaced is not None and replaced.classic is None:
            converted = downgrade(
                group,
                [replaced],
                machine.topics,
                machine.state.config(),
                now,
                instead=revision.member,
            )
            if converted is not None:
                return self._join_classic_group(group, command, revision, converted.records, now)
        revision.retarget()
        revision.reconcile(self._owned(wants))
        member = revision.member

        def written(error: KafkaError | None, now: Now) -> Result | None:
            if error is not None:
                return Result(Joined(command.member_id, error.code))
            machine.watch_classic(group, revision, command, now)
            return None

        if not revision.records:
            machine.watch_classic(group, revision, command, now)
        return Result(
            Joined(
                member.id,
                generation=member.epoch,
                protocol_type=CONSUMER_PROTOCOL,
                protocol_name=command.protocols[0][0],
            ),
            revision.records,
            after=written if revision.records else None,
            work=revision.work,
        )
