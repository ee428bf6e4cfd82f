"""`python -m bench.spark.connect`: Kafka Connect's file connectors and pipelines, in turns.

Both copy the same lines from a file into a topic of one partition, and from such a topic into
files, on the same kind of broker, with the defaults of each: Connect's standalone worker with the
heap of its start script and the string converter; `ottla pipeline run` with the formats text,
string and csv. Each turn starts from nothing:

1. The process is started with a few lines at its source: the time until the first of them is at
   the other end.
2. More lines follow, for both to warm up, and when they have arrived, the lines that count. While
   these are put at the source the process is stopped (SIGSTOP), so that all are there when it goes
   on. From then on until the last one has arrived is what a rate is made of.
3. The most memory that the process and its descendants have had together, at any moment of this,
   and the processor time that they took for the lines that count.

In the end every line must be at the other end once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import machine, maven, table
from bench.figures import Better, Outcome, Row
from bench.load import settings
from bench.processes import BenchError, Child, descendants, free_ports, wait_port
from bench.spark import topics
from bench.spark.lines import SIZE, check_all_once, lines
from bench.systems import JVM_FLAGS, ApacheKafka, Ottla, new_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.systems import System

CONNECT, OURS = "connect", "ottla"
_SIDES = ("Kafka Connect", "Ottla")
_DOCUMENT = maven.ROOT / "docs" / "performance.md"
_PATIENCE = 300.0
_LOOK = 0.02
_SAMPLE = 0.1
_FIRST = 1_000
_SPARE = 100
"""Lines behind those that count: Connect's source keeps up to ten back until the file grows."""
_CHUNK = 10_000
_HEAP = ("-Xms256M", "-Xmx2G")
"""What connect-standalone.sh gives it when nobody has set anything."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lines that warm up, and lines that count."""

    warm: int
    count: int
    rounds: int


FULL = Sizes(warm=1_000_000, count=5_000_000, rounds=3)
QUICK = Sizes(warm=100_000, count=500_000, rounds=1)

ROWS = tuple(
    Row(f"{way}-{key}", title.format(name), unit, better, target)
    for way, name in (("to-topic", "a file into a topic"), ("to-file", "a topic into a file"))
    for key, title, unit, better, target in (
        ("rate", "{}, 100 B", "M rows/s", Better.HIGHER, 1.0),
        ("cpu", "… processor time for a million rows", "s", Better.LOWER, None),
        ("first", "… process start to the first row", "s", Better.LOWER, None),
        ("memory", "… memory at the most", "MB", Better.LOWER, None),
    )
)


class Way(ABC):
    """One direction on one turn: a source that lines are put at, and where they arrive."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.topic = topic
        self.target = folder / "target"
        self._put = 0
        topics.create(bootstrap, topic, 1)

    def put(self, count: int) -> None:
        """The next lines, all of them at the source when this returns."""
        self._deliver(lines(self._put, count))
        self._put += count

    @abstractmethod
    def _deliver(self, text: bytes) -> None: ...

    @abstractmethod
    def arrived(self) -> int:
        """How many lines are at the other end."""

    @abstractmethod
    def read(self) -> bytes:
        """All that has arrived."""

    def check(self) -> None:
        check_all_once(self.read(), self._put - _SPARE, self._put, f"{self.folder.name}'s target")


class ToTopic(Way):
    """From a file; `one` says whether it is a single one that grows, or a new one each time."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, *, one: bool) -> None:
        super().__init__(folder, bootstrap, topic)
        self._one = one
        self.source = folder / "source"
        if one:
            self.source.touch()
        else:
            self.source.mkdir()
        self._consumer = Consumer(settings.consumer(bootstrap))

    def _deliver(self, text: bytes) -> None:
        if self._one:
            with self.source.open("ab") as file:
                file.write(text)
            return
        hidden = self.source / ".new"
        hidden.write_bytes(text)
        hidden.rename(self.source / f"{self._put:010}.txt")

    def arrived(self) -> int:
        _low, high = self._consumer.get_watermark_offsets(TopicPartition(self.topic, 0), _PATIENCE)
        return high

    def read(self) -> bytes:
        count = self.arrived()
        self._consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[bytes] = []
        while len(found) < count:
            messages = self._consumer.consume(min(_CHUNK, count - len(found)), timeout=30.0)
            if not messages:
                raise BenchError(f"only {len(found)} of {count} records of {self.topic} came")
            found += [message.value() or b"" for message in messages]
        self._consumer.close()
        return b"".join(value + b"\n" for value in found)


class ToFile(Way):
    """From a topic into a file, or into a folder of files."""

    def _deliver(self, text: bytes) -> None:
        producer = Producer(settings.producer(self.bootstrap))
        step = SIZE + 1
        for begin in range(0, len(text), _CHUNK * step):
            places = range(begin, min(begin + _CHUNK * step, len(text)), step)
            values = [{"value": text[place : place + SIZE]} for place in places]
            while values:
                values = values[producer.produce_batch(self.topic, values, partition=0) :]
                producer.poll(0.002 if values else 0)
        if producer.flush(_PATIENCE):
            raise BenchError(f"the broker did not take all records of {self.topic}")

    def _files(self) -> list[Path]:
        if self.target.is_dir():
            return sorted(self.target.glob("[!_.]*"))
        return [self.target] if self.target.exists() else []

    def arrived(self) -> int:
        return sum(file.stat().st_size for file in self._files()) // (SIZE + 1)

    def read(self) -> bytes:
        return b"".join(file.read_bytes() for file in self._files())


class Side(Protocol):
    """One of the two that are compared."""

    def way(self, name: str, folder: Path, bootstrap: str, topic: str) -> Way:
        """The direction, with a source as this side has it."""
        ...

    def start(self, way: Way) -> Child:
        """The process, with nothing that is left of an earlier one."""
        ...


class Connect:
    """Kafka Connect's standalone worker."""

    def __init__(self) -> None:
        self._classpath = maven.fetch(maven.CONNECT).classpath

    def way(self, name: str, folder: Path, bootstrap: str, topic: str) -> Way:
        if name == "to-topic":
            return ToTopic(folder, bootstrap, topic, one=True)
        return ToFile(folder, bootstrap, topic)

    def start(self, way: Way) -> Child:
        (port,) = free_ports(1)
        worker = {
            "bootstrap.servers": way.bootstrap,
            "listeners": f"http://127.0.0.1:{port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": str(way.folder / "offsets"),
            "plugin.discovery": "service_load",
        }
        connector = {"name": "copy", "tasks.max": "1"}
        package = "org.apache.kafka.connect.file"
        if isinstance(way, ToTopic):
            connector |= {
                "connector.class": f"{package}.FileStreamSourceConnector",
                "file": str(way.source),
                "topic": way.topic,
            }
        else:
            connector |= {
                "connector.class": f"{package}.FileStreamSinkConnector",
                "file": str(way.target),
                "topics": way.topic,
            }
        files = [way.folder / "worker.properties", way.folder / "connector.properties"]
        for file, given in zip(files, (worker, connector), strict=True):
            file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [maven.java(), *_HEAP, *JVM_FLAGS, "-cp", self._classpath, main]
        return Child(
            "Kafka Connect", [*command, *map(str, files)], output=way.folder / "connect.out"
        )


class Pipeline:
    """`ottla pipeline run`."""

    def way(self, name: str, folder: Path, bootstrap: str, topic: str) -> Way:
        if name == "to-topic":
            return ToTopic(folder, bootstrap, topic, one=False)
        return ToFile(folder, bootstrap, topic)

    def start(self, way: Way) -> Child:
        if isinstance(way, ToTopic):
            source = f"{{files: {{path: {way.source}, format: text}}}}"
            sink = f"{{topic: {{name: {way.topic}, format: string}}}}"
        else:
            source = f"{{topic: {{name: {way.topic}, format: string}}}}"
            sink = f"{{files: {{path: {way.target}, format: csv}}}}"
        file = way.folder / "pipeline.yaml"
        file.write_text(
            f"name: copy-{way.topic}\nbootstrap: {way.bootstrap}\nsource: {source}\nsink: {sink}\n"
        )
        command = [str(Path(sys.executable).parent / "ottla"), "pipeline", "run", str(file)]
        command += ["--state-dir", str(way.folder / "state")]
        return Child("ottla pipeline run", command, output=way.folder / "ottla.out", family=True)


class Memory:
    """The most that a process and its descendants have held together."""

    def __init__(self, child: Child) -> None:
        self.most = 0
        self._child = child
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(_SAMPLE):
            self.most = max(self.most, self._child.usage().resident_bytes)

    def close(self) -> None:
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def stopped(child: Child) -> Iterator[None]:
    """The process and its descendants stand still."""
    family = [child.pid, *descendants(child.pid)]
    for pid in family:
        _send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(family):
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_for(way: Way, count: int, child: Child) -> None:
    deadline = time.monotonic() + _PATIENCE
    while way.arrived() < count:
        if child.process.poll() is not None:
            raise BenchError(f"{child.name} ended:\n{child.tail()}")
        if time.monotonic() > deadline:
            raise BenchError(f"only {way.arrived():,} of {count:,} came:\n{child.tail()}")
        time.sleep(_LOOK)


def turn(side: Side, way: Way, sizes: Sizes) -> dict[str, float]:
    """Start, warm up, measure, end."""
    way.put(_FIRST)
    began = time.perf_counter()
    with side.start(way) as child:
        memory = Memory(child)
        try:
            wait_for(way, 1, child)
            first = time.perf_counter() - began
            way.put(sizes.warm)
            wait_for(way, _FIRST + sizes.warm - _SPARE, child)
            with stopped(child):
                way.put(sizes.count + _SPARE)
            used, began = child.usage().cpu_seconds, time.perf_counter()
            wait_for(way, _FIRST + sizes.warm + sizes.count, child)
            seconds = time.perf_counter() - began
            used = child.usage().cpu_seconds - used
        finally:
            memory.close()
    way.check()
    return {
        "rate": sizes.count / seconds / 1e6,
        "cpu": used / sizes.count * 1e6,
        "first": first,
        "memory": memory.most / 1e6,
    }


def compare(
    home: Path, bootstrap: str, sizes: Sizes, wanted: str, take: Callable[[str, str, float], None]
) -> None:
    """All rounds of both directions, the two sides in turns."""
    sides: dict[str, Side] = {CONNECT: Connect(), OURS: Pipeline()}
    for name in ("to-topic", "to-file"):
        if not any(row.key.startswith(name) and fnmatchcase(row.key, wanted) for row in ROWS):
            continue
        for number in range(sizes.rounds):
            for which, side in sides.items():
                folder = home / f"{name}-{which}-{number}"
                folder.mkdir()
                way = side.way(name, folder, bootstrap, folder.name)
                for key, value in turn(side, way, sizes).items():
                    take(f"{name}-{key}", which, value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.connect", description=__doc__)
    parser.add_argument("--rows", default="*", metavar="GLOB", help="only these rows")
    parser.add_argument("--rounds", type=int, help="alternations")
    parser.add_argument("--quick", action="store_true", help="small sizes, a look, not a claim")
    parser.add_argument("--record", action="store_true", help="write a partial run down, too")
    parser.add_argument(
        "--broker", choices=("ottla", "kafka"), default="ottla", help="which broker both use"
    )
    chosen = parser.parse_args()
    # Leaving by SystemExit lets every context end the processes it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = QUICK if chosen.quick else FULL
    if chosen.rounds:
        sizes = Sizes(sizes.warm, sizes.count, chosen.rounds)
    samples: dict[tuple[str, str], list[float]] = {}

    def take(key: str, which: str, value: float) -> None:
        samples.setdefault((key, which), []).append(value)
        print(f"{which:8} {key:16} {table.figure(value)}", flush=True)

    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
            home = Path(folder)
            described = machine.describe(home)
            print(described.sentence(), flush=True)
            system: System = ApacheKafka() if chosen.broker == "kafka" else Ottla()
            node = new_node(home / "broker")
            system.prepare(node, {})
            with system.start(node) as broker:
                wait_port(node.port, broker, _PATIENCE)
                compare(home, node.bootstrap, sizes, chosen.rows, take)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    outcomes = [
        Outcome(
            row, tuple(samples.get((row.key, CONNECT), ())), tuple(samples.get((row.key, OURS), ()))
        )
        for row in ROWS
        if fnmatchcase(row.key, chosen.rows)
    ]
    print("\n" + table.text(outcomes, _SIDES))
    if chosen.record or (chosen.rows == "*" and not chosen.quick and chosen.broker == "ottla"):
        minutes = (time.monotonic() - started) / 60
        head = f"{sizes.rounds} alternating rounds, {minutes:.0f} minutes. {described.sentence()}"
        content = f"{head}\n\n{table.markdown(outcomes, _SIDES)}"
        _DOCUMENT.write_text(table.replace_between(_DOCUMENT.read_text(), "connect", content))
        print(f"written to {_DOCUMENT.relative_to(maven.ROOT)}")
    return 0 if all(outcome.measured for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
