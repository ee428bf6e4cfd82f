"""Admin requests over `wire`: what a tool asks that must repeat a broker's own words.

    with DirectAdmin("127.0.0.1:9092") as admin:
        for topic in admin.describe_topics(admin.topic_names()):
            ...

It takes and answers the values of `descriptions` like `Admin`, and raises `KafkaError` with the
broker's message. Where a request is about several partitions the answer has one entry for each,
a value or a `KafkaError`. Requests go where Kafka wants them: to the controller, to the broker
that is asked about, to the leader of a partition.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ottla.client.descriptions import (
    ApiSupport,
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    FeatureRange,
    LogDirDescription,
    NewTopic,
    Node,
    OffsetInfo,
    PartitionDescription,
    ReplicaInfo,
    TopicDescription,
)
from ottla.client.wire import Wire, advertised
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import VERSIONS, ApiKey
from ottla.protocol.messages import configs as config_messages
from ottla.protocol.messages import metadata as metadata_messages
from ottla.protocol.messages import offsets as offset_messages
from ottla.protocol.messages import replicas as replica_messages
from ottla.protocol.messages import topics as topic_messages

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""The kinds of things that have settings."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""What can be done to a setting."""

_CODES = {int(code): code for code in ErrorCode}
_SOURCES = {
    1: "topic",
    2: "broker",
    3: "broker-default",
    4: "static",
    5: "default",
    6: "logger",
    7: "client-metrics",
    8: "group",
}


class DirectAdmin:
    """Asks brokers and changes what they hold; for one thread."""

    def __init__(
        self, bootstrap: str, *, timeout: float = 30.0, client_id: str = "ottla-admin"
    ) -> None:
        self._timeout = timeout
        self._client_id = client_id
        self._wire = Wire.first_of(bootstrap, timeout=timeout, client_id=client_id)
        self._nodes: dict[int, Node] = {}
        self._controller: int | None = None
        self._wires: dict[int, Wire] = {}

    # -- the cluster

    def describe_cluster(self, *, fenced: bool = False) -> ClusterDescription:
        """The brokers, and who controls them; with `fenced` also those that are shut out."""
        answer = self._wire.ask(
            metadata_messages.DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=fenced
            )
        )
        raise_for(answer.error_code, answer.error_message)
        nodes = tuple(
            Node(each.broker_id, each.host, each.port, each.rack)
            for each in sorted(answer.brokers, key=lambda each: int(each.broker_id))
        )
        controller = answer.controller_id
        return ClusterDescription(
            answer.cluster_id, None if controller < 0 else int(controller), nodes
        )

    def fenced_brokers(self) -> frozenset[int]:
        """Which brokers are shut out until they have caught up."""
        answer = self._wire.ask(
            metadata_messages.DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=True
            )
        )
        raise_for(answer.error_code, answer.error_message)
        return frozenset(each.broker_id for each in answer.brokers if each.is_fenced)

    def api_support(self, broker: int) -> tuple[ApiSupport, ...]:
        """All APIs that we or one broker know, by number."""
        spoken = self._broker(broker).versions
        found = []
        for key in sorted({*spoken, *VERSIONS}):
            name, lowest, highest = VERSIONS.get(key, (None, 0, -1))
            if key not in spoken:
                found.append(ApiSupport(key, name))
                continue
            least, most = spoken[key]
            usable = min(most, highest)
            fits = usable >= max(least, lowest)
            found.append(ApiSupport(key, name, least, most, usable if fits else None))
        return tuple(found)

    def features(self, broker: int | None = None) -> tuple[int, tuple[FeatureRange, ...]]:
        """The epoch of the cluster's feature levels, and the features by name."""
        greeting = (self._wire if broker is None else self._broker(broker)).greeting
        levels = {each.name: each.max_version_level for each in greeting.finalized_features}
        return greeting.finalized_features_epoch, tuple(
            FeatureRange(each.name, each.min_version, each.max_version, levels.get(each.name, 0))
            for each in sorted(greeting.supported_features, key=lambda each: each.name)
        )

    def log_dirs(self, broker: int) -> tuple[LogDirDescription, ...]:
        """The data folders of one broker with everything in them."""
        answer = self._broker(broker).ask(replica_messages.DescribeLogDirsRequest(topics=None))
        raise_for(answer.error_code)
        return tuple(
            LogDirDescription(
                folder.log_dir,
                folder.error_code,
                tuple(
                    ReplicaInfo(
                        topic.name,
                        part.partition_index,
                        part.partition_size,
                        part.offset_lag,
                        part.is_future_key,
                    )
                    for topic in folder.topics
                    for part in topic.partitions
                ),
                folder.total_bytes,
                folder.usable_bytes,
            )
            for folder in answer.results
        )

    # -- topics

    def topics(self) -> dict[str, bool]:
        """All topics by name, each with whether it is Kafka's own."""
        return {topic.name: topic.is_internal for topic in self._metadata(None).topics}

    def topic_ids(self) -> dict[str, str]:
        """All topics by name, each with its id in Kafka's spelling."""
        return {topic.name: _id_text(topic.topic_id) for topic in self._metadata(None).topics}

    def describe_topics(
        self, names: Iterable[str], *, page: int = 2000
    ) -> tuple[TopicDescription, ...]:
        """These topics with their partitions, at most `page` partitions in a response."""
        wanted = list(names)
        if not wanted:
            return ()
        if ApiKey.DESCRIBE_TOPIC_PARTITIONS not in self._wire.versions:
            return self._described_by_metadata(wanted)
        found: dict[str, TopicDescription] = {}
        cursor = None
        while True:
            answer = self._wire.ask(
                metadata_messages.DescribeTopicPartitionsRequest(
                    topics=[metadata_messages.TopicRequest(name=name) for name in sorted(wanted)],
                    response_partition_limit=page,
                    cursor=cursor,
                )
            )
            for topic in answer.topics:
                raise_for(topic.error_code)
                known = found.get(topic.name)
                found[topic.name] = TopicDescription(
                    topic.name,
                    _id_text(topic.topic_id),
                    topic.is_internal,
                    (known.partitions if known else ())
                    + tuple(_partition(part) for part in topic.partitions),
                )
            cursor = answer.next_cursor
            if cursor is None:
                return tuple(found[name] for name in wanted if name in found)

    def create_topic(self, topic: NewTopic) -> None:
        """Create a topic; None leaves a number to the broker's default."""
        placed = topic.assignment or ()
        answer = self._controller_wire().ask(
            topic_messages.CreateTopicsRequest(
                topics=[
                    topic_messages.CreatableTopic(
                        name=topic.name,
                        num_partitions=-1 if topic.partitions is None else topic.partitions,
                        replication_factor=-1 if topic.replication is None else topic.replication,
                        assignments=[
                            topic_messages.CreatableReplicaAssignment(
                                partition_index=index, broker_ids=list(brokers)
                            )
                            for index, brokers in enumerate(placed)
                        ],
                        configs=[
                            topic_messages.CreatableTopicConfig(name=name, value=value)
                            for name, value in topic.config.items()
                        ],
                    )
                ],
                timeout_ms=self._timeout_ms(),
                validate_only=False,
            )
        )
        for result in answer.topics:
            raise_for(result.error_code, result.error_message)

    def create_partitions(
        self, totals: Mapping[str, int], assignments: Mapping[str, Sequence[Sequence[int]]]
    ) -> None:
        """Grow topics; `assignments` lists the brokers of each new partition where given."""
        answer = self._controller_wire().ask(
            topic_messages.CreatePartitionsRequest(
                topics=[
                    topic_messages.CreatePartitionsTopic(
                        name=name,
                        count=count,
                        assignments=[
                            topic_messages.CreatePartitionsAssignment(broker_ids=list(brokers))
                            for brokers in assignments[name]
                        ]
                        if name in assignments
                        else None,
                    )
                    for name, count in totals.items()
                ],
                timeout_ms=self._timeout_ms(),
                validate_only=False,
            )
        )
        for result in answer.results:
            raise_for(result.error_code, result.error_message)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics with everything in them."""
        answer = self._controller_wire().ask(
            topic_messages.DeleteTopicsRequest(
                topics=[
                    topic_messages.DeleteTopicState(name=name, topic_id=bytes(16)) for name in names
                ],
                topic_names=list(names),
                timeout_ms=self._timeout_ms(),
            )
        )
        for result in answer.responses:
            raise_for(result.error_code, result.error_message)

    # -- settings

    def describe_configs(
        self, kind: int, name: str, *, keys: Sequence[str] | None = None
    ) -> tuple[ConfigEntry, ...]:
        """The settings of one thing, in the broker's order; `keys` asks for some of them."""
        answer = self._asker(kind, name).ask(
            config_messages.DescribeConfigsRequest(
                resources=[
                    config_messages.DescribeConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configuration_keys=None if keys is None else list(keys),
                    )
                ],
                include_synonyms=True,
                include_documentation=False,
            )
        )
        [result] = answer.results
        raise_for(result.error_code, result.error_message)
        return tuple(
            ConfigEntry(
                entry.name,
                entry.value,
                _SOURCES.get(entry.config_source, "unknown"),
                entry.read_only,
                entry.is_sensitive,
                tuple(
                    ConfigSynonym(each.name, each.value, _SOURCES.get(each.source, "unknown"))
                    for each in entry.synonyms
                ),
            )
            for entry in result.configs
        )

    def alter_configs(
        self, kind: int, name: str, changes: Iterable[tuple[str, int, str | None]]
    ) -> None:
        """Change some settings of one thing: (name, what to do, value)."""
        answer = self._asker(kind, name).ask(
            config_messages.IncrementalAlterConfigsRequest(
                resources=[
                    config_messages.IncrementalAlterConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configs=[
                            config_messages.IncrementalAlterableConfig(
                                name=key, config_operation=operation, value=value
                            )
                            for key, operation, value in changes
                        ],
                    )
                ],
                validate_only=False,
            )
        )
        for result in answer.responses:
            raise_for(result.error_code, result.error_message)

    def config_resources(self, kind: int) -> list[str]:
        """The things of a kind that have settings of their own."""
        answer = self._wire.ask(config_messages.ListConfigResourcesRequest(resource_types=[kind]))
        raise_for(answer.error_code)
        return sorted(each.resource_name for each in answer.config_resources)

    # -- groups

    def groups(self) -> list[str]:
        """The ids of all groups, asked of every broker."""
        from ottla.protocol.messages.groups import ListGroupsRequest

        self._metadata(())
        found: set[str] = set()
        for number in self._nodes:
            answer = self._broker(number).ask(ListGroupsRequest())
            raise_for(answer.error_code)
            found.update(each.group_id for each in answer.groups)
        return sorted(found)

    # -- records

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetInfo | KafkaError]:
        """An offset in each partition by time or by Kafka's negative numbers for positions."""
        results: dict[TopicPartition, OffsetInfo | KafkaError] = {}
        for leader, partitions in self._by_leader(wanted, results).items():
            answer = self._broker(leader).ask(
                offset_messages.ListOffsetsRequest(
                    replica_id=-1,
                    isolation_level=0,
                    topics=[
                        offset_messages.ListOffsetsTopic(
                            name=topic,
                            partitions=[
                                offset_messages.ListOffsetsPartition(
                                    partition_index=index,
                                    timestamp=wanted[TopicPartition(topic, index)],
                                )
                                for index in indexes
                            ],
                        )
                        for topic, indexes in _grouped(partitions).items()
                    ],
                    timeout_ms=self._timeout_ms(),
                )
            )
            for topic in answer.topics:
                for part in topic.partitions:
                    results[TopicPartition(topic.name, part.partition_index)] = (
                        _error(part.error_code)
                        if part.error_code
                        else OffsetInfo(part.offset, part.timestamp, part.leader_epoch)
                    )
        return results

    def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete everything before an offset (-1: everything); gives the new beginnings."""
        results: dict[TopicPartition, int | KafkaError] = {}
        for leader, partitions in self._by_leader(before, results).items():
            answer = self._broker(leader).ask(
                offset_messages.DeleteRecordsRequest(
                    topics=[
                        offset_messages.DeleteRecordsTopic(
                            name=topic,
                            partitions=[
                                offset_messages.DeleteRecordsPartition(
                                    partition_index=index,
                                    offset=before[TopicPartition(topic, index)],
                                )
                                for index in indexes
                            ],
                        )
                        for topic, indexes in _grouped(partitions).items()
                    ],
                    timeout_ms=self._timeout_ms(),
                )
            )
            for topic in answer.topics:
                for part in topic.partitions:
                    results[TopicPartition(topic.name, part.partition_index)] = (
                        _error(part.error_code) if part.error_code else part.low_watermark
                    )
        return results

    # -- the end

    def close(self) -> None:
        """Close all connections."""
        for wire in (self._wire, *self._wires.values()):
            wire.close()

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

    def _timeout_ms(self) -> int:
        return round(self._timeout * 1000)

    def _metadata(self, names: Iterable[str] | None) -> Any:
        answer = self._wire.ask(
            metadata_messages.MetadataRequest(
                topics=None
                if names is None
                else [metadata_messages.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
        )
        self._nodes = {
            each.node_id: Node(each.node_id, each.host, each.port, each.rack)
            for each in answer.brokers
        }
        self._controller = answer.controller_id if answer.controller_id >= 0 else None
        return answer

    def _described_by_metadata(self, names: list[str]) -> tuple[TopicDescription, ...]:
        found = []
        for topic in self._metadata(names).topics:
            raise_for(topic.error_code)
            parts = sorted(topic.partitions, key=lambda each: int(each.partition_index))
            found.append(
                TopicDescription(
                    topic.name,
                    _id_text(topic.topic_id),
                    topic.is_internal,
                    tuple(
                        PartitionDescription(
                            part.partition_index,
                            None if part.leader_id < 0 else part.leader_id,
                            tuple(part.replica_nodes),
                            tuple(part.isr_nodes),
                        )
                        for part in parts
                    ),
                )
            )
        return tuple(found)

    def _by_leader(
        self, partitions: Iterable[TopicPartition], results: dict[TopicPartition, Any]
    ) -> dict[int, list[TopicPartition]]:
        """Partitions by the broker that leads them; the others get their error in `results`."""
        wanted = list(partitions)
        led: dict[TopicPartition, tuple[int, int]] = {}
        missing: dict[str, int] = {}
        for topic in self._metadata(dict.fromkeys(each.topic for each in wanted)).topics:
            missing[topic.name] = topic.error_code
            for part in topic.partitions:
                key = TopicPartition(topic.name, part.partition_index)
                led[key] = (part.leader_id, part.error_code)
        chosen: dict[int, list[TopicPartition]] = defaultdict(list)
        for each in wanted:
            leader, code = led.get(
                each, (-1, missing.get(each.topic) or int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            )
            if leader >= 0:
                chosen[leader].append(each)
            else:
                results[each] = _error(code or int(ErrorCode.LEADER_NOT_AVAILABLE))
        return chosen

    def _asker(self, kind: int, name: str) -> Wire:
        """A broker's own settings are known to that broker alone."""
        if kind in (BROKER, BROKER_LOGGER) and name:
            return self._broker(int(name))
        return self._wire

    def _controller_wire(self) -> Wire:
        if not self._nodes:
            self._metadata(())
        if self._controller is None or self._controller not in self._nodes:
            return self._wire
        return self._broker(self._controller)

    def _broker(self, number: int) -> Wire:
        if number not in self._wires:
            if not self._nodes:
                self._metadata(())
            node = self._nodes.get(number)
            if node is None:
                there = ", ".join(str(each) for each in sorted(self._nodes))
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"there is no broker {number}; this cluster has "
                    + (f"only broker {there}" if len(self._nodes) == 1 else f"brokers {there}"),
                )
            if (node.host, node.port) == (self._wire.host, self._wire.port):
                return self._wire
            with advertised(node):
                self._wires[number] = Wire(
                    node.host, node.port, timeout=self._timeout, client_id=self._client_id
                )
        return self._wires[number]


def raise_for(code: int, message: str | None = None) -> None:
    """Raise what a response says, unless it says that all is well."""
    if code:
        raise _error(code, message)


def _error(code: int, message: str | None = None) -> KafkaError:
    return KafkaError(_CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR), message)


def _grouped(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for each in partitions:
        grouped[each.topic].append(each.partition)
    return grouped


def _partition(part: Any) -> PartitionDescription:
    return PartitionDescription(
        part.partition_index,
        None if part.leader_id < 0 else part.leader_id,
        tuple(part.replica_nodes),
        tuple(part.isr_nodes),
        tuple(part.eligible_leader_replicas or ()),
        tuple(part.last_known_elr or ()),
    )


def _id_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
