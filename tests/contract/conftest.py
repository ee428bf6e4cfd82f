"""`scripted`: a cluster of brokers that do what a test says, on real sockets.

Three brokers and a topic `orders` of two partitions. What concerns a partition is answered by its
leader alone; the others refuse with NOT_LEADER_OR_FOLLOWER, as Kafka's do. A test moves leaders,
stops brokers, makes them silent, or lets one of them lag behind the news.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import parse_request_header, response_header
from ottla.protocol.messages import (
    api_versions,
    configs,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    transactions,
)
from ottla.protocol.messages import group_offsets as committed
from ottla.protocol.messages import topics as topic_messages
from ottla.records.builder import build_batch

END = 10
"""Where the log of every partition ends."""


class ScriptedBroker:
    """One broker of the cluster, at an address of its own each time it starts."""

    def __init__(self, cluster: ScriptedCluster, number: int) -> None:
        self.number = number
        self.silent = False
        self._cluster = cluster
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = 0
        self.up = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.up = True
        self._sockets.append(listener)
        self._run(self._accept, listener)

    def stop(self) -> None:
        """From now on connections are refused, and those that there are end."""
        self.up = False
        for each in self._sockets:
            with suppress(OSError):  # the client may have been first
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()
        self._sockets, self._threads = [], []

    def _run(self, call: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=call, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._sockets.append(connection)
                self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, struct.error):
            while True:
                (size,) = struct.unpack(">i", _exactly(connection, 4))
                frame = memoryview(_exactly(connection, size))
                header = parse_request_header(frame)
                key, version = ApiKey(header.api_key), header.api_version
                request, _ = codec(APIS[key].request, version).decode(frame, header.body_position)
                self._cluster.asked[self.number, key.name] += 1
                if self.silent:
                    continue
                answer = self._cluster.answer(self.number, key, request)
                if answer is None:  # hang up instead
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                parts: list[Any] = [response_header(key, version, header.correlation_id)]
                codec(type(answer), version).encode(answer, parts)
                body = b"".join(parts)
                connection.sendall(struct.pack(">i", len(body)) + body)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionResetError
        received += part
    return received


class ScriptedCluster:
    """What the brokers know, and what they were asked."""

    TOPIC = "orders"
    TOPIC_ID = bytes(range(16))

    def __init__(self) -> None:
        self.brokers = {number: ScriptedBroker(self, number) for number in (1, 2, 3)}
        self.leaders: dict[int, tuple[int, int]] = {0: (1, 0), 1: (2, 0)}
        """By partition: who leads it (-1: nobody), and in which epoch."""
        self.lagging: dict[int, dict[int, tuple[int, int]]] = {}
        """By broker: what it still believes of leaders."""
        self.listed: set[int] = {1, 2, 3}
        """The brokers that are known to be up."""
        self.refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.hints = False
        """Whether who refuses a Produce or a Fetch names the leader (KIP-951), as it knows it."""
        self.coordinator = self.controller = 1
        self.written: Counter[int] = Counter()
        """Records by partition."""
        self.asked: Counter[tuple[int, str]] = Counter()
        self.hooks: dict[str, Callable[[int], bool]] = {}
        """By API: called with the broker's number before it answers; it hangs up when True."""

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def move(self, partition: int, node: int) -> None:
        """Another leader, in a new epoch."""
        _, epoch = self.leaders[partition]
        self.leaders[partition] = node, epoch + 1

    # -- what they answer

    def answer(self, number: int, key: ApiKey, request: Any) -> Any:
        hook = self.hooks.get(key.name)
        if hook is not None and hook(number):
            return None
        return getattr(self, f"_{key.name.lower()}")(number, request)

    def _refused(self, number: int, topic: str, partition: int) -> int:
        if topic != self.TOPIC or partition not in self.leaders:
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return 0 if self.leaders[partition][0] == number else int(self.refusal)

    def _hint(self, messages: Any, number: int, partition: int) -> Any:
        if not self.hints:
            return None
        node, epoch = self.lagging.get(number, self.leaders)[partition]
        return messages.LeaderIdAndEpoch(leader_id=node, leader_epoch=epoch)

    def _places(self, messages: Any) -> list[Any]:
        return [
            messages.NodeEndpoint(node_id=each, host="127.0.0.1", port=self.brokers[each].port)
            for each in (sorted(self.listed) if self.hints else ())
        ]

    def _api_versions(self, _number: int, _request: Any) -> Any:
        return api_versions.ApiVersionsResponse(
            api_keys=[
                api_versions.ApiVersion(
                    api_key=int(key), min_version=spec.min_version, max_version=spec.max_version
                )
                for key, spec in APIS.items()
                if not key.is_own
            ]
        )

    def _metadata(self, number: int, request: Any) -> Any:
        leaders = self.lagging.get(number, self.leaders)
        names = [self.TOPIC] if request.topics is None else [each.name for each in request.topics]
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(
                    node_id=each, host="127.0.0.1", port=self.brokers[each].port
                )
                for each in sorted(self.listed)
            ],
            cluster_id="scripted",
            controller_id=self.controller,
            topics=[
                metadata.MetadataResponseTopic(
                    name=name,
                    topic_id=self.TOPIC_ID,
                    error_code=0 if name == self.TOPIC else 3,
                    partitions=[
                        metadata.MetadataResponsePartition(
                            partition_index=partition,
                            leader_id=node,
                            leader_epoch=epoch,
                            replica_nodes=[1, 2, 3],
                            isr_nodes=[1, 2, 3],
                        )
                        for partition, (node, epoch) in leaders.items()
                        if name == self.TOPIC
                    ],
                )
                for name in names
            ],
        )

    def _list_offsets(self, number: int, request: Any) -> Any:
        return offsets.ListOffsetsResponse(
            topics=[
                offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        offsets.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=self._refused(number, topic.name, each.partition_index),
                            offset=0 if each.timestamp == -2 else END,
                            leader_epoch=0,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _delete_records(self, number: int, request: Any) -> Any:
        return offsets.DeleteRecordsResponse(
            topics=[
                offsets.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        offsets.DeleteRecordsPartitionResult(
                            partition_index=each.partition_index,
                            low_watermark=each.offset,
                            error_code=self._refused(number, topic.name, each.partition_index),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _fetch(self, number: int, request: Any) -> Any:
        responses = []
        for topic in request.topics:
            parts = []
            for each in topic.partitions:
                code = self._refused(number, topic.topic or self.TOPIC, each.partition)
                first = each.fetch_offset
                records = build_batch(
                    [(1000 * n, None, b"%d" % n, ()) for n in range(first, END)], base_offset=first
                )
                parts.append(
                    fetch.PartitionData(
                        partition_index=each.partition,
                        error_code=code,
                        high_watermark=END,
                        last_stable_offset=END,
                        current_leader=self._hint(fetch, number, each.partition) if code else None,
                        records=None if code or first >= END else records,
                    )
                )
            responses.append(
                fetch.FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=parts
                )
            )
        return fetch.FetchResponse(responses=responses, node_endpoints=self._places(fetch))

    def _produce(self, number: int, request: Any) -> Any:
        responses = []
        for topic in request.topic_data:
            parts = []
            for each in topic.partition_data:
                code = self._refused(number, topic.name, each.index)
                if not code:
                    self.written[each.index] += 1
                parts.append(
                    produce.PartitionProduceResponse(
                        index=each.index,
                        error_code=code,
                        base_offset=0,
                        current_leader=self._hint(produce, number, each.index) if code else None,
                    )
                )
            responses.append(
                produce.TopicProduceResponse(name=topic.name, partition_responses=parts)
            )
        return produce.ProduceResponse(responses=responses, node_endpoints=self._places(produce))

    def _init_producer_id(self, _number: int, _request: Any) -> Any:
        return transactions.InitProducerIdResponse(producer_id=7, producer_epoch=0)

    def _find_coordinator(self, _number: int, request: Any) -> Any:
        broker = self.brokers[self.coordinator]
        return groups.FindCoordinatorResponse(
            coordinators=[
                groups.Coordinator(
                    key=key, node_id=broker.number, host="127.0.0.1", port=broker.port
                )
                for key in request.coordinator_keys
            ]
        )

    def _offset_fetch(self, number: int, request: Any) -> Any:
        code = 0 if number == self.coordinator else int(ErrorCode.NOT_COORDINATOR)
        position = committed.OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=4, metadata=""
        )
        topic = committed.OffsetFetchResponseTopics(name=self.TOPIC, partitions=[position])
        return committed.OffsetFetchResponse(
            groups=[
                committed.OffsetFetchResponseGroup(
                    group_id=each.group_id, error_code=code, topics=[] if code else [topic]
                )
                for each in request.groups
            ]
        )

    def _list_groups(self, number: int, _request: Any) -> Any:
        group = groups.ListedGroup(
            group_id=f"group-{number}",
            protocol_type="consumer",
            group_state="Empty",
            group_type="classic",
        )
        return groups.ListGroupsResponse(groups=[group])

    def _delete_groups(self, number: int, request: Any) -> Any:
        code = 0 if number == self.coordinator else int(ErrorCode.NOT_COORDINATOR)
        return groups.DeleteGroupsResponse(
            results=[
                groups.DeletableGroupResult(group_id=name, error_code=code)
                for name in request.groups_names
            ]
        )

    def _create_topics(self, number: int, request: Any) -> Any:
        code = 0 if number == self.controller else int(ErrorCode.NOT_CONTROLLER)
        return topic_messages.CreateTopicsResponse(
            topics=[
                topic_messages.CreatableTopicResult(name=each.name, error_code=code)
                for each in request.topics
            ]
        )

    def _describe_configs(self, _number: int, request: Any) -> Any:
        return configs.DescribeConfigsResponse(
            results=[
                configs.DescribeConfigsResult(
                    resource_type=each.resource_type, resource_name=each.resource_name, configs=[]
                )
                for each in request.resources
            ]
        )


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    for broker in cluster.brokers.values():
        broker.start()
    yield cluster
    for broker in cluster.brokers.values():
        broker.stop()
