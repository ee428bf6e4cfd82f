"""The metadata as one file for people and backups: JSON, with a version and a checksum.

    {"format": "ottla-metadata", "version": 1, "cluster_id": …, "node_id": …, "revision": …,
     "entries": {"topics/orders": {"version": 0, "value": {…}}, …},
     "sha256": "…"}

The entries are the store's own keys (`cluster.layout`); their values are JSON already. The checksum
is over everything else, written without spaces and with sorted names, so that a file may be
formatted anew without harm, but not changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from ottla.cluster import layout
from ottla.cluster.journal import Contents
from ottla.cluster.store import Entry, check_key

FORMAT = "ottla-metadata"
VERSION = 1
_SUM = "sha256"


class BadBackup(Exception):
    """A file that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What was in the store, and whose it was."""

    cluster_id: str | None
    node_id: int | None
    contents: Contents = field(default_factory=Contents)


def dump(backup: Backup) -> str:
    """The text of a backup."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "cluster_id": backup.cluster_id,
        "node_id": backup.node_id,
        "revision": backup.contents.revision,
        "entries": {
            key: {"version": entry.version, "value": json.loads(entry.value)}
            for key, entry in sorted(backup.contents.entries.items())
        },
    }
    return json.dumps({**document, _SUM: _checksum(document)}, indent=1) + "\n"


def parse(text: str) -> Backup:
    """What `dump` wrote. Raises BadBackup."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadBackup(f"it is not whole, or no JSON at all: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadBackup("it is not an export of `ottla metadata export`")
    if document.get("version") != VERSION:
        raise BadBackup(
            f"it has format version {document.get('version')}, this Ottla knows {VERSION}"
        )
    claimed = document.pop(_SUM, None)
    if claimed != _checksum(document):
        raise BadBackup("its checksum is wrong: the file was changed or damaged")
    try:
        entries = {
            str(key): Entry(_encode(entry["value"]), int(entry["version"]))
            for key, entry in document["entries"].items()
        }
        for key, entry in entries.items():
            _check(key, entry.value)
        contents = Contents(entries, int(document["revision"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadBackup(f"what it holds cannot be understood: {error}") from None
    return Backup(document.get("cluster_id"), document.get("node_id"), contents)


def _check(key: str, value: bytes) -> None:
    """A ValueError unless the broker can read this entry."""
    check_key(key)
    if layout.parse_partitions_key(key) is not None:
        layout.decode_partitions(key, value)
    elif layout.parse_topic_key(key) is not None:
        layout.decode_topic(key, value)
    elif key in (layout.PRODUCER_IDS, layout.BROKER_EPOCH):
        layout.decode_counter(key, value)


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _checksum(document: dict[str, Any]) -> str:
    canonical = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
