"""What a lent store and its lender say to each other: JSON in frames of a 4-byte length. No I/O.

    to the lender     hello, commit, join, campaign (each with an id), cancel, release, sync, ping
    to the borrower   all, changes (the mirror), done, conflict, failed (to an id), lost, pong

A connection begins with a hello: the name of this connection, and of the one that its client had
before. The lender answers with everything, when the earlier connection is over.

Values are bytes; in JSON each byte is the character of its number, which for the ASCII that we
store is the value itself.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any

from ottla.cluster.store import Check, Create, Delete, Entry, Op, Set

LENGTH = Struct(">I")
MAX_MESSAGE = 1 << 28
LOOKS = 4
"""So many times in a session each side looks whether it has heard anything since the last look."""

Message = dict[str, Any]


class BadMessage(ValueError):
    """Whoever speaks here does not know this language."""


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise BadMessage(str(error)) from None
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise BadMessage("a message without a type")
    return message


def encode_value(value: bytes) -> str:
    return value.decode("latin-1")


def decode_value(text: str) -> bytes:
    return text.encode("latin-1")


def encode_entry(entry: Entry | None) -> list[object] | None:
    return None if entry is None else [encode_value(entry.value), entry.version]


def decode_entry(fields: list[Any] | None) -> Entry | None:
    return None if fields is None else Entry(decode_value(fields[0]), int(fields[1]))


def encode_op(op: Op) -> list[object]:
    if isinstance(op, Create):
        return ["create", op.key, encode_value(op.value)]
    if isinstance(op, Set):
        return ["set", op.key, encode_value(op.value), op.version]
    return ["delete" if isinstance(op, Delete) else "check", op.key, op.version]


def decode_op(fields: list[Any]) -> Op:
    match fields:
        case ["create", str(key), str(value)]:
            return Create(key, decode_value(value))
        case ["set", str(key), str(value), int(version)]:
            return Set(key, decode_value(value), version)
        case ["delete", str(key), int(version)]:
            return Delete(key, version)
        case ["check", str(key), int(version)]:
            return Check(key, version)
    raise BadMessage(f"{fields!r} is no operation")
