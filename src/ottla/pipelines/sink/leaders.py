"""What a task has to know of the cluster: its topics' partitions, and who leads them.

A producer's view of its `Router`, which its threads share. The first questions of a task are
repeated for `max.block.ms`, as with Java's producer, and in a stream for as long as no broker
answers; a look for moved leaders is made once and tells what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.client.retry import Backoff, passes, retry
from ottla.client.router import Router, check, error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.pipelines.outage import Outage
    from ottla.pipelines.sink.options import WriteOptions

T = TypeVar("T")
NOBODY: Final = -1


class Leaders:
    """Asks the brokers; what they answer is remembered by the router."""

    def __init__(self, settings: WriteOptions, outage: Outage) -> None:
        self._settings = settings
        self._outage = outage
        self.router = Router(
            settings.bootstrap, timeout=settings.request_timeout, client_id=settings.client_id
        )

    def of(self, tp: TopicPartition) -> int:
        """The leader's number, or NOBODY."""
        leader = self.router.topology.leader(tp)
        return NOBODY if leader is None else leader.node

    def producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch."""

        def ask() -> InitProducerIdResponse:
            answer: InitProducerIdResponse = self.router.ask_any(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
            )
            check(answer.error_code)
            return answer

        answer = self._patiently(ask)
        return answer.producer_id, answer.producer_epoch

    def cluster_id(self) -> str | None:
        """The id of the cluster; None from a broker that does not say."""
        return self._patiently(lambda: self.router.metadata(())).cluster_id

    def partitions(self, topic: str) -> tuple[int, list[int]]:
        """How many partitions a topic has, and those with a leader.

        As with Java's producer the look makes the topic where the brokers are set up to. KafkaError
        when there still is none after `max.block.ms`.
        """

        def look() -> tuple[int, list[int]]:
            [found] = self.router.metadata((topic,), create=True).topics
            check(found.error_code)
            led = [each.partition_index for each in found.partitions if each.leader_id >= 0]
            return len(found.partitions), sorted(led)

        return self._patiently(look)

    def learn(self, answer: ProduceResponse) -> set[TopicPartition]:
        """Take in the leaders that an answer names; returns the partitions that have a new one."""
        return self.router.learn_leaders(
            (
                (TopicPartition(topic.name, part.index), part.current_leader)
                for topic in answer.responses
                for part in topic.partition_responses
            ),
            answer.node_endpoints,
        )

    def look_again(self, partitions: Collection[TopicPartition]) -> dict[str, KafkaError]:
        """Ask once who leads these now; returns what went wrong, by topic."""
        topics = {tp.topic for tp in partitions}
        self.router.forget(partitions)
        try:
            found = self.router.metadata(sorted(topics), create=True).topics
        except KafkaError as error:
            return dict.fromkeys(topics, error)
        return {
            topic.name or "": KafkaError(error_code(topic.error_code))
            for topic in found
            if topic.error_code
        }

    def close(self) -> None:
        self.router.close()

    def _patiently(self, call: Callable[[], T]) -> T:
        """Repeat what passes for `max.block.ms`; a topic may be made right now."""
        settings = self._settings
        found = retry(
            call,
            timeout=settings.max_block,
            passes=lambda error: (
                passes(error.code) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ),
            endless=lambda error: settings.endless_block and passes(error.code),
            backoff=Backoff(settings.backoff, settings.longest_backoff),
            on_failure=self._note,
        )
        self._outage.over()
        return found

    def _note(self, error: KafkaError) -> None:
        self._outage.note(str(error))
