"""`ottla produce`: lines of standard input become records.

A line is `headers TAB key SEPARATOR value`, where headers are there with --headers-in-line and a
key with --key-separator: the shape that Kafka's console producer reads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import click

from ottla.cli.command import Command
from ottla.cli.options import (
    CONFIG,
    bootstrap_option,
    complete_topics,
    connect,
    json_option,
    quiet_client_log,
    unescape,
)
from ottla.cli.output import broker_errors, count, explain, say, show_json
from ottla.cli.record_lines import BadLine, Shape, parse, strip_ends
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.producer import Compression, Producer, ProducerOptions

# librdkafka does not hand on which record the broker refused, and why. This is the usual cause.
_NO_KEY = "; in a compacted topic every record must have a key (--key-separator)"


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help=r"What stands between key and value, such as : or \t.  [default: no keys]",
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="For all records; repeatable."
)
@click.option(
    "--headers-in-line",
    is_flag=True,
    help="Lines begin with their headers, a:1,b:2, and a tab.",
)
@click.option("--null", metavar="TEXT", help="A key or value that is this text is null.")
@click.option("--partition", type=click.IntRange(0), help="Where to.  [default: by the key]")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Who must have a record before it counts as sent: all, the leader, nobody.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="How batches are packed.",
)
@click.option("--file", "source", type=click.File("rb"), help="Read this file instead of stdin.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="When a record that could not be stored has failed.",
)
@click.option("-q", "--quiet", is_flag=True, help="No summary.")
@bootstrap_option
@json_option
def produce(
    topic: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    headers_in_line: bool,
    null: str | None,
    partition: int | None,
    acks: str,
    compression: str,
    source: IO[bytes] | None,
    timeout: float,
    quiet: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Send lines of standard input to a topic.

    Each line is a record. The summary goes to stderr; the exit code is 1 when any record was not
    delivered.

    JSON (to stdout): {"topic", "sent", "failed", "bytes", "seconds", "error"}
    """
    separator = None if key_separator is None else unescape(key_separator).encode()
    if separator == b"":
        raise click.UsageError("--key-separator is empty; leave it out for records without a key")
    shape = Shape(
        separator,
        headers_in_line,
        None if null is None else null.encode(),
        [_header(text) for text in headers],
    )
    quiet_client_log()
    with broker_errors(bootstrap, topics=[topic]):
        connect(bootstrap)
        from ottla.client.producer import Producer

        options: ProducerOptions = {
            "acks": "all" if acks == "all" else 1 if acks == "1" else 0,
            "compression": cast("Compression", compression),
            "delivery_timeout": timeout,
            "client_id": "ottla-cli",
            "config": CONFIG,
        }
        producer = Producer(bootstrap, **options)
        _check_target(producer, topic, partition, timeout)
    lines = source or sys.stdin.buffer
    if lines.isatty() and not quiet:
        say("one record per line; Ctrl-D ends")
    report = send(producer, topic, lines, shape, partition, bootstrap)
    if as_json:
        show_json({"topic": topic, **report._asdict()})
    if not quiet and not as_json:
        say(
            f"sent {count(report.sent, 'record')} ({count(report.bytes, 'byte')}) to {topic} "
            f"in {report.seconds:.2f} s"
        )
    if report.error is not None:
        raise click.ClickException(report.error)


class Report(NamedTuple):
    """What became of the lines."""

    sent: int
    failed: int
    bytes: int
    seconds: float
    error: str | None


def send(
    producer: Producer[bytes | str, bytes | str],
    topic: str,
    lines: Iterable[bytes],
    shape: Shape,
    partition: int | None,
    bootstrap: str,
) -> Report:
    """Send all lines, wait until they are stored, and say what became of them."""
    started = time.monotonic()
    offered = size = failed = 0
    problem: str | None = None
    simple = shape == Shape()
    try:
        for text in strip_ends(lines):
            if simple:
                producer.post(topic, text, partition=partition)
            else:
                line = parse(text, shape)
                producer.post(
                    topic, line.value, key=line.key, headers=line.headers, partition=partition
                )
            offered += 1
            size += len(text)
    except BadLine as bad:
        problem = f"line {offered + 1} {bad}; the lines before it were sent"
    except KeyboardInterrupt:
        pass  # what was read is still sent
    except KafkaError as error:
        problem = explain(error, bootstrap)
    try:
        producer.close()
    except KafkaError as error:
        failures = getattr(error, "failures", (error,))
        failed = len(failures)
        reason = explain(failures[0], bootstrap)
        if failures[0].code is ErrorCode.INVALID_RECORD:
            reason += _NO_KEY
        problem = problem or f"{count(failed, 'record')} of {offered} not delivered: {reason}"
    seconds = round(time.monotonic() - started, 3)
    return Report(offered - failed, failed, size, seconds, problem)


def _check_target(
    producer: Producer[bytes | str, bytes | str], topic: str, partition: int | None, timeout: float
) -> None:
    """Complain about a wrong topic or partition before anything is read."""
    try:
        partitions = producer.partitions(topic, timeout=min(timeout, 5.0))
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(
                error.code,
                f"there is no topic {topic!r}; create it with `ottla topic create {topic}`",
            ) from None
        raise
    if partition is not None and partition >= partitions:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {partition} of topic {topic!r}; "
            + ("it has only partition 0" if partitions == 1 else f"it has 0 to {partitions - 1}"),
        )


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header {text!r}: expected NAME=VALUE")
    return name, value.encode()
