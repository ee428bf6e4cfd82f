"""The small text files of a data folder: offsets by partition, a partition's topic id, and who owns
the folder. Written whole and atomically; read strictly, with the file and the line in the error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.model.ids import TopicId, TopicPartition, parse_topic_id, topic_id_text
from ottla.storage import paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ottla.runtime.files import FileSystem

_VERSION = 0

# Java puts a backslash before these when it writes properties.
_SPECIAL = re.compile(r"[\\:=#!]")
_ESCAPE = r"\\\g<0>"
_ESCAPED = re.compile(r"\\(.)")


class CheckpointError(Exception):
    """A checkpoint file that cannot be understood; says which, and where in it."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path = path
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.problem}"


def read_lines(fs: FileSystem, path: str) -> list[tuple[int, str]]:
    """The entries of a checkpoint (version, count, one entry a line), each with its line number.

    A missing or empty file has none: Kafka creates them empty.
    """
    try:
        text = fs.read_bytes(path).decode("utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise CheckpointError(path, 1, f"not text: {error}") from None
    lines = text.splitlines()
    if not lines:
        return []
    if not text.endswith("\n"):
        raise CheckpointError(path, len(lines), f"the line is cut off: {lines[-1]!r}")
    version = _number(path, 1, lines[0])
    if version != _VERSION:
        raise CheckpointError(path, 1, f"version {version}, only version {_VERSION} is known")
    if len(lines) == 1:
        return []
    count = _number(path, 2, lines[1])
    entries = list(enumerate(lines[2:], start=3))
    if len(entries) != count:
        raise CheckpointError(path, 2, f"{count} entries announced, {len(entries)} found")
    return entries


def write_lines(fs: FileSystem, path: str, entries: Iterable[str]) -> None:
    """Write what `read_lines` reads."""
    lines = list(entries)
    text = "\n".join((str(_VERSION), str(len(lines)), *lines)) + "\n"
    fs.write_atomic(path, text.encode())


class OffsetCheckpoint:
    """One offset for each partition of a data folder: recovery points, high watermarks, starts."""

    __slots__ = ("_fs", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path

    def read(self) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        for number, line in read_lines(self._fs, self.path):
            parts = line.split()
            if len(parts) != 3:
                raise CheckpointError(self.path, number, f"not 'topic partition offset': {line!r}")
            partition = TopicPartition(parts[0], _number(self.path, number, parts[1]))
            offsets[partition] = _number(self.path, number, parts[2])
        return offsets

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        write_lines(
            self._fs,
            self.path,
            (f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()),
        )


def read_partition_metadata(fs: FileSystem, folder: str) -> TopicId | None:
    """The topic id in a partition folder's `partition.metadata`; None without such a file."""
    path = os.path.join(folder, paths.PARTITION_METADATA)
    try:
        data = fs.read_bytes(path)
    except FileNotFoundError:
        return None
    fields: dict[str, tuple[int, str]] = {}
    for number, line in _text_lines(path, data):
        name, separator, value = line.partition(":")
        if not separator:
            raise CheckpointError(path, number, f"not 'name: value': {line!r}")
        fields[name.strip()] = number, value.strip()
    number, value = _required(path, fields, "version")
    if _number(path, number, value) != _VERSION:
        raise CheckpointError(path, number, f"version {value}, only version {_VERSION} is known")
    number, value = _required(path, fields, "topic_id")
    try:
        topic_id = parse_topic_id(value)
    except ValueError:
        raise CheckpointError(path, number, f"not a topic id: {value!r}") from None
    if not any(topic_id):
        raise CheckpointError(path, number, "the topic id is all zero")
    return topic_id


def write_partition_metadata(fs: FileSystem, folder: str, topic_id: TopicId) -> None:
    """Write what `read_partition_metadata` reads; the last line has no end, as Kafka's has none."""
    path = os.path.join(folder, paths.PARTITION_METADATA)
    fs.write_atomic(path, f"version: {_VERSION}\ntopic_id: {topic_id_text(topic_id)}".encode())


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose folder this is. Version 0, of brokers that used ZooKeeper, may lack any of the ids."""

    node_id: int | None
    cluster_id: str | None
    directory_id: str | None = None
    version: int = 1


def read_meta_properties(fs: FileSystem, folder: str) -> MetaProperties | None:
    """The folder's `meta.properties`, or None when it has none yet."""
    path = os.path.join(folder, paths.META_PROPERTIES)
    try:
        data = fs.read_bytes(path)
    except FileNotFoundError:
        return None
    fields: dict[str, tuple[int, str]] = {}
    for number, line in _text_lines(path, data):
        if line.startswith(("#", "!")):
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise CheckpointError(path, number, f"not 'name=value': {line!r}")
        fields[name.strip()] = number, _ESCAPED.sub(r"\1", value.strip())
    version_line, version_text = fields.get("version", (1, "0"))
    version = _number(path, version_line, version_text)
    if version not in (0, 1):
        raise CheckpointError(path, version_line, f"version {version}, only 0 and 1 are known")
    if version == 1:
        _required(path, fields, "node.id")
        _required(path, fields, "cluster.id")
    name = "node.id" if version == 1 else "broker.id"
    node = fields.get(name)
    return MetaProperties(
        node_id=_number(path, *node) if node else None,
        cluster_id=_optional(fields, "cluster.id"),
        directory_id=_optional(fields, "directory.id"),
        version=version,
    )


def write_meta_properties(fs: FileSystem, folder: str, properties: MetaProperties) -> None:
    """Write what `read_meta_properties` reads."""
    node_name = "broker.id" if properties.version == 0 else "node.id"
    fields: list[tuple[str, object]] = [
        ("version", properties.version),
        (node_name, properties.node_id),
        ("cluster.id", properties.cluster_id),
        ("directory.id", properties.directory_id),
    ]
    text = "".join(
        f"{name}={_SPECIAL.sub(_ESCAPE, str(value))}\n"
        for name, value in fields
        if value is not None
    )
    fs.write_atomic(os.path.join(folder, paths.META_PROPERTIES), text.encode())


def _text_lines(path: str, data: bytes) -> Iterator[tuple[int, str]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(path, 1, f"not text: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line.strip()


def _required(path: str, fields: Mapping[str, tuple[int, str]], name: str) -> tuple[int, str]:
    try:
        return fields[name]
    except KeyError:
        raise CheckpointError(path, 1, f"{name} is missing") from None


def _optional(fields: Mapping[str, tuple[int, str]], name: str) -> str | None:
    found = fields.get(name)
    return found[1] if found else None


def _number(path: str, line: int, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CheckpointError(path, line, f"not a number: {text!r}") from None
