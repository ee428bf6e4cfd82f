"""Client telemetry (KIP-714) with a real client, and with one that misbehaves."""

from __future__ import annotations

import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.cli.kafka_compat import run
from ottla.handlers import telemetry
from ottla.records.compression import Compression, compress, decompress
from ottla.telemetry.clients import MOST_LARGE
from ottla.testing import Broker, Cluster, NewTopic

SERVED = {"metrics.listen": "127.0.0.1:0"}
THROTTLING, UNSUPPORTED_COMPRESSION, TOO_LARGE, INVALID_RECORD = 89, 76, 118, 87
UNKNOWN_SUBSCRIPTION = 117
NO_ID = None  # kio writes zeros
CONNECTIONS = "kafka_server_socket_server_metrics_connection_count"


def tool(broker: Broker, *arguments: str) -> int:
    return run("kafka-client-metrics", ["--bootstrap-server", broker.bootstrap, *arguments])


def scraped(broker: Broker) -> list[str]:
    assert broker.metrics_url is not None
    with urllib.request.urlopen(broker.metrics_url, timeout=30) as answer:
        lines: list[str] = answer.read().decode().splitlines()
        return lines


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SERVED, topics=["t"]) as broker:
        yield broker


def test_what_librdkafka_pushes_is_shown(
    broker: Broker, eventually: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    producer_metrics = "org.apache.kafka.producer."
    subscription = ("--name", "s", "--metrics", producer_metrics, "--interval", "100")
    assert tool(broker, "--alter", *subscription) == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "librdkafka-1"})

    def connections() -> list[str]:
        producer.produce("t", b"a")
        producer.flush()
        wanted = 'client_org_apache_kafka_producer_connection_creation_total{client_id="librdkafka'
        return [line for line in scraped(broker) if line.startswith(wanted)]

    [line] = eventually(connections)
    assert float(line.rpartition(" ")[2]) >= 1
    counts = {name.partition(" ")[0]: name.partition(" ")[2] for name in scraped(broker)}
    assert counts["kafka_server_client_metrics_instance_count"] == "1.0"
    assert float(counts["kafka_server_client_metrics_plugin_export_total"]) >= 1
    assert counts["kafka_server_client_metrics_plugin_error_total"] == "0.0"


def test_a_subscription_is_for_those_who_match(broker: Broker, wire: Any) -> None:
    tool(broker, "--alter", "--name", "s", "--metrics", "a.", "--match", "client_id=other")
    answer = wire(broker.bootstrap).ask("get_telemetry_subscriptions", 0, client_instance_id=NO_ID)
    assert (answer.error_code, answer.requested_metrics) == (0, ())


def test_the_tool_makes_shows_and_deletes(
    broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert tool(broker, *arguments) == code
        return capfd.readouterr().out

    assert told("--list") == "\n"
    alter = ("--alter", "--name", "s")
    changed = "Altered client metrics config for s.\n"
    assert told(*alter, "--metrics", "a.,b.", "--match", "client_id=x.*") == changed
    assert told(*alter, "--interval", "1000") == changed
    described = (
        "Client metrics configs for s are:\n"
        "  interval.ms=1000\n  match=client_id=x.*\n  metrics=a.,b.\n"
    )
    assert told("--describe") == told("--describe", "--name", "s") == described
    assert told("--list") == "s\n"
    assert told("--describe", "--name", "absent") == (
        "The client metric resource absent doesn't exist and doesn't have dynamic config.\n"
    )
    assert told(*alter, "--interval", "5", code=1) == (
        "Error while executing client metrics command : Invalid value 5 for interval.ms, interval "
        "must be between 100 and 3600000 (1 hour)\n"
    )
    assert told("--delete", "--name", "s") == "Deleted client metrics config for s.\n"
    assert told("--list") == "\n"
    name = told("--alter", "--generate-name", "--metrics", "*").split()[-1].rstrip(".")
    assert told("--list") == f"{name}\n"
    for wrong in (
        ("--alter",),
        ("--list", "--name", "s"),
        ("--delete",),
        ("--list", "--describe"),
    ):
        told(*wrong, code=1)


class Pusher:
    """A client that pushes whatever it is told to."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        told = connection.ask("get_telemetry_subscriptions", 0, client_instance_id=NO_ID)
        assert told.error_code == 0
        self.id, self.subscription = told.client_instance_id, told.subscription_id

    def push(self, metrics: bytes, *, compression: int = 0, **changes: Any) -> int:
        self.send(metrics, compression=compression, **changes)
        return self.answered()

    def answered(self) -> int:
        code: int = self.connection.receive().error_code
        return code

    def send(self, metrics: bytes, *, compression: int = 0, **changes: Any) -> None:
        fields = {
            "client_instance_id": self.id,
            "subscription_id": self.subscription,
            "terminating": True,  # which is not throttled
            "compression_type": compression,
            "metrics": metrics,
            **changes,
        }
        self.connection.send("push_telemetry", 0, **fields)


def test_a_push_that_is_none_is_refused(broker: Broker, wire: Any) -> None:
    # so long that the second push of one client comes too early
    tool(broker, "--alter", "--name", "s", "--metrics", "*", "--interval", "3600000")

    def pusher() -> Pusher:
        return Pusher(wire(broker.bootstrap))

    good = b"\x0a\x00"
    bomb = compress(Compression.ZSTD, bytes(64 << 20))
    assert len(bomb) < 1 << 20
    assert pusher().push(good) == 0
    assert pusher().push(b"") == 0
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        assert pusher().push(compress(codec, good), compression=codec) == 0
        assert pusher().push(b"nonsense", compression=codec) == INVALID_RECORD
    assert pusher().push(b"\xff" * 100) == INVALID_RECORD
    assert pusher().push(bomb, compression=Compression.ZSTD) == TOO_LARGE
    assert pusher().push(bytes((1 << 20) + 1)) == TOO_LARGE
    assert pusher().push(good, compression=9) == UNSUPPORTED_COMPRESSION
    assert pusher().push(good, subscription_id=1) == UNKNOWN_SUBSCRIPTION
    busy = pusher()
    assert busy.push(good, terminating=False) == 0
    assert busy.push(good, terminating=False) == THROTTLING
    # so many that they are read in turns, and most of them left out
    gauge = b"\x0a\x01g\x2a\x0b\x0a\x09\x21" + struct.pack("<d", 1.0)
    many = b"".join(b"\x12" + bytes([len(gauge)]) + gauge for _ in range(40_000))
    scope = b"\x12" + _varint(len(many)) + many
    assert pusher().push(b"\x0a" + _varint(len(scope)) + scope) == 0
    assert broker.metrics()["ottla_client_metrics_left_out_total"] == 35_000


def test_many_bombs_at_once_are_not_all_in_memory(broker: Broker, wire: Any) -> None:
    tool(broker, "--alter", "--name", "s", "--metrics", "*")
    bomb = compress(Compression.ZSTD, b"\x0a\x00" * (1 << 18))
    assert len(bomb) < 200
    pushers = [Pusher(wire(broker.bootstrap)) for _ in range(3 * MOST_LARGE)]
    for one in pushers:
        one.send(bomb, compression=Compression.ZSTD)
    codes = [one.answered() for one in pushers]
    assert set(codes) == {0, THROTTLING}
    assert codes.count(0) >= MOST_LARGE
    assert Pusher(wire(broker.bootstrap)).push(bomb, compression=Compression.ZSTD) == 0


def test_what_takes_long_to_decompress_is_not_done_on_the_loop(
    broker: Broker, wire: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(broker, "--alter", "--name", "s", "--metrics", "*")
    held, threads = threading.Event(), []

    def slow(*arguments: Any) -> bytes:
        threads.append(threading.current_thread().name)
        assert held.wait(60)
        return decompress(*arguments)

    monkeypatch.setattr(telemetry, "decompress", slow)
    many = compress(Compression.GZIP, b"") * 10_000
    first, second, gone = (Pusher(wire(broker.bootstrap)) for _ in range(3))
    first.send(many, compression=Compression.GZIP)
    eventually(lambda: threads)
    second.send(many, compression=Compression.GZIP)
    gone.send(many, compression=Compression.GZIP)
    Pusher(wire(broker.bootstrap))  # others are answered
    gone.connection.close()
    eventually(lambda: broker.metrics()[CONNECTIONS] == 3)
    held.set()
    assert [one.answered() for one in (first, second)] == [0, 0]
    assert len(threads) == 2, "who has gone has not asked"
    assert {name.rpartition("_")[0] for name in threads} == {"ottla-long-look-up"}


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_clients_are_only_asked_where_metrics_are_served_and_wanted(wire: Any) -> None:
    def advertised(broker: Broker) -> set[int]:
        keys = wire(broker.bootstrap).ask("api_versions", 0).api_keys
        return {each.api_key for each in keys} & {71, 72}

    with Broker() as silent, Broker(SERVED) as serving:
        assert advertised(serving) == set()
        for broker in (silent, serving):
            assert tool(broker, "--alter", "--name", "s", "--metrics", "*") == 0
        assert advertised(silent) == set()
        assert advertised(serving) == {71, 72}
        assert tool(serving, "--delete", "--name", "s") == 0
        assert advertised(serving) == set()


def test_a_subscription_holds_in_the_whole_cluster_and_after_a_restart(
    eventually: Callable[..., Any], wire: Any
) -> None:
    with Cluster(2, SERVED, topics=[NewTopic("t", 1, 1)]) as cluster:
        first, second = cluster
        assert tool(second, "--alter", "--name", "s", "--metrics", "a.") == 0

        def wanted(broker: Broker) -> tuple[str, ...]:
            connection = wire(broker.bootstrap)
            told = connection.ask("get_telemetry_subscriptions", 0, client_instance_id=NO_ID)
            found: tuple[str, ...] = told.requested_metrics
            return found

        for broker in (first, second):
            eventually(lambda broker=broker: wanted(broker) == ("a.",))
        first.restart()
        assert wanted(first) == ("a.",)
