"""Admin requests over `router`: what a tool asks that must repeat a broker's own words.

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
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

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
    TopicListing,
)
from ottla.client.exchange import greeting
from ottla.client.router import NoSuchBroker, Router, allowed_ms, check, error_code
from ottla.client.topic_offsets import TopicOffsets
from ottla.client.wire import Wire
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import VERSIONS, ApiKey
from ottla.protocol.messages import configs as config_messages
from ottla.protocol.messages import elections as election_messages
from ottla.protocol.messages import features as feature_messages
from ottla.protocol.messages import metadata as metadata_messages
from ottla.protocol.messages import offsets as offset_messages
from ottla.protocol.messages import replicas as replica_messages
from ottla.protocol.messages import topics as topic_messages
from ottla.protocol.messages.unregistration import UnregisterBrokerRequest

T = TypeVar("T")

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""The kinds of things that have settings."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""What can be done to a setting."""

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
    """Asks brokers and changes what they hold. Making one connects, or raises KafkaError; `config`
    as that of `Router`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla-admin",
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout = timeout
        self.router = Router(bootstrap, timeout=timeout, client_id=client_id, config=config)
        self.router.any()

    # -- the cluster

    def describe_cluster(self, *, fenced: bool = False) -> ClusterDescription:
        """The brokers, and who controls them; with `fenced` also those that are shut out."""
        answer = self.router.ask_any(
            metadata_messages.DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=fenced
            )
        )
        check(answer.error_code, answer.error_message)
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
        answer = self.router.ask_any(
            metadata_messages.DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=True
            )
        )
        check(answer.error_code, answer.error_message)
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
        # Not as the connection was greeted: they may have changed since.
        request = greeting()
        answer = (
            self.router.ask_any(request) if broker is None else self._broker(broker).ask(request)
        )
        check(answer.error_code)
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        return answer.finalized_features_epoch, tuple(
            FeatureRange(each.name, each.min_version, each.max_version, levels.get(each.name, 0))
            for each in sorted(answer.supported_features, key=lambda each: each.name)
        )

    def finalized(self) -> dict[str, int]:
        """What the cluster has finalized, by feature; what it has not heard of is not among it."""
        answer = self.router.ask_any(greeting())
        check(answer.error_code)
        return {each.name: each.max_version_level for each in answer.finalized_features}

    def unregister_broker(self, broker: int) -> None:
        """Have a broker forgotten that is gone for good."""
        request = UnregisterBrokerRequest(broker_id=broker)

        def ask() -> None:
            answer = self.router.controller().ask(request)
            check(answer.error_code, answer.error_message)

        self.router.retried(ask)

    def log_dirs(self, broker: int) -> tuple[LogDirDescription, ...]:
        """The data folders of one broker with everything in them."""
        answer = self._broker(broker).ask(replica_messages.DescribeLogDirsRequest(topics=None))
        check(answer.error_code)
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
        return {topic.name or "": topic.is_internal for topic in self.router.metadata(None).topics}

    def list_topics(self, *, internal: bool = False) -> tuple[TopicListing, ...]:
        """All topics by name, without those that Kafka keeps for itself unless asked for."""
        return tuple(
            TopicListing(
                topic.name or "",
                len(topic.partitions),
                min((len(part.replica_nodes) for part in topic.partitions), default=0),
                topic.is_internal,
            )
            for topic in sorted(self.router.metadata(None).topics, key=lambda each: each.name or "")
            if internal or not topic.is_internal
        )

    def topic_ids(self) -> dict[str, str]:
        """All topics by name, each with its id in Kafka's spelling."""
        return {
            topic.name or "": _id_text(topic.topic_id)
            for topic in self.router.metadata(None).topics
        }

    def describe_topics(
        self, names: Iterable[str], *, page: int = 2000
    ) -> tuple[TopicDescription, ...]:
        """These topics with their partitions, at most `page` partitions in a response."""
        described = self.describe_each(names, page=page)
        return tuple(_or_raise(described.values()))

    def describe_each(
        self, names: Iterable[str], *, page: int = 2000
    ) -> dict[str, TopicDescription | KafkaError]:
        """The same, with what is wrong with a topic in its place."""
        wanted = list(names)
        if not wanted:
            return {}
        if ApiKey.DESCRIBE_TOPIC_PARTITIONS not in self.router.any().versions:
            return self._described_by_metadata(wanted)
        found: dict[str, TopicDescription | KafkaError] = {}
        cursor = None
        while True:
            answer = self.router.ask_any(
                metadata_messages.DescribeTopicPartitionsRequest(
                    topics=[metadata_messages.TopicRequest(name=name) for name in sorted(wanted)],
                    response_partition_limit=page,
                    cursor=cursor,
                )
            )
            for topic in answer.topics:
                if topic.error_code:
                    found[topic.name] = KafkaError(error_code(topic.error_code))
                    continue
                known = found.get(topic.name)
                found[topic.name] = TopicDescription(
                    topic.name,
                    _id_text(topic.topic_id),
                    topic.is_internal,
                    (known.partitions if isinstance(known, TopicDescription) else ())
                    + tuple(_partition(part) for part in topic.partitions),
                )
            cursor = answer.next_cursor
            if cursor is None:
                return {name: found[name] for name in wanted if name in found}

    def create_topic(self, topic: NewTopic) -> None:
        """Create a topic; None leaves a number to the broker's default."""
        _raise_first(self.create_topics([topic]))

    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, KafkaError]:
        """Create several in one request; what went wrong, by topic."""
        request = topic_messages.CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics],
            timeout_ms=self._timeout_ms(),
            validate_only=False,
        )
        return self._change(request, lambda answer: answer.topics)

    def create_partitions(
        self, totals: Mapping[str, int], assignments: Mapping[str, Sequence[Sequence[int]]]
    ) -> None:
        """Grow topics; `assignments` lists the brokers of each new partition where given."""
        request = topic_messages.CreatePartitionsRequest(
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
        _raise_first(self._change(request, lambda answer: answer.results))

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics with everything in them."""
        _raise_first(self.delete_each(names))

    def delete_each(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """The same; what went wrong, by topic."""
        request = topic_messages.DeleteTopicsRequest(
            topics=[
                topic_messages.DeleteTopicState(name=name, topic_id=bytes(16)) for name in names
            ],
            topic_names=list(names),
            timeout_ms=self._timeout_ms(),
        )
        return self._change(request, lambda answer: answer.responses)

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have leaders elected, in these partitions or in all; what went wrong with each.

        Of all partitions, those that need no election are left out.
        """
        wanted = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = {}
            for tp in partitions:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            wanted = [
                election_messages.TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ]
        request = election_messages.ElectLeadersRequest(
            election_type=int(unclean), topic_partitions=wanted, timeout_ms=self._timeout_ms()
        )

        def ask() -> dict[TopicPartition, KafkaError | None]:
            answer = self.router.controller().ask(request)
            check(answer.error_code)
            return {
                TopicPartition(topic.topic, result.partition_id): KafkaError(
                    error_code(result.error_code), result.error_message
                )
                if result.error_code
                else None
                for topic in answer.replica_election_results
                for result in topic.partition_result
            }

        return self.router.retried(ask, repeatable=True)

    def update_features(
        self, levels: Mapping[str, int], *, kind: int, dry_run: bool = False
    ) -> None:
        """Give features other levels, all or none; `kind` is UpdateFeatures' upgrade type. Raises
        KafkaError."""
        request = feature_messages.UpdateFeaturesRequest(
            timeout_ms=self._timeout_ms(),
            feature_updates=[
                feature_messages.FeatureUpdateKey(
                    feature=name, max_version_level=level, upgrade_type=kind
                )
                for name, level in levels.items()
            ],
            validate_only=dry_run,
        )

        def ask() -> None:
            answer = self.router.controller().ask(request)
            check(answer.error_code, answer.error_message)

        self.router.retried(ask, repeatable=True)

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
        check(result.error_code, result.error_message)
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
        """Change some settings of one thing: (name, what to do, value).

        Those of a broker that is away are changed by another one.
        """
        request = config_messages.IncrementalAlterConfigsRequest(
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
        away: KafkaError | None = None
        try:
            answer = self._asker(kind, name).ask(request)
        except KafkaError as error:
            if kind != BROKER or not name:
                raise
            answer, away = self.router.ask_any(request), error
        for result in answer.responses:
            if away is not None and result.error_code:
                raise away  # the others do not know it, either
            check(result.error_code, result.error_message)

    def config_resources(self, kind: int) -> list[str]:
        """The things of a kind that have settings of their own."""
        answer = self.router.ask_any(
            config_messages.ListConfigResourcesRequest(resource_types=[kind])
        )
        check(answer.error_code)
        return sorted(each.resource_name for each in answer.config_resources)

    # -- groups

    def groups(self) -> list[str]:
        """The ids of all groups, asked of every broker."""
        from ottla.protocol.messages.groups import ListGroupsRequest

        def ask(node: Node) -> list[str]:
            answer = self.router.node(node.id).ask(ListGroupsRequest())
            check(answer.error_code)
            return [each.group_id for each in answer.groups]

        return sorted({name for names in self.router.ask_each_node(ask) for name in names})

    # -- records

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetInfo | KafkaError]:
        """An offset in each partition by time or by Kafka's negative numbers for positions."""
        return TopicOffsets(self.router, timeout=self._timeout).find(wanted)

    def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete everything before an offset (-1: everything); gives the new beginnings."""

        def request(partitions: Sequence[TopicPartition]) -> offset_messages.DeleteRecordsRequest:
            topics: dict[str, list[offset_messages.DeleteRecordsPartition]] = defaultdict(list)
            for tp in partitions:
                topics[tp.topic].append(
                    offset_messages.DeleteRecordsPartition(
                        partition_index=tp.partition, offset=before[tp]
                    )
                )
            return offset_messages.DeleteRecordsRequest(
                topics=[
                    offset_messages.DeleteRecordsTopic(name=name, partitions=parts)
                    for name, parts in topics.items()
                ],
                timeout_ms=self._timeout_ms(),
            )

        def answers(answer: Any) -> Iterable[tuple[TopicPartition, int, int]]:
            for topic in answer.topics:
                for part in topic.partitions:
                    tp = TopicPartition(topic.name, part.partition_index)
                    yield tp, part.error_code, part.low_watermark

        return self.router.ask_leaders(before, request, answers)

    # -- the end

    def close(self) -> None:
        """Close all connections."""
        self.router.close()

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
        return allowed_ms(self._timeout)

    def _change(
        self, request: Any, results: Callable[[Any], Iterable[Any]]
    ) -> dict[str, KafkaError]:
        """Have the controller change topics; what went wrong, by topic."""
        deadline = time.monotonic() + self._timeout

        def ask() -> dict[str, KafkaError]:
            # Who asks again leaves the broker the rest of the time, not all of it once more.
            request.timeout_ms = allowed_ms(deadline - time.monotonic())
            failures: dict[str, KafkaError] = {}
            for result in results(self.router.controller().ask(request)):
                if result.error_code == ErrorCode.NOT_CONTROLLER:
                    raise KafkaError(ErrorCode.NOT_CONTROLLER, result.error_message)
                if result.error_code:
                    failures[result.name] = KafkaError(
                        error_code(result.error_code), result.error_message
                    )
            return failures

        return self.router.retried(ask, repeatable=False)

    def _described_by_metadata(self, names: list[str]) -> dict[str, TopicDescription | KafkaError]:
        found: dict[str, TopicDescription | KafkaError] = {}
        for topic in self.router.metadata(names).topics:
            name = topic.name or ""
            if topic.error_code:
                found[name] = KafkaError(error_code(topic.error_code))
                continue
            parts = sorted(topic.partitions, key=lambda each: int(each.partition_index))
            found[name] = TopicDescription(
                name,
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
        return found

    def _asker(self, kind: int, name: str) -> Wire:
        """A broker's own settings are known to that broker alone."""
        if kind in (BROKER, BROKER_LOGGER) and name:
            return self._broker(int(name))
        return self.router.any()

    def _broker(self, number: int) -> Wire:
        try:
            return self.router.node(number)
        except NoSuchBroker:
            there = [str(node.id) for node in self.router.nodes()]
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"there is no broker {number}; this cluster has "
                + ("only broker " if len(there) == 1 else "brokers ")
                + ", ".join(there),
            ) from None


def _or_raise(found: Iterable[T | KafkaError]) -> Iterator[T]:
    """These values, up to the first that is an error."""
    for each in found:
        if isinstance(each, KafkaError):
            raise each
        yield each


def _raise_first(failures: Mapping[str, KafkaError]) -> None:
    for failure in failures.values():
        raise failure


def _creatable(topic: NewTopic) -> topic_messages.CreatableTopic:
    return topic_messages.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.partitions is None else topic.partitions,
        replication_factor=-1 if topic.replication is None else topic.replication,
        assignments=[
            topic_messages.CreatableReplicaAssignment(
                partition_index=index, broker_ids=list(brokers)
            )
            for index, brokers in enumerate(topic.assignment or ())
        ],
        configs=[
            topic_messages.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.config.items()
        ],
    )


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
