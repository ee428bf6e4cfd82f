"""The requests of group members, built and read by hand, as `frames` does and for its reason.

The versions are those that librdkafka sends, so the older, non-flexible ones of the classic
protocol. Builders leave out of the hot path what never changes: a member keeps the bytes before and
behind the few that do (`Spliced`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_CLIENT_ID = b"bench"
_HEADER = struct.Struct(">hhih")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NULL_STRING = _INT16.pack(-1)
_NULL_ARRAY = b"\x00"
_EMPTY_ARRAY = b"\x01"
_NO_TAGS = b"\x00"

OFFSET_FETCH = 9
OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = (
    8,
    10,
    11,
    12,
    13,
    14,
)
CONSUMER_GROUP_HEARTBEAT = 68


class Spliced(NamedTuple):
    """A frame with one 32-bit number left open: the generation, or the member's epoch."""

    before: bytes
    behind: bytes

    def with_number(self, number: int) -> bytes:
        return self.before + _INT32.pack(number) + self.behind


class Joined(NamedTuple):
    """What a member reads of a JoinGroup answer. Only the leader is told of members."""

    error: int
    generation: int
    leader: bytes
    member: bytes
    members: int


class Beaten(NamedTuple):
    """What a member reads of a ConsumerGroupHeartbeat answer. No assignment: as before."""

    error: int
    epoch: int
    assignment: bytes | None
    """As it is sent back to say that it is owned: topics with their partitions."""
    partitions: int


# ---------------------------------------------------------------------- the classic protocol


def find_coordinator(group: str) -> bytes:
    """FindCoordinator 2."""
    return _frame(FIND_COORDINATOR, 2, _string(group.encode()) + b"\x00")


def join_group(
    group: str, member: bytes, topic: str, *, session_ms: int, rebalance_ms: int
) -> bytes:
    """JoinGroup 5 of a member that subscribes to one topic and offers `range`."""
    name = topic.encode()
    subscription = struct.pack(">hi", 0, 1) + _string(name) + _INT32.pack(-1)
    return _frame(
        JOIN_GROUP,
        5,
        _string(group.encode())
        + struct.pack(">ii", session_ms, rebalance_ms)
        + _string(member)
        + _NULL_STRING
        + _string(b"consumer")
        + _INT32.pack(1)
        + _string(b"range")
        + _bytes(subscription),
    )


def sync_group(group: str, member: bytes, assignments: bytes = _INT32.pack(0)) -> Spliced:
    """SyncGroup 3; the leader brings `assignments`."""
    tail = _string(member) + _NULL_STRING + assignments
    return _spliced(SYNC_GROUP, 3, _string(group.encode()), tail)


def assignments(shares: dict[bytes, bytes]) -> bytes:
    """What the leader hands out: each member's share."""
    return _INT32.pack(len(shares)) + b"".join(
        _string(member) + _bytes(share) for member, share in shares.items()
    )


def share(topic: str, partitions: range) -> bytes:
    """One member's share of a topic, as clients write it."""
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + _string(topic.encode()) + numbers + _INT32.pack(-1)


def heartbeat(group: str, member: bytes) -> Spliced:
    """Heartbeat 3."""
    return _spliced(HEARTBEAT, 3, _string(group.encode()), _string(member) + _NULL_STRING)


def leave_group(group: str, member: bytes) -> bytes:
    """LeaveGroup 1."""
    return _frame(LEAVE_GROUP, 1, _string(group.encode()) + _string(member))


def offset_commit(group: str, topic: str, partition: int, offset: int) -> bytes:
    """OffsetCommit 7 of one partition for a group without members."""
    return _offset_commit(group, topic, [partition], offset)


def offset_commits(group: str, topic: str, partitions: int, offset: int) -> bytes:
    """The same of all partitions of a topic."""
    return _offset_commit(group, topic, range(partitions), offset)


def _offset_commit(group: str, topic: str, partitions: Sequence[int], offset: int) -> bytes:
    return _frame(
        OFFSET_COMMIT,
        7,
        _string(group.encode())
        + _INT32.pack(-1)
        + _string(b"")
        + _NULL_STRING
        + _INT32.pack(1)
        + _string(topic.encode())
        + _INT32.pack(len(partitions))
        + b"".join(struct.pack(">iqih", each, offset, -1, -1) for each in partitions),
    )


def offset_fetch(group: str, topic: str, partitions: int) -> bytes:
    """OffsetFetch 5 of all partitions of a topic."""
    numbers = struct.pack(f">i{partitions}i", partitions, *range(partitions))
    body = _string(group.encode()) + _INT32.pack(1) + _string(topic.encode()) + numbers
    return _frame(OFFSET_FETCH, 5, body)


def read_error(answer: bytes) -> int:
    """The error code of an answer that has it behind the throttle time."""
    code: int = _INT16.unpack_from(answer, 8)[0]
    return code


def read_coordinator(answer: bytes) -> tuple[str, int]:
    """Host and port of a FindCoordinator 2 answer without an error."""
    _message, at = _read_string(answer, 10)
    host, at = _read_string(answer, at + 4)
    (port,) = _INT32.unpack_from(answer, at)
    return host.decode(), port


def read_joined(answer: bytes) -> Joined:
    """A JoinGroup 5 answer."""
    error, generation, length = struct.unpack_from(">hih", answer, 8)
    at = 16 + max(0, length)
    leader, at = _read_string(answer, at)
    member, at = _read_string(answer, at)
    return Joined(error, generation, leader, member, _INT32.unpack_from(answer, at)[0])


def read_commit_error(answer: bytes) -> int:
    """The error code of the only partition of an OffsetCommit 7 answer."""
    code: int = _INT16.unpack_from(answer, len(answer) - 2)[0]
    return code


def read_fetched(answer: bytes) -> list[int]:
    """The offsets of the only topic of an OffsetFetch 5 answer; nothing when it is an error."""
    (error,) = _INT16.unpack_from(answer, len(answer) - 2)
    if error:
        return []
    (topics,) = _INT32.unpack_from(answer, 8)
    if not topics:
        return []
    _name, at = _read_string(answer, 12)
    (count,) = _INT32.unpack_from(answer, at)
    at += 4
    offsets = []
    for _ in range(count):
        _partition, offset, _epoch = struct.unpack_from(">iqi", answer, at)
        _metadata, at = _read_string(answer, at + 16)
        offsets.append(offset)
        at += 2
    return offsets


# ---------------------------------------------------------------------- the consumer protocol


def consumer_join(group: str, member: bytes, topic: str, *, rebalance_ms: int) -> bytes:
    """ConsumerGroupHeartbeat 1 of a member that comes in and owns nothing."""
    return _consumer_heartbeat(
        group,
        member,
        _NULL_ARRAY + _NULL_ARRAY + _INT32.pack(rebalance_ms)
        + b"\x02" + _compact(topic.encode()) + _NULL_ARRAY + _NULL_ARRAY + _EMPTY_ARRAY + _NO_TAGS,
    ).with_number(0)  # fmt: skip


def consumer_heartbeat(group: str, member: bytes, owned: bytes | None = None) -> Spliced:
    """ConsumerGroupHeartbeat 1 that says nothing new, or only what is owned now."""
    nothing = _NULL_ARRAY * 2 + _INT32.pack(-1) + _NULL_ARRAY * 3
    return _consumer_heartbeat(
        group, member, nothing + (_NULL_ARRAY if owned is None else owned) + _NO_TAGS
    )


def read_beaten(answer: bytes) -> Beaten:
    """A ConsumerGroupHeartbeat 1 answer."""
    (error,) = _INT16.unpack_from(answer, 9)
    at = _skip_compact(answer, 11)  # the message
    at = _skip_compact(answer, at)  # the member's id
    (epoch,) = _INT32.unpack_from(answer, at)
    at += 8
    if answer[at] == 0xFF:
        return Beaten(error, epoch, None, 0)
    begin = at = at + 1
    topics, at = _read_length(answer, at)
    partitions = 0
    for _ in range(topics):
        count, at = _read_length(answer, at + 16)
        partitions += count
        at += 4 * count + 1
    return Beaten(error, epoch, bytes(answer[begin:at]), partitions)


def _consumer_heartbeat(group: str, member: bytes, tail: bytes) -> Spliced:
    head = _NO_TAGS + _compact(group.encode()) + _compact(member)
    return _spliced(CONSUMER_GROUP_HEARTBEAT, 1, head, tail)


# ---------------------------------------------------------------------- pieces


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    head = _HEADER.pack(api_key, version, 1, len(_CLIENT_ID)) + _CLIENT_ID
    return _INT32.pack(len(head) + len(body)) + head + body


def _spliced(api_key: int, version: int, before: bytes, behind: bytes) -> Spliced:
    whole = _frame(api_key, version, before + bytes(4) + behind)
    cut = len(whole) - len(behind)
    return Spliced(whole[: cut - 4], whole[cut:])


def _string(value: bytes) -> bytes:
    return _INT16.pack(len(value)) + value


def _bytes(value: bytes) -> bytes:
    return _INT32.pack(len(value)) + value


def _compact(value: bytes) -> bytes:
    return _unsigned(len(value) + 1) + value


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_string(answer: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT16.unpack_from(answer, at)
    end = at + 2 + max(0, length)
    return answer[at + 2 : end], end


def _read_length(answer: bytes, at: int) -> tuple[int, int]:
    """A compact length as it is meant (nothing and null are both 0), and where it ends."""
    value = shift = 0
    while True:
        byte = answer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return max(0, value - 1), at
        shift += 7


def _skip_compact(answer: bytes, at: int) -> int:
    length, at = _read_length(answer, at)
    return at + length
