"""The few request frames the bench builds by hand: ApiVersions 0, Produce 7 and CreateTopics 2.

Written out here rather than taken from the broker under test, so that both sides of the
comparison stay independent of it.
"""

from __future__ import annotations

import socket
import struct

from crc32c import crc32c

_CLIENT_ID = b"bench"
_COVERED = struct.Struct(">hiqqqhii")
COVERED_FROM = 21
"""Where in a batch that begins which its checksum is of."""
RECORDS_FROM = COVERED_FROM + _COVERED.size


def api_versions() -> bytes:
    """ApiVersions version 0."""
    return _frame(18, 0, b"")


def produce(topic: str, partition: int, records: bytes) -> bytes:
    """Produce version 7 with acks=1 for one partition."""
    name = topic.encode()
    body = struct.pack(">hhi", -1, 1, 30_000)
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iii", 1, partition, len(records)) + records
    return _frame(0, 7, body)


def create_topic(topic: str, replicas: int, configs: dict[str, str]) -> bytes:
    """CreateTopics version 2 of one topic with one partition."""
    body = struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">ihii", 1, replicas, 0, len(configs))
    for name, value in configs.items():
        body += _string(name) + _string(value)
    return _frame(19, 2, body + struct.pack(">i?", 30_000, False))


def read_created_error(frame: bytes) -> int:
    """The error code of the only topic of a CreateTopics 2 response."""
    (name_length,) = struct.unpack_from(">h", frame, 12)
    code: int = struct.unpack_from(">h", frame, 14 + name_length)[0]
    return code


def batch(value: bytes) -> bytes:
    """A record batch (magic 2) with one record, no key, no headers."""
    now = 1_700_000_000_000
    return batch_of(record(0, None, value), 1, now)


def batch_of(records: bytes, count: int, timestamp: int) -> bytes:
    """A record batch (magic 2) of records whose deltas are right, all of one time."""
    covered = _COVERED.pack(0, count - 1, timestamp, timestamp, -1, -1, -1, count) + records
    head = struct.pack(">iBI", -1, 2, crc32c(covered))
    return struct.pack(">qi", 0, len(head) + len(covered)) + head + covered


def record(delta: int, key: bytes | None, value: bytes) -> bytes:
    """One record without headers."""
    body = b"\x00" + varint(0) + varint(delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def read_frame(sock: socket.socket) -> bytes:
    """One whole response without its length."""
    (length,) = struct.unpack(">i", _exactly(sock, 4))
    return _exactly(sock, length)


def check_produce_response(frame: bytes) -> None:
    """Raise unless the only partition of a Produce 7 response has no error."""
    (name_length,) = struct.unpack_from(">h", frame, 8)
    (error,) = struct.unpack_from(">h", frame, 10 + name_length + 4 + 4)
    if error:
        raise RuntimeError(f"the broker answered error {error}")


def _string(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(head) + len(body)) + head + body


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            raise RuntimeError("the broker closed the connection")
        data += part
    return data


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)
