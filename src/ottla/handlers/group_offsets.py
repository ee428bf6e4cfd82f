"""Committed offsets: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

Versions   OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0. From 10 on topics are named by id.
Behaviour  A commit is answered when it is in the log of the offsets topic, on all in-sync replicas.
           Partitions that do not exist fail alone. Anybody may commit to, and read from, a group
           that has no members; so tools work, and consumers that assign partitions themselves.
           A group that does not exist has committed nothing: OffsetFetch answers -1 everywhere.
Odd        OffsetFetch 1 has no room for an error of the whole: each partition gets it.
           Null topics ask for everything, from version 2 on. In version 10 topics that are gone by
           now are left out of that, having no id.
           A null note is stored as an empty one.
See        KIP-98, KIP-211, KIP-447, KIP-496, KIP-516, KIP-709, KIP-848
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from ottla.coordinator.group.commands import (
    CommitOffsets,
    DeleteOffsets,
    FetchedPartition,
    FetchedTopic,
    FetchOffsets,
    FetchTopic,
    PartitionCommit,
)
from ottla.coordinator.replies import then
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf, join, split
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.model.topic import Topic
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages import group_offsets as wire
from ottla.runtime.waiters import Deferred

BY_ID = 10
MANY_GROUPS = 8
ERROR_OF_WHOLE_SINCE = 2

NOTHING = -1


# --- OffsetCommit ---------------------------------------------------------------------------------


def _commit_failed(
    request: Request[wire.OffsetCommitRequest], error: KafkaError
) -> wire.OffsetCommitResponse:
    return _committed(request, itertools.repeat(error.code))


@handles(
    ApiKey.OFFSET_COMMIT,
    versions=range(2, 11),
    failure=_commit_failed,
    pieces=ListOf("topics", "topics", "partitions", "partitions", piece=512, changes=True),
)
def offset_commit(
    request: Request[wire.OffsetCommitRequest], services: Services
) -> wire.OffsetCommitResponse | Deferred[wire.OffsetCommitResponse]:
    body = request.body
    refused: dict[int, ErrorCode] = {}  # by position among all partitions of the request
    commits: list[PartitionCommit] = []
    for requested in body.topics:
        topic = _find(request, services, requested.name, requested.topic_id)
        count = 0 if topic is None else len(topic.partitions)
        for partition in requested.partitions:
            index = partition.partition_index
            if topic is None or not 0 <= index < count:
                refused[len(refused) + len(commits)] = _unknown(request, topic)
                continue
            commits.append(
                PartitionCommit(
                    topic.name,
                    index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                    topic.id,
                )
            )

    def done(outcomes: Sequence[ErrorCode]) -> wire.OffsetCommitResponse:
        codes: Iterable[ErrorCode] = outcomes
        if refused:
            given = iter(outcomes)
            every = range(len(refused) + len(outcomes))
            codes = [refused[at] if at in refused else next(given) for at in every]
        return _committed(request, codes)

    if not commits:
        return done(())
    command = CommitOffsets(
        body.group_id,
        tuple(commits),
        body.member_id,
        body.group_instance_id,
        body.generation_id_or_member_epoch,
        body.retention_time_ms,
        request.api_version,
    )
    try:
        return then(services.groups.commit_offsets(command), done)
    except KafkaError as error:
        return done([error.code] * len(commits))


def _committed(
    request: Request[wire.OffsetCommitRequest], codes: Iterable[ErrorCode]
) -> wire.OffsetCommitResponse:
    """The answer; a code for each partition of the request, in their order."""
    code = iter(codes)
    return wire.OffsetCommitResponse(
        topics=[
            wire.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    wire.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=next(code)
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )


def _find(
    request: Request[wire.OffsetCommitRequest], services: Services, name: str, topic_id: bytes
) -> Topic | None:
    image = services.image
    if request.api_version >= BY_ID:
        name = image.topic_names.get(TopicId(topic_id), "")
    return image.topics.get(name)


def _unknown(request: Request[wire.OffsetCommitRequest], topic: Topic | None) -> ErrorCode:
    if topic is None and request.api_version >= BY_ID:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- OffsetFetch ----------------------------------------------------------------------------------


class _Asked(NamedTuple):
    """What is asked of one group, whichever form it came in."""

    group_id: str
    topics: Sequence[tuple[str, bytes, Sequence[int]]] | None
    member_id: str | None = None
    epoch: int = -1


class _GroupsInPieces:
    """OffsetFetch of many groups, or of a group with many partitions, in pieces."""

    changes = False

    def split(self, body: wire.OffsetFetchRequest) -> Iterator[wire.OffsetFetchRequest]:
        if not body.groups:
            yield from _TOPICS.split(body)
        for group in body.groups:
            for topics in split(group.topics, "partition_indexes") if group.topics else (None,):
                piece, part = copy(body), copy(group)
                if topics is not None:
                    part.topics = topics
                piece.groups = [part]
                yield piece

    def join(self, whole: wire.OffsetFetchResponse, more: wire.OffsetFetchResponse) -> None:
        _TOPICS.join(whole, more)
        for group in more.groups:
            last = whole.groups[-1] if whole.groups else None
            same = last is not None and last.group_id == group.group_id
            if last is not None and same and last.error_code == group.error_code:
                join(last.topics, group.topics, "partitions")
            else:
                whole.groups.append(group)

    def count(self, response: wire.OffsetFetchResponse) -> int:
        inside = sum(1 + _count(group.topics) for group in response.groups)
        return _TOPICS.count(response) + inside


_TOPICS = ListOf("topics", "topics", "partition_indexes", "partitions")


def _count(topics: Sequence[wire.OffsetFetchResponseTopics]) -> int:
    return sum(1 + len(topic.partitions) for topic in topics)


def _fetch_failed(
    request: Request[wire.OffsetFetchRequest], error: KafkaError
) -> wire.OffsetFetchResponse:
    return _fetched(request, [(asked, error) for asked in _asked(request)], {})


@handles(
    ApiKey.OFFSET_FETCH, versions=range(1, 11), failure=_fetch_failed, pieces=_GroupsInPieces()
)
def offset_fetch(
    request: Request[wire.OffsetFetchRequest], services: Services
) -> wire.OffsetFetchResponse | Deferred[wire.OffsetFetchResponse]:
    image = services.image
    by_id = request.api_version >= BY_ID
    asked = _asked(request)
    commands = []
    for group in asked:
        topics = None
        if group.topics is not None:
            found = []
            for name, topic_id, partitions in group.topics:
                if by_id:
                    name = image.topic_names.get(TopicId(topic_id), "")  # noqa: PLW2901 - the name that the id stands for
                topic = image.topics.get(name)
                if by_id and topic is None:
                    continue
                known_id = ZERO_TOPIC_ID if topic is None else topic.id
                found.append(FetchTopic(name, tuple(partitions), known_id))
            topics = tuple(found)
        commands.append(
            FetchOffsets(
                group.group_id, topics, group.member_id, group.epoch, request.body.require_stable
            )
        )

    def done(
        replies: Sequence[list[FetchedTopic] | KafkaError],
    ) -> wire.OffsetFetchResponse:
        return _fetched(request, list(zip(asked, replies, strict=True)), services.image.topics)

    return then(services.groups.fetch_offsets(commands), done)


def _asked(request: Request[wire.OffsetFetchRequest]) -> list[_Asked]:
    body = request.body
    if request.api_version >= MANY_GROUPS:
        return [
            _Asked(
                group.group_id,
                None
                if group.topics is None
                else [
                    (topic.name, topic.topic_id, topic.partition_indexes) for topic in group.topics
                ],
                group.member_id,
                group.member_epoch,
            )
            for group in body.groups
        ]
    topics = None
    if body.topics is not None:
        topics = [(topic.name, ZERO_TOPIC_ID, topic.partition_indexes) for topic in body.topics]
    return [_Asked(body.group_id, topics)]


def _fetched(
    request: Request[wire.OffsetFetchRequest],
    outcomes: Sequence[tuple[_Asked, list[FetchedTopic] | KafkaError]],
    known: Mapping[str, Topic],
) -> wire.OffsetFetchResponse:
    if request.api_version >= MANY_GROUPS:
        return wire.OffsetFetchResponse(
            groups=[_fetched_group(request, asked, reply, known) for asked, reply in outcomes]
        )
    ((asked, reply),) = outcomes
    code = ErrorCode.NONE
    if isinstance(reply, KafkaError):
        code = reply.code
        each = request.api_version < ERROR_OF_WHOLE_SINCE
        reply = [
            FetchedTopic(name, [FetchedPartition(index, None, code) for index in partitions])
            for name, _, partitions in (asked.topics or () if each else ())
        ]
    return wire.OffsetFetchResponse(
        error_code=code,
        topics=[
            wire.OffsetFetchResponseTopic(
                name=topic.topic,
                partitions=[
                    wire.OffsetFetchResponsePartition(
                        partition_index=partition.partition,
                        committed_offset=partition.committed.offset
                        if partition.committed
                        else NOTHING,
                        committed_leader_epoch=partition.committed.leader_epoch
                        if partition.committed
                        else -1,
                        metadata=partition.committed.metadata if partition.committed else "",
                        error_code=partition.error,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in reply
        ],
    )


def _fetched_group(
    request: Request[wire.OffsetFetchRequest],
    asked: _Asked,
    reply: list[FetchedTopic] | KafkaError,
    known: Mapping[str, Topic],
) -> wire.OffsetFetchResponseGroup:
    if isinstance(reply, KafkaError):
        return wire.OffsetFetchResponseGroup(
            group_id=asked.group_id, topics=[], error_code=reply.code
        )
    if request.api_version < BY_ID:
        topics = [
            _fetched_topic(fetched.topic, ZERO_TOPIC_ID, fetched.partitions) for fetched in reply
        ]
    else:
        answers: dict[bytes, wire.OffsetFetchResponseTopics] = {}
        for fetched in reply:
            topic = known.get(fetched.topic)
            if topic is not None:
                answers[topic.id] = _fetched_topic("", topic.id, fetched.partitions)
        for _, topic_id, partitions in asked.topics or ():
            # Not in the reply: a topic that does not exist, or that has gone meanwhile.
            if topic_id not in answers:
                code = ErrorCode.UNKNOWN_TOPIC_ID
                missing = [FetchedPartition(number, None, code) for number in partitions]
                answers[topic_id] = _fetched_topic("", topic_id, missing)
        topics = list(answers.values())
    return wire.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)


def _fetched_topic(
    name: str, topic_id: bytes, partitions: Iterable[FetchedPartition]
) -> wire.OffsetFetchResponseTopics:
    return wire.OffsetFetchResponseTopics(
        name=name,
        topic_id=topic_id,
        partitions=[
            wire.OffsetFetchResponsePartitions(
                partition_index=partition.partition,
                committed_offset=partition.committed.offset if partition.committed else NOTHING,
                committed_leader_epoch=partition.committed.leader_epoch
                if partition.committed
                else -1,
                metadata=partition.committed.metadata if partition.committed else "",
                error_code=partition.error,
            )
            for partition in partitions
        ],
    )


# --- OffsetDelete ---------------------------------------------------------------------------------


def _delete_failed(
    request: Request[wire.OffsetDeleteRequest], error: KafkaError
) -> wire.OffsetDeleteResponse:
    return wire.OffsetDeleteResponse(error_code=error.code, topics=[])


@handles(
    ApiKey.OFFSET_DELETE,
    versions=range(1),
    failure=_delete_failed,
    pieces=ListOf("topics", "topics", "partitions", "partitions", changes=True),
)
def offset_delete(
    request: Request[wire.OffsetDeleteRequest], services: Services
) -> wire.OffsetDeleteResponse | Deferred[wire.OffsetDeleteResponse]:
    body = request.body
    topics = services.image.topics
    wanted = [
        (topic.name, partition.partition_index)
        for topic in body.topics
        for partition in topic.partitions
        if topic.name in topics
        and 0 <= partition.partition_index < len(topics[topic.name].partitions)
    ]

    def done(outcomes: Sequence[ErrorCode]) -> wire.OffsetDeleteResponse:
        codes = dict(zip(wanted, outcomes, strict=True))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return wire.OffsetDeleteResponse(
            topics=[
                wire.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        wire.OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=codes.get((topic.name, partition.partition_index), unknown),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )

    return then(services.groups.delete_offsets(DeleteOffsets(body.group_id, tuple(wanted))), done)
