"""kafka-get-offsets: where the partitions of topics begin and end, or are at a time."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence

from ottla.cli.kafka_compat.java_errors import spell_error
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    BROKER_LIST,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    connect,
    explain,
)
from ottla.cli.kafka_compat.topics import topic_pattern
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

TIMES = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_NO_OFFSET = -1

Allowed = Callable[[str, int], bool]

PARSER = Parser(
    "kafka-get-offsets",
    "Show offsets of partitions.",
    [
        BOOTSTRAP,
        BROKER_LIST,
        COMMAND_CONFIG,
        Option("topic", "A regular expression for topics.", "topic"),
        Option("partitions", "Only these partitions.", "0,1,..."),
        Option(
            "topic-partitions",
            "Which partitions: topic:1, topic:0-3, topic:5-, topic:-3, with commas between.",
            "topic:partitions,...",
        ),
        Option(
            "time",
            f"Which offset: milliseconds since 1970, or {', '.join(TIMES)} (-1 to -6).",
            "time",
            default="latest",
        ),
        Option("exclude-internal-topics", "Without Kafka's own topics."),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-get-offsets."""
    if not arguments:
        sys.stderr.write(PARSER.help())
        return 1
    try:
        options = PARSER.parse(arguments)
    except UsageError as error:
        raise UsageError(f"Error occurred: {error.message}") from None
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise UsageError('Missing required argument "[bootstrap-server]"')
    try:
        _print(options)
    except Failure as failure:
        raise Failure(f"Error occurred: {failure.message}") from None
    except KafkaError as error:
        raise Failure(f"Error occurred: {explain(error)}") from None
    return 0


def _print(options: Options) -> None:
    if options.has("topic-partitions") and (options.has("topic") or options.has("partitions")):
        raise Failure("--topic-partitions cannot be used with --topic or --partitions")
    timestamp = _time(options.required("time"))
    allowed = _filter(options)
    with connect(options, "bootstrap-server", "broker-list") as admin:
        names = [
            name
            for name, internal in admin.topics().items()
            if not (internal and options.has("exclude-internal-topics"))
        ]
        chosen = [
            TopicPartition(topic.name, part.partition)
            for topic in admin.describe_topics(sorted(names))
            for part in topic.partitions
            if allowed(topic.name, part.partition)
        ]
        if not chosen:
            raise Failure("Could not match any topic-partitions with the specified filters")
        found = admin.list_offsets(dict.fromkeys(chosen, timestamp))
    # Java sorts by the text of topic and partition.
    for each in sorted(chosen, key=str):
        answer = found[each]
        if isinstance(answer, KafkaError):
            print(
                f"Skip getting offsets for topic-partition {each} due to error: "
                f"{spell_error(answer)}",
                file=sys.stderr,
            )
        elif answer.offset != _NO_OFFSET:
            print(f"{each.topic}:{each.partition}:{answer.offset}")


def _time(text: str) -> int:
    if text in TIMES:
        return TIMES[text]
    try:
        return int(text)
    except ValueError:
        choices = " / ".join(f"{number} or {name}" for name, number in TIMES.items())
        raise Failure(
            f"Malformed time argument {text}. Please use {choices}, or a specified long format "
            f"timestamp"
        ) from None


def _filter(options: Options) -> Allowed:
    rules = options.value("topic-partitions")
    if rules is not None:
        parsed = [_rule(text) for text in rules.split(",")]
        return lambda topic, partition: any(rule(topic, partition) for rule in parsed)
    pattern = topic_pattern(options.value("topic") or ".*")
    text = options.value("partitions")
    if not text:
        return lambda topic, _partition: pattern.fullmatch(topic) is not None
    try:
        numbers = {int(number) for number in text.split(",")}
    except ValueError:
        raise Failure(
            f"--partitions expects a comma separated list of numeric partition ids, but received: "
            f"{text}"
        ) from None
    return lambda topic, partition: partition in numbers and pattern.fullmatch(topic) is not None


def _rule(text: str) -> Allowed:
    match = _RULE.fullmatch(text)
    if match is None:
        raise Failure(f"org.apache.kafka.tools.TerseException: Invalid rule specification: {text}")
    topic, single, lower, upper = match.groups()
    pattern = topic_pattern(topic or ".*")
    if single:
        numbers = range(int(single), int(single) + 1)
    else:
        numbers = range(int(lower or 0), int(upper or 2**31 - 1))
    return lambda name, partition: partition in numbers and pattern.fullmatch(name) is not None
