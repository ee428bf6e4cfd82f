"""What a task has to know of the cluster: its topics' partitions, and who leads them.

Shared by the threads of a producer, one at a time. The first questions of a task are repeated for
`max.block.ms`, as with Java's producer, and in a stream for as long as no broker answers; a look
for moved leaders is made once and tells what went wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.client.router import Router, check, error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.pipelines.outage import Outage
    from ottla.pipelines.sink.options import WriteOptions

T = TypeVar("T")
Place = tuple[str, int]
"""A topic and one of its partitions."""

NOBODY: Final = -1

UNREACHABLE: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
# A cluster that starts, elects, or makes the topic right now.
_SOON: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
    }
)


def waited_for(code: ErrorCode) -> bool:
    """Whether a stream waits for this to pass, however long.

    A topic that is not there is no such thing, nor a batch that arrives damaged each time.
    """
    passes = code.retriable or code in _SOON
    return passes and code not in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


class Leaders:
    """Asks the brokers, and remembers what they said last."""

    def __init__(self, settings: WriteOptions, outage: Outage) -> None:
        self._settings = settings
        self._outage = outage
        self._lock = threading.Lock()
        self._router = Router(
            settings.bootstrap, timeout=settings.request_timeout, client_id=settings.client_id
        )
        self._leaders: dict[Place, int] = {}
        self._addresses: dict[int, tuple[str, int]] = {}

    def of(self, place: Place) -> int:
        """The leader's number, or NOBODY."""
        return self._leaders.get(place, NOBODY)

    def address(self, node: int) -> tuple[str, int]:
        return self._addresses[node]

    def producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch."""

        def ask() -> InitProducerIdResponse:
            answer: InitProducerIdResponse = self._router.any().ask(
                InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
            )
            check(answer.error_code)
            return answer

        answer = self._patiently(ask)
        return answer.producer_id, answer.producer_epoch

    def cluster_id(self) -> str | None:
        """The id of the cluster; None from a broker that does not say."""
        return self._patiently(lambda: self._router.metadata(())).cluster_id

    def partitions(self, topic: str) -> tuple[int, list[int]]:
        """How many partitions a topic has, and those with a leader.

        As with Java's producer the look makes the topic where the brokers are set up to. KafkaError
        when there still is none after `max.block.ms`.
        """

        def look() -> tuple[int, list[int]]:
            [found] = self._look((topic,))
            check(found.error_code)
            led = [each.partition_index for each in found.partitions if each.leader_id >= 0]
            return len(found.partitions), sorted(led)

        return self._patiently(look)

    def look_again(self, topics: set[str]) -> dict[str, KafkaError]:
        """Ask about topics once; returns what went wrong, by topic."""
        with self._lock:
            try:
                found = self._look(topics)
            except KafkaError as error:
                self._router.close()
                return dict.fromkeys(topics, error)
        return {
            topic.name or "": KafkaError(error_code(topic.error_code))
            for topic in found
            if topic.error_code
        }

    def close(self) -> None:
        # Without the lock: whoever holds it may wait for an answer, and is woken by this.
        self._router.close()

    def _look(self, topics: Iterable[str]) -> list[MetadataResponseTopic]:
        answer = self._router.metadata(topics, create=True)
        for broker in answer.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            for partition in topic.partitions:
                self._leaders[topic.name or "", partition.partition_index] = partition.leader_id
        return answer.topics

    def _patiently(self, call: Callable[[], T]) -> T:
        """Repeat what passes for `max.block.ms`."""
        deadline = time.monotonic() + self._settings.max_block
        pause = self._settings.backoff
        while True:
            with self._lock:
                try:
                    found = call()
                except KafkaError as error:
                    now = time.monotonic()
                    if self._settings.endless_block and waited_for(error.code):
                        deadline = now + self._settings.max_block
                    elif error.code not in _SOON or now + pause > deadline:
                        raise
                    self._outage.note(str(error))
                    self._router.close()
                else:
                    self._outage.over()
                    return found
            time.sleep(pause)
            pause = min(2 * pause, self._settings.longest_backoff)
