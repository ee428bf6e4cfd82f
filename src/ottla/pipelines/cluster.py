"""The cluster as a query sees it: its topics, where their logs begin and end, what became of them.

    with Cluster("127.0.0.1:9092") as cluster:
        topics = cluster.topics(["orders"])
        ends = cluster.ends(partitions_of(topics.values()))

The driver asks it before every micro-batch and a task when it cannot go on reading. It stands on
`ottla.client.router`, which speaks for itself and loads no librdkafka: the processes in which
Spark plans are short-lived.

One rule sets it apart from what it stands on. Whatever passes by itself (nobody listens, a
connection broke, a partition has no leader at the moment) is raised as `Unreachable`, after one
more attempt on a new connection, because a broker closes idle connections and that is no
trouble. What a broker says about a topic is never `Unreachable`: a topic that is not there is left
out of the answer, and is the caller's to judge.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ottla.client.descriptions import OffsetInfo
from ottla.client.groups import CommittedOffset, Groups
from ottla.client.retry import ABSENT, is_retriable
from ottla.client.router import check, error_code
from ottla.client.topic_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from ottla.client.topology import Leader
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.source.loss import Observation
from ottla.pipelines.source.ranges import Range
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.records.batch import HEADER_SIZE, read_header

T = TypeVar("T")

_TOPIC_RESOURCE: Final = 2


class Unreachable(KafkaError):
    """The cluster cannot be asked at the moment; asking again later is the cure."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.message or self.code.text


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now. The id tells it from another of the same name made later."""

    name: str
    id: bytes
    leaders: Mapping[int, Leader]

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(self.name, number) for number in sorted(self.leaders))


def partitions_of(topics: Iterable[Topic]) -> list[TopicPartition]:
    """Every partition of topics, in order."""
    return sorted(tp for topic in topics for tp in topic.partitions)


def groups_of(
    bootstrap: str, settings: Mapping[str, str], *, timeout: float, client_id: str
) -> Groups:
    """The groups of a cluster, asked with the settings of a pipeline's file.

    timeout, client_id   where the settings have no request.timeout.ms and no client.id
    """
    given = settings.get("request.timeout.ms")
    return Groups(
        bootstrap,
        timeout=timeout if given is None else int(given) / 1000,
        client_id=client_id,
        config=settings,
    )


class Cluster:
    """Asks the brokers; for one thread at a time. Making one connects to nobody.

    bootstrap  brokers to start from, "host:port,…"
    timeout    seconds that one question may take
    stable     logs end where the first open transaction begins, as read_committed wants it
    settings   of a pipeline's file; they win over what is said here
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla-spark",
        stable: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._groups = groups_of(bootstrap, settings or {}, timeout=timeout, client_id=client_id)
        self._router = self._groups.router
        self._stable = stable

    @property
    def bootstrap(self) -> str:
        return self._router.bootstrap

    # -- topics

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """These topics; one that is not there is left out."""
        wanted = sorted(set(names))
        return self._described(wanted) if wanted else {}

    def matching(self, pattern: str) -> dict[str, Topic]:
        """The topics whose whole name matches, without those that brokers keep for themselves."""
        whole = re.compile(pattern)
        return {
            name: topic
            for name, topic in self._described(None).items()
            if whole.fullmatch(name) is not None
        }

    # -- offsets

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetInfo]:
        """The first offset that each log still has."""
        return self.offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetInfo]:
        """The offset after the last record of each that may be read."""
        return self.offsets(dict.fromkeys(partitions, LATEST))

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        """The offset for a timestamp (or EARLIEST, LATEST) in each partition.

        No record that young: offset -1. A partition that does not exist is left out; one that
        is only without a leader is waited for.
        """
        answers = self._asked(
            lambda: self._groups.topics.find(
                wanted, stable=self._stable, wait_for_leader=True, wait_for_node=False
            )
        )
        found: dict[TopicPartition, OffsetInfo] = {}
        for tp, answer in answers.items():
            if isinstance(answer, OffsetInfo):
                found[tp] = answer
            elif answer.code is ErrorCode.LEADER_NOT_AVAILABLE:
                names = ", ".join(
                    str(each)
                    for each, other in sorted(answers.items())
                    if isinstance(other, KafkaError) and other.code is answer.code
                )
                raise Unreachable(answer.code, f"nobody leads {names} at the moment")
            elif answer.code in ABSENT:
                continue
            elif is_retriable(answer.code) or answer.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                raise Unreachable(answer.code, f"{tp} cannot be asked at the moment: {answer}")
            else:
                raise KafkaError(answer.code, str(tp))
        return found

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The greatest timestamp in each log, of those whose brokers can tell."""
        wanted = dict.fromkeys(partitions, MAX_TIMESTAMP)
        answers = self._asked(
            lambda: self._groups.topics.find(wanted, stable=self._stable, wait_for_node=False)
        )
        return {
            tp: answer.timestamp
            for tp, answer in answers.items()
            if isinstance(answer, OffsetInfo) and answer.timestamp >= 0
        }

    # -- what became of a place

    def observe(
        self, part: Range, position: int | None = None, *, newest: int | None = None
    ) -> Observation:
        """What `loss.judge` has to know when records of `part` are missing at `position`.

        newest  the timestamp of the newest record that the log is known to have had
        """
        position = part.start if position is None else position
        tp = part.topic_partition
        topic = self.topics([part.topic]).get(part.topic)
        known = Observation(
            part.topic, part.partition, position, part.end, part.topic_id, part.epoch
        )
        if topic is None or part.partition not in topic.leaders:
            return known
        start, end = self.starts([tp]).get(tp), self.ends([tp]).get(tp)
        if start is None or end is None:
            return known
        known = replace(known, found_topic_id=topic.id, log_start=start.offset, log_end=end.offset)
        if position < start.offset:
            settings = self._asked(lambda: self._settings(part.topic))
            return replace(
                known,
                first_batch=self._asked(lambda: self._batch_at(tp, start.offset)),
                retention_ms=_whole(settings.get("retention.ms")),
                retention_bytes=_whole(settings.get("retention.bytes")),
                cleanup_policy=settings.get("cleanup.policy"),
                newest=newest,
                now=time.time_ns() // 1_000_000,
            )
        if part.epoch >= 0:
            return replace(known, epoch_end=self._asked(lambda: self._epoch_end(tp, part.epoch)))
        return known

    # -- groups

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Show how far a query has come, for tools that look at groups."""
        self._asked(lambda: self._groups.set_offsets(group, offsets))

    def committed(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed."""
        return self._asked(lambda: self._groups.offsets(group))

    # -- the end

    def close(self) -> None:
        """Close all connections and forget who leads; the next question begins anew."""
        self._router.close()
        self._router.topology.forget_leaders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside

    def _described(self, names: list[str] | None) -> dict[str, Topic]:
        def ask() -> dict[str, Topic]:
            found: dict[str, Topic] = {}
            for each in self._router.metadata(names).topics:
                code = error_code(each.error_code)
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED and names is None:
                    continue
                check(each.error_code, f"topic {each.name!r}")
                if names is None and each.is_internal:
                    continue
                name = each.name or ""
                found[name] = Topic(
                    name,
                    bytes(each.topic_id),
                    {
                        part.partition_index: Leader(part.leader_id, part.leader_epoch)
                        for part in each.partitions
                    },
                )
            return found

        return self._asked(lambda: self._router.retried(ask))

    def _settings(self, topic: str) -> dict[str, str | None]:
        names = ["retention.ms", "retention.bytes", "cleanup.policy"]
        wanted = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=names
        )
        [found] = self._router.ask_any(DescribeConfigsRequest(resources=[wanted])).results
        # Who may read a topic need not be allowed to see its settings.
        return {each.name: each.value for each in found.configs} if not found.error_code else {}

    def _batch_at(self, tp: TopicPartition, offset: int) -> int | None:
        """The base offset of the batch that a log gives for an offset; None when it gives none."""
        wanted = FetchPartition(
            partition=tp.partition, fetch_offset=offset, partition_max_bytes=HEADER_SIZE
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=HEADER_SIZE,
            topics=[FetchTopic(topic=tp.topic, partitions=[wanted])],
        )

        def records(answer: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
            for topic in answer.responses:
                for each in topic.partitions:
                    yield tp, each.error_code, each.records

        found = self._router.ask_leader(tp, request, records, wait_for_node=False)
        if found and len(found) >= HEADER_SIZE:
            return read_header(found).base_offset
        return None

    def _epoch_end(self, tp: TopicPartition, epoch: int) -> int | None:
        """Where a leader epoch ended, as its present leader remembers it."""
        wanted = OffsetForLeaderPartition(partition=tp.partition, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[OffsetForLeaderTopic(topic=tp.topic, partitions=[wanted])],
        )

        def ends(answer: Any) -> Iterable[tuple[TopicPartition, int, int]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    yield tp, each.error_code, each.end_offset

        try:
            end = self._router.ask_leader(tp, request, ends, wait_for_node=False)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return None
            raise
        return end if end >= 0 else None

    def _asked(self, call: Callable[[], T]) -> T:
        """Ask; once more on new connections when the old ones turn out to be of no use."""
        for last in (False, True):
            try:
                return call()
            except KafkaError as error:
                if not is_retriable(error.code):
                    raise
                self.close()
                if last or error.code is ErrorCode.REQUEST_TIMED_OUT:
                    raise Unreachable(error.code, str(error.message or error)) from None
        raise AssertionError("the last attempt returns or raises")


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)
