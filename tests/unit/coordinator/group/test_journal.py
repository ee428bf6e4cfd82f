"""The records of `__consumer_offsets`: bytes as Apache Kafka 4.2 writes them, and back."""

from __future__ import annotations

import pytest

from ottla.coordinator.group import journal
from ottla.coordinator.group.group import CommittedOffset
from ottla.model.ids import TopicId

ID = TopicId(bytes(range(16)))

# Keys and values made by Apache Kafka 4.2's own record classes.
GOLDEN = {
    "offset": (
        journal.offset("g", "t", 3, CommittedOffset(5, 1, "m", 100, -1, ID)),
        "00010001670001740000000 3",
        "0004 0000000000000005 00000001 026d 0000000000000064 01 00 10"
        "000102030405060708090a0b0c0d0e0f",
    ),
    "offset without a topic id": (
        journal.offset("g", "t", 3, CommittedOffset(5, 1, "m", 100)),
        "00010001670001740000000 3",
        "0004 0000000000000005 00000001 026d 0000000000000064 00",
    ),
    "offset with a long note": (
        journal.offset("g", "t", 3, CommittedOffset(5, 1, "m" * 127, 100, -1, ID)),
        "00010001670001740000000 3",
        "0004 0000000000000005 00000001 8001" + "6d" * 127 + "0000000000000064 01 00 10"
        "000102030405060708090a0b0c0d0e0f",
    ),
    "offset with an expiry": (
        journal.offset("g", "t", 3, CommittedOffset(5, 1, "m", 100, 200, ID)),
        "00010001670001740000000 3",
        "0001 0000000000000005 0001 6d 0000000000000064 00000000000000c8",
    ),
    "empty group": (
        journal.group("g", journal.GroupSnapshot("", 0, None, None, 7)),
        "0002000167",
        "0003 0000 00000000 ffff ffff 0000000000000007 00000000",
    ),
    "group": (
        journal.group(
            "g",
            journal.GroupSnapshot(
                "consumer",
                2,
                "range",
                "m1",
                7,
                (journal.MemberSnapshot("m1", "i", "c", "/h", 6, 5, b"s", b"a"),),
            ),
        ),
        "0002000167",
        "0003 0008636f6e73756d6572 00000002 000572616e6765 00026d31 0000000000000007 00000001"
        "00026d31 000169 000163 00022f68 00000006 00000005 00000001 73 00000001 61",
    ),
    "consumer group": (
        journal.consumer_group("g", 4, 9),
        "0003000167",
        "0000 00000004 01 00 08 0000000000000009",
    ),
    "consumer group without a hash": (
        journal.consumer_group("g", 4, 0),
        "0003000167",
        "0000 00000004 00",
    ),
    "consumer member": (
        journal.consumer_member(
            "g",
            "m",
            journal.ConsumerMemberSnapshot(None, "r", "c", "/h", ("b", "a"), None, 5, "uniform"),
        ),
        "000500016700016d",
        "0000 00 0272 0263 032f68 03 0261 0262 00 00000005 08756e69666f726d 01 00 01 00",
    ),
    "classic member of a consumer group": (
        journal.consumer_member(
            "g",
            "m",
            journal.ConsumerMemberSnapshot(
                "i", None, "c", "/h", (), "t.*", 5, None, journal.ClassicFacet(9, (("p", b"x"),))
            ),
        ),
        "000500016700016d",
        "0000 0269 00 0263 032f68 01 04742e2a 00000005 0001 00 0c 01 00000009 02 0270 0278 00 00",
    ),
    "target epoch": (journal.target_epoch("g", 4), "0006000167", "0000 00000004 00"),
    "target assignment": (
        journal.target_assignment("g", "m", {ID: frozenset({1, 0})}),
        "000700016700016d",
        "0000 02 000102030405060708090a0b0c0d0e0f 03 00000000 00000001 00 00",
    ),
    "current assignment": (
        journal.current_assignment(
            "g", "m", journal.CurrentAssignment(4, 3, 1, {ID: frozenset({0})}, {})
        ),
        "000800016700016d",
        "0000 00000004 00000003 01 02 000102030405060708090a0b0c0d0e0f 02 00000000 00 01 00",
    ),
    "regex": (
        journal.regex("g", "t.*", journal.ResolvedRegex(frozenset({"t2", "t1"}), 3, 4)),
        "00100001670003742e2a",
        "0000 03 037431 037432 0000000000000003 0000000000000004 00",
    ),
}


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize("name", GOLDEN)
def test_records_are_kafkas_own(name: str) -> None:
    (key, value), golden_key, golden_value = GOLDEN[name]
    assert key == unhex(golden_key)
    assert value == unhex(golden_value)


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_written_is_read_back(name: str) -> None:
    (key, value), _, _ = GOLDEN[name]
    assert value is not None
    entry = journal.decode(key, value)
    assert entry is not None
    assert entry == journal.decode(bytes(key), bytes(value))
    gone = journal.decode(key, None)
    assert type(gone) is type(entry)
    assert gone != entry


def test_an_offset_comes_back_as_it_went() -> None:
    value = CommittedOffset(5, 1, "nöte", 100, -1, ID)
    assert journal.decode(*journal.offset("g", "t", 3, value)) == journal.OffsetEntry(
        "g", "t", 3, value
    )


def test_a_member_of_the_consumer_protocol_is_not_taken_for_a_classic_one() -> None:
    member = journal.ConsumerMemberSnapshot(None, None, "c", "/h", ("a",), None, 5, None)
    entry = journal.decode(*journal.consumer_member("g", "m", member))
    assert isinstance(entry, journal.ConsumerMemberEntry)
    assert entry.value is not None
    assert entry.value.classic is None


def test_a_member_of_a_kafka_that_knew_no_facet_is_not_taken_for_a_classic_one() -> None:
    member = journal.ConsumerMemberSnapshot(None, None, "c", "/h", ("a",), None, 5, None)
    key, value = journal.consumer_member("g", "m", member)
    assert value is not None
    null_facet = unhex("01 00 01 00")
    assert value.endswith(null_facet)
    older = value.removesuffix(null_facet) + b"\x00"
    assert journal.decode(key, older) == journal.ConsumerMemberEntry("g", "m", member)


def test_a_classic_facet_comes_back_whatever_its_last_bytes_are() -> None:
    facet = journal.ClassicFacet(1, (("p", b"\x01\x00\x01\x00"),))
    member = journal.ConsumerMemberSnapshot(None, None, "c", "/h", (), None, 5, None, facet)
    entry = journal.decode(*journal.consumer_member("g", "m", member))
    assert isinstance(entry, journal.ConsumerMemberEntry)
    assert entry.value == member


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 0000000000000005 0001 6d 0000000000000064", CommittedOffset(5, -1, "m", 100)),
        ("0002 0000000000000005 0001 6d 0000000000000064", CommittedOffset(5, -1, "m", 100)),
        (
            "0003 0000000000000005 00000007 0001 6d 0000000000000064",
            CommittedOffset(5, 7, "m", 100),
        ),
    ],
)
def test_offsets_of_older_kafkas_are_read(value: str, expected: CommittedOffset) -> None:
    for key in ("0000000167000174 00000003", "0001000167000174 00000003"):
        entry = journal.decode(unhex(key), unhex(value))
        assert entry == journal.OffsetEntry("g", "t", 3, expected)


def test_a_group_of_version_0_has_the_session_for_a_rebalance_timeout() -> None:
    value = "0000 0001 63 00000001 000172 00016d 00000001 00016d 000163 00012f 00000005 00000000"
    entry = journal.decode(unhex("0002000167"), unhex(value + "00000000"))
    assert isinstance(entry, journal.GroupEntry)
    assert entry.value is not None
    (member,) = entry.value.members
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (5, 5)
    assert entry.value.since_ms == -1


def test_kinds_that_are_not_known_are_left_alone() -> None:
    assert journal.decode(unhex("0011 0001 67"), b"\0\0\1") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "0000"),
        ("00", "0000"),
        ("0001 0005 67", "0004"),
        ("0001000167000174 00000003", ""),
        ("0001000167000174 00000003", "0063 00"),
        ("0001000167000174 00000003", "0004 00"),
        ("0002000167", "0003 0000 00000000 ffff ffff 0000000000000007 7fffffff"),
    ],
)
def test_damage_is_a_value_error(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        journal.decode(unhex(key), unhex(value))
