"""Bad input: bounded memory, the close that Kafka gives, a word in the log, others unaffected.

Each test runs while a well-behaved client goes on writing and reading (`neighbour`), and
fails when that client is not served within its deadline.
"""

from __future__ import annotations

import random
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import cramjam
import pytest

from ottla.protocol.apis import ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import parse_response_header, request_header
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.testing.process import BrokerProcess

MB = 1 << 20
HEADER = struct.Struct(">hhih2s")


@pytest.fixture
def broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker()


@pytest.fixture
def strangers(broker: BrokerProcess) -> Iterator[Callable[[], socket.socket]]:
    """`strangers()`: a new connection of somebody who means no good."""
    with ExitStack() as stack:

        def connect() -> socket.socket:
            host, port = broker.bootstrap.split(":")
            return stack.enter_context(socket.create_connection((host, int(port)), timeout=60))

        yield connect


def closed(connection: socket.socket) -> bool:
    """Read until the end; False when the broker answers or says nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
PLAIN_HEADER = HEADER.pack(3, 1, 1, 2, b"me")

NONSENSE: dict[str, Callable[[int], bytes]] = {
    "a frame that claims 2 GB": lambda _: struct.pack(">i", 2**31 - 1) + bytes(100),
    "a frame one byte over the limit": lambda _: struct.pack(">i", 104_857_601),
    "a negative length": lambda _: struct.pack(">i", -1) + bytes(100),
    "an empty frame": lambda _: struct.pack(">i", 0),
    "an unknown API key": lambda _: frame(HEADER.pack(999, 0, 1, 2, b"me")),
    "a version out of range": lambda _: frame(HEADER.pack(1, 77, 1, 2, b"me") + bytes(50)),
    "a body cut short": lambda _: frame(PLAIN_HEADER + struct.pack(">ih", 1, 10) + b"abc"),
    "an array of two billion": lambda _: frame(PLAIN_HEADER + b"\x7f\xff\xff\xff"),
    "random bytes": lambda i: b"\xff" + noise(i, 200),
    "a header with garbage after it": lambda i: frame(
        HEADER.pack(0, 9, 1, 2, b"me") + b"\x00\xff\xff\xff" + noise(i, 100)
    ),
    "a TLS hello": lambda _: CLIENT_HELLO,
    "an HTTP request": lambda _: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def test_nonsense_is_hung_up_on_and_mentioned_now_and_then(
    broker, strangers, neighbour, memory, quiet
):
    friend = neighbour(broker)
    with memory(broker, grows_at_most=16 * MB), quiet(broker, lines=150, at_least=5):
        for what, make in NONSENSE.items():
            for i in range(40):
                connection = strangers()
                connection.sendall(make(i))
                assert closed(connection), what
                connection.close()
            friend.served(rounds=1)


def test_half_frames_of_fifty_megabytes_from_five_hundred_clients(
    broker, strangers, neighbour, memory
):
    """Under this one Apache Kafka 4.2 with a heap of 1 GB stops serving the others."""
    friend = neighbour(broker)
    announced, sent_by_each = 50_000_000, 25_000_000
    chunk = bytes(256 * 1024)
    with memory(broker, grows_at_most=400 * MB), selectors.DefaultSelector() as selector:
        left = {}
        for _ in range(500):
            connection = strangers()
            connection.sendall(struct.pack(">i", announced) + PLAIN_HEADER)
            connection.setblocking(False)
            left[connection] = sent_by_each
            selector.register(connection, selectors.EVENT_WRITE)
        # until everything was taken, or nothing was for a second, or long enough
        now = moved = time.monotonic()
        deadline = now + 10
        while left and now < deadline and now - moved < 1:
            for key, _ in selector.select(0.1):
                connection = key.fileobj
                try:
                    left[connection] -= connection.send(chunk[: left[connection]])
                except BlockingIOError:
                    continue
                except OSError:
                    left[connection] = 0
                moved = now
                if left[connection] <= 0:
                    selector.unregister(connection)
                    del left[connection]
            now = time.monotonic()
        friend.served(rounds=5)
    friend.served()


def test_announcing_much_and_sending_little_costs_little_and_only_meanwhile(
    broker, strangers, neighbour, memory, eventually
):
    friend = neighbour(broker)
    before = broker.rss()
    with memory(broker, grows_at_most=24 * MB):
        many = [strangers() for _ in range(500)]
        for connection in many:
            connection.sendall(struct.pack(">i", 50_000_000) + PLAIN_HEADER)
        eventually(lambda: broker.open_files() > 500)
        friend.served()
    for sent in (100_000, 300_000):  # what they do send is held, but goes back when they are gone
        for connection in many:
            connection.sendall(bytes(sent))
        friend.served()
        for connection in many:
            connection.close()
        eventually(lambda: broker.rss() < before + 24 * MB)
        many = [strangers() for _ in range(250)]
        for connection in many:
            connection.sendall(struct.pack(">i", 50_000_000) + PLAIN_HEADER)
    friend.served()


def test_a_large_request_still_gets_through_among_them(broker, strangers, wire, batch, raw):
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "large", max_message_bytes="60000000")
    for _ in range(50):
        half = strangers()
        half.sendall(struct.pack(">i", 50_000_000) + bytes(100_000))
    assert raw.produce(connection, "large", batch([bytes(20 * MB)])).error_code == 0


def test_clients_that_send_a_byte_at_a_time(broker, strangers, neighbour, memory):
    friend = neighbour(broker)
    request = frame(HEADER.pack(18, 0, 7, 2, b"me"))
    with memory(broker, grows_at_most=16 * MB):
        slow = [strangers() for _ in range(100)]
        for byte in request:
            for connection in slow:
                connection.sendall(bytes([byte]))
            friend.served(rounds=1)
        for connection in slow:
            assert len(connection.recv(4, socket.MSG_WAITALL)) == 4


@pytest.mark.parametrize("kind", ["large answers from disk", "large answers", "small answers"])
def test_a_client_that_never_reads(kind, broker, strangers, neighbour, memory, wire, batch, raw):
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "big", partitions=500 if kind == "large answers" else 1)
    for _ in range(4):
        assert raw.produce(connection, "big", batch([bytes(900_000)])).error_code == 0
    request = frame(
        {
            "large answers from disk": HEADER.pack(1, 4, 1, 2, b"me")
            + struct.pack(">iiiibi", -1, 0, 1, 50 * MB, 0, 1)
            + struct.pack(">h3siiqi", 3, b"big", 1, 0, 0, 50 * MB),
            "large answers": HEADER.pack(3, 1, 1, 2, b"me") + struct.pack(">i", -1),
            "small answers": HEADER.pack(3, 1, 1, 2, b"me") + struct.pack(">i", 0),
        }[kind]
    )
    friend = neighbour(broker)
    with memory(broker, grows_at_most=64 * MB):
        deaf = [strangers() for _ in range(5)]
        for connection in deaf:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
        # until the broker stops reading from all of them
        goal, stuck_since, pending = friend.rounds + 5, time.monotonic(), request * 500
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
            friend.rounds < goal or time.monotonic() - stuck_since < 0.5
        ):
            for connection in deaf:
                try:
                    if connection.send(pending):
                        stuck_since = time.monotonic()
                except BlockingIOError:
                    time.sleep(0.001)
        assert time.monotonic() < deadline, "requests without a reader are read without an end"
        friend.served()
    for connection in deaf:
        connection.close()
    friend.served()


def test_ten_thousand_idle_connections(broker, strangers, neighbour, memory, eventually):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # the broker was started with the limit this process had, and may raise its own likewise
    count = min(10_000, hard - 1_000)
    friend = neighbour(broker)
    before = broker.open_files()
    with memory(broker, grows_at_most=count * 12 * 1024 + 16 * MB):
        idle = [strangers() for _ in range(count)]
        eventually(lambda: broker.open_files() >= before + count)
        friend.served()
    for connection in idle:
        connection.close()
    eventually(lambda: broker.open_files() < before + 100)
    friend.served()


def test_idle_connections_leave_descriptors_for_the_logs(
    start_broker, wire, batch, raw, eventually
):
    limit = 256
    broker = start_broker(wrapper=["sh", "-c", f'ulimit -n {limit}; exec "$0" "$@"'])
    host, port = broker.bootstrap.split(":")
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t", 4, segment_bytes=str(MB))
    with ExitStack() as stack:
        for _ in range(limit + 50):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        eventually(lambda: "the limit on open files leaves room for no more" in broker.log())
        records = batch([bytes(300_000)])
        offsets = {
            partition: [
                raw.produce(connection, "t", records, partition).base_offset for _ in range(20)
            ]
            for partition in range(4)
        }
        assert all(found == list(range(20)) for found in offsets.values())
        assert all(raw.fetch(connection, "t", at, 3).records for at in range(20))
        # what reads records one by one does so in a process of its own
        raw.create_topic(connection, "compacted", cleanup_policy="compact")
        keyed = batch([b"v"], keys=[b"k"])
        assert raw.produce(connection, "compacted", keyed).error_code == 0
        assert broker.open_files() < limit - 20
    eventually(lambda: broker.open_files() < 100)
    broker.kill()
    broker.start()
    again = wire(broker.bootstrap)
    for partition in range(4):
        assert raw.produce(again, "t", records, partition).base_offset == 20
    assert "offline" not in broker.log()


def bomb(codec: str, size: int) -> bytes:
    """`size` zero bytes, compressed piece by piece."""
    compressor = {"zstd": cramjam.zstd.Compressor, "gzip": cramjam.gzip.Compressor}[codec]()
    out, piece = bytearray(), bytes(16 * MB)
    for _ in range(size // len(piece)):
        compressor.compress(piece)
        out += bytes(compressor.flush())
    return bytes(out + bytes(compressor.finish()))


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_small_batch_that_would_unpack_to_a_gigabyte(
    codec, broker, neighbour, memory, wire, batch, raw
):
    friend = neighbour(broker)
    connection = wire(broker.bootstrap, timeout=120)
    raw.create_topic(connection, "repacked", compression_type="lz4")
    raw.create_topic(connection, "compacted", cleanup_policy="compact")
    payload = bomb(codec, 1 << 30)
    records: Any = batch([b"x"], keys=[b"k"], codec=codec, payload=payload)
    assert len(records) < 1_048_588
    with memory(broker, grows_at_most=200 * MB):
        for topic in ("repacked", "compacted"):
            written = raw.produce(connection, topic, records)
            assert written.error_code != 0, topic
            assert written.base_offset == -1
        friend.served()


def encoded(key: ApiKey, version: int, body: Any) -> bytes:
    parts: list[Any] = []
    codec(type(body), version).encode(body, parts)
    return frame(request_header(key, version, 1, "me") + b"".join(parts))


def answered(connection: socket.socket, key: ApiKey, version: int, kind: type[Any]) -> Any:
    """The next answer on a connection."""
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        data = memoryview(stream.read(size))
    _, position = parse_response_header(data, key, version)
    return codec(kind, version).decode(data, position)[0]


MANY = 60_000


def test_requests_of_many_tiny_entries_hold_up_nobody_and_are_answered(
    broker, strangers, neighbour, memory
):
    friend = neighbour(broker)
    asked = {
        "empty names": encoded(
            ApiKey.METADATA, 1, MetadataRequest(topics=[MetadataRequestTopic(name="")] * MANY)
        ),
        "one name again and again": encoded(
            ApiKey.METADATA,
            1,
            MetadataRequest(topics=[MetadataRequestTopic(name="neighbourhood")] * MANY),
        ),
        "unknown partitions": encoded(
            ApiKey.DELETE_RECORDS,
            2,
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name="neighbourhood",
                        partitions=[
                            DeleteRecordsPartition(partition_index=1 + number, offset=0)
                            for number in range(MANY)
                        ],
                    )
                ],
                timeout_ms=1000,
            ),
        ),
        "a fetch of everything": encoded(
            ApiKey.FETCH,
            12,
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic="neighbourhood",
                        partitions=[
                            FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1)
                            for n in range(MANY)
                        ],
                    )
                ],
                forgotten_topics_data=[],
            ),
        ),
    }
    with memory(broker, grows_at_most=250 * MB):
        connections = {what: strangers() for what in asked}
        for what, connection in connections.items():
            connection.sendall(asked[what])
        friend.served(rounds=2)
        for what in ("empty names", "one name again and again"):
            response = answered(connections[what], ApiKey.METADATA, 1, MetadataResponse)
            assert len(response.topics) == 1, what
        response = answered(
            connections["unknown partitions"], ApiKey.DELETE_RECORDS, 2, DeleteRecordsResponse
        )
        (topic,) = response.topics
        assert [each.partition_index for each in topic.partitions] == list(range(1, MANY + 1))
        assert {each.error_code for each in topic.partitions} == {3}
        fetched = answered(connections["a fetch of everything"], ApiKey.FETCH, 12, FetchResponse)
        assert len(fetched.responses[0].partitions) == MANY
        friend.served(rounds=1)


def test_requests_of_more_entries_than_anybody_needs_are_hung_up_on(
    broker, strangers, neighbour, memory, quiet
):
    friend = neighbour(broker)
    names = MetadataRequest(topics=[MetadataRequestTopic(name="")] * 300_000)
    tags = HEADER.pack(18, 3, 1, 2, b"me") + b"\xff\xff\xff\x07" + b"\x63\x00" * 8_000_000
    before = broker.log_size()
    with memory(broker, grows_at_most=100 * MB), quiet(broker, lines=20, at_least=2):
        for data in (encoded(ApiKey.METADATA, 1, names), frame(tags)):
            connection = strangers()
            connection.sendall(data)
            friend.served(rounds=1)
            assert closed(connection)
    said = broker.log_since(before)
    assert "300000 elements are too many for one request" in said
    assert "tagged fields in one place" in said
