"""One broker, started fresh, taken through every selected row; then stopped and its data removed.

A JVM is slow until it has compiled what is hot, so each session begins with a load that is not
measured; both brokers get it. The disk is synced between measurements, so that one row's
writeback is not paid by the next.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import pagecache
from bench.client import Client, measure
from bench.course import Course
from bench.figures import Rate
from bench.load import frames
from bench.processes import BenchError, run, wait_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.course import Step
    from bench.rows import Sizes
    from bench.selection import Selection
    from bench.systems import ApacheKafka, System

_SETTLE_SECONDS = 2.0
_EVICTED = 0.02
_LOSS_PAIRS = 3
_CLI_RUNS = 3
_RAW_ROWS = ("requests-64-raw", "cpu-requests-64-raw")
_JAVA_RATE = re.compile(r"^(\d+) records sent, ([0-9.]+) records/sec", re.MULTILINE)


class Session(Course):
    """The broker itself: records in, records out, and what that costs."""

    def __init__(
        self,
        system: System,
        tools: ApacheKafka,
        folder: Path,
        sizes: Sizes,
        selection: Selection,
        record: Callable[[str, float], None],
    ) -> None:
        super().__init__(system, tools, folder, sizes, selection, record)
        self._filled: dict[tuple[int, int], tuple[str, int]] = {}

    # What the rows share.

    def _produce(self, topic: str, partitions: int, size: int, count: int) -> dict[str, float]:
        os.sync()
        return measure(
            "produce",
            bootstrap=self._node.bootstrap,
            topic=topic,
            partitions=partitions,
            size=size,
            count=count,
        )

    def _consume(self, topic: str, count: int) -> dict[str, float]:
        return measure("consume", bootstrap=self._node.bootstrap, topic=topic, count=count)

    def _requests(self, kind: str, connections: int, seconds: float) -> Rate:
        os.sync()
        before = self._child.usage().cpu_seconds
        figures = measure(
            kind,
            bootstrap=self._node.bootstrap,
            topic="requests",
            connections=connections,
            seconds=seconds,
        )
        cpu = self._child.usage().cpu_seconds - before
        return Rate(figures["requests"], figures["seconds"], cpu)

    # The course of a session.

    def _start(self, stack: ExitStack) -> None:
        first = stack.enter_context(
            Client("first-ack", bootstrap=self._node.bootstrap, topic="first")
        )
        first.wait_ready()
        self._broker = stack.enter_context(self._system.start(self._node))
        try:
            figures = first.result()
        except BenchError as error:
            raise BenchError(f"{error}\n{self._child.name} said:\n{self._child.tail()}") from None
        # Before any load: the port must not belong to somebody else's broker.
        wait_port(self._node.port, self._child, _SETTLE_SECONDS)
        self._report("start", (figures["acknowledged_ns"] - self._child.started) / 1e9)
        time.sleep(_SETTLE_SECONDS)
        self._report("memory-fresh", self._child.usage().resident_bytes / 1e6)

    def _steps(self) -> Sequence[Step]:
        sizes = self._sizes
        return (
            (
                lambda: self._produce_row("100b-1p", 1, 100, sizes.small_records),
                ("produce-100b-1p",),
            ),
            (
                lambda: self._produce_row("100b-16p", 16, 100, sizes.small_records),
                ("produce-100b-16p",),
            ),
            (
                lambda: self._produce_row("1k-1p", 1, 1000, sizes.large_records),
                ("produce-1k-1p", "cpu-produce"),
            ),
            (
                lambda: self._produce_row("1k-16p", 16, 1000, sizes.large_records),
                ("produce-1k-16p",),
            ),
            (
                lambda: self._consume_row("consume-100b", 100, sizes.small_records),
                ("consume-100b",),
            ),
            (
                lambda: self._consume_row("consume-1k", 1000, sizes.large_records),
                ("consume-1k", "cpu-consume"),
            ),
            (self._java_row, ("java-produce-100b",)),
            (self._request_rows, ("requests-1", "requests-64", *_RAW_ROWS)),
            (self._latency_rows, ("latency-p50", "latency-p99", "latency-p999")),
            (self._memory_row, ("memory-loaded",)),
            (self._cli_row, ("cli-list",)),
            (self._idle_row, ("idle-1000",)),
            (self._cold_rows, ("cold-produce-p99", "cold-consume-p99")),
            (self._partitions_row, ("partitions-2000",)),
        )

    def _warm_up(self) -> None:
        self._create("warm", 1)
        self._create("requests", 1)
        self._produce("warm", 1, 100, self._sizes.warm_records)
        self._consume("warm", self._sizes.warm_records)
        self._requests("requests", 1, self._sizes.warm_seconds)

    def _produce_row(self, name: str, partitions: int, size: int, count: int) -> None:
        topic = f"produce-{name}"
        self._create(topic, partitions)
        for _ in range(self._sizes.repeats):
            before = self._child.usage().cpu_seconds
            figures = self._produce(topic, partitions, size, count)
            cpu = self._child.usage().cpu_seconds - before
            if size < 1000:
                self._report(topic, figures["records"] / figures["seconds"] / 1e6)
            else:
                self._report(topic, figures["bytes"] / figures["seconds"] / 1e6)
                if partitions == 1:
                    self._report("cpu-produce", cpu / (figures["bytes"] / 1e9))
        self._filled[size, partitions] = (topic, count * self._sizes.repeats)

    def _consume_row(self, name: str, size: int, count: int) -> None:
        if (size, 1) not in self._filled:
            self._create(name, 1)
            self._produce(name, 1, size, count)
            self._filled[size, 1] = (name, count)
        topic, there = self._filled[size, 1]
        for _ in range(self._sizes.repeats):
            before = self._child.usage().cpu_seconds
            figures = self._consume(topic, there)
            cpu = self._child.usage().cpu_seconds - before
            if size < 1000:
                self._report(name, figures["records"] / figures["seconds"] / 1e6)
            else:
                self._report(name, figures["bytes"] / figures["seconds"] / 1e6)
                self._report("cpu-consume", cpu / (figures["bytes"] / 1e9))

    def _java_row(self) -> None:
        """Apache Kafka's own load generator: a client that is not librdkafka."""
        self._create("java", 1)
        for _ in range(self._sizes.repeats):
            os.sync()
            out, err, code = self._tools.tool_output(
                "org.apache.kafka.tools.ProducerPerformance",
                *("--topic", "java", "--record-size", "100", "--throughput", "-1"),
                *("--num-records", str(self._sizes.java_records)),
                *("--bootstrap-server", self._node.bootstrap, "--command-property", "acks=1"),
            )
            found = _JAVA_RATE.findall(out)
            if code or not found or int(found[-1][0]) != self._sizes.java_records:
                raise BenchError(f"ProducerPerformance failed:\n{out[-1000:]}{err[-1000:]}")
            self._report("java-produce-100b", float(found[-1][1]) / 1e6)

    def _request_rows(self) -> None:
        for keys, kind, connections in (
            (("requests-1",), "requests", 1),
            (("requests-64",), "requests", 64),
            (_RAW_ROWS, "requests-raw", 64),
        ):
            if self._wants(*keys):
                if kind == "requests-raw":
                    # CPU counts here, and a JVM that still compiles takes ten times as much.
                    self._requests(kind, connections, self._sizes.crowd_warm_seconds)
                for _ in range(self._sizes.repeats):
                    found = self._requests(kind, connections, self._sizes.request_seconds)
                    self._report(keys[0], found.a_second)
                    if len(keys) > 1:
                        self._report(keys[1], found.cpu_microseconds)

    def _latency_rows(self) -> None:
        self._create("latency", 1)
        figures = self._paced("latency", lambda: time.sleep(self._sizes.latency_seconds))
        self._report("latency-p50", figures["end_to_end_p50"])
        self._report("latency-p99", figures["end_to_end_p99"])
        self._report("latency-p999", figures["end_to_end_p999"])

    def _memory_row(self) -> None:
        time.sleep(_SETTLE_SECONDS)
        self._report("memory-loaded", self._child.usage().resident_bytes / 1e6)

    def _cli_row(self) -> None:
        command = self._system.list_topics_command(self._node)
        for _ in range(_CLI_RUNS):
            started = time.perf_counter()
            done = run("listing topics", command, timeout=60)
            taken = time.perf_counter() - started
            if "first" not in done.stdout.split():
                raise BenchError(f"the list of topics lacks one:\n{done.stdout}")
            self._report("cli-list", taken)

    def _cold_rows(self) -> None:
        size = self._sizes.cold_record_bytes
        count = self._sizes.cold_bytes // size
        self._create("cold", 1)
        self._create("tail", 1)
        self._produce("cold", 1, size, count)
        os.sync()
        files = sorted((self._node.data / "cold-0").glob("*.log"))
        if not files:
            raise BenchError("the topic's segments are not in its folder")
        pagecache.evict(files)
        resident = pagecache.resident_share(files)
        if resident > _EVICTED:
            raise BenchError(f"{resident:.0%} of the old data stayed in memory")
        figures = self._paced("tail", lambda: self._consume_all("cold", count))
        self._report("cold-produce-p99", figures["ack_p99"])
        self._report("cold-consume-p99", figures["end_to_end_p99"])

    def _consume_all(self, topic: str, count: int) -> None:
        # The produce client's own first record is in the topic as well: `count` are enough.
        self._consume(topic, count)

    def _rate(self) -> float:
        figures = self._produce("plain", 1, 100, self._sizes.loss_records)
        return figures["records"] / figures["seconds"]

    def _idle_row(self) -> None:
        self._create("plain", 1)
        for _ in range(_LOSS_PAIRS):
            plain = self._rate()
            with IdleConnections(self._node.port, self._sizes.idle_connections):
                loaded = self._rate()
            self._report("idle-1000", _kept(plain, loaded))

    def _partitions_row(self) -> None:
        if not self._wants("idle-1000"):
            self._create("plain", 1)
        plain = [self._rate() for _ in range(_LOSS_PAIRS)]
        self._create("many", self._sizes.many_partitions)
        os.sync()
        time.sleep(_SETTLE_SECONDS)
        for rate in plain:
            self._report("partitions-2000", _kept(rate, self._rate()))


def _kept(plain: float, loaded: float) -> float:
    """The share of the plain rate that is left. Noise can make it more than all of it."""
    return loaded / plain


@dataclass(slots=True)
class IdleConnections:
    """Connections that have introduced themselves and then say nothing more."""

    port: int
    count: int
    _stack: ExitStack | None = None

    def __enter__(self) -> IdleConnections:
        self._stack = ExitStack()
        for _ in range(self.count):
            sock = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port), 30))
            sock.sendall(frames.api_versions())
            frames.read_frame(sock)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._stack is not None:
            self._stack.close()
