"""Groups: who is in them, how far they have come, and how to move or delete them.

    with Groups("127.0.0.1:9092") as groups:
        for row in groups.lag("billing"):
            print(row.partition, row.committed, row.end, row.lag)

Spoken by ourselves (`router`), not through librdkafka, which has no request for deleting
offsets and leaves out the epochs of KIP-848 groups. Each method asks the group's own coordinator
and repeats what fails only for a moment, such as a coordinator that is still loading.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from ottla.client.descriptions import Node
from ottla.client.retry import WRONG_BROKER
from ottla.client.router import Router, check, error_code, supports
from ottla.client.topic_offsets import TopicOffsets
from ottla.client.wire import Wire
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.messages import consumer_groups as modern
from ottla.protocol.messages import group_offsets as wire_offsets
from ottla.protocol.messages import groups as classic
from ottla.protocol.messages.internal.consumer_protocol import ConsumerProtocolAssignment
from ottla.protocol.primitives import DecodeError

_VERSION = struct.Struct(">h")
_NEWEST_ASSIGNMENT = 3

CONSUMER = "consumer"
"""The protocol type of groups of consumers; groups without members have none."""

Upgraded = Literal["classic", "consumer"]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list. `type` is `Classic`, `Consumer`, `Share` or `Streams`."""

    name: str
    type: str
    protocol: str
    state: str

    @property
    def simple(self) -> bool:
        """Offsets that somebody committed without joining."""
        return self.type == "Classic" and not self.protocol


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member. Epoch and target are known of KIP-848 groups only."""

    id: str
    instance: str | None
    client: str
    host: str
    assignment: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    kind: Upgraded | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    name: str
    type: str
    protocol: str
    state: str
    assignor: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    target_epoch: int | None = None

    @property
    def idle(self) -> bool:
        """Nobody is in it, so that its offsets may be moved."""
        return self.state in ("Empty", "Dead")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group committed for a partition."""

    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition; None for what is not known."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: GroupMember | None
    leader_epoch: int | None = None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        if self.committed is None or self.end is None:
            return None
        return self.end - self.committed


class Groups:
    """Asks about groups and changes them.

    bootstrap  brokers to start from, "host:port,…"; else OTTLA_BOOTSTRAP, else 127.0.0.1:9092
    timeout    seconds that a question may take
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla",
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.router = Router(bootstrap, timeout=timeout, client_id=client_id, config=config)
        self.topics = TopicOffsets(self.router, timeout=timeout)
        """What groups read: the partitions, and where they begin and end."""

    # -- which groups there are

    def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> tuple[GroupListing, ...]:
        """All groups of all brokers, in the order brokers give them; filtered if asked to."""
        request = classic.ListGroupsRequest(states_filter=[*states], types_filter=[*types])

        def ask(node: Node) -> Any:
            answer = self.router.node(node.id).ask(request)
            check(answer.error_code)
            return answer

        found = {
            each.group_id: GroupListing(
                each.group_id, _title(each.group_type), each.protocol_type, each.group_state
            )
            for answer in self.router.ask_each_node(ask)
            for each in answer.groups
        }
        return tuple(found.values())

    def describe(self, *names: str) -> dict[str, GroupDescription]:
        """These groups with their members; GROUP_ID_NOT_FOUND when there is one too few."""
        return {name: self._describe(name) for name in names}

    def _describe(self, name: str) -> GroupDescription:
        def ask() -> GroupDescription:
            node = self.router.coordinator_node(name)
            connection = self.router.node(node.id)
            if supports(connection, ApiKey.CONSUMER_GROUP_DESCRIBE):
                request = modern.ConsumerGroupDescribeRequest(
                    group_ids=[name], include_authorized_operations=False
                )
                [found] = connection.ask(request).groups
                # A group of the classic protocol is not found here, but is below; so is the one
                # without a name, which keeps offsets of consumers that never had a group.
                if error_code(found.error_code) not in (
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    ErrorCode.INVALID_GROUP_ID,
                    ErrorCode.UNSUPPORTED_VERSION,
                ):
                    check(found.error_code, found.error_message)
                    return _modern(found, node)
            older = classic.DescribeGroupsRequest(groups=[name])
            [group] = connection.ask(older).groups
            check(group.error_code, group.error_message)
            return _classic(group, node)

        return self.router.retried(ask)

    def survey(
        self, names: Collection[str] = ()
    ) -> dict[str, tuple[GroupDescription, dict[TopicPartition, CommittedOffset]]]:
        """Groups of consumers with everything they have committed: these, or all; by name.

        Asks each broker three or four times in all, however many groups it coordinates. Groups that
        vanish meanwhile are left out; GROUP_ID_NOT_FOUND when one of `names` is not there.
        """
        found: dict[str, tuple[GroupDescription, dict[TopicPartition, CommittedOffset]]] = {}
        for part in self.router.ask_each_node(lambda node: self._survey(node, names)):
            found |= part
        for name in names:
            if name not in found:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")
        return dict(sorted(found.items()))

    def _survey(
        self, node: Node, names: Collection[str]
    ) -> dict[str, tuple[GroupDescription, dict[TopicPartition, CommittedOffset]]]:
        connection = self.router.node(node.id)
        answer = connection.ask(classic.ListGroupsRequest())
        check(answer.error_code)
        kinds: dict[str, list[str]] = {"Classic": [], "Consumer": []}
        for each in answer.groups:
            if not names or each.group_id in names:
                kinds.get(_title(each.group_type), []).append(each.group_id)
        described: list[GroupDescription] = []
        if kinds["Consumer"]:
            request = modern.ConsumerGroupDescribeRequest(
                group_ids=kinds["Consumer"], include_authorized_operations=False
            )
            groups = connection.ask(request).groups
            described += [_modern(each, node) for each in groups if _there(each)]
        if kinds["Classic"]:
            older = connection.ask(classic.DescribeGroupsRequest(groups=kinds["Classic"])).groups
            described += [_classic(each, node) for each in older if _there(each)]
        committed = self._committed([each.name for each in described], connection)
        return {each.name: (each, committed.get(each.name, {})) for each in described}

    # -- committed offsets

    def offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Everything that the group has committed, by topic and partition."""

        def ask() -> dict[TopicPartition, CommittedOffset]:
            return self._committed([group], self.router.coordinator(group))[group]

        return self.router.retried(ask)

    def _committed(
        self, groups: Sequence[str], coordinator: Wire
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """What groups of one coordinator have committed, asked for at once where that is known."""
        if not groups:
            return {}
        if coordinator.version_of(ApiKey.OFFSET_FETCH) < 8:
            return {
                group: _offsets(
                    coordinator.ask(wire_offsets.OffsetFetchRequest(group_id=group, topics=None))
                )
                for group in groups
            }
        wanted = [
            wire_offsets.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups
        ]
        answer = coordinator.ask(wire_offsets.OffsetFetchRequest(groups=wanted))
        return {found.group_id: _offsets(found) for found in answer.groups}

    def set_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Commit offsets for a group that has no members, as one request. PartialFailureError names
        the partitions that were refused; those of the others are committed."""
        topics: dict[str, list[wire_offsets.OffsetCommitRequestPartition]] = defaultdict(list)
        for tp, given in offsets.items():
            committed = given if isinstance(given, CommittedOffset) else CommittedOffset(given)
            topics[tp.topic].append(
                wire_offsets.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=-1
                    if committed.leader_epoch is None
                    else committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        if not topics:
            return
        request = wire_offsets.OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                wire_offsets.OffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

        def commit() -> dict[str, KafkaError]:
            answer = self.router.coordinator(group).ask(request)
            failures: dict[str, KafkaError] = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    code = error_code(each.error_code)
                    if code is ErrorCode.UNKNOWN_MEMBER_ID:
                        raise KafkaError(
                            code, f"group {group!r} has members by now; stop them and try again"
                        )
                    if code in WRONG_BROKER:
                        raise KafkaError(code)
                    if code is not ErrorCode.NONE:
                        failures[f"{topic.name}-{each.partition_index}"] = KafkaError(code)
            return failures

        _raise(self.router.retried(commit), len(offsets))

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Forget what was committed for partitions; what became of each.

        Raises when nothing could be done at all: no such group, or one with members that do
        not say what they are subscribed to.
        """
        topics: dict[str, list[int]] = defaultdict(list)
        for tp in partitions:
            topics[tp.topic].append(tp.partition)
        request = wire_offsets.OffsetDeleteRequest(
            group_id=group,
            topics=[
                wire_offsets.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        wire_offsets.OffsetDeleteRequestPartition(partition_index=number)
                        for number in numbers
                    ],
                )
                for name, numbers in topics.items()
            ],
        )

        def delete() -> dict[TopicPartition, ErrorCode]:
            answer = self.router.coordinator(group).ask(request)
            check(answer.error_code)
            return {
                TopicPartition(topic.name, each.partition_index): error_code(each.error_code)
                for topic in answer.topics
                for each in topic.partitions
            }

        return self.router.retried(delete, repeatable=False)

    def delete(self, *names: str) -> dict[str, ErrorCode]:
        """Delete groups with their offsets; what became of each. Where several are named, that of
        one nobody can be asked is among these outcomes; of a single one it is raised."""

        def delete_one(name: str) -> ErrorCode:
            request = classic.DeleteGroupsRequest(groups_names=[name])
            answer = self.router.coordinator(name).ask(request)
            code = error_code(answer.results[0].error_code)
            if code.retriable:
                raise KafkaError(code)
            return code

        outcomes: dict[str, ErrorCode] = {}
        for name in names:
            try:
                outcomes[name] = self.router.retried(partial(delete_one, name), repeatable=False)
            except KafkaError as error:
                if len(names) == 1:
                    raise
                outcomes[name] = error.code  # what became of the others must be told, too
        return outcomes

    # -- what they read

    def lag(self, group: str, described: GroupDescription | None = None) -> list[PartitionLag]:
        """Every partition that the group reads or has committed: position, end, and reader.

        Members with most partitions first, each one's by topic and number; then what nobody
        reads at the moment. This is the order of Kafka's own table.
        """
        described = described or self._describe(group)
        committed = self.offsets(group)
        busy = sorted(described.members, key=lambda member: -len(member.assignment))
        readers = {tp: member for member in busy for tp in member.assignment}
        ends = self.topics.ends({*readers, *committed})
        idle = [tp for tp in committed if tp not in readers]
        order = [tp for member in busy for tp in sorted(member.assignment)] + sorted(idle)
        rows = []
        for tp in order:
            known = committed.get(tp)
            rows.append(
                PartitionLag(
                    tp,
                    None if known is None else known.offset,
                    ends.get(tp),
                    readers.get(tp),
                    None if known is None else known.leader_epoch,
                )
            )
        return rows

    # -- the end

    def close(self) -> None:
        self.router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _raise(failures: Mapping[str, KafkaError], asked: int) -> None:
    """What went wrong with some partitions, by their names."""
    if not failures:
        return
    if asked == 1:
        [(name, error)] = failures.items()
        raise KafkaError(error.code, f"{name}: {error.code.text}")
    # It comes with librdkafka, which tools do without.
    from ottla.client.errors import PartialFailureError

    raise PartialFailureError(failures)


def _offsets(found: Any) -> dict[TopicPartition, CommittedOffset]:
    """What an answer says that a group has committed, by topic and partition."""
    check(found.error_code)
    committed: dict[TopicPartition, CommittedOffset] = {}
    for topic in found.topics:
        for each in topic.partitions:
            check(each.error_code)
            if each.committed_offset >= 0:
                epoch = each.committed_leader_epoch
                committed[TopicPartition(topic.name, each.partition_index)] = CommittedOffset(
                    each.committed_offset, epoch if epoch >= 0 else None, each.metadata or ""
                )
    return dict(sorted(committed.items()))


def _there(found: Any) -> bool:
    """Whether a group that was listed is still there; raises what else is wrong with it."""
    if error_code(found.error_code) is ErrorCode.GROUP_ID_NOT_FOUND:
        return False
    check(found.error_code, found.error_message)
    return True


def _title(kind: str) -> str:
    """Kafka prints `Classic`; old brokers, which have no other kind, do not say."""
    return kind.capitalize() if kind else "Classic"


def _modern(found: modern.DescribedGroup, node: Node) -> GroupDescription:
    kinds: dict[int, Upgraded] = {0: "classic", 1: "consumer"}
    return GroupDescription(
        found.group_id,
        "Consumer",
        CONSUMER,
        found.group_state,
        found.assignor_name,
        node,
        tuple(
            GroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                _flat(each.assignment.topic_partitions),
                each.member_epoch,
                _flat(each.target_assignment.topic_partitions),
                kinds.get(each.member_type),
            )
            for each in found.members
        ),
        found.group_epoch,
        found.assignment_epoch,
    )


def _flat(topics: Sequence[modern.DescribedTopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(TopicPartition(topic.topic_name, p) for topic in topics for p in topic.partitions)
    )


def _classic(found: classic.DescribedGroup, node: Node) -> GroupDescription:
    return GroupDescription(
        found.group_id,
        "Classic",
        found.protocol_type,
        found.group_state,
        found.protocol_data,
        node,
        tuple(
            GroupMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                _assigned(bytes(each.member_assignment)),
            )
            for each in found.members
        ),
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a classic member's assignment; none when it is not a consumer's."""
    if len(data) < 2:
        return ()
    (version,) = _VERSION.unpack_from(data)
    # A newer version only adds fields at the end.
    known = min(max(version, 0), _NEWEST_ASSIGNMENT)
    try:
        assignment, _ = codec(ConsumerProtocolAssignment, known).decode(memoryview(data), 2)
    except DecodeError:
        return ()
    return tuple(
        sorted(
            TopicPartition(each.topic, number)
            for each in assignment.assigned_partitions
            for number in each.partitions
        )
    )
