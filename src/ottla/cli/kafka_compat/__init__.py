"""Kafka's command-line tools under their own names: `kafka-topics`, `kafka-topics.sh` and so on.

Each tool is a module here with a function that takes the arguments and returns the exit code;
`TOOLS` says which. What a tool prints, down to the wording that scripts look for, and its exit
codes are Apache Kafka 4.2's; the work is done by the same client and packages that `ottla` uses.
Where we differ on purpose (a stack trace becomes one line) is listed in `docs/tools.md`.

All commands are one entry point, `main`, which goes by the name it was called with and imports
only that tool: no click, no rich, and librdkafka only where records are sent or read. The names are
not installed with the package; `ottla tools link` puts them into a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

_HERE = "ottla.cli.kafka_compat"

TOOLS: Mapping[str, str] = {
    "kafka-broker-api-versions": f"{_HERE}.broker_api_versions:main",
    "kafka-client-metrics": f"{_HERE}.client_metrics:main",
    "kafka-cluster": f"{_HERE}.cluster:main",
    "kafka-configs": f"{_HERE}.configs:main",
    "kafka-console-consumer": f"{_HERE}.console_consumer:main",
    "kafka-console-producer": f"{_HERE}.console_producer:main",
    "kafka-consumer-groups": f"{_HERE}.consumer_groups:main",
    "kafka-consumer-perf-test": f"{_HERE}.consumer_perf:main",
    "kafka-delete-records": f"{_HERE}.delete_records:main",
    "kafka-dump-log": f"{_HERE}.dump_log:main",
    "kafka-e2e-latency": f"{_HERE}.e2e_latency:main",
    "kafka-features": f"{_HERE}.features:main",
    "kafka-get-offsets": f"{_HERE}.get_offsets:main",
    "kafka-groups": f"{_HERE}.groups:main",
    "kafka-leader-election": f"{_HERE}.leader_election:main",
    "kafka-list-topic": f"{_HERE}.topics:list_topic",
    "kafka-log-dirs": f"{_HERE}.log_dirs:main",
    "kafka-producer-perf-test": f"{_HERE}.producer_perf:main",
    "kafka-reassign-partitions": f"{_HERE}.reassign_partitions:main",
    "kafka-replica-verification": f"{_HERE}.replica_verification:main",
    "kafka-run-class": f"{_HERE}.run_class:main",
    "kafka-server-start": f"{_HERE}.server:start",
    "kafka-server-stop": f"{_HERE}.server:stop",
    "kafka-storage": f"{_HERE}.storage:main",
    "kafka-topics": f"{_HERE}.topics:main",
    "kafka-transactions": f"{_HERE}.transactions:main",
    "kafka-verifiable-consumer": f"{_HERE}.verifiable_consumer:main",
    "kafka-verifiable-producer": f"{_HERE}.verifiable_producer:main",
    "zookeeper-server-start": f"{_HERE}.zookeeper:start",
    "zookeeper-server-stop": f"{_HERE}.zookeeper:stop",
    "zookeeper-shell": f"{_HERE}.zookeeper:shell",
}
"""Where each tool is: `module:function`, and the function takes arguments and returns a code."""

Tool = Callable[[Sequence[str]], int]


def tool_name(program: str) -> str:
    """The tool that a program's path means: `bin/kafka-topics.sh` is `kafka-topics`."""
    return program.rpartition("/")[2].removesuffix(".sh")


def load(name: str) -> Tool | None:
    """Import a tool; None when there is none of that name."""
    target = TOOLS.get(name)
    if target is None:
        return None
    import importlib

    module, _, attribute = target.partition(":")
    tool: Tool = getattr(importlib.import_module(module), attribute)
    return tool


def run(name: str, arguments: Sequence[str]) -> int:
    """Run one tool; returns its exit code."""
    from ottla.cli.kafka_compat.options import guarded
    from ottla.cli.streams import open_missing

    open_missing()
    tool = load(name)
    if tool is None:
        from ottla.cli.names import nearest

        near = nearest(name, TOOLS)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(TOOLS)}"
        print(f"there is no tool {name}; {hint}", file=sys.stderr)
        return 1
    return guarded(name, tool, arguments)


def main() -> NoReturn:
    """The entry point of every linked command."""
    sys.exit(run(tool_name(sys.argv[0]), sys.argv[1:]))
