"""Kafka's tools from the command line, ours and Apache's: the wall time of each, start to end.

Apache's are started as its scripts start them, but without the scripts themselves, which would add
to their time. Each side's tools talk to its own broker, which holds the same few things.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bench.client import measure
from bench.course import Course
from bench.processes import BenchError, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.course import Step

_TIMEOUT = 120.0
_RECORDS = 1_000
_BROKER = "--bootstrap-server BROKER"
_VERBS = {"--list", "--describe", "cluster-id", "describe", "random-uuid"}


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed, what it is given to read, and a word that it prints when all is well."""

    key: str
    typed: str
    says: str
    stdin: str = ""

    @property
    def title(self) -> str:
        """The program, and what it is asked for where it can be asked for several things."""
        program, *words = self.typed.replace(f" {_BROKER}", "").split()
        return f"`{' '.join([program, *(word for word in words[:1] if word in _VERBS)])}`"

    def words(self, names: Mapping[str, str]) -> list[str]:
        """The program and its arguments, with the upper-case names filled in."""
        return [names.get(word, word) for word in self.typed.split()]


COMMANDS: tuple[Command, ...] = (
    Command("cli-topics-list", f"kafka-topics {_BROKER} --list", "orders"),
    Command("cli-topics-describe", f"kafka-topics {_BROKER} --describe --topic orders", "orders"),
    Command("cli-consumer-groups-list", f"kafka-consumer-groups {_BROKER} --list", "commits-0"),
    Command(
        "cli-consumer-groups-describe",
        f"kafka-consumer-groups {_BROKER} --describe --group commits-0",
        "commits-0",
    ),
    Command("cli-groups-list", f"kafka-groups {_BROKER} --list", "commits-0"),
    Command(
        "cli-configs-describe",
        f"kafka-configs {_BROKER} --describe --entity-type topics --entity-name orders",
        "orders",
    ),
    Command("cli-client-metrics-list", f"kafka-client-metrics {_BROKER} --list", ""),
    Command("cli-get-offsets", f"kafka-get-offsets {_BROKER} --topic orders", "orders:0:"),
    Command("cli-log-dirs", f"kafka-log-dirs {_BROKER} --describe", '"logDirs"'),
    Command("cli-broker-api-versions", f"kafka-broker-api-versions {_BROKER}", "Produce(0)"),
    Command("cli-cluster-id", f"kafka-cluster cluster-id {_BROKER}", "Cluster ID"),
    Command("cli-features", f"kafka-features {_BROKER} describe", ""),
    Command("cli-transactions-list", f"kafka-transactions {_BROKER} list", "TransactionalId"),
    Command("cli-storage-uuid", "kafka-storage random-uuid", ""),
    Command("cli-dump-log", "kafka-dump-log --files SEGMENT --print-data-log", "payload"),
    Command(
        "cli-console-consumer",
        f"kafka-console-consumer {_BROKER} --topic orders --from-beginning --max-messages 10",
        "Processed a total of 10 messages",
    ),
    Command(
        "cli-console-producer",
        f"kafka-console-producer {_BROKER} --topic lines",
        "",
        stdin="one\ntwo\nthree\n",
    ),
    Command(
        "cli-delete-records",
        f"kafka-delete-records {_BROKER} --offset-json-file OFFSETS",
        "low_watermark: 10",
    ),
    Command(
        "cli-verifiable-producer",
        f"kafka-verifiable-producer {_BROKER} --topic lines --max-messages 100",
        '"acked":100',
    ),
    Command(
        "cli-verifiable-consumer",
        f"kafka-verifiable-consumer {_BROKER} --topic orders --group-id NEW "
        "--reset-policy earliest --max-messages 100",
        "shutdown_complete",
    ),
    Command(
        "cli-producer-perf",
        f"kafka-producer-perf-test {_BROKER} --topic lines --num-records 1000 --record-size 100 "
        "--throughput -1",
        "1000 records sent",
    ),
    Command(
        "cli-consumer-perf",
        f"kafka-consumer-perf-test {_BROKER} --topic orders --num-records 500",
        "start.time",
    ),
    Command(
        "cli-e2e-latency",
        f"kafka-e2e-latency {_BROKER} --topic lines --num-records 100 --producer-acks 1 "
        "--record-size 100",
        "Avg latency",
    ),
)


class CommandSession(Course):
    """Every command, again and again."""

    SETTINGS: ClassVar[Mapping[str, str]] = {"group.initial.rebalance.delay.ms": "0"}
    """Else the tools that read as a group would wait three seconds for other members."""

    def _steps(self) -> Sequence[Step]:
        return [(partial(self._run, command), (command.key,)) for command in COMMANDS]

    def _warm_up(self) -> None:
        for topic in ("orders", "lines"):
            self._create(topic, 1)
        bootstrap = self._node.bootstrap
        measure(
            "produce", bootstrap=bootstrap, topic="orders", partitions=1, size=100, count=_RECORDS
        )
        measure("commits", bootstrap=bootstrap, topic="orders", connections=1, seconds=0.1)
        self._create("deleted", 1)
        measure("produce", bootstrap=bootstrap, topic="deleted", partitions=1, size=9, count=100)
        delete = {"partitions": [{"topic": "deleted", "partition": 0, "offset": 10}], "version": 1}
        offsets = self._node.folder / "offsets.json"
        offsets.write_text(json.dumps(delete))
        self._names = {
            "BROKER": bootstrap,
            "SEGMENT": str(self._node.data / "orders-0" / f"{0:020}.log"),
            "OFFSETS": str(offsets),
        }

    def _run(self, command: Command) -> None:
        for turn in range(self._sizes.command_runs):
            tool, *arguments = command.words({**self._names, "NEW": f"{command.key}-{turn}"})
            line = self._system.classic_command(tool, *arguments)
            began = time.perf_counter()
            done = run(tool, line, timeout=_TIMEOUT, stdin=command.stdin)
            taken = time.perf_counter() - began
            if command.says not in done.stdout + done.stderr:
                raise BenchError(f"{tool} did not say {command.says!r}:\n{done.stdout[-500:]}")
            self._report(command.key, taken)
