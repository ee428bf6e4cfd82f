"""Requests as such: ApiVersions (18), order, pipelining, and what closes a connection."""

from __future__ import annotations

import struct

import pytest

UNSUPPORTED_VERSION, INVALID_REQUEST = 35, 42


@pytest.mark.parametrize("version", range(5))
def test_api_versions(version, wire):
    answer = wire().ask(
        "api_versions", version, client_software_name="conformance", client_software_version="1.0"
    )
    assert answer.error_code == 0
    keys = [api.api_key for api in answer.api_keys]
    assert keys == sorted(set(keys))
    assert {0, 1, 2, 3, 18, 19, 20, 22, 32} <= set(keys)
    assert all(0 <= api.min_version <= api.max_version for api in answer.api_keys)


@pytest.mark.parametrize("version", [5, 99, -1])
def test_api_versions_beyond_the_range_is_answered_at_version_0(version, wire):
    """A newer client learns from this answer with which version to ask again."""
    connection = wire()
    header = struct.pack(">hhih2sB", 18, version, 77, 2, b"me", 0)
    connection.send_frame(header + b"\x02x\x021\x00")
    expected = struct.pack(">ihihhh", 77, UNSUPPORTED_VERSION, 1, 18, 0, 4)
    assert connection.receive_frame() == expected
    assert connection.ask("api_versions", 0).error_code == 0


@pytest.mark.parametrize("name", ["", "with space", "-dash-first", "ümlaut"])
def test_a_client_must_name_itself_properly(name, wire):
    answer = wire().ask("api_versions", 3, client_software_name=name, client_software_version="1.0")
    assert (answer.error_code, answer.api_keys) == (INVALID_REQUEST, ())


def test_a_hundred_pipelined_requests_are_answered_in_order(
    wire, topic, batch, fetch_fields, produce
):
    connection = wire()
    produce(connection, topic, batch([b"zero"]), partition=1)
    expected = []
    for i in range(25):
        data = [{"index": 0, "records": batch([b"%d" % i])}]
        connection.send(
            "produce",
            9,
            acks=-1,
            timeout=10_000,
            topic_data=[{"name": topic.name, "partition_data": data}],
        )
        connection.send("metadata", 12, topics=[{"name": topic.name}])
        connection.send("fetch", 12, **fetch_fields((topic, {0: i}), max_wait=5_000))
        asked = [{"partition_index": 1, "timestamp": -1}]
        connection.send(
            "list_offsets", 7, replica_id=-1, topics=[{"name": topic.name, "partitions": asked}]
        )
        expected.append(i)
    # `receive` checks every correlation id against the request it must belong to
    for i in expected:
        written = connection.receive().responses[0].partition_responses[0]
        assert (written.error_code, written.base_offset) == (0, i)
        assert connection.receive().topics[0].name == topic.name
        assert connection.receive().responses[0].partitions[0].error_code == 0
        assert connection.receive().topics[0].partitions[0].offset == 1


def test_requests_that_arrive_byte_by_byte_or_many_at_once_are_the_same(wire):
    frame = struct.pack(">hhih2s", 18, 0, 5, 2, b"me")
    whole = struct.pack(">i", len(frame)) + frame
    connection = wire()
    for byte in whole:
        connection.socket.sendall(bytes([byte]))
    first = connection.receive_frame()
    connection.socket.sendall(whole * 50)
    assert all(connection.receive_frame() == first for _ in range(50))


def test_unknown_tagged_fields_are_skipped(wire):
    connection = wire()
    tags = b"\x01\x63\x02ab"  # one tag: number 99, two bytes
    header = struct.pack(">hhih2s", 3, 12, 9, 2, b"me") + tags
    connection.send_frame(header + b"\x01\x00\x00" + tags)
    answer = connection.receive_frame()
    assert answer[:4] == struct.pack(">i", 9)
    assert len(answer) > 20


def test_bytes_after_a_request_are_ignored(wire):
    connection = wire()
    connection.send_frame(struct.pack(">hhih2s", 18, 0, 9, 2, b"me") + b"more than asked for")
    assert connection.receive_frame()[:6] == struct.pack(">ih", 9, 0)


HEADER = struct.Struct(">hhih2s")


@pytest.mark.parametrize(
    ("what", "frame"),
    [
        ("an API nobody has heard of", HEADER.pack(999, 0, 1, 2, b"me")),
        ("an API of another time", HEADER.pack(4, 0, 1, 2, b"me")),
        ("a negative API", HEADER.pack(-1, 0, 1, 2, b"me")),
        ("a version of the future", HEADER.pack(3, 14, 1, 2, b"me") + bytes(20)),
        ("a version of the past", HEADER.pack(1, 3, 1, 2, b"me") + bytes(40)),
        ("a negative version", HEADER.pack(3, -1, 1, 2, b"me") + bytes(20)),
        ("half a header", b"\x00\x03\x00"),
        ("nothing", b""),
        ("a client id longer than the frame", struct.pack(">hhih", 3, 1, 1, 500) + b"me"),
        ("a body cut short", HEADER.pack(3, 1, 1, 2, b"me") + struct.pack(">ih", 1, 10) + b"abc"),
        ("an array larger than the frame", HEADER.pack(3, 1, 1, 2, b"me") + b"\x7f\xff\xff\xff"),
        ("no body", HEADER.pack(0, 9, 1, 2, b"me")),
    ],
)
def test_what_cannot_be_read_closes_the_connection(what, frame, wire):
    connection = wire()
    connection.send_frame(frame)
    assert connection.closed_by_peer()


def test_answers_owed_are_given_before_the_close(wire):
    connection = wire()
    good = struct.pack(">hhih2s", 18, 0, 5, 2, b"me")
    connection.send_frame(good)
    assert connection.receive_frame()[:6] == struct.pack(">ih", 5, 0)
    connection.send_frame(HEADER.pack(999, 0, 1, 2, b"me"))
    assert connection.closed_by_peer()
