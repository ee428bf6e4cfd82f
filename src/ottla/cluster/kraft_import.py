"""Taking over the data folder of a single-node Apache Kafka.

Kafka keeps its metadata in a log of its own, `__cluster_metadata-0`: `.checkpoint` files, each a
snapshot of everything up to an offset, and ordinary segments with what happened since. This module
replays the newest snapshot and the log behind it, and turns the result into the first contents of
our store: topics with their ids and settings, leader epochs, settings of brokers and groups, the
next producer id, the cluster id, the transaction version. The partitions' own folders stay where
they are; their format is ours already.

The import happens once, when there is a `__cluster_metadata-0` and no store of ours, and is all or
nothing: the contents become the store's first snapshot, which is written atomically. Kafka's files
are only read. What cannot be taken over (ACLs, SCRAM credentials, quotas, …) is counted and logged.

A folder of a cluster of several nodes is refused: this node's log may lack what the others have.

After kill -9 the log may end in an unfinished batch, which Kafka never acknowledged and cuts off at
its next start; here it is skipped. Damage anywhere else is an error that names the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.kraft_records import (
    BrokerSeen,
    ConfigSet,
    FeatureSet,
    Foreign,
    MetadataRecord,
    PartitionChanged,
    PartitionSet,
    ProducerIdsTaken,
    TopicCreated,
    TopicRemoved,
    TransactionStep,
    UnknownRecord,
    decode_record,
)
from ottla.model.features import SUPPORTED, TRANSACTIONS, initial
from ottla.model.ids import TopicId
from ottla.model.topic import PartitionState, Topic
from ottla.records.batch import BatchHeader, batches, checksum_ok
from ottla.records.errors import InvalidBatch
from ottla.records.reader import Record, iter_records
from ottla.runtime.files import FileSystem

logger = logging.getLogger(__name__)

FOLDER = "__cluster_metadata-0"

_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SEGMENT = re.compile(r"(\d{20})\.log")
_SNAPSHOT_FOOTER = b"\x00\x00\x00\x04"  # the key of the control record that ends a snapshot

_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_GROUP_RESOURCE = 32
_CLIENT_METRICS_RESOURCE = 16
_OTHER_RESOURCES = {8: "broker logger levels"}


class ImportRefused(Exception):
    """The folder cannot be taken over, and why; nothing was changed."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """What the metadata of a single-node Kafka says."""

    cluster_id: str
    node_id: int
    topics: tuple[Topic, ...]
    broker_configs: Mapping[str, Mapping[str, str]]
    next_producer_id: int
    features: Mapping[str, int]
    left_out: Mapping[str, int]  # how many of what could not be taken over
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def contents(self) -> dict[str, bytes]:
        """The same as the first contents of a metadata store.

        Of the feature levels only that of transactions is Kafka's, which is 0 where its log has
        none: clients, and who went back from a level on purpose, rely on it. The others say what
        Kafka may use, not what Ottla can do.
        """
        levels = {**initial({}), TRANSACTIONS: self.features.get(TRANSACTIONS, 0)}
        entries = {
            layout.FEATURES: layout.encode_features(levels),
            layout.CLUSTER: layout.encode_cluster(self.cluster_id),
            layout.PRODUCER_IDS: layout.encode_counter(self.next_producer_id),
        }
        for resource, config in self.broker_configs.items():
            entries[layout.broker_config_key(resource)] = layout.encode_config(config)
        for group, config in self.group_configs.items():
            entries[layout.group_config_key(group)] = layout.encode_config(config)
        for name, config in self.client_metrics.items():
            entries[layout.client_metrics_key(name)] = layout.encode_config(config)
        for topic in self.topics:
            entries[layout.topic_key(topic.name)] = layout.encode_topic(topic.id, topic.config)
            for number, states in enumerate(layout.chunks(topic.partitions)):
                key = layout.partitions_key(topic.id, number)
                entries[key] = layout.encode_partitions(states)
        return entries


def find_kafka_metadata(files: FileSystem, log_dirs: Sequence[str]) -> str | None:
    """The data folder among `log_dirs` that holds Kafka's metadata log, if one does."""
    for folder in log_dirs:
        if files.is_dir(os.path.join(folder, FOLDER)):
            return folder
    return None


async def open_store(
    files: FileSystem, folder: str, log_dirs: Sequence[str]
) -> tuple[EmbeddedStore, KafkaCluster | None]:
    """The store in `folder`. A new one begins with what a Kafka left in `log_dirs`, if it did.

    Returns what was imported, if that happened now. Raises `ImportRefused` and what
    `EmbeddedStore.open` raises.
    """
    imported = None
    if not EmbeddedStore.exists(files, folder):
        found = find_kafka_metadata(files, log_dirs)
        if found is not None:
            imported = await asyncio.to_thread(read_kafka_metadata, files, found)
    store = await EmbeddedStore.open(
        files, folder, initial=imported.contents() if imported is not None else None
    )
    if imported is not None:
        logger.info(
            "took over the metadata of Kafka cluster %s, node %d: %d topics with %d partitions",
            imported.cluster_id,
            imported.node_id,
            len(imported.topics),
            sum(len(topic.partitions) for topic in imported.topics),
        )
        if imported.left_out:
            logger.warning(
                "not taken over from Kafka, because Ottla does not have them yet: %s",
                ", ".join(f"{count} {what}" for what, count in sorted(imported.left_out.items())),
            )
    return store, imported


def read_kafka_metadata(files: FileSystem, data_folder: str) -> KafkaCluster:
    """Replay the metadata log in a data folder of Kafka."""
    properties = _read_properties(files, os.path.join(data_folder, "meta.properties"))
    folder = os.path.join(data_folder, FOLDER)
    replay = _Replay()
    offset = 0
    checkpoints = sorted(name for name in files.listdir(folder) if _CHECKPOINT.fullmatch(name))
    if checkpoints:
        path = os.path.join(folder, checkpoints[-1])
        offset = int(checkpoints[-1][:20])
        for value in _snapshot_values(files, path):
            _replay_one(replay, path, value)
    for path, value in _log_values(files, folder, offset):
        _replay_one(replay, path, value)
    return replay.result(*properties)


def _replay_one(replay: _Replay, path: str, value: bytes) -> None:
    try:
        replay.apply(decode_record(value))
    except UnknownRecord as error:
        raise ImportRefused(
            f"{path}: {error}. Only the metadata of Apache Kafka up to 4.2 can be taken over."
        ) from None
    except KeyError:
        raise ImportRefused(
            f"{path} is damaged: it changes a topic or partition that it never created"
        ) from None


# --- files ----------------------------------------------------------------------------------------


def _read_properties(files: FileSystem, path: str) -> tuple[str, int]:
    """Cluster id and node id."""
    if not files.exists(path):
        raise ImportRefused(f"{path} is missing, though there is a metadata log beside it")
    values = {}
    for line in files.read_bytes(path).decode("utf-8", "replace").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            values[name.strip()] = value.strip()
    if values.get("version") != "1":
        raise ImportRefused(f"{path} has version {values.get('version')}, not 1 as KRaft writes it")
    cluster_id = values.get("cluster.id", "")
    if not cluster_id or not values.get("node.id", "").isdecimal():
        raise ImportRefused(f"{path} has no cluster.id or no node.id")
    return cluster_id, int(values["node.id"])


def _snapshot_values(files: FileSystem, path: str) -> Iterator[bytes]:
    data = memoryview(files.read_bytes(path))
    end = 0
    complete = False
    for position, header in _sound_batches(path, data):
        end = position + header.size
        batch = data[position:end]
        keys = [record.key for record in _records(path, batch)] if header.is_control else []
        complete = _SNAPSHOT_FOOTER in keys
        if not header.is_control:
            yield from (record.value or b"" for record in _records(path, batch))
    if not complete or end != len(data):
        raise ImportRefused(f"{path} is damaged: it does not end as a snapshot does")


def _log_values(files: FileSystem, folder: str, offset: int) -> Iterator[tuple[str, bytes]]:
    """The records from `offset` on, with the file each is in."""
    segments = sorted(name for name in files.listdir(folder) if _SEGMENT.fullmatch(name))
    for index, name in enumerate(segments):
        following = segments[index + 1 : index + 2]
        if following and int(following[0][:20]) <= offset:
            continue
        path = os.path.join(folder, name)
        data = memoryview(files.read_bytes(path))
        end = 0
        for position, header in _sound_batches(path, data, torn=not following):
            end = position + header.size
            if header.next_offset <= offset:
                continue
            if header.base_offset > offset:
                raise ImportRefused(
                    f"{path}: the metadata records from {offset} to {header.base_offset - 1} are "
                    "missing"
                )
            batch = data[position:end]
            if not header.is_control:
                for record in _records(path, batch):
                    if record.offset >= offset:
                        yield path, record.value or b""
            offset = header.next_offset
        if end < len(data):
            logger.warning(
                "%s: skipped %d bytes of an unfinished write at the end", path, len(data) - end
            )


def _sound_batches(
    path: str, data: memoryview, *, torn: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """The batches of a file, checksums verified; with `torn`, up to an unfinished last one."""
    end = 0
    try:
        for position, header in batches(data):
            if not checksum_ok(data, position, header):
                if torn and position + header.size == len(data):
                    return
                raise ImportRefused(f"{path} is damaged: wrong checksum at byte {position}")
            end = position + header.size
            yield position, header
    except InvalidBatch as error:
        # What a power cut leaves of a write that was allocated but not filled is zeros.
        if not torn or any(data[end:]):
            raise ImportRefused(f"{path} is damaged: {error}") from None
    if not torn and end < len(data):
        raise ImportRefused(f"{path} is damaged: it ends in the middle of a batch")


def _records(path: str, batch: memoryview) -> Iterator[Record]:
    try:
        yield from iter_records(batch)
    except InvalidBatch as error:
        raise ImportRefused(f"{path} is damaged: {error}") from None


# --- replay ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Replay:
    """Kafka's metadata as the records so far have made it."""

    names: dict[TopicId, str] = field(default_factory=dict)
    partitions: dict[TopicId, dict[int, PartitionSet]] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    features: dict[str, int] = field(default_factory=dict)
    brokers: set[int] = field(default_factory=set)
    foreign: set[Foreign] = field(default_factory=set)
    pending: list[MetadataRecord] | None = None  # inside a metadata transaction

    def apply(self, record: MetadataRecord) -> None:
        if isinstance(record, TransactionStep):
            pending, self.pending = self.pending, [] if record.step == "begin" else None
            if record.step == "end":
                for earlier in pending or ():
                    self._apply(earlier)
        elif self.pending is not None:
            self.pending.append(record)
        else:
            self._apply(record)

    def _apply(self, record: MetadataRecord) -> None:  # noqa: C901 - one branch for each kind of record
        match record:
            case TopicCreated(name, topic_id):
                self.names[topic_id] = name
                self.partitions[topic_id] = {}
            case TopicRemoved(topic_id):
                name = self.names.pop(topic_id)
                del self.partitions[topic_id]
                self.configs.pop((_TOPIC_RESOURCE, name), None)
            case PartitionSet():
                self.partitions[record.topic_id][record.partition] = record
            case PartitionChanged():
                states = self.partitions[record.topic_id]
                states[record.partition] = _changed(states[record.partition], record)
            case ConfigSet():
                config = self.configs.setdefault((record.resource_type, record.resource), {})
                if record.value is None:
                    config.pop(record.name, None)
                else:
                    config[record.name] = record.value
            case ProducerIdsTaken(following):
                self.next_producer_id = max(self.next_producer_id, following)
            case FeatureSet(name, level):
                self.features[name] = level
            case BrokerSeen(broker, present):
                (self.brokers.add if present else self.brokers.discard)(broker)
            case Foreign(what, identity, present):
                thing = Foreign(what, identity, present=True)
                (self.foreign.add if present else self.foreign.discard)(thing)

    def result(self, cluster_id: str, node_id: int) -> KafkaCluster:
        others = sorted(self.brokers - {node_id})
        if others:
            raise ImportRefused(
                f"cluster {cluster_id} has other brokers than {node_id}, namely {others}: only the "
                "folder of a single-node Kafka can be taken over"
            )
        level = self.features.get(TRANSACTIONS, 0)
        if level not in SUPPORTED[TRANSACTIONS]:
            raise ImportRefused(
                f"cluster {cluster_id} has finalized {TRANSACTIONS} at {level}: the newest that "
                f"can be taken over is {SUPPORTED[TRANSACTIONS][-1]}"
            )
        topics = []
        for topic_id, name in sorted(self.names.items(), key=lambda item: item[1]):
            states = self.partitions[topic_id]
            if sorted(states) != list(range(len(states))):
                raise ImportRefused(f"topic {name} has partitions {sorted(states)}, with gaps")
            partitions = tuple(
                _led_by(node_id, name, states[number]) for number in range(len(states))
            )
            config = self.configs.get((_TOPIC_RESOURCE, name), {})
            topics.append(Topic(name, topic_id, partitions, config))
        left_out: dict[str, int] = {}
        for thing in self.foreign:
            left_out[thing.what] = left_out.get(thing.what, 0) + 1
        for (kind, _), config in self.configs.items():
            if kind in _OTHER_RESOURCES and config:
                what = _OTHER_RESOURCES[kind]
                left_out[what] = left_out.get(what, 0) + len(config)
        return KafkaCluster(
            cluster_id,
            node_id,
            tuple(topics),
            self._configs_of(_BROKER_RESOURCE),
            self.next_producer_id,
            self.features,
            left_out,
            self._configs_of(_GROUP_RESOURCE),
            self._configs_of(_CLIENT_METRICS_RESOURCE),
        )

    def _configs_of(self, wanted: int) -> dict[str, Mapping[str, str]]:
        return {
            resource: config
            for (kind, resource), config in self.configs.items()
            if kind == wanted and config
        }


def _changed(state: PartitionSet, change: PartitionChanged) -> PartitionSet:
    new_leader = change.leader is not None
    return PartitionSet(
        state.topic_id,
        state.partition,
        state.replicas if change.replicas is None else change.replicas,
        state.leader if change.leader is None else change.leader,
        state.leader_epoch + new_leader,
        state.partition_epoch + 1,
    )


def _led_by(node_id: int, topic: str, state: PartitionSet) -> PartitionState:
    """The partition led by its only replica. A stopped Kafka leaves it without a leader."""
    if state.replicas != (node_id,):
        raise ImportRefused(
            f"partition {topic}-{state.partition} has replicas {list(state.replicas)}: only the "
            f"folder of a single-node Kafka (this is node {node_id}) can be taken over"
        )
    elected = state.leader != node_id
    return PartitionState(
        leader=node_id,
        leader_epoch=state.leader_epoch + elected,
        partition_epoch=state.partition_epoch + elected,
        replicas=state.replicas,
        isr=state.replicas,
    )
