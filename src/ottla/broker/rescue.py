"""Metadata from the partitions' own folders: what `ottla metadata rescue` and `import` work with.

A partition's folder says more than it seems to: its name is the topic and the number,
`partition.metadata` has the topic's id, `leader-epoch-checkpoint` and the batches have the leader
epochs, batches and producer snapshots have producer ids, and `meta.properties` beside it names node
and cluster. From that a store can be made in which every record is where it was. What nothing but
the store knew is gone: settings of topics, groups and brokers, and partitions that never had files.

Numbers that must never be used twice begin far above everything found: leader epochs by a thousand,
producer ids by a million. Both are also held by clients without any record that tells of them: an
epoch is raised with every start after a crash, and a consumer that has seen a higher one would wait
for it for ever; an id is given to a producer before it writes.

`scan` looks and `plan` decides; neither changes anything. `carry_out` does it, and an older store
stays beside the new one. A topic with two ids, or a partition in two folders, is for a person to
decide: such a plan has `conflicts` and is not carried out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ottla.broker.internal_topics import offsets_settings, transactions_settings
from ottla.broker.metadata_home import (
    KRAFT_FOLDER,
    METADATA_FOLDER,
    find_stores,
    noted_homes,
    partition_folders,
    remember,
    store_path,
)
from ottla.broker.offsets_count import likely_count
from ottla.broker.partition_scan import Traces, read_traces
from ottla.cluster import journal, layout
from ottla.cluster.store import Entry
from ottla.config.broker import BrokerConfig
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.model.ids import TopicId, TopicPartition, topic_id_text
from ottla.model.topic import PartitionState
from ottla.runtime.files import FileSystem
from ottla.storage import paths
from ottla.storage.checkpoints import CheckpointError, MetaProperties, read_meta_properties
from ottla.storage.move_marks import has_arrived

PRODUCER_ID_GAP = 1_000_000
LEADER_EPOCH_GAP = 1_000

_COORDINATORS = {OFFSETS_TOPIC: offsets_settings, TRANSACTIONS_TOPIC: transactions_settings}
MOST_MISSING = 10_000
"""When more partitions of a topic have no folder, a folder was probably taken for a partition."""

UNRECOVERABLE = (
    "settings of topics, groups and brokers (topics get the broker's defaults)",
    "partitions behind the last one of a topic that has a folder",
)


class RescueRefused(Exception):
    """The rescue cannot be done as asked; nothing was changed."""


@dataclass(slots=True)
class Scan:
    """What the data folders hold."""

    folders: tuple[str, ...]
    node_id: int | None = None
    cluster_id: str | None = None
    found: dict[TopicPartition, Traces] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next_producer_id: int = 0


@dataclass(slots=True)
class TopicPlan:
    """One topic as it will be."""

    name: str
    id: TopicId
    partitions: list[PartitionState]
    config: Mapping[str, str]
    made: tuple[int, ...]
    """Partitions without a folder: they will be empty."""
    origin: str


@dataclass(slots=True)
class Plan:
    """The store to be made, and what the user has to know about it."""

    home: str
    replaces: str | None
    contents: journal.Contents
    topics: list[TopicPlan]
    next_producer_id: int
    node_id: int
    cluster_id: str | None
    conflicts: list[str]
    notes: list[str]

    def document(self, done: bool) -> dict[str, object]:
        """The plan as JSON for programs."""
        return {
            "done": done,
            "metadata": store_path(self.home),
            "replaces": self.replaces,
            "cluster_id": self.cluster_id,
            "node_id": self.node_id,
            "next_producer_id": self.next_producer_id,
            "topics": [
                {
                    "name": topic.name,
                    "id": topic_id_text(topic.id),
                    "partitions": len(topic.partitions),
                    "empty_partitions": list(topic.made),
                    "leader_epoch": max(state.leader_epoch for state in topic.partitions),
                    "config": dict(topic.config),
                    "origin": topic.origin,
                }
                for topic in self.topics
            ],
            "conflicts": self.conflicts,
            "notes": self.notes,
        }


# --- looking --------------------------------------------------------------------------------------


def scan(
    fs: FileSystem, folders: Sequence[str], progress: Callable[[str], None] = lambda folder: None
) -> Scan:
    """Look into every partition of the data folders. Raises RescueRefused, and OSError."""
    result = Scan(tuple(folders))
    for folder in folders:
        if not fs.is_dir(folder):
            raise RescueRefused(
                f"{folder} is not there: mount or restore it, or leave it out if it is lost"
            )
        _whose(result, folder, _properties(fs, folder))
        set_aside = sum(paths.is_marked_dir(name) for name in fs.listdir(folder))
        if set_aside:
            result.notes.append(
                f"{folder}: {set_aside} folder(s) of deleted or set-aside partitions are left "
                "alone; to have one back, rename it to TOPIC-PARTITION first"
            )
        if fs.is_dir(os.path.join(folder, KRAFT_FOLDER)):
            result.notes.append(f"{folder}/{KRAFT_FOLDER} is from Kafka's time and is not read")
        for name in partition_folders(fs, folder):
            partition = paths.parse_partition_dir(name)
            assert partition is not None
            progress(f"{folder}/{name}")
            traces = read_traces(fs, f"{folder}/{name}")
            if not traces.is_partition:
                result.notes.append(f"{folder}/{name} has no file of a partition and is left out")
                continue
            result.notes += traces.problems
            result.next_producer_id = max(result.next_producer_id, traces.producer_id + 1)
            other = result.found.setdefault(partition, traces)
            if other is traces or has_arrived(fs, other.folder):
                continue
            if has_arrived(fs, traces.folder):  # it was moved here, and the other is older
                result.found[partition] = traces
            else:
                result.conflicts.append(
                    f"{partition} is in {other.folder} and in {traces.folder}: move the copy you "
                    "do not want out of its data folder"
                )
    return result


def _properties(fs: FileSystem, folder: str) -> MetaProperties | None:
    try:
        return read_meta_properties(fs, folder)
    except CheckpointError as error:
        raise RescueRefused(f"{error}; mend the file, or remove it") from None


def _whose(result: Scan, folder: str, meta: MetaProperties | None) -> None:
    if meta is None:
        return
    for name, theirs in (("node_id", meta.node_id), ("cluster_id", meta.cluster_id)):
        known = getattr(result, name)
        if theirs is not None and known not in (None, theirs):
            raise RescueRefused(
                f"{folder} belongs to {name.replace('_id', '')} {theirs}, another folder to "
                f"{known}: name the folders of one broker only"
            )
        if theirs is not None:
            setattr(result, name, theirs)


# --- deciding -------------------------------------------------------------------------------------


def plan(
    fs: FileSystem,
    found: Scan,
    config: BrokerConfig,
    new_id: Callable[[], TopicId],
    *,
    base: journal.Contents | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """A store of what was found, over what a backup had (`base`), if there is one.

    Where both know a topic its settings come from the backup, and id, epochs and partitions from
    the folders where these are newer. `counts` says how many partitions a topic had.
    """
    backup = journal.Contents() if base is None else base
    planner = _Planner(fs, found, config, new_id, _topics_of(backup), counts)
    topics = planner.topics()
    entries = {
        key: entry
        for key, entry in backup.entries.items()
        if layout.parse_topic_key(key) is None and layout.parse_partitions_key(key) is None
    }
    for topic in topics:
        value = layout.encode_topic(topic.id, topic.config)
        entries[layout.topic_key(topic.name)] = Entry(value, 0)
        for number, states in enumerate(layout.chunks(topic.partitions)):
            key = layout.partitions_key(topic.id, number)
            entries[key] = Entry(layout.encode_partitions(states), 0)
    following = found.next_producer_id + PRODUCER_ID_GAP
    counter = entries.get(layout.PRODUCER_IDS, Entry(layout.encode_counter(0), 0))
    following = max(following, layout.decode_counter(layout.PRODUCER_IDS, counter.value))
    entries[layout.PRODUCER_IDS] = Entry(layout.encode_counter(following), counter.version)
    if found.cluster_id is not None:
        entries.setdefault(layout.CLUSTER, Entry(layout.encode_cluster(found.cluster_id), 0))
    named = noted_homes(fs, found.folders)
    homes = [folder for folder in found.folders if os.path.abspath(folder) in named]
    here = {os.path.abspath(folder) for folder in found.folders}
    elsewhere = [
        f"the metadata was last in {store_path(folder)}, and {folder} is not among these data "
        "folders: name it as well, unless it is lost"
        for folder in named
        if folder not in here
    ]
    home = (find_stores(fs, found.folders) + homes + list(found.folders))[0]
    return Plan(
        home,
        store_path(home) if _has_files(fs, store_path(home)) else None,
        journal.Contents(entries, backup.revision + 1),
        topics,
        following,
        planner.node_id,
        found.cluster_id,
        [*found.conflicts, *planner.conflicts],
        [*elsewhere, *found.notes, *planner.notes],
    )


def _has_files(fs: FileSystem, store: str) -> bool:
    """Whether there is anything to replace; a store's lock file alone is nothing."""
    return fs.is_dir(store) and any(name != paths.LOCK for name in fs.listdir(store))


@dataclass(frozen=True, slots=True)
class _Known:
    """A topic as a backup has it."""

    id: TopicId
    config: Mapping[str, str]
    partitions: tuple[PartitionState, ...]


def _topics_of(backup: journal.Contents) -> dict[str, _Known]:
    found = {}
    for key, entry in backup.entries.items():
        name = layout.parse_topic_key(key)
        if name is None:
            continue
        topic = layout.decode_topic(key, entry.value)
        states: list[PartitionState] = []
        number = 0
        while (chunk := layout.partitions_key(topic.id, number)) in backup.entries:
            states += layout.decode_partitions(chunk, backup.entries[chunk].value)
            number += 1
        found[name] = _Known(topic.id, topic.config, tuple(states))
    return found


class _Planner:
    """Works out which topics there are, and what they are like."""

    def __init__(
        self,
        fs: FileSystem,
        found: Scan,
        config: BrokerConfig,
        new_id: Callable[[], TopicId],
        known: Mapping[str, _Known],
        counts: Mapping[str, int],
    ) -> None:
        # handed in
        self._fs = fs
        self._config = config
        self._new_id = new_id
        self._known = known
        self._counts = counts
        self.node_id = config.node_id if found.node_id is None else found.node_id
        self._found: dict[str, dict[int, Traces]] = {}
        for partition, traces in found.found.items():
            self._found.setdefault(partition.topic, {})[partition.partition] = traces
        # A partition without a folder may have been under any of the epochs that the others had.
        self._highest = max((traces.leader_epoch for traces in found.found.values()), default=-1)
        # for the user
        self.conflicts: list[str] = []
        self.notes: list[str] = []

    def topics(self) -> list[TopicPlan]:
        names = sorted(self._found.keys() | self._known.keys())
        self.conflicts += (
            f"--partitions {unknown}: there is no such topic"
            for unknown in sorted(self._counts.keys() - set(names))
        )
        return [self._topic(name, self._found.get(name, {})) for name in names]

    def _topic(self, name: str, mine: Mapping[int, Traces]) -> TopicPlan:
        known = self._known.get(name)
        topic_id = self._id(name, mine, known)
        count = max(self._counts.get(name, 0), *(index + 1 for index in mine), 0)
        settings: Mapping[str, str] = {}
        origin = "the folders"
        if known is not None:
            settings = known.config
            origin = "the backup and the folders" if mine else "the backup"
            if not mine:
                self.notes.append(f"{name} is in the backup and has no folder: it will be empty")
            elif known.id != topic_id:
                self.notes.append(f"{name} was made anew since the backup, whose settings it gets")
            if known.id == topic_id:
                count = max(count, len(known.partitions))
        elif name in _COORDINATORS:
            settings = _COORDINATORS[name](self._config)
            count = self._count_hashed(name, mine, count)
        if count - len(mine) > MOST_MISSING and name not in self._counts:
            last = max(mine, default=count - 1)
            self.conflicts.append(
                f"{name}-{last} would be one of {count} partitions, of which {len(mine)} have a "
                f"folder: move it away if it is none, or confirm with --partitions {name}={count}"
            )
            count = len(mine)
        missing = tuple(index for index in range(count) if index not in mine)
        if missing and mine:
            self.notes.append(
                f"{name}: no folder for partition(s) {_ranges(missing)}; empty from now on"
            )
        states = []
        for index in range(count):
            epoch = mine[index].leader_epoch if index in mine else self._highest
            if known is not None and index < len(known.partitions):
                epoch = max(epoch, known.partitions[index].leader_epoch)
            states.append(
                PartitionState(
                    self.node_id, epoch + LEADER_EPOCH_GAP, 0, (self.node_id,), (self.node_id,)
                )
            )
        return TopicPlan(name, topic_id, states, settings, missing, origin)

    def _id(self, name: str, mine: Mapping[int, Traces], known: _Known | None) -> TopicId:
        ids = {
            traces.topic_id: traces.folder
            for traces in mine.values()
            if traces.topic_id is not None
        }
        if len(ids) > 1:
            where = "; ".join(
                f"{topic_id_text(topic_id)} in {folder}" for topic_id, folder in ids.items()
            )
            self.conflicts.append(
                f"{name} has more than one topic id ({where}): move the partitions of the topic "
                "you do not want out of their data folders"
            )
        if ids:
            return min(ids)
        if known is not None:
            return known.id
        self.notes.append(f"{name}: no folder of it says its topic id; it gets a new one")
        return self._new_id()

    def _count_hashed(self, name: str, mine: Mapping[int, Traces], count: int) -> int:
        """How many partitions a coordinator's topic has; it must be exactly as many as it had."""
        configured = self._config.offsets_topic_num_partitions
        content, setting = "groups", "offsets.topic.num.partitions"
        if name == TRANSACTIONS_TOPIC:
            configured = self._config.transaction_state_log_num_partitions
            content, setting = "transactions", "transaction.state.log.num.partitions"
        folders = {index: traces.folder for index, traces in mine.items()}
        told = name in self._counts
        fitting = likely_count(self._fs, folders, (count,) if told else (configured, count))
        if told:
            if fitting not in (None, count):
                self.notes.append(
                    f"{name}: its {content} are where they would be with {fitting} partitions"
                )
            return count
        if fitting is None:
            fitting = max(count, configured)
        if fitting != count or fitting != configured:
            self.notes.append(
                f"{name}: {count} partition(s) were found, {setting} is "
                f"{configured}, and {fitting} fits its {content}; if it had another number, say so "
                f"with --partitions {name}=N"
            )
        return fitting


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


# --- doing ----------------------------------------------------------------------------------------


def carry_out(fs: FileSystem, made: Plan, folders: Sequence[str], unique: str) -> str | None:
    """Make the store; returns where an older one was put. The data folders must be locked."""
    path = store_path(made.home)
    kept = None
    new = f"{path}.{unique}-new"
    fs.makedirs(new)
    journal.restore(fs, new, made.contents)
    if fs.is_dir(path):
        kept = os.path.join(made.home, f"{METADATA_FOLDER}.{unique}-old")
        fs.rename(path, kept)
    fs.rename(new, path)
    fs.sync_dir(made.home)
    remember(fs, folders, made.home)
    return kept
