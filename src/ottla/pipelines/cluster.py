"""The cluster as a query sees it: its topics, where their logs begin and end, what became of them.

    with Cluster("127.0.0.1:9092") as cluster:
        topics = cluster.topics(["orders"])
        ends = cluster.ends(partitions_of(topics.values()))

The driver asks it before every micro-batch and a task when it cannot go on reading. It stands on
`ottla.client.groups`, which speaks for itself and loads no librdkafka: the processes in which
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
from typing import Final, Self, TypeVar

from ottla.client.descriptions import OffsetInfo
from ottla.client.groups import EARLIEST, LATEST, MAX_TIMESTAMP, CommittedOffset, Groups
from ottla.client.router import check, error_code, supports
from ottla.client.wire import Wire
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.source.loss import Observation
from ottla.pipelines.source.ranges import Range
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.records.batch import HEADER_SIZE, read_header

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
_TOPIC_RESOURCE: Final = 2


class Unreachable(KafkaError):
    """The cluster cannot be asked at the moment; asking again later is the cure."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.message or self.code.text


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition (-1: nobody), and in which epoch (-1: the broker does not say)."""

    node: int
    epoch: int


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


class Cluster:
    """Asks the brokers; for one thread at a time. Making one connects to nobody.

    bootstrap  brokers to start from, "host:port,…"
    timeout    seconds that one question may take
    stable     logs end where the first open transaction begins, as read_committed wants it
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla-spark",
        stable: bool = True,
    ) -> None:
        self._groups = Groups(bootstrap, timeout=timeout, client_id=client_id)
        self._timeout = timeout
        self._stable = stable
        self._leaders: dict[TopicPartition, int] = {}

    @property
    def bootstrap(self) -> str:
        return self._groups.router.bootstrap

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
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        found: dict[TopicPartition, OffsetInfo] = {}
        missing = dict(wanted)
        while True:
            if any(tp not in self._leaders for tp in missing):
                there = partitions_of(self.topics({tp.topic for tp in missing}).values())
                missing = {tp: which for tp, which in missing.items() if tp in set(there)}
            found |= self._asked(lambda: self._listed(missing))  # noqa: B023 - called before `missing` changes
            missing = {tp: which for tp, which in missing.items() if tp not in found}
            if not missing:
                return found
            if time.monotonic() + pause > deadline:
                raise Unreachable(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"nobody leads {_names(missing)} at the moment",
                )
            for tp in missing:
                self._leaders.pop(tp, None)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def newest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The greatest timestamp in each log, of those whose brokers can tell."""
        wanted = dict.fromkeys(partitions, MAX_TIMESTAMP)
        return {
            tp: info.timestamp
            for tp, info in self._asked(lambda: self._listed(wanted)).items()
            if info.timestamp >= 0
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
        """Close all connections; the next question makes new ones."""
        self._groups.close()
        self._leaders.clear()

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
            for each in self._groups.router.metadata(names).topics:
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

        found = self._asked(lambda: self._groups.router.retried(ask))
        for topic in found.values():
            for number, leader in topic.leaders.items():
                if leader.node >= 0:
                    self._leaders[TopicPartition(topic.name, number)] = leader.node
        return found

    def _listed(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        return self._groups.log_offsets(wanted, stable=self._stable, leaders=self._leaders)

    def _settings(self, topic: str) -> dict[str, str | None]:
        names = ["retention.ms", "retention.bytes", "cleanup.policy"]
        wanted = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=names
        )
        [found] = self._groups.router.any().ask(DescribeConfigsRequest(resources=[wanted])).results
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
        for topic in self._leader(tp).ask(request).responses:
            for each in topic.partitions:
                check(each.error_code, str(tp))
                if each.records and len(each.records) >= HEADER_SIZE:
                    return read_header(each.records).base_offset
        return None

    def _epoch_end(self, tp: TopicPartition, epoch: int) -> int | None:
        """Where a leader epoch ended, as its present leader remembers it."""
        wanted = OffsetForLeaderPartition(partition=tp.partition, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[OffsetForLeaderTopic(topic=tp.topic, partitions=[wanted])],
        )
        connection = self._leader(tp)
        if not supports(connection, ApiKey.OFFSET_FOR_LEADER_EPOCH):
            return None
        for topic in connection.ask(request).topics:
            for each in topic.partitions:
                check(each.error_code, str(tp))
                if each.end_offset >= 0:
                    return int(each.end_offset)
        return None

    def _leader(self, tp: TopicPartition) -> Wire:
        if tp not in self._leaders:
            self.topics([tp.topic])
        if tp not in self._leaders:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nobody leads {tp} at the moment")
        return self._groups.router.node(self._leaders[tp])

    def _asked(self, call: Callable[[], T]) -> T:
        """Ask; once more on new connections when the old ones turn out to be of no use."""
        for last in (False, True):
            try:
                return call()
            except KafkaError as error:
                if not error.code.retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                    raise
                self.close()
                if last or error.code is ErrorCode.REQUEST_TIMED_OUT:
                    raise Unreachable(error.code, str(error.message or error)) from None
        raise AssertionError("the last attempt returns or raises")


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in sorted(partitions))


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)
