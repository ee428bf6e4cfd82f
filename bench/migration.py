"""Ottla on a copy of an Apache Kafka data folder serves what Apache Kafka serves.

A single-node Apache Kafka writes all kinds of topics, is killed with -9, started again, written
to and stopped cleanly; its folder is copied both times. Everything that a client can see of
Apache Kafka is then compared with everything it can see of Ottla on the copies.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from bench import view, workload
from bench.maven import ROOT
from bench.processes import BenchError, Child, run, wait_port
from bench.record import Check
from bench.systems import ApacheKafka, Node, Ottla, new_node
from bench.workload import PATIENCE, SMALL_SEGMENTS, Topic

if TYPE_CHECKING:
    from bench.systems import System

_START_TIMEOUT = 90.0
_CONFIG_TOOL = "kafka.admin.ConfigCommand"
# Fifty partitions each by default; four hold the same kinds of records.
_SETTINGS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


def write(bootstrap: str) -> None:
    """Fill a fresh Apache Kafka; runs in a process of its own, which leaves a transaction open."""
    workload.create(bootstrap, [*workload.common_topics(), *_more_topics()])
    workload.fill(bootstrap, seed=11)
    workload.grow(bootstrap, "grown", 5)
    for partition in range(5):
        workload.send(bootstrap, "grown", partition, list(workload.samples(partition, 50)))
    workload.delete(bootstrap, "recreated")
    workload.delete(bootstrap, "deleted")
    _recreate(bootstrap)
    workload.send(bootstrap, "recreated", 0, list(workload.samples(5, 20)))
    _set_configs(bootstrap)
    _commit_offsets(bootstrap)
    _transactions(bootstrap)


def write_more(bootstrap: str) -> None:
    """A second, smaller load after a restart."""
    for partition, codec in enumerate(workload.CODECS):
        records = list(workload.samples(500 + partition, 400))
        workload.send(bootstrap, "codecs", partition, records, compression_type=codec)
    workload.send(bootstrap, "transactions", 0, list(workload.samples(600, 50)))
    workload.send(
        bootstrap, "idempotent", 0, list(workload.samples(601, 50)), enable_idempotence="true"
    )
    workload.delete_records(bootstrap, "shortened", 0, 9_000)


@dataclass(frozen=True, slots=True)
class Original:
    """A copied data folder and what Apache Kafka served from it."""

    copy: Node
    seen: view.View


def _more_topics() -> list[Topic]:
    return [
        Topic("transactions", 3, SMALL_SEGMENTS),
        Topic("grown", 2),
        Topic("recreated", 2),
        Topic("deleted", 1),
        Topic(
            "configured",
            1,
            {
                "cleanup.policy": "compact,delete",
                "retention.ms": "-1",
                "max.message.bytes": "2000000",
                "min.cleanable.dirty.ratio": "0.9",
                "message.timestamp.before.max.ms": "9223372036854775807",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": "1",
            },
        ),
        Topic("with.dots-and_more", 1, {"file.delete.delay.ms": "1000"}),
    ]


def _recreate(bootstrap: str) -> None:
    """Apache Kafka answers a deletion before the name is free again everywhere."""
    for attempt in range(20):
        try:
            workload.create(bootstrap, [Topic("recreated", 1)])
        except Exception as error:
            if attempt == 19 or "TOPIC_ALREADY_EXISTS" not in str(error):
                raise
        else:
            return


def _set_configs(bootstrap: str) -> None:
    """One topic config changed later, one taken back."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    changes = (
        (ConfigResource.Type.TOPIC, "grown", "retention.bytes", "123456789", AlterConfigOpType.SET),
        (ConfigResource.Type.TOPIC, "grown", "segment.ms", "1234567", AlterConfigOpType.SET),
        (ConfigResource.Type.TOPIC, "grown", "segment.ms", None, AlterConfigOpType.DELETE),
    )
    for kind, name, key, value, operation in changes:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(PATIENCE)


def _commit_offsets(bootstrap: str) -> None:
    """Records in `__consumer_offsets`."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "someone", "enable.auto.commit": False}
    )
    places = [TopicPartition("codecs", partition, 100 + partition) for partition in range(3)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def _transactions(bootstrap: str) -> None:
    """Committed and aborted transactions side by side, and one that is never ended."""

    def producer(name: str, codec: str) -> Producer:
        made = Producer(
            workload.producer_settings(
                bootstrap,
                transactional_id=name,
                transaction_timeout_ms=800_000,
                compression_type=codec,
            )
        )
        made.init_transactions(PATIENCE)
        return made

    one, two, three = producer("one", "none"), producer("two", "zstd"), producer("three", "none")
    for turn in range(6):
        one.begin_transaction()
        two.begin_transaction()
        for partition in range(2):
            records = list(workload.samples(100 + turn, 700))
            workload.feed(one, "transactions", partition, records[:300])
            workload.feed(two, "transactions", partition, records[300:])
        workload.send(bootstrap, "transactions", 2, list(workload.samples(turn, 20)))
        if turn % 2:
            one.commit_transaction(PATIENCE)
            two.abort_transaction(PATIENCE)
        else:
            two.commit_transaction(PATIENCE)
            # An abort discards what has not been sent: flush, so that there is something to abort.
            one.flush(PATIENCE)
            one.abort_transaction(PATIENCE)
    three.begin_transaction()
    workload.feed(three, "transactions", 1, list(workload.samples(77, 30)))
    three.flush(PATIENCE)
    workload.send(bootstrap, "transactions", 1, list(workload.samples(78, 30)))


def write_originals(folder: Path, kafka: ApacheKafka) -> tuple[Original, Original]:
    """One Apache Kafka, killed with -9 after the first load and stopped cleanly after a second.

    The second load comes after a restart, so its records carry a later leader epoch.
    """
    node = new_node(folder / "original")
    kafka.prepare(node, _SETTINGS)
    with kafka.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        _run_writer("--write", node)
        # librdkafka cannot name "all brokers" as the owner of a setting.
        kafka.tool(
            _CONFIG_TOOL, "--bootstrap-server", node.bootstrap, "--entity-type", "brokers",
            "--entity-default", "--alter", "--add-config", "log.retention.ms=99999999999",
        )  # fmt: skip
        broker.kill()
    killed = _copy(node, folder / "killed")
    with kafka.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        after_kill = view.look(node.bootstrap)
        _run_writer("--write-more", node)
        after_more = view.look(node.bootstrap)
    stopped = _copy(node, folder / "stopped")
    if not 0 < after_kill.records < after_more.records:
        raise BenchError("Apache Kafka did not keep what was written")
    return Original(killed, after_kill), Original(stopped, after_more)


def _run_writer(flag: str, node: Node) -> None:
    command = [sys.executable, "-m", "bench.migration", flag, node.bootstrap]
    run("the writer", command, timeout=300, cwd=ROOT)


def _copy(node: Node, folder: Path) -> Node:
    copy = new_node(folder)
    # cp keeps the holes of Kafka's preallocated indexes; Python's copy would fill them with zeros.
    run("cp", ["cp", "-a", "--sparse=always", str(node.data), str(copy.data)], timeout=120)
    return copy


def compare(original: Original, system: System, kafka_folder: Path) -> list[str]:
    """Serve the copy and say where it differs from what Apache Kafka served."""
    copy = original.copy
    with _serve_copy(system, copy, kafka_folder) as broker:
        wait_port(copy.port, broker, _START_TIMEOUT)
        try:
            ours = view.look(copy.bootstrap)
        except Exception as error:
            raise BenchError(f"the copy could not be read: {error}\n{broker.tail()}") from None
    return view.differences(original.seen, ours)


def _serve_copy(system: System, copy: Node, kafka_folder: Path) -> Child:
    """Start on the copy as a person would: with the folder, without the original's properties."""
    if isinstance(system, ApacheKafka):
        # The null run: Apache Kafka needs properties, here with the new folder and ports.
        text = (kafka_folder / "server.properties").read_text()
        changed = {
            "controller.quorum.voters": f"1@127.0.0.1:{copy.controller_port}",
            "listeners": f"PLAINTEXT://{copy.bootstrap},CONTROLLER://127.0.0.1:{copy.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{copy.bootstrap}",
            "log.dirs": str(copy.data),
        }
        lines = [line for line in text.splitlines() if line.partition("=")[0] not in changed]
        lines += [f"{key}={value}" for key, value in changed.items()]
        (copy.folder / "server.properties").write_text("\n".join(lines))
    else:
        system.prepare(copy, {})
    return system.start(copy)


def check(folder: Path, kafka: ApacheKafka, system: System) -> Check:
    """Both ways of stopping."""
    killed, stopped = write_originals(folder, kafka)
    count = 0
    for name, original in (("killed", killed), ("stopped", stopped)):
        found = compare(original, system, folder / "original")
        count += len(found)
        for difference in found[:20]:
            print(f"  {name}: {difference}", flush=True)
    detail = (
        f"{killed.seen.records:,} records of a folder killed with -9 and "
        f"{stopped.seen.records:,} of one stopped cleanly, {count} differences"
    )
    return Check("Apache Kafka's data folder served as it is", count == 0, detail)


def main() -> int:
    if sys.argv[1:2] in (["--write"], ["--write-more"]):
        (write if sys.argv[1] == "--write" else write_more)(sys.argv[2])
        # Not even an orderly end of the interpreter: the client would be waited for.
        os._exit(0)
    kafka = ApacheKafka()
    system: System = kafka if "--null" in sys.argv else Ottla()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        found = check(Path(folder), kafka, system)
    print(f"{found.name}: {'passed' if found.passed else 'FAILED'}: {found.detail}")
    return 0 if found.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as problem:
        sys.exit(f"bench: {problem}")
