"""kafka-log-dirs: what the data folders of brokers hold, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Parser,
    check_required,
    connect,
)

if TYPE_CHECKING:
    from ottla.client.descriptions import LogDirDescription

PARSER = Parser(
    "kafka-log-dirs",
    "Show what the data folders of brokers hold.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option("describe", "Show them (required)."),
        Option("topic-list", "Only these topics.", "topic1,topic2,...", default=""),
        Option("broker-list", "Only these brokers.", "0,1,...", default=""),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-log-dirs."""
    options = PARSER.parse(arguments)
    check_required(options, "bootstrap-server", "describe")
    topics = {each for each in options.required("topic-list").split(",") if each}
    text = options.required("broker-list")
    try:
        wanted = [int(each) for each in text.split(",") if each]
    except ValueError:
        raise Failure(f"--broker-list {text!r}: expected broker ids with commas, as 0,1") from None
    with connect(options) as admin:
        present = [node.id for node in admin.describe_cluster().nodes]
        missing = [each for each in wanted if each not in present]
        if missing:
            raise Failure(
                f"ERROR: The given brokers do not exist from --broker-list: {_commas(missing)}. "
                f"Current existent brokers: {_commas(present)}"
            )
        chosen = sorted(set(wanted)) or present
        print("Querying brokers for log directories information")
        found = {broker: admin.log_dirs(broker) for broker in chosen}
    print(f"Received log directory information from brokers {_commas(chosen)}")
    document = {
        "brokers": [
            {"broker": broker, "logDirs": [_folder(each, topics) for each in folders]}
            for broker, folders in found.items()
        ],
        "version": 1,
    }
    print(json.dumps(document, separators=(",", ":")))
    return 0


def _folder(folder: LogDirDescription, topics: set[str]) -> dict[str, object]:
    return {
        "partitions": [
            {
                "partition": f"{each.topic}-{each.partition}",
                "size": each.size,
                "offsetLag": each.lag,
                "isFuture": each.future,
            }
            for each in folder.replicas
            if not topics or each.topic in topics
        ],
        # The only thing a folder is ever known to suffer from.
        "error": "org.apache.kafka.common.errors.KafkaStorageException" if folder.error else None,
        "logDir": folder.path,
    }


def _commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
