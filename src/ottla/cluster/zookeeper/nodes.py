"""How keys and commits look as ZooKeeper's nodes.

A key is the node of the same path below the chroot: `brokers/ids/0` is `/brokers/ids/0`, and its
data is the value, so that `zookeeper-shell` shows what was written. Two things do not fit as they
are, and have a form of their own:

- A node without data is a directory: it is there for the keys below it and is no key itself.
- A key whose path was a directory first cannot begin at ZooKeeper's version 0. Its data begins with
  a zero byte and the version at which it became a key, which is subtracted. A value that is empty
  or begins with a zero byte is written like that too.

Every commit also creates a sequential node below `.changes`, which says what the commit did: one
line of JSON, then the values, unless they are many bytes. Whoever keeps a copy of the keys reads
these nodes in their order and needs no other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

CHANGES = ".changes"
LINES = ".lines"
CHANGE_PREFIX = "c"
INLINE_BYTES = 32_768
"""Values of a commit that are together larger are read from their own nodes."""

_ESCAPED = struct.Struct(">ci")
_ESCAPE = b"\0"


class Node(NamedTuple):
    """One node as the mirror knows it."""

    value: bytes | None
    """None: a directory."""
    version: int
    """ZooKeeper's. That of the key is less by `base`."""
    base: int = 0
    born: int = 0
    """The transaction that created it; two nodes of one path differ in this."""
    ephemeral: bool = False


class Kind(StrEnum):
    """What a commit did to a node."""

    DIRECTORY = "d"
    CREATED = "c"
    EPHEMERAL = "e"
    SET = "s"
    GONE = "x"


class Effect(NamedTuple):
    """What a commit did to one node; `value` is None where it must be read from the node."""

    kind: Kind
    key: str
    version: int = 0
    base: int = 0
    value: bytes | None = None


class Change(NamedTuple):
    """A node below `.changes`."""

    id: str
    effects: tuple[Effect, ...]
    number: int = -1
    transaction: int = 0


def encode_data(value: bytes, base: int) -> bytes:
    """The data of the node of a key."""
    if base == 0 and value and not value.startswith(_ESCAPE):
        return value
    return _ESCAPED.pack(_ESCAPE, base) + value


def decode_data(data: bytes) -> tuple[bytes | None, int]:
    """The value that a node's data means, and the version at which it became a key."""
    if not data:
        return None, 0
    if not data.startswith(_ESCAPE):
        return data, 0
    if len(data) < _ESCAPED.size:
        return data, 0  # nothing that we wrote
    return data[_ESCAPED.size :], _ESCAPED.unpack_from(data)[1]


def encode_change(change_id: str, effects: Sequence[Effect]) -> bytes:
    inline = sum(len(effect.value or b"") for effect in effects) <= INLINE_BYTES
    rows = []
    values = []
    for kind, key, version, base, value in effects:
        length = -1
        if inline and value is not None:
            length = len(value)
            values.append(value)
        rows.append([kind.value, key, version, base, length])
    head = json.dumps({"v": 1, "id": change_id, "nodes": rows}, separators=(",", ":"))
    return b"\n".join((head.encode("ascii"), b"".join(values)))


def decode_change(data: bytes, number: int, transaction: int) -> Change:
    head, _, rest = data.partition(b"\n")
    fields = json.loads(head)
    if fields["v"] != 1:
        raise ValueError(f"it has format version {fields['v']}, this Ottla knows 1")
    effects = []
    start = 0
    for kind, key, version, base, length in fields["nodes"]:
        value = None
        if length >= 0:
            value = rest[start : start + length]
            start += length
        effects.append(Effect(Kind(kind), key, version, base, value))
    return Change(fields["id"], tuple(effects), number, transaction)


def change_name(number: int) -> str:
    return f"{CHANGES}/{CHANGE_PREFIX}{number:010d}"


def change_number(path: str) -> int:
    """The number ZooKeeper gave to a change, from its path or name."""
    return int(path.rpartition("/")[2].removeprefix(CHANGE_PREFIX))


def parent(key: str) -> str:
    """The path above; empty for the root."""
    return key.rpartition("/")[0]


def is_reserved(key: str) -> bool:
    """Whether a path is none that a key may have: ours for other things, or ZooKeeper's own."""
    return key.startswith((".", "zookeeper/")) or key == "zookeeper"
