"""The controller on another broker: requests are handed on to it, so that clients may ask anyone.

A request is sent on as it is, in the version in which it came, and the answer is passed back. While
there is no controller, or the one that was asked is it no longer, the next one is waited for, as
long as the client's time allows. When the connection breaks meanwhile it is sent again, as Kafka's
brokers do: whoever creates a topic may then be told that it is there already.

A request that comes from a broker is not handed on once more: two brokers that each take the other
for the controller must not send it to and fro.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ottla.client.peer import Peer
from ottla.cluster.registry import Registry
from ottla.cluster.store import StoreError
from ottla.controller.election import LogEnd
from ottla.controller.service import Controller
from ottla.controller.topics import NewTopic, TopicCreation
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.net.channel import ChannelClosed
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.replication.remote import BROKER_CLIENT_ID, Peers, offset_in

PAUSE = 0.05
# Where the request names no time: less than clients wait for an answer.
TIMEOUT_MS = 15_000
ASK_SECONDS = 5.0
ANY_REPLICA = -2
LATEST = -1


class ControllerLink:
    """One broker's way to the controller."""

    def __init__(self, controller: Controller, registry: Registry, peers: Peers) -> None:
        self._controller = controller
        self._registry = registry
        self._peers = peers
        self._peer: Peer | None = None
        self._controller_id = -1

    def goes_on(self, client_id: str | None) -> bool:
        """Whether a request is to be handed on: it is for the controller, which is elsewhere."""
        return not self._controller.active and not (client_id or "").startswith(BROKER_CLIENT_ID)

    async def hand_on(
        self, request: Any, version: int | None, here: Callable[[], Awaitable[Any]]
    ) -> Any:
        """The controller's response; that of `here` if this broker becomes the controller.

        NOT_CONTROLLER when none is found in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + getattr(request, "timeout_ms", TIMEOUT_MS) / 1000
        while True:
            if self._controller.active:
                return await here()
            peer = self._find()
            reason = "there is no controller"
            if peer is not None:
                try:
                    left = max(deadline - loop.time(), PAUSE)
                    response = await peer.ask(request, timeout=left, version=version)
                except ChannelClosed as error:
                    reason = str(error)
                else:
                    if ErrorCode.NOT_CONTROLLER not in _codes(response):
                        # What was changed is in the image from here on. Where the store has gone
                        # meanwhile the answer counts all the same, and the image follows.
                        with suppress(StoreError):
                            await self._registry.load()
                        return response
                    reason = f"broker {self._controller_id} is not the controller any more"
            if loop.time() + PAUSE >= deadline:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, reason)
            await asyncio.sleep(PAUSE)

    async def create_topics(
        self, topics: Sequence[NewTopic], timeout_ms: int | None = None
    ) -> list[TopicCreation]:
        """Topics that a broker needs by itself; they are in the image when this returns."""
        if self._controller.active:
            return await self._controller.create_topics(topics)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                        for index, brokers in topic.assignments
                    ],
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in topic.config.items()
                    ],
                )
                for topic in topics
            ],
            timeout_ms=TIMEOUT_MS if timeout_ms is None else timeout_ms,
        )
        response = await self.hand_on(request, None, lambda: self._controller.create_topics(topics))
        if not isinstance(response, CreateTopicsResponse):
            return list(response)
        return [
            TopicCreation(
                answer.name,
                error=KafkaError(ErrorCode.of(answer.error_code), answer.error_message)
                if answer.error_code
                else None,
            )
            for answer in response.topics
        ]

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _find(self) -> Peer | None:
        controller_id = self._registry.image.controller_id
        peer = self._peers.peer(controller_id)
        known = self._peer
        if peer is None:
            return None
        if known is None or (known.host, known.port) != (peer.host, peer.port):
            self.close()
            self._peer = peer
        self._controller_id = controller_id
        return self._peer


class LogEnds:
    """Asks replicas what they have of a partition, whoever leads it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def ask(
        self, partition: TopicPartition, replicas: Collection[int]
    ) -> dict[int, LogEnd | None]:
        """What each replica has, None where it cannot tell; those that do not answer are
        missing."""
        answers = await asyncio.gather(*(self._ask(partition, each) for each in replicas))
        return {
            replica: _end_in(answer, partition)
            for replica, answer in zip(replicas, answers, strict=True)
            if answer is not None
        }

    async def _ask(self, partition: TopicPartition, replica: int) -> ListOffsetsResponse | None:
        peer = self._peers.peer(replica)
        if peer is None:
            return None
        part = ListOffsetsPartition(partition_index=partition.partition, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=ANY_REPLICA,
            topics=[ListOffsetsTopic(name=partition.topic, partitions=[part])],
        )
        try:
            async with asyncio.timeout(ASK_SECONDS):  # to connect, too
                response: ListOffsetsResponse = await peer.ask(request)
                return response
        except (ChannelClosed, KafkaError, TimeoutError):
            return None
        finally:
            peer.close()


def _end_in(response: ListOffsetsResponse, partition: TopicPartition) -> LogEnd | None:
    answer = offset_in(response, partition)
    if answer is None or answer.error_code:
        return None
    return LogEnd(answer.leader_epoch, answer.offset)


def _codes(response: Any) -> Iterator[int]:
    """The error codes of a response: its own, and those of what it is about."""
    yield getattr(response, "error_code", 0)
    for field in ("topics", "responses", "results", "replica_election_results"):
        for part in getattr(response, field, ()):
            yield getattr(part, "error_code", 0)
            for inner in getattr(part, "partition_result", ()):
                yield inner.error_code
