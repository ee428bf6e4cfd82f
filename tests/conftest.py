"""Fixtures for the tests that need a broker: where it is, and how to talk to it raw.

`bootstrap` is the address of a broker shared by a whole worker (so topics have unique names).
It is ours, started as a process of its own, unless OTTLA_TEST_BOOTSTRAP names another one:
that is how the conformance tests are run against Apache Kafka, to prove that they describe
Kafka and not merely us. Tests that must start, stop or look into the broker use
`start_broker`, and are skipped then.

`wire` opens a plain socket on which requests are encoded and responses decoded by `kio`, an
implementation of the protocol that shares no code with ours.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import signal
import socket
import struct
import sys
import time
import typing
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import cramjam
import crc32c
import pytest
from hypothesis import HealthCheck, settings
from kio.index import load_entity_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.testing.postgres import PostgresProcess
from ottla.testing.process import BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess

BOOTSTRAP_VARIABLE = "OTTLA_TEST_BOOTSTRAP"
NO_AUTO_CREATE_VARIABLE = "OTTLA_TEST_BOOTSTRAP_NO_AUTO_CREATE"
LONGEST = (
    "test_pipeline_kills.py", "test_verify.py", "test_pipeline_cluster.py",
    "test_first_pipeline.py", "test_pipeline_pages.py", "test_kill.py",
)  # fmt: skip
"""The files with tests that take a minute or more and share nothing with others, longest first."""
API_KEYS = {name: key for key, name in api_key_map.items()}

# Hypothesis times its examples, which tells more about the machine than about them. A run tries
# the same ones as the run before; `--hypothesis-profile search` looks for others.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", UNHURRIED, derandomize=True)
settings.register_profile("search", UNHURRIED)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    # Warnings are errors here, but kafka-python's own are not ours to mend: it reads its
    # schemas with calls that Python 3.11 deprecates (and 3.13 took back).
    for call in ("read_text", "open_text"):
        config.addinivalue_line("filterwarnings", f"ignore:{call} is deprecated:DeprecationWarning")
    # A shell starts what runs in the background with SIGINT ignored, and that is inherited by the
    # workers and by every program that a test wants to stop with Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every worker of a parallel run begins with some of the longest tests.

    In the order of their names they come last, and one worker is busy for minutes with what it has
    begun while the others have nothing left to do.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    rest = []
    for item in items:
        name = item.path.name
        (first[LONGEST.index(name) % workers] if name in LONGEST else rest).append(item)
    total, ordered = len(items), list[pytest.Item]()
    for number, chosen in enumerate(first):  # xdist gives each worker one piece of the list
        share = (total - len(ordered)) // (workers - number)
        count = max(0, share - len(chosen))
        ordered += chosen + rest[:count]
        del rest[:count]
    items[:] = ordered + rest


@pytest.fixture(scope="session", autouse=True)
def kafka_python_closes_its_sockets() -> Iterator[None]:
    """It forgets one whose connect was refused or given up, as when a broker is restarted.

    Which test the collector would find that socket in, and fail it with a warning, is chance.
    """
    inet = sys.modules.get("kafka.net.inet")
    if inet is None:  # no test of this run uses it
        yield
        return
    connect = inet.KafkaNetSocket.sock_connect

    async def sock_connect(
        self: Any, net: Any, sock: socket.socket, *rest: Any, **more: Any
    ) -> Any:
        try:
            return await connect(self, net, sock, *rest, **more)
        except BaseException:
            sock.close()
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inet.KafkaNetSocket, "sock_connect", sock_connect)
        yield


# -- brokers ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a broker with default settings that lives as long as this worker."""
    given = os.environ.get(BOOTSTRAP_VARIABLE)
    if given:
        yield given
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        yield broker.bootstrap


@pytest.fixture(scope="session")
def bootstrap_no_auto_create(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with `auto.create.topics.enable=false`."""
    given = os.environ.get(NO_AUTO_CREATE_VARIABLE)
    if given:
        yield given
        return
    if os.environ.get(BOOTSTRAP_VARIABLE):
        pytest.skip(f"{NO_AUTO_CREATE_VARIABLE} does not name a broker")
    folder = tmp_path_factory.mktemp("strict-broker")
    with BrokerProcess(folder, settings={"auto.create.topics.enable": "false"}) as broker:
        broker.start()
        yield broker.bootstrap


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """`start_broker(settings={…}, …)`: a broker of this test's own; gone when the test ends."""
    if os.environ.get(BOOTSTRAP_VARIABLE):
        pytest.skip("this test must start the broker itself")
    started: list[BrokerProcess] = []

    def start(name: str = "broker", *, launch: bool = True, **options: Any) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / name, **options)
        started.append(broker)
        if launch:
            broker.start()
        return broker

    yield start
    for broker in started:
        broker.kill()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real ZooKeeper that lives as long as this worker: use a chroot each."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as server:
        server.start()
        yield server.address


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresProcess]:
    """A real PostgreSQL that lives as long as this worker: use a database each."""
    with PostgresProcess(tmp_path_factory.mktemp("postgres")) as server:
        server.start()
        yield server


@pytest.fixture
def database(postgres: PostgresProcess) -> str:
    """The address of an empty database of this test's own, in that PostgreSQL."""
    return postgres.new_database()


@pytest.fixture
def ours_only() -> None:
    """For what Ottla does on purpose unlike Apache Kafka, or does not do yet."""
    if os.environ.get(BOOTSTRAP_VARIABLE):
        pytest.skip("Apache Kafka differs here")


@pytest.fixture
def unique() -> Callable[..., str]:
    """Names that no other test, worker or earlier run on the same broker has used."""

    def name(prefix: str = "topic") -> str:
        return f"{prefix}-{uuid.uuid4().hex[:12]}"

    return name


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Repeat a look at the world until it holds, with a deadline instead of a fixed sleep."""

    def wait(look: Callable[[], Any], *, timeout: float = 120.0, pause: float = 0.02) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            try:
                if result := look():
                    return result
            except AssertionError:
                if time.monotonic() >= deadline:
                    raise
            if time.monotonic() >= deadline:
                raise AssertionError(f"still not so after {timeout} s: {look}")
            time.sleep(pause)

    return wait


# -- the wire --------------------------------------------------------------------------------


class Wire:
    """One connection to a broker that sends exactly what it is told to."""

    def __init__(self, address: str, *, timeout: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = itertools.count(1)
        self._expected: list[tuple[str, int, int]] = []

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        """Send one request and return its decoded response."""
        self.send(api, version, **fields)
        return self.receive()

    def send(self, api: str, version: int, *, answered: bool = True, **fields: Any) -> int:
        """Send a request without waiting; `receive` later returns the responses in order."""
        correlation_id = next(self._correlation)
        self.send_frame(encode(api, version, correlation_id, fields))
        if answered:
            self._expected.append((api, version, correlation_id))
        return correlation_id

    def receive(self) -> Any:
        """The next response, which must be the one to the oldest unanswered request."""
        api, version, correlation_id = self._expected.pop(0)
        frame = self.receive_frame()
        return decode(api, version, correlation_id, frame)

    def send_frame(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def receive_exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            chunk = self.socket.recv(min(count - len(received), 1 << 20))
            if not chunk:
                raise ConnectionResetError("the broker closed the connection")
            received += chunk
        return bytes(received)

    def closed_by_peer(self) -> bool:
        """Wait for the end of the stream; False when data or nothing at all arrives."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()


def encode(api: str, version: int, correlation_id: int, fields: dict[str, Any]) -> bytes:
    """Header and body of one request, by kio."""
    schema: Any = load_entity_schema(api, version, EntityType.request)
    header_schema = schema.__header_schema__
    header = build(
        header_schema,
        {
            "request_api_key": API_KEYS[api],
            "request_api_version": version,
            "correlation_id": correlation_id,
            "client_id": "ottla-tests",
        },
    )
    buffer = io.BytesIO()
    entity_writer(header_schema)(buffer, header)
    entity_writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()


def decode(api: str, version: int, correlation_id: int, frame: bytes) -> Any:
    """The body of one response, checked to be the answer to that request and all of the frame."""
    schema: Any = load_response_schema(API_KEYS[api], version)
    header, position = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation_id, "responses out of order"
    message, size = entity_reader(schema)(frame, position)
    assert position + size == len(frame), f"{len(frame) - position - size} bytes too many"
    return message


def build(schema: Any, fields: dict[str, Any]) -> Any:
    """A kio message from plain values.

    Nested messages are dicts, durations are milliseconds, and a field that the schema's
    version does not have is left out, so that one call can be made at every version. What is
    not given and has no default is zero, empty or null.
    """
    hints = typing.get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.name in fields:
            values[field.name] = _value(hints[field.name], fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _zero(hints[field.name])
    return schema(**values)


def _value(hint: Any, value: Any) -> Any:
    options = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if typing.get_origin(hint) is tuple:
        return tuple(_value(options[0], item) for item in value)
    if options and value is not None:
        return _value(options[0], value)
    if isinstance(value, dict):
        return build(hint, value)
    if isinstance(hint, type) and issubclass(hint, timedelta) and isinstance(value, int):
        return timedelta(milliseconds=value)
    return value


def _zero(hint: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        return ()
    if type(None) in typing.get_args(hint):
        return None
    for kind, zero in ((bool, False), (timedelta, timedelta()), (str, ""), (bytes, b""), (int, 0)):
        if issubclass(hint, kind):
            return zero
    return build(hint, {})


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Iterator[Callable[..., Wire]]:
    """`wire()`: a new raw connection to the broker, closed when the test ends."""
    opened: list[Wire] = []

    def connect(address: str | None = None, **options: Any) -> Wire:
        # asked for only here, so that a test with a broker of its own starts no second one
        connection = Wire(address or request.getfixturevalue("bootstrap"), **options)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


# -- record batches, written by hand ---------------------------------------------------------


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _lz4(data: bytes) -> bytes:
    # Kafka reads only frames whose blocks are independent of each other
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, lambda data: data),
    "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data))),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (3, _lz4),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


def make_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    timestamps: Sequence[int] | None = None,
    codec: str = "none",
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    magic: int = 2,
    crc_delta: int = 0,
    payload: bytes | None = None,
) -> bytes:
    """One record batch; the odd parameters make one that a broker has to refuse."""
    times = list(timestamps) if timestamps is not None else [time.time_ns() // 1_000_000]
    times += [times[-1]] * (len(values) - len(times))
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\x00" + _varint(times[delta] - times[0]) + _varint(delta)
        body += _sized(keys[delta] if keys else None) + _sized(value)
        body += _varint(len(headers)) + b"".join(_sized(k) + _sized(v) for k, v in headers)
        records += _varint(len(body)) + body
    number, compress = CODECS[codec]
    covered = struct.pack(
        ">hiqqqhii",
        attributes | number,
        len(values) - 1,
        times[0],
        max(times),
        producer_id,
        producer_epoch,
        base_sequence,
        len(values),
    ) + (compress(bytes(records)) if payload is None else payload)
    crc = (crc32c.crc32c(covered) + crc_delta) & 0xFFFFFFFF
    return struct.pack(">qiibI", base_offset, len(covered) + 9, -1, magic, crc) + covered


@pytest.fixture
def batch() -> Callable[..., bytes]:
    """`batch([b"value", …], codec="gzip", …)`: the bytes of one record batch."""
    return make_batch
