"""Ottla takes over a folder of Apache Kafka in which transactions are open, and they can be ended.

Apache's own clients (`java/OpenTransactions.java`, one that knows transaction version 2 and one
that does not) end some transactions and leave others open. Apache Kafka is killed or stopped, and
Ottla is started on its folder and its port. The clients, which have noticed nothing but a pause, go
on: they commit and abort what they had open, offsets included. What nobody ends is ended by its
time-out.

`python -m bench.takeover --record FILE` packs such a folder for tests/system/test_taken_over.py,
which has to do without Java.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from bench import maven, workload
from bench.checks import Line
from bench.processes import BenchError, die_with_parent, wait_port
from bench.systems import ApacheKafka, Node, new_node
from bench.workload import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.maven import Libraries
    from bench.systems import System

    Compile = Callable[[Libraries, Path], None]

TOPIC = "taken"
PREFIXES: Mapping[str, Libraries] = {"new-": maven.CLIENTS, "old-": maven.OLD_CLIENTS}
_START_TIMEOUT = 300.0
_PATIENCE = 300.0
# Longer than what happens before Apache Kafka is stopped.
_GONE_MS = 120_000
_SWEEP = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.index.size.max.bytes": "4096",
}
# The first records are a day old, and an hour apart.
_CONFIGS = {"retention.ms": "-1", "segment.ms": "600000"}


def expected(prefix: str) -> tuple[list[str], list[str]]:
    """What of a client's records is committed in the end, in the two partitions."""
    ended = [f"committed-{turn}" for turn in (0, 2, 4)]
    lasting = [*ended, "commits-before", "commits-after", "commits-next"]
    return [f"{prefix}{each}" for each in lasting], [f"{prefix}offsets"]


class _Clients:
    """One Java process for each version, with its transactions open."""

    def __init__(self, node: Node, folder: Path, compile_against: Compile, gone_ms: int) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for prefix, libraries in PREFIXES.items():
            maven.fetch(libraries)
            classes = folder / f"classes-{prefix}"
            if not classes.exists():
                compile_against(libraries, classes)
            command = [maven.java(), "-Xmx128M", "-cp", f"{classes}:{libraries.classpath}"]
            command += ["OpenTransactions", node.bootstrap, prefix, str(gone_ms)]
            self._processes[prefix] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                process_group=0,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock is taken
            )
            # One after the other, so that the log is the same every time.
            self._wait(prefix, "open")

    def _wait(self, prefix: str, word: str) -> None:
        pipe = self._processes[prefix].stdout
        assert pipe is not None
        if pipe.readline().strip() != word:
            raise BenchError(f"the client {prefix} did not come to {word!r}")

    def wait_ended(self) -> None:
        for prefix in self._processes:
            self._wait(prefix, "ended")

    def tell(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()


@contextmanager
def left_open(
    folder: Path, kafka: ApacheKafka, compile_against: Compile, *, kill: bool, gone_ms: int
) -> Iterator[tuple[Node, _Clients]]:
    """The folder of an Apache Kafka that is no more, and the clients that do not know yet."""
    node = new_node(folder)
    kafka.prepare(node, _SETTINGS)
    with ExitStack() as stack:
        with kafka.start(node) as broker:
            wait_port(node.port, broker, _START_TIMEOUT)
            workload.create(node.bootstrap, [Topic(TOPIC, 2, _CONFIGS)])
            clients = _Clients(node, folder, compile_against, gone_ms)
            stack.callback(clients.close)
            if kill:
                broker.kill()
        yield node, clients


def check(system: System, folder: Path, compile_against: Compile) -> list[Line]:
    """Both ways in which Apache Kafka can end."""
    kafka = ApacheKafka()
    lines = []
    for kill in (True, False):
        name = "killed with -9" if kill else "stopped"
        print(f"a folder of Apache Kafka, {name}, taken over by {system.name}", flush=True)
        began = time.monotonic()
        home = folder / ("taken-killed" if kill else "taken-stopped")
        try:
            verdict, detail = "passed", _taken_over(system, home, kafka, compile_against, kill=kill)
        except BenchError as problem:
            print(problem, flush=True)
            verdict, detail = "failed", str(problem).splitlines()[0]
        took = int((time.monotonic() - began) * 1000)
        lines.append(Line("takeover", f"Apache Kafka {name}", verdict, took, detail))
        print(lines[-1], flush=True)
    return lines


def _taken_over(
    system: System, home: Path, kafka: ApacheKafka, compile_against: Compile, *, kill: bool
) -> str:
    with left_open(home, kafka, compile_against, kill=kill, gone_ms=_GONE_MS) as (node, clients):
        if not isinstance(system, ApacheKafka):
            system.prepare(node, _SWEEP)
        with system.start(node) as broker:
            wait_port(node.port, broker, _START_TIMEOUT)
            try:
                clients.tell()
                clients.wait_ended()
                return _judge(node)
            except BenchError as problem:
                raise BenchError(f"{problem}\n{broker.tail()}") from None


def _judge(node: Node) -> str:
    found = [committed(node.bootstrap, partition) for partition in range(2)]
    for prefix in PREFIXES:
        for partition, wanted in enumerate(expected(prefix)):
            ours = [each for each in found[partition] if each.startswith(prefix)]
            if ours != wanted:
                raise BenchError(f"partition {partition} has {ours}, not {wanted}")
        offset = _committed_offset(node.bootstrap, f"{prefix}group")
        if offset != 7:
            raise BenchError(f"the offset of {prefix}group is {offset}, not 7")
    return f"{sum(map(len, found))} records committed by clients of two versions, and their offsets"


def committed(bootstrap: str, partition: int) -> list[str]:
    """What a consumer of committed records finds, once no transaction is open any more."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "judge",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    other = Consumer({**settings, "isolation.level": "read_uncommitted"})
    place = TopicPartition(TOPIC, partition, 0)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            stable = consumer.get_watermark_offsets(place, timeout=30)
            end = other.get_watermark_offsets(place, timeout=30)
            if stable is not None and stable == end:
                break
            if time.monotonic() > deadline:
                raise BenchError(f"partition {partition} is stable up to {stable}, ends at {end}")
            time.sleep(0.1)
        consumer.assign([place])
        values: list[str] = []
        while (message := consumer.poll(_PATIENCE)) is not None:
            problem = message.error()
            if problem is not None:
                if problem.code() == KafkaError._PARTITION_EOF:
                    break
                raise BenchError(problem.str())
            values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()
        other.close()


def _committed_offset(bootstrap: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=_PATIENCE)
        return int(found.offset)
    finally:
        consumer.close()


def record(target: Path, compile_against: Compile) -> None:
    """Pack the folder of an Apache Kafka that was killed while transactions were open."""
    with tempfile.TemporaryDirectory(prefix="ottla-takeover-") as folder:
        home = Path(folder)
        kafka = ApacheKafka()
        with left_open(home / "kafka", kafka, compile_against, kill=True, gone_ms=_GONE_MS) as left:
            node, _clients = left
            with tarfile.open(target, "w:xz") as archive:
                for path in sorted(set(node.data.iterdir()) - {node.data / ".lock"}):
                    archive.add(path, path.name, filter=_nobody)


def _nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of whoever recorded it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main() -> int:
    from bench.interop import compile_against

    parser = argparse.ArgumentParser(prog="python -m bench.takeover", description=__doc__)
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="what to write")
    record(parser.parse_args().record, compile_against)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as problem:
        sys.exit(f"takeover: {problem}")
