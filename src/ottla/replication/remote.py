"""A leader on another broker, over the wire: fetch sessions and offsets.

The session is the follower's side of KIP-227: the leader remembers what it was asked, and a request
names only what has changed. Whenever the leader does not know the session, or has no room for one,
the next request is a full one again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ottla.client.peer import Peer
from ottla.cluster.registry import Registry
from ottla.config.broker import BrokerConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Endpoint
from ottla.model.ids import TopicId, TopicPartition
from ottla.net.channel import Channel, ChannelClosed
from ottla.protocol.messages.brokers import DescribeBrokersRequest
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.replication.follower import LATEST, Fetched, Unreachable, Wanted
from ottla.replication.partition import Partition

BROKER_CLIENT_ID = "broker-"
"""How the client id of a broker begins, as among Kafka's brokers."""
CONSUMER = -1
ASK_SECONDS = 1.0
NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = 2**31 - 1
NOTHING = memoryview(b"")
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Peers:
    """The other brokers, where the image says that they are."""

    def __init__(self, registry: Registry, node_id: int, listener: str) -> None:
        self._registry = registry
        self._client_id = f"{BROKER_CLIENT_ID}{node_id}"
        self._listener = listener

    def endpoint(self, broker_id: int) -> Endpoint | None:
        """Where a broker listens for brokers; None if it is not there."""
        broker = self._registry.image.registrations.get(broker_id)
        if broker is None:
            return None
        endpoint = broker.endpoints.get(self._listener)
        if endpoint is None:
            endpoint = next(iter(broker.endpoints.values()), None)
        return endpoint

    def at(self, endpoint: Endpoint) -> Peer:
        """A new connection to who listens there."""
        return Peer(endpoint.host, endpoint.port, client_id=self._client_id)

    def peer(self, broker_id: int) -> Peer | None:
        """A new connection to a broker, on the listener for brokers; None if it is not there."""
        endpoint = self.endpoint(broker_id)
        return None if endpoint is None else self.at(endpoint)

    async def answers(self, broker_id: int) -> bool:
        """Whether a registered broker is there: it says so itself, at its address.

        Who takes connections there and is silent stands still for a moment, and is there, too.
        """
        endpoint = self.endpoint(broker_id)
        if endpoint is None:
            return False
        peer = self.at(endpoint)
        try:
            (await Channel.open(endpoint.host, endpoint.port, timeout=ASK_SECONDS)).abort()
            async with asyncio.timeout(ASK_SECONDS):
                response = await peer.ask(DescribeBrokersRequest(), version=0)
        except TimeoutError:
            return True
        except (ChannelClosed, KafkaError):
            return False
        finally:
            peer.close()
        return bool(response.node_id == broker_id)


class HighWatermarks:
    """Asks leaders how far their partitions are safe."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def ask(
        self, leader: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The high watermarks of partitions, as far as their leader tells them soon."""
        peer = self._peers.peer(leader)
        if peer is None:
            return {}
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for name, index in partitions:
            part = ListOffsetsPartition(partition_index=index, timestamp=LATEST)
            by_topic.setdefault(name, []).append(part)
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=[
                ListOffsetsTopic(name=name, partitions=parts) for name, parts in by_topic.items()
            ],
        )
        try:
            async with asyncio.timeout(ASK_SECONDS):
                response: ListOffsetsResponse = await peer.ask(request)
        except (TimeoutError, ChannelClosed, KafkaError):
            return {}
        finally:
            peer.close()
        return {
            TopicPartition(topic.name, answer.partition_index): answer.offset
            for topic in response.topics
            for answer in topic.partitions
            if not answer.error_code
        }


class RemoteLeader:
    """One leader, for one follower's fetcher."""

    def __init__(
        self,
        leader: int,
        peers: Peers,
        node_id: int,
        broker_epoch: Callable[[], int],
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._leader = leader
        self._peers = peers
        self._peer: Peer | None = None
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._config = config
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_EPOCH
        self._partitions: dict[tuple[bytes, int], Partition] = {}

    @property
    def remembers(self) -> bool:
        return self._session_id != NO_SESSION

    async def fetch(
        self, wanted: Collection[Wanted], forgotten: Collection[Partition]
    ) -> list[Fetched]:
        config = self._config()
        for want in wanted:
            self._partitions[want.partition.topic_id, want.partition.id.partition] = want.partition
        for dropped in forgotten:
            self._partitions.pop((dropped.topic_id, dropped.id.partition), None)
        request = FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._node_id, replica_epoch=self._broker_epoch()
            ),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=_topics(wanted, config.replica_fetch_max_bytes),
            forgotten_topics_data=_forgotten(forgotten) if self._session_id else [],
        )
        response: FetchResponse = await self._ask(request, config)
        code = ErrorCode.of(response.error_code)
        if code in SESSION_ERRORS:
            raise Unreachable(code.name)
        if code is not ErrorCode.NONE:
            raise Unreachable(f"the fetch was refused with {code.name}")
        self._session_id = response.session_id
        if self._session_id == NO_SESSION:
            self._session_epoch = FIRST_EPOCH
        else:
            self._session_epoch = self._session_epoch % LAST_EPOCH + 1
        return [
            _fetched(partition, part)
            for topic in response.responses
            for part in topic.partitions
            if (partition := self._partitions.get((topic.topic_id, part.partition_index)))
        ]

    async def offset(self, partition: Partition, which: int) -> int:
        part = ListOffsetsPartition(
            partition_index=partition.id.partition,
            current_leader_epoch=partition.leader_epoch,
            timestamp=which,
        )
        request = ListOffsetsRequest(
            replica_id=self._node_id,
            topics=[ListOffsetsTopic(name=partition.id.topic, partitions=[part])],
        )
        response: ListOffsetsResponse = await self._ask(request, self._config())
        answer = offset_in(response, partition.id)
        if answer is None:
            raise Unreachable(f"its answer says nothing of {partition.id}")
        if answer.error_code:
            raise KafkaError(ErrorCode.of(answer.error_code))
        return answer.offset

    def reset(self) -> None:
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_EPOCH
        self._partitions.clear()

    def close(self) -> None:
        self.reset()
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def _ask(self, request: Any, config: BrokerConfig) -> Any:
        endpoint = self._peers.endpoint(self._leader)
        if endpoint is None:
            raise Unreachable("it is not registered")
        if self._peer is None:
            self._peer = self._peers.at(endpoint)
        elif self._peer.port != endpoint.port or self._peer.host != endpoint.host:
            self.close()
            raise Unreachable(f"it has moved to {endpoint.host}:{endpoint.port}")
        waiting = config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms
        try:
            return await self._peer.ask(request, timeout=waiting / 1000)
        except ChannelClosed as error:
            raise Unreachable(str(error)) from None
        except KafkaError as error:
            self._peer.close()
            raise Unreachable(error.message or error.code.name) from None


def offset_in(
    response: ListOffsetsResponse, partition: TopicPartition
) -> ListOffsetsPartitionResponse | None:
    """What a response says of a partition; None when it does not, whoever has sent it."""
    for topic in response.topics:
        for part in topic.partitions:
            if (topic.name, part.partition_index) == partition:
                return part
    return None


def _topics(wanted: Iterable[Wanted], max_bytes: int) -> list[FetchTopic]:
    by_topic: dict[TopicId, list[FetchPartition]] = {}
    for want in wanted:
        by_topic.setdefault(want.partition.topic_id, []).append(
            FetchPartition(
                partition=want.partition.id.partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                last_fetched_epoch=want.last_epoch,
                log_start_offset=want.log_start,
                partition_max_bytes=max_bytes,
            )
        )
    return [
        FetchTopic(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]


def _forgotten(partitions: Iterable[Partition]) -> list[ForgottenTopic]:
    by_topic: dict[TopicId, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic_id, []).append(partition.id.partition)
    return [
        ForgottenTopic(topic_id=topic_id, partitions=indexes)
        for topic_id, indexes in by_topic.items()
    ]


def _fetched(partition: Partition, part: PartitionData) -> Fetched:
    records = NOTHING if part.records is None else part.records
    assert isinstance(records, memoryview)  # which decoding makes of them
    answer = Fetched(
        partition,
        ErrorCode.of(part.error_code),
        records,
        part.high_watermark,
        part.log_start_offset,
    )
    if part.diverging_epoch is not None:
        answer.diverging_epoch = part.diverging_epoch.epoch
        answer.diverging_end = part.diverging_epoch.end_offset
    return answer
