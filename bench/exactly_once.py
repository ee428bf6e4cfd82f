"""Kafka Streams and Kafka Connect work exactly once, though they are killed while they work.

Streams counts words with `exactly_once_v2` (`java/streams`), and its output must hold every count
of every word in order, 1, 2, 3 and so on, for what was written to its input. Connect runs a worker
in distributed mode with exactly-once support for sources, and the lines of a file must be in the
topic once, in order. Both are killed with -9 while there is work, and started again.
"""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import maven, workload
from bench.checks import Line
from bench.processes import BenchError, Child, free_ports, run, wait_port
from bench.systems import new_node
from bench.workload import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.systems import Node, System

KILLS = 3
_START_TIMEOUT = 300.0
_PATIENCE = 300.0
_HEAP = "-Xmx256M"
_SOURCES = maven.ROOT / "bench" / "java" / "streams"
# The offsets and the state of transactions as in a small cluster, or the start takes its time.
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

_IN, _OUT, _PARTITIONS = "lines", "counts", 3
_WORDS = ("offset", "epoch", "leader", "replica", "segment", "index", "batch", "record")
_LINES_A_TURN = 400
_CONNECTOR = "file"
_COPIED = "copied"
_FILLER = "filler"
_LINE_LENGTH = 200


def streams(system: System, folder: Path) -> list[Line]:
    """One line: what became of the words."""
    libraries = maven.fetch(maven.STREAMS)
    classes = folder / "classes-streams"
    classes.mkdir(parents=True)
    javac = maven.program("javac", "the word count is compiled on this machine")
    sources = sorted(map(str, _SOURCES.glob("*.java")))
    command = [javac, "-Xlint:all", "-Werror", "-cp", libraries.classpath, "-d", str(classes)]
    run("javac", [*command, *sources], timeout=120)
    node = new_node(folder / "broker-streams")
    counting = [maven.java(), _HEAP, "-cp", f"{classes}:{libraries.classpath}", "WordCount"]
    counting += [node.bootstrap, _IN, _OUT, str(folder / "streams-state")]

    def start() -> Child:
        return Child("Kafka Streams", counting, output=folder / "streams.out")

    def work() -> str:
        names = (_IN, _OUT)
        workload.create(node.bootstrap, [Topic(name, _PARTITIONS) for name in names])
        return _count_words(node, start)

    return [_checked(system, node, "streams", "word count, killed while it counts", work)]


def _count_words(node: Node, start: Callable[[], Child]) -> str:
    rng = random.Random(14)
    expected: Counter[str] = Counter()
    reader = _Reader(node.bootstrap, _OUT, _PARTITIONS)
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 20})
    child = start()
    try:
        for kill in range(KILLS + 1):
            for number in range(_LINES_A_TURN):
                words = rng.choices(_WORDS, k=5)
                expected.update(words)
                producer.produce(_IN, " ".join(words), partition=number % _PARTITIONS)
            producer.flush(_PATIENCE)
            if kill == KILLS:
                break
            # Somewhere in the middle of it.
            there = reader.count + 1 + rng.randrange(_LINES_A_TURN)
            reader.read_until(reader.has(there), child)
            child.kill()
            child = start()
        reader.read_until(reader.has(expected.total()), child)
    finally:
        child.stop()
        reader.close()
    for word, count in expected.items():
        if (found := reader.values.get(word, [])) != [str(each + 1) for each in range(count)]:
            raise BenchError(f"the counts of {word!r} are not 1 to {count}: {found[-20:]}")
    if reader.count != expected.total():
        raise BenchError(f"{reader.count} counts for {expected.total()} words")
    return f"{expected.total():,} words, every count once and in order, {KILLS} kills"


def connect(system: System, folder: Path) -> list[Line]:
    """One line: what became of the lines of a file."""
    libraries = maven.fetch(maven.CONNECT)
    node = new_node(folder / "broker-connect")
    (port,) = free_ports(1)
    properties = folder / "connect.properties"
    settings = _worker_settings(node, port)
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    command = [maven.java(), _HEAP, "-cp", libraries.classpath, main, str(properties)]

    def start() -> Child:
        worker = Child("Kafka Connect", command, output=folder / "connect.out")
        wait_port(port, worker, _START_TIMEOUT)
        return worker

    def work() -> str:
        workload.create(node.bootstrap, [Topic(_COPIED)])
        return _copy_lines(node, port, folder / "copied.txt", start)

    return [_checked(system, node, "connect", "file source, its worker killed", work)]


def _worker_settings(node: Node, port: int) -> Mapping[str, str]:
    kinds = ("offset", "config", "status")
    return {
        "bootstrap.servers": node.bootstrap,
        "group.id": "connect",
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **{f"{kind}.storage.topic": f"connect-{kind}s" for kind in kinds},
        **{f"{kind}.storage.replication.factor": "1" for kind in kinds},
        "offset.storage.partitions": "3",
        "status.storage.partitions": "1",
        "exactly.once.source.support": "enabled",
        "plugin.discovery": "service_load",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        # A worker that was killed is waited for before its task is given to another one.
        "scheduled.rebalance.max.delay.ms": "0",
    }


def _copy_lines(node: Node, port: int, file: Path, start: Callable[[], Child]) -> str:
    rng = random.Random(14)
    expected: list[str] = []
    reader = _Reader(node.bootstrap, _COPIED, 1)
    file.touch()
    child = start()
    try:
        _put_connector(port, file, child)
        for kill in range(KILLS + 1):
            lines = [f"{kill}-{number}".ljust(_LINE_LENGTH, ".") for number in range(_LINES_A_TURN)]
            expected += lines
            _append(file, lines)
            if kill == KILLS:
                break
            there = reader.count + 1 + rng.randrange(_LINES_A_TURN // 2)
            reader.read_until(reader.has(there), child)
            child.kill()
            child = start()

        def all_there() -> bool:
            # The source keeps what it has read and not yet given out until the file grows.
            if reader.count < len(expected):
                _append(file, [_FILLER])
            return reader.count >= len(expected)

        reader.read_until(all_there, child)
    finally:
        child.stop()
        reader.close()
    found = [line for line in reader.values.get("", []) if line != _FILLER]
    if found != expected:
        missing = [line for line in expected if line not in set(found)]
        twice = [line for line, count in Counter(found).items() if count > 1]
        raise BenchError(
            f"{len(expected)} lines, {len(found)} in the topic; missing: {missing[:5]}, "
            f"twice: {twice[:5]}"
        )
    return f"{len(expected):,} lines, each once and in order, {KILLS} kills"


def _append(file: Path, lines: Sequence[str]) -> None:
    with file.open("a") as sink:
        sink.writelines(f"{line}\n" for line in lines)


def _put_connector(port: int, file: Path, worker: Child) -> None:
    """Create the connector; a worker that has just begun to listen is not ready for it."""
    config = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(file),
        "topic": _COPIED,
        "batch.size": "20",
        "exactly.once.support": "required",
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/connectors/{_CONNECTOR}/config",
        data=json.dumps(config).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
            return
        except (urllib.error.URLError, TimeoutError) as problem:
            if worker.process.poll() is not None or time.monotonic() > deadline:
                told = ""
                if isinstance(problem, urllib.error.HTTPError):
                    told = problem.read().decode()
                raise BenchError(f"no connector: {problem} {told}\n{worker.tail()}") from None
            time.sleep(0.2)


class _Reader:
    """What is committed in a topic, by key, as far as it was read."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.values: dict[str, list[str]] = {}
        self.count = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def has(self, count: int) -> Callable[[], bool]:
        """Whether so many records were read."""
        return lambda: self.count >= count

    def read_until(self, enough: Callable[[], bool], worker: Child) -> None:
        """Read on; a moment longer than needed, for what should not be there."""
        deadline = time.monotonic() + _PATIENCE
        while not enough() or self._read(1.0):
            self._read(0.2)
            if worker.process.poll() is not None:
                raise BenchError(f"{worker.name} has ended by itself:\n{worker.tail()}")
            if time.monotonic() > deadline:
                raise BenchError(f"only {self.count} records came:\n{worker.tail()}")

    def _read(self, timeout: float) -> bool:
        found = self._consumer.consume(500, timeout=timeout)
        for message in found:
            problem = message.error()
            if problem is not None:
                raise BenchError(problem.str())
            key, value = message.key() or b"", message.value() or b""
            assert isinstance(key, bytes)
            self.values.setdefault(key.decode(), []).append(value.decode())
            self.count += 1
        return bool(found)

    def close(self) -> None:
        self._consumer.close()


def _checked(system: System, node: Node, suite: str, check: str, work: Callable[[], str]) -> Line:
    """Do it on a fresh broker, and say how that went."""
    system.prepare(node, _SETTINGS)
    print(f"{suite} against {system.name}", flush=True)
    began = time.monotonic()
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        try:
            verdict, detail = "passed", work()
        except BenchError as problem:
            print(f"{problem}\n{broker.tail()}", flush=True)
            verdict, detail = "failed", str(problem).splitlines()[0]
    line = Line(suite, check, verdict, int((time.monotonic() - began) * 1000), detail)
    print(line, flush=True)
    return line
