"""Offsets by partition, and whose they are: Kafka's checkpoints, with a file of ids beside each.

Kafka's checkpoints name a partition by its topic's name. A topic that is deleted and made again has
the same name, and an old entry, believed, would hide or refuse the new topic's records. So each
checkpoint has a companion, `<checkpoint>.topic-ids`, with a line `topic partition offset topic-id`
for each entry, and an entry is believed

- when a line with its partition and offset has the topic id of the partition's own folder;
- when there is no such line. Somebody who keeps no ids wrote the checkpoint after us, or before we
  came: Apache Kafka, which rewrites its checkpoints before a name can be used again.

It is ignored when the lines with its partition and offset name other topics only. All entries are
ignored when the companion cannot be read. No record is lost by that: a missing recovery point costs
time, a missing log start shows deleted records again.

Two files cannot be replaced in one step. The companion is written first, and keeps the lines that
belong to the checkpoint still on the disk; so whichever checkpoint a crash leaves, each of its
entries has its line. Because a line is bound to an offset, lines that are left over say nothing
about newer entries. Nothing is written when nothing has changed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.model.ids import ZERO_TOPIC_ID, TopicId, TopicPartition, topic_id_text
from ottla.storage import paths
from ottla.storage.checkpoints import CheckpointError, OffsetCheckpoint, read_lines, write_lines

if TYPE_CHECKING:
    from ottla.runtime.files import FileSystem

logger = logging.getLogger(__name__)

_text_of = functools.lru_cache(1024)(topic_id_text)  # a topic has many partitions
_UNKNOWN = topic_id_text(ZERO_TOPIC_ID)
_NOBODY = "-"  # the id of an entry whose partition had gone when we came


class Entry(NamedTuple):
    """What a checkpoint says about a partition, and of which topics it may be saying it."""

    offset: int
    topic_ids: tuple[str, ...] = ()
    """As they are written in the companion."""

    def is_of(self, topic_id: TopicId) -> bool:
        """Whether the entry may be believed about a partition of this topic."""
        known = [each for each in self.topic_ids if each != _UNKNOWN]
        return not known or _text_of(topic_id) in known


class TopicCheckpoint:
    """One of a data folder's checkpoints. Its methods block; `lock` keeps writers apart."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self.lock = asyncio.Lock()
        self._fs = fs
        self._offsets = OffsetCheckpoint(fs, path)
        self._ids_path = path + paths.TOPIC_IDS_SUFFIX
        # The lines that belong to what is on the disk; None as long as nobody has looked.
        self._lines: str | None = None
        self._distrusted = False
        self._written = False

    def read(self) -> dict[TopicPartition, Entry]:
        """Every entry; none when one of the two files cannot be understood. Raises OSError."""
        try:
            ids = self._read_ids()
        except CheckpointError as error:
            logger.warning("%s; %s is ignored", error, self.path)
            self._distrusted, self._lines = True, ""
            return {}
        self._lines = "\n".join(f"{key} {each}" for key, found in ids.items() for each in found)
        try:
            offsets = self._offsets.read()
        except CheckpointError as error:
            logger.warning("%s; every log of the folder is looked through instead", error)
            return {}
        return {
            partition: Entry(offset, ids.get(_key(partition, offset), ()))
            for partition, offset in offsets.items()
        }

    def claim(
        self, entries: Mapping[TopicPartition, Entry], owners: Mapping[TopicPartition, TopicId]
    ) -> None:
        """Note whose the entries without a line are, now that it is known: a folder that Kafka
        wrote. Otherwise they would be believed of the next topic with that name, too. Zeros stand
        for a partition whose topic is not known; one that is not in `owners` is not here at all.
        """
        new = [
            f"{_key(partition, entry.offset)} {_text_of(owner) if owner else _NOBODY}"
            for partition, entry in entries.items()
            if not entry.topic_ids and (owner := owners.get(partition)) != ZERO_TOPIC_ID
        ]
        if new:
            lines = [*(self._lines or "").splitlines(), *new]
            write_lines(self._fs, self._ids_path, lines)
            self._lines = "\n".join(lines)

    def write(self, entries: Iterable[tuple[TopicPartition, int, str]]) -> None:
        """Replace the checkpoint: partition, offset and topic id (`id_text`). Raises OSError."""
        listed = list(entries)
        if self._lines is None:
            self.read()
        before = self._lines or ""
        lines = [f"{_key(partition, offset)} {text}" for partition, offset, text in listed]
        joined = "\n".join(lines)
        if self._written and joined == before:
            return
        if self._distrusted:
            # The entries on the disk are ignored now; they must not be believed for want of lines.
            self._offsets.write({})
            self._distrusted = False
        write_lines(self._fs, self._ids_path, dict.fromkeys((*before.splitlines(), *lines)))
        self._offsets.write({partition: offset for partition, offset, _ in listed})
        self._lines, self._written = joined, True

    def _read_ids(self) -> dict[str, tuple[str, ...]]:
        """The topic ids that are noted for each `topic partition offset`."""
        path = self._ids_path
        entries = read_lines(self._fs, path)
        if not entries and self._fs.exists(path) and not self._fs.size(path):
            raise CheckpointError(path, 1, "the file is empty")
        ids: dict[str, tuple[str, ...]] = {}
        for number, line in entries:
            key, _, topic_id = line.rpartition(" ")
            if key.count(" ") != 2:
                problem = f"not 'topic partition offset topic-id': {line!r}"
                raise CheckpointError(path, number, problem)
            ids[key] = (*ids.get(key, ()), topic_id)
        return ids


def id_text(topic_id: TopicId) -> str:
    """A topic id as the companion has it."""
    return _text_of(topic_id)


def _key(partition: TopicPartition, offset: int) -> str:
    return f"{partition.topic} {partition.partition} {offset}"
