"""Where the logs of topics begin and end, or are at a moment: ListOffsets, asked of their leaders.

with Router("127.0.0.1:9092") as router:
    topics = TopicOffsets(router)
    ends = topics.ends(topics.partitions(["orders"])["orders"])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.descriptions import OffsetInfo
from ottla.client.router import Router, check, error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages import offsets as messages

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3


class TopicOffsets:
    """Asks about topics, by their partitions."""

    def __init__(self, router: Router, *, timeout: float = 30.0) -> None:
        self.router = router
        self._timeout = timeout

    def partitions(self, topics: Iterable[str]) -> dict[str, tuple[TopicPartition, ...]]:
        """All partitions of topics; UNKNOWN_TOPIC_OR_PARTITION when one is not there."""
        wanted = list(topics)
        if not wanted:
            return {}
        found: dict[str, tuple[TopicPartition, ...]] = {}
        for topic in self.router.metadata(wanted).topics:
            name = topic.name or ""
            if error_code(topic.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
                )
            check(topic.error_code)
            found[name] = tuple(
                sorted(TopicPartition(name, each.partition_index) for each in topic.partitions)
            )
        return {name: found[name] for name in wanted}

    def find(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        stable: bool = False,
        wait_for_leader: bool = False,
        wait_for_node: bool = True,
    ) -> dict[TopicPartition, OffsetInfo | KafkaError]:
        """The offset for a timestamp (or EARLIEST, LATEST, MAX_TIMESTAMP) in each partition, or why
        there is none. No record that young: offset -1.

        stable  the end is where the first open transaction begins, as for read_committed; the
                others as in `Router.ask_leaders`
        """

        def request(partitions: Sequence[TopicPartition]) -> messages.ListOffsetsRequest:
            topics: dict[str, list[messages.ListOffsetsPartition]] = defaultdict(list)
            for tp in partitions:
                topics[tp.topic].append(
                    messages.ListOffsetsPartition(
                        partition_index=tp.partition, timestamp=wanted[tp]
                    )
                )
            return messages.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(stable),
                topics=[
                    messages.ListOffsetsTopic(name=name, partitions=parts)
                    for name, parts in topics.items()
                ],
                timeout_ms=round(self._timeout * 1000),
            )

        return self.router.ask_leaders(
            wanted,
            request,
            _answers,
            wait_for_leader=wait_for_leader,
            wait_for_node=wait_for_node,
        )

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        """The same, without the partitions that do not exist or that nobody leads."""
        return {
            tp: found for tp, found in self.find(wanted).items() if isinstance(found, OffsetInfo)
        }

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition that is there."""
        found = self.offsets(dict.fromkeys(partitions, LATEST))
        return {tp: info.offset for tp, info in found.items()}

    def why_missing(self, partitions: Iterable[TopicPartition]) -> KafkaError | None:
        """Whether partitions that `offsets` left out are offline or do not exist, and why."""
        from ottla.client.offline import why_missing

        return why_missing(self.router, partitions)


def _answers(answer: Any) -> Iterable[tuple[TopicPartition, int, OffsetInfo]]:
    for topic in answer.topics:
        for each in topic.partitions:
            epoch = each.leader_epoch
            info = OffsetInfo(each.offset, each.timestamp, epoch if epoch >= 0 else None)
            yield TopicPartition(topic.name, each.partition_index), each.error_code, info
