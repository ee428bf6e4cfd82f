"""Admin: topics, their settings, groups and the cluster.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("orders", partitions=6, config={"retention.ms": "86400000"})
        print(admin.list_topics())

Each method is one request, waits for its answer and raises `KafkaError`. Where a request is
about several things and only some of them fail, `PartialFailureError.failures` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

import confluent_kafka as rd
import confluent_kafka.admin

from ottla.client.admin_producers import ProducerAdmin
from ottla.client.contact import PATIENCE, Contact
from ottla.client.descriptions import (
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    NewTopic,
    Node,
    OffsetInfo,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from ottla.client.errors import (
    ClientError,
    PartialFailureError,
    translate_exception,
    translated,
)
from ottla.client.forks import keep_out_of_children
from ottla.client.positions import check_partition
from ottla.client.settings import bootstrap_servers, librdkafka_config, timestamp_ms
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import INTERNAL_TOPICS

# The module re-exports its names without declaring so, which mypy --strict refuses to follow.
rd_admin: Any = confluent_kafka.admin

OffsetSpec = Literal["earliest", "latest", "max-timestamp"] | datetime
"""Which offset: the first, the next one to be written, the youngest record's, or by time."""

_RESERVED = {"bootstrap.servers": "use bootstrap="}

_URL_SAFE = str.maketrans("+/", "-_")

_SOURCES = {
    rd_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    rd_admin.ConfigSource.DYNAMIC_BROKER_CONFIG: "broker",
    rd_admin.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "broker-default",
    rd_admin.ConfigSource.STATIC_BROKER_CONFIG: "static",
    rd_admin.ConfigSource.DEFAULT_CONFIG: "default",
    rd_admin.ConfigSource.GROUP_CONFIG: "group",
}


class Admin(ProducerAdmin):
    """Asks brokers and changes what they hold; may be shared by threads.

    bootstrap  brokers to start from, "host:port,…"; else OTTLA_BOOTSTRAP, else 127.0.0.1:9092
    timeout    seconds that a request may take
    config     librdkafka properties, over everything else
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        timeout: float = 30.0,
        client_id: str = "ottla",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout}")
        servers = bootstrap_servers(bootstrap)
        super().__init__(servers, timeout=timeout, client_id=client_id, config=config or {})
        own: dict[str, object] = {
            "bootstrap.servers": servers,
            "client.id": client_id,
            # Otherwise the first request waits 50 ms for a connection it could have had at once.
            "enable.sparse.connections": False,
            # What goes wrong is raised; librdkafka need not also write it to stderr.
            "log_level": 2,
        }
        merged: dict[str, Any] = librdkafka_config(own, config, _RESERVED)
        self._contact = Contact(merged)
        try:
            self._client = rd_admin.AdminClient(merged)
        except rd.KafkaException as exception:
            raise ValueError(translate_exception(exception).message) from None
        keep_out_of_children(self, "_client")

    # -- topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; None leaves a number to the broker's default."""
        topic = NewTopic(name, partitions, replication, config or {}, assignment)
        self.create_topics([topic], validate_only=validate_only)

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        """Create several topics in one request; `validate_only` checks and creates nothing."""
        asked = [_new_topic(topic) for topic in topics]
        if asked:
            with translated():
                answers = self._client.create_topics(
                    asked, validate_only=validate_only, **self._deadlines()
                )
            self._settle(answers)

    def delete_topics(self, *names: str) -> None:
        """Delete topics with everything in them."""
        if names:
            with translated():
                answers = self._client.delete_topics(
                    [_topic_name(name) for name in names], **self._deadlines()
                )
            self._settle(answers)

    def list_topics(self, *, internal: bool = False) -> tuple[TopicListing, ...]:
        """All topics by name, without those that Kafka keeps for itself unless asked for."""

        def look(timeout: float) -> Any:
            with translated():
                return self._client.list_topics(timeout=timeout).topics

        topics = self._contact.ask(look, self._timeout)
        return tuple(
            TopicListing(
                name,
                len(topic.partitions),
                min((len(p.replicas) for p in topic.partitions.values()), default=0),
                name in INTERNAL_TOPICS,
            )
            for name, topic in sorted(topics.items())
            if internal or name not in INTERNAL_TOPICS
        )

    def describe_topics(self, *names: str) -> tuple[TopicDescription, ...]:
        """These topics with their partitions, in the order asked for."""
        if not names:
            return ()
        with translated():
            answers = self._client.describe_topics(
                rd.TopicCollection([_topic_name(name) for name in names]),
                request_timeout=self._timeout,
            )
        return tuple(_topic(topic) for topic in self._settle(answers).values())

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic with its partitions."""
        [topic] = self.describe_topics(name)
        return topic

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to `total` partitions. Keyed records may go elsewhere from then on.

        `assignment` lists the brokers of each new partition.
        """
        if total < 1:
            raise ValueError(f"a topic has at least one partition, not {total}")
        asked = rd_admin.NewPartitions(_topic_name(topic), total)
        if assignment is not None:
            placed = [list(replicas) for replicas in assignment]
            asked = rd_admin.NewPartitions(topic, total, placed)
        with translated():
            answers = self._client.create_partitions(
                [asked], validate_only=validate_only, **self._deadlines()
            )
        self._settle(answers)

    # -- settings

    def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None
    ) -> tuple[ConfigEntry, ...]:
        """All settings of a topic or of a broker, by name."""
        resource = _resource(topic, broker)
        with translated():
            answers = self._client.describe_configs([resource], request_timeout=self._timeout)
        [entries] = self._settle(answers).values()
        return tuple(_config_entry(entries[name]) for name in sorted(entries))

    def alter_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | None = None,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the protocol's word for it
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change some settings of a topic or broker and leave the others alone.

        `delete` goes back to the default; `append` and `subtract` change settings that are lists.
        """
        kinds = rd_admin.AlterConfigOpType
        changes = [
            *((name, value, kinds.SET) for name, value in (set or {}).items()),
            *((name, value, kinds.APPEND) for name, value in (append or {}).items()),
            *((name, value, kinds.SUBTRACT) for name, value in (subtract or {}).items()),
            *((name, None, kinds.DELETE) for name in delete),
        ]
        if not changes:
            raise ValueError("alter_configs() needs set=, delete=, append= or subtract=")
        resource = _resource(topic, broker)
        for name, value, operation in changes:
            if value is not None and not isinstance(value, str):
                raise TypeError(f"settings are given as str, {name} is {type(value).__name__}")
            entry = rd_admin.ConfigEntry(name, value, incremental_operation=operation)
            resource.add_incremental_config(entry)
        with translated():
            answers = self._client.incremental_alter_configs(
                [resource], validate_only=validate_only, request_timeout=self._timeout
            )
        self._settle(answers)

    # -- records

    def delete_records(
        self, before: Mapping[TopicPartition, int | Literal["latest"]]
    ) -> dict[TopicPartition, int]:
        """Delete everything before an offset in each partition; returns the new beginnings."""
        asked = []
        for partition, offset in before.items():
            topic, number = check_partition(partition)
            if offset != "latest" and (not isinstance(offset, int) or offset < 0):
                raise ValueError(f'an offset or "latest" is needed for {partition}, not {offset!r}')
            position = rd.OFFSET_END if offset == "latest" else offset
            asked.append(rd.TopicPartition(topic, number, position))
        if not asked:
            return {}
        with translated():
            answers = self._client.delete_records(asked, **self._deadlines())
        return {
            TopicPartition(tp.topic, tp.partition): deleted.low_watermark
            for tp, deleted in self._settle(answers).items()
        }

    def list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, OffsetInfo]:
        """Look up one offset in each partition. No record that young: offset -1."""
        asked = {
            rd.TopicPartition(*check_partition(partition)): _offset_spec(spec)
            for partition, spec in wanted.items()
        }
        if not asked:
            return {}
        with translated():
            answers = self._client.list_offsets(asked, request_timeout=self._timeout)
        return {
            TopicPartition(tp.topic, tp.partition): OffsetInfo(
                info.offset, info.timestamp, info.leader_epoch
            )
            for tp, info in self._settle(answers).items()
        }

    # -- the cluster

    def describe_cluster(self) -> ClusterDescription:
        """The brokers that are up."""
        with translated():
            answer = self._client.describe_cluster(request_timeout=self._timeout)
        [cluster] = self._settle({"cluster": answer}).values()
        return ClusterDescription(
            cluster.cluster_id or "",
            None if cluster.controller is None else cluster.controller.id,
            tuple(sorted((_node(node) for node in cluster.nodes), key=lambda node: node.id)),
        )

    # -- the end

    def close(self) -> None:
        """Nothing waits to be sent, so there is nothing to do; connections end with the object."""

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

    def _deadlines(self) -> dict[str, float]:
        # The request's own, and the one that the broker is told for finishing its work.
        return {"request_timeout": self._timeout, "operation_timeout": self._timeout}

    def _settle(self, answers: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """Wait for all answers; raise what failed."""
        results: dict[Any, Any] = {}
        failures: dict[str, KafkaError] = {}
        for about, future in answers.items():
            try:
                results[about] = self._answer(future)
            except rd.KafkaException as exception:
                failures[_name_of(about)] = _explain(about, translate_exception(exception))
            except TimeoutError:
                failures[_name_of(about)] = ClientError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        if len(failures) == 1 and len(answers) == 1:
            raise next(iter(failures.values()))
        if failures:
            raise PartialFailureError(failures)
        return results

    def _answer(self, future: Future[Any]) -> Any:
        """What comes of a request; if nothing does for a while, the log says who is there."""
        with suppress(TimeoutError):
            return future.result(PATIENCE)
        self._contact.lost()
        # librdkafka keeps the deadline; the little extra is for the way back from it.
        return future.result(self._timeout + 5)


def _explain(about: object, error: ClientError) -> ClientError:
    """Say what is missing where librdkafka only says that something is."""
    missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(about, rd.TopicPartition):
        if missing or (error.message or "").endswith("No leaders found"):
            return ClientError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {about.partition} of topic {about.topic!r}, or nobody "
                f"leads it",
            )
    elif missing:
        return ClientError(error.code, f"there is no topic {_name_of(about)!r}")
    return error


def _name_of(about: object) -> str:
    if isinstance(about, rd.TopicPartition):
        return f"{about.topic}-{about.partition}"
    return str(getattr(about, "name", about))


def _topic_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a topic's name is a str that is not empty, not {name!r}")
    return name


def _new_topic(topic: NewTopic) -> Any:
    for what, number in (("partitions", topic.partitions), ("replication", topic.replication)):
        if number is not None and number < 1:
            raise ValueError(
                f"{what} is at least 1, or None for the broker's default, not {number}"
            )
    config = {name: _setting(name, value) for name, value in topic.config.items()}
    if topic.assignment is not None:
        if topic.partitions is not None or topic.replication is not None:
            raise ValueError("assignment= takes the place of partitions= and replication=")
        placed = [list(replicas) for replicas in topic.assignment]
        return rd_admin.NewTopic(
            _topic_name(topic.name), len(placed), replica_assignment=placed, config=config
        )
    return rd_admin.NewTopic(
        _topic_name(topic.name),
        -1 if topic.partitions is None else topic.partitions,
        -1 if topic.replication is None else topic.replication,
        config=config,
    )


def _setting(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"settings are given as str, {name} is {type(value).__name__}")
    return value


def _resource(topic: str | None, broker: int | None) -> Any:
    if (topic is None) == (broker is None):
        raise ValueError("give one of topic='name' and broker=id")
    if topic is not None:
        return rd_admin.ConfigResource(rd_admin.ResourceType.TOPIC, _topic_name(topic))
    return rd_admin.ConfigResource(rd_admin.ResourceType.BROKER, str(broker))


def _offset_spec(spec: OffsetSpec) -> Any:
    if isinstance(spec, datetime):
        return rd_admin.OffsetSpec.for_timestamp(timestamp_ms(spec))
    specs = {
        "earliest": rd_admin.OffsetSpec.earliest,
        "latest": rd_admin.OffsetSpec.latest,
        "max-timestamp": rd_admin.OffsetSpec.max_timestamp,
    }
    if spec not in specs:
        raise ValueError(
            f'which offset: "earliest", "latest", "max-timestamp" or a datetime, not {spec!r}'
        )
    return specs[spec]()


def _node(node: Any) -> Node:
    return Node(node.id, node.host, node.port, node.rack)


def _topic(topic: Any) -> TopicDescription:
    return TopicDescription(
        topic.name,
        # librdkafka spells it in plain base64, Kafka in the url-safe kind.
        str(topic.topic_id).translate(_URL_SAFE),
        topic.is_internal,
        tuple(
            PartitionDescription(
                partition.id,
                None if partition.leader is None else partition.leader.id,
                tuple(node.id for node in partition.replicas),
                tuple(node.id for node in partition.isr),
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.id)
        ),
    )


def _config_entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        _source(entry.source),
        entry.is_read_only,
        entry.is_sensitive,
        tuple(
            ConfigSynonym(synonym.name, synonym.value, _source(synonym.source))
            for synonym in entry.synonyms.values()
        ),
    )


def _source(number: int) -> str:
    return _SOURCES.get(rd_admin.ConfigSource(number), "unknown")
