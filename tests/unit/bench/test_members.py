"""The members of the load generator: what they ask next, and when their group has settled."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from bench.load import members

JOIN, HEARTBEAT, SYNC, CONSUMER = 11, 12, 14, 68
MEMBER_ID_REQUIRED, REBALANCE = 79, 27


class Line:
    """A socket that keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def send(self, frame: bytes) -> None:
        self.asked.append(struct.unpack_from(">h", frame, 4)[0])

    sendall = send


class Room(members.Crowd):
    """A crowd without a broker."""

    def __init__(self) -> None:
        self.unsettled = 0

    def connect(self, member: members.Member, group: str) -> Any:
        return Line()


def last_asked(member: Any) -> int:
    asked: int = member.sock.asked[-1]
    return asked


def joined(error: int, generation: int, leader: str, member: str, size: int = 0) -> bytes:
    def string(text: str) -> bytes:
        return struct.pack(">h", len(text)) + text.encode()

    head = bytes(8) + struct.pack(">hi", error, generation)
    return head + string("range") + string(leader) + string(member) + struct.pack(">i", size)


def plain(error: int = 0) -> bytes:
    return bytes(8) + struct.pack(">h", error)


def beaten(epoch: int, partitions: int | None = None) -> bytes:
    """An answer in the consumer protocol; without partitions everything is as before."""
    head = bytes(9) + struct.pack(">h", 0) + b"\x00\x02m" + struct.pack(">ii", epoch, 5)
    if partitions is None:
        return head + b"\xff\x00"
    numbers = struct.pack(f">{partitions}i", *range(partitions))
    return head + b"\x01\x02" + bytes(16) + bytes([partitions + 1]) + numbers + b"\x00\x00\x00"


@pytest.fixture
def group() -> members.ClassicGroup:
    """Two members; the first is in, alone, and has settled."""
    group = members.ClassicGroup(Room(), "g", "orders", 2, 4)
    first, _ = group.members
    group.form()
    first.answered(joined(MEMBER_ID_REQUIRED, -1, "", "a"))
    first.answered(joined(0, 1, "a", "a", 1))
    first.answered(plain())
    assert group.crowd.unsettled == 0
    assert first.sock.asked == [JOIN, JOIN, SYNC]
    return group


def test_newcomer_joins_with_its_id_and_the_others_ask_at_once(group: members.ClassicGroup) -> None:
    first, second = group.members
    group.arrive()
    assert last_asked(first) == SYNC
    second.answered(joined(MEMBER_ID_REQUIRED, -1, "", "b"))
    assert second.sock.asked == [JOIN, JOIN]
    assert last_asked(first) == HEARTBEAT


def test_heartbeat_is_repeated_until_it_tells_of_the_rebalance(group: members.ClassicGroup) -> None:
    first, second = group.members
    group.arrive()
    second.answered(joined(MEMBER_ID_REQUIRED, -1, "", "b"))
    first.answered(plain())
    assert last_asked(first) == HEARTBEAT
    first.answered(plain(REBALANCE))
    assert last_asked(first) == JOIN


def test_classic_group_has_settled_with_the_last_assignment(group: members.ClassicGroup) -> None:
    first, second = group.members
    group.arrive()
    second.answered(joined(MEMBER_ID_REQUIRED, -1, "", "b"))
    first.answered(plain(REBALANCE))
    second.answered(joined(0, 2, "a", "b"))
    first.answered(joined(0, 2, "a", "a", 2))
    first.answered(plain())
    assert group.crowd.unsettled == 1
    second.answered(plain())
    assert group.crowd.unsettled == 0
    assert (last_asked(first), last_asked(second)) == (SYNC, SYNC)


def test_generation_that_somebody_missed_is_not_the_end(group: members.ClassicGroup) -> None:
    first, second = group.members
    group.arrive()
    second.answered(joined(MEMBER_ID_REQUIRED, -1, "", "b"))
    first.answered(plain(REBALANCE))
    first.answered(joined(0, 2, "a", "a", 1))
    first.answered(plain())
    assert group.crowd.unsettled == 1
    assert last_asked(first) == HEARTBEAT


def test_error_that_no_member_expects_ends_the_measurement(group: members.ClassicGroup) -> None:
    first, _ = group.members
    first.heartbeat()
    with pytest.raises(RuntimeError, match="error 25"):
        first.answered(plain(25))


def test_consumer_group_has_settled_when_everything_is_owned_evenly() -> None:
    group = members.ConsumerGroup(Room(), "g", "orders", 2, 4)
    first, second = group.members
    group.form()
    first.answered(beaten(1, 4))
    assert group.crowd.unsettled == 1  # what it owns has not been acknowledged
    first.answered(beaten(1))
    assert group.crowd.unsettled == 0

    group.arrive()
    second.answered(beaten(2, 0))  # it owned nothing before: there is nothing to say
    assert second.sock.asked == [CONSUMER]
    first.answered(beaten(1, 2))
    first.answered(beaten(2))
    second.answered(beaten(2, 2))
    assert group.crowd.unsettled == 1
    second.answered(beaten(2))
    assert group.crowd.unsettled == 0


def test_only_a_member_with_something_to_learn_asks_again() -> None:
    group = members.ConsumerGroup(Room(), "g", "orders", 2, 4)
    first, second = group.members
    first.epoch, first.owns = 1, 4
    group.arrive()
    second.answered(beaten(2, 0))
    assert [len(each.sock.asked) for each in (first, second)] == [1, 1]
    first.answered(beaten(1, 2))
    first.answered(beaten(2))
    assert [len(each.sock.asked) for each in (first, second)] == [2, 2]


def test_consumer_group_goes_on_without_the_one_that_left() -> None:
    group = members.ConsumerGroup(Room(), "g", "orders", 2, 4)
    first, second = group.members
    for each in (first, second):
        each.epoch, each.owns = 2, 2
    group.depart()
    second.answered(beaten(-1))
    assert second.owns == 0
    first.answered(beaten(3, 4))
    first.answered(beaten(3))
    assert group.crowd.unsettled == 0
    assert len(second.sock.asked) == 1


def test_steady_heartbeat_that_brings_news_is_not_steady() -> None:
    group = members.ConsumerGroup(Room(), "g", "orders", 1, 4)
    (only,) = group.members
    only.epoch = 1
    assert len(group.heartbeats()) == 1
    only.answered(beaten(1))
    with pytest.raises(RuntimeError, match="news"):
        only.answered(beaten(1, 3))
