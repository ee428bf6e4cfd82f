"""The driver's membership in the group of its pipeline (KIP-848), without I/O.

The group `ottla-<pipeline>` has one static member, the driver. Its instance id is the same for
every driver of the pipeline, so that a second one is told UNRELEASED_INSTANCE_ID while the first
lives. Its member id is made for the pipeline's folder: a driver that was killed is followed by one
that finds the same id there, and goes on as the same member at once instead of waiting until the
session of the dead has ended.

    requests = membership.beat()         what to send next
    membership.take(answer)              what came back; raises `Lost` when we are no member
    membership.resume(epoch)             we are a member already, as a description of the group says

The machine knows which partitions the group has assigned, which are all of the topics that it
named, and acknowledges them, since a group whose member owns nothing never settles. What is read
follows from the checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.client.groups import CommittedOffset
from ottla.client.router import error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from ottla.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

INSTANCE: Final = "driver"
"""The instance id of every driver, each in its own group."""

_JOIN: Final = 0
_LEAVE: Final = -1
_REBALANCE_MS: Final = 300_000

LOST: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""Answers that mean: we are no member, or no longer the only driver."""


class Lost(Exception):
    """The group does not count this driver among its members."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Membership:
    """What one driver knows of its membership."""

    def __init__(self, group: str, member: str, topics: Iterable[str] = ()) -> None:
        self.group = group
        self.member = member
        self.topics = tuple(sorted(topics))
        self.epoch = _JOIN
        self.interval = 1.0
        """Seconds until the next heartbeat is due, as the group told last."""
        self._owned: dict[bytes, tuple[int, ...]] = {}
        self._whole = True

    @property
    def joined(self) -> bool:
        """Whether an answer has made us a member."""
        return self.epoch > 0

    def beat(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: everything about us at first and after a failure, else the least."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member,
            member_epoch=self.epoch,
            instance_id=INSTANCE,
        )
        if self._whole:
            request.rebalance_timeout_ms = _REBALANCE_MS
            request.subscribed_topic_names = list(self.topics)
            request.topic_partitions = [
                TopicPartitions(topic_id=topic, partitions=list(numbers))
                for topic, numbers in sorted(self._owned.items())
            ]
        return request

    def take(self, answer: Any) -> None:
        """The answer to a heartbeat; `Lost`, or KafkaError for what may pass."""
        self._check(answer.error_code, answer.error_message)
        self.epoch = answer.member_epoch
        self.interval = max(answer.heartbeat_interval_ms, 1) / 1000
        self._whole = False
        if answer.assignment is not None:
            owned = {
                bytes(each.topic_id): tuple(each.partitions)
                for each in answer.assignment.topic_partitions
            }
            self._whole = owned != self._owned  # acknowledged with the next heartbeat
            self._owned = owned

    @property
    def settling(self) -> bool:
        """Whether the group waits for our next heartbeat: it has something to acknowledge."""
        return self.joined and self._whole

    def failed(self) -> None:
        """A heartbeat got no answer: the next says everything, since this one may have arrived."""
        self._whole = True

    def resume(self, epoch: int) -> None:
        """Go on as the member that a driver before this one was."""
        self.epoch = epoch
        self._whole = True

    def leave(self) -> ConsumerGroupHeartbeatRequest:
        """The last heartbeat. For good: a stopped pipeline's offsets may be moved with any tool."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member,
            member_epoch=_LEAVE,
            instance_id=INSTANCE,
        )

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> OffsetCommitRequest:
        """A commit of these offsets by this member."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, each in sorted(offsets.items()):
            topics.setdefault(tp.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=-1 if each.leader_epoch is None else each.leader_epoch,
                    committed_metadata=each.metadata,
                )
            )
        return OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member,
            group_instance_id=INSTANCE,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

    def committed(self, answer: Any) -> None:
        """The answer to a commit; `Lost`, or KafkaError for what may pass.

        A partition that is not there any more stays in the progress of a query; the others have
        been committed.
        """
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                self._check(each.error_code, None)

    def _check(self, number: int, message: str | None) -> None:
        code = error_code(number)
        if code in LOST:
            raise Lost(code, message or code.text)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, message)
