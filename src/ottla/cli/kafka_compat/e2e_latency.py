"""kafka-e2e-latency: how long a record takes from a producer to a consumer, one at a time."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    bootstrap_of,
    check_required,
)
from ottla.cli.kafka_compat.perf_output import (
    client_config,
    for_librdkafka,
    number,
    quiet_client_log,
)
from ottla.client.contact import check_reachable
from ottla.errors import ErrorCode, KafkaError

TOOL = "kafka-e2e-latency"
_POSITIONS = (
    "bootstrap-server", "topic", "num-records", "producer-acks", "record-size", "command-config",
)  # fmt: skip
_REQUIRED = _POSITIONS[:5]
_SIZES = {
    "record-size": 0,
    "record-key-size": 0,
    "num-headers": 0,
    "record-header-key-size": 0,
    "record-header-size": -1,
}

PARSER = Parser(
    TOOL,
    "Measure the time from a producer to a consumer, one record at a time.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option("topic", "The topic to use (required); it is created if it is not there.", "topic"),
        Option("num-records", "How many records to send (required).", "count", int),
        Option("producer-acks", "1 or all (required).", "acks"),
        Option("record-size", "Bytes of each value (required).", "bytes", int),
        Option("record-key-size", "Bytes of each key; 0 for no key.", "bytes", int, "0", True),
        Option("num-headers", "Headers of each record.", "count", int, "0", True),
        Option("record-header-key-size", "Bytes of a header's name.", "bytes", int, "0", True),
        Option("record-header-size", "Bytes of a header's value; -1 for null.", "bytes", int, "0",
               True),
    ],
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The tool."""
    options = PARSER.parse(_named(arguments))
    check_required(options, *_REQUIRED)
    if options.required("producer-acks") not in ("1", "all"):
        raise UsageError(
            "Invalid value for --producer-acks. Latency testing requires synchronous "
            "acknowledgement. Please use '1' or 'all'."
        )
    if number(options, "num-records") <= 0:
        raise UsageError("Value for --num-records must be a positive integer.")
    for name, least in _SIZES.items():
        if number(options, name) < least:
            raise UsageError(f"Value for --{name} must be a non-negative integer.")
    bootstrap = bootstrap_of(options)
    config = for_librdkafka(client_config((options.value("command-config"),), ()))
    quiet_client_log()
    check_reachable(bootstrap)
    topic = options.required("topic")
    _ensure_topic(bootstrap, topic)
    return measure(options, bootstrap, topic, config)


def _named(arguments: Sequence[str]) -> list[str]:
    """Up to Kafka 4.1 this tool had five or six arguments without names."""
    if any(word.startswith("--") for word in arguments):
        return list(arguments)
    if len(arguments) not in (5, 6):
        raise Failure(
            f"Invalid number of arguments. Expected 5 or 6 positional arguments, but got "
            f"{len(arguments)}. Usage: bootstrap-server topic num-records producer-acks "
            f"record-size [optional] command-config"
        )
    print(
        "WARNING: Positional argument usage is deprecated and will be removed in Apache Kafka "
        "5.0. Please use named arguments instead: --bootstrap-server, --topic, --num-records, "
        "--producer-acks, --record-size, --command-config"
    )
    return [
        word
        for name, value in zip(_POSITIONS, arguments, strict=False)
        for word in (f"--{name}", value)
    ]


def _ensure_topic(bootstrap: str, topic: str) -> None:
    from ottla.client.descriptions import NewTopic
    from ottla.client.direct import DirectAdmin

    with DirectAdmin(bootstrap, client_id=TOOL) as admin:
        if topic in admin.topics():
            return
        print(
            f'Topic "{topic}" does not exist. Will create topic with 1 partition(s) and '
            f"replication factor = 1"
        )
        try:
            admin.create_topic(NewTopic(topic, 1, 1))
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                print(f"Creation of topic {topic} failed")
                raise


def measure(options: Options, bootstrap: str, topic: str, config: dict[str, object]) -> int:
    """Send, wait, and print what Kafka prints."""
    from ottla.client.load import latency_load, percentiles

    rng = random.Random(0)

    def filled(size: int) -> bytes:
        return bytes([rng.randrange(65, 91)]) * size

    size, key_size = number(options, "record-size"), number(options, "record-key-size")
    name_size = number(options, "record-header-key-size")
    value_size = number(options, "record-header-size")
    headers = [
        (filled(name_size).decode(), filled(max(value_size, 0)) if value_size >= 0 else None)
        for _ in range(number(options, "num-headers"))
    ]
    latencies: list[float] = []
    for index, latency in enumerate(
        latency_load(
            bootstrap,
            topic,
            number(options, "num-records"),
            lambda _: filled(size),
            key=(lambda _: filled(key_size)) if key_size > 0 else None,
            headers=headers,
            acks=options.required("producer-acks"),
            producer_config=config,
            consumer_config=config,
        )
    ):
        if index % 1000 == 0:
            print(f"{index}\t{latency}", flush=True)
        latencies.append(latency)
    print(f"Avg latency: {sum(latencies) / len(latencies):.4f} ms")
    half, _, most, nearly_all = (int(value) for value in percentiles(latencies))
    print(f"Percentiles: 50th = {half}, 99th = {most}, 99.9th = {nearly_all}")
    sys.stdout.flush()
    return 0
