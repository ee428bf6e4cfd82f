"""`ottla produce`: lines of standard input, or whole files, become records.

How a line is read is the business of `record_lines`, how records get to the broker and what became
of them that of `sending`.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
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
from ottla.cli.output import broker_errors, count, say, show_json
from ottla.cli.progress import bytes_progress
from ottla.cli.record_lines import Shape, bounded_lines
from ottla.cli.sending import Report, Sender, Target, WholeFile
from ottla.cli.transacting import Transacting, TransactionalSender
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.producer import Compression, Producer, ProducerOptions

# librdkafka refuses by itself what is larger than this; what a topic takes, the topic says.
_NO_LIMIT = 1_000_000_000
_BATCH = 1_000_000
# JSON takes up to six characters for one byte. No line that is longer than this can be sent.
_LONGEST = 16 * 1024 * 1024
_LONGEST_PER_BYTE = 8
# How long a transaction may be open, as by default in Kafka's producers.
_TRANSACTION_SECONDS = 60.0


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--file", "source", type=click.File("rb"), help="Read this file instead of stdin.")
@click.option(
    "--whole-file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Send this file as one record; repeatable, - is stdin.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="What a line is: a record, or an object as `ottla consume --json` prints it.",
)
@click.option("--key", metavar="TEXT", help="The key of all records.")
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
@click.option(
    "--timeout",
    type=click.FloatRange(0, 2_000_000, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="When a record that could not be stored has failed.",
)
@click.option(
    "--transactional-id",
    metavar="ID",
    help="Send everything in one transaction, as this producer: all of it counts or nothing.",
)
@click.option(
    "--transaction-size",
    type=click.IntRange(1),
    metavar="N",
    help="One transaction for every N records instead.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@bootstrap_option
@json_option
def produce(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    topic: str,
    source: IO[bytes] | None,
    files: tuple[str, ...],
    form: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    headers_in_line: bool,
    null: str | None,
    partition: int | None,
    acks: str,
    compression: str,
    timeout: float,
    transactional_id: str | None,
    transaction_size: int | None,
    quiet: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Send lines of standard input to a topic.

    Each line is a record. It ends at a line that cannot be sent, and says which one that is; the
    lines before it are sent. The summary goes to stderr and counts what was acknowledged; the exit
    code is 1 when any record was not delivered.

    With --format json a line has the fields value, key, headers, partition and timestamp, all but
    value optional, and key_base64 or value_base64 for what is no text.

    With --transactional-id, what ends the input early (such a line, Ctrl-C, a record that is
    refused) aborts the open transaction, and consumers never see its records. A transaction may be
    open for a minute.

    JSON (to stdout): {"topic", "sent", "failed", "bytes", "seconds", "error"}
    """
    separator = None if key_separator is None else unescape(key_separator).encode()
    if separator == b"":
        raise click.UsageError("--key-separator is empty; leave it out for records without a key")
    in_line = {
        "--key-separator": separator is not None,
        "--headers-in-line": headers_in_line,
        "--null": null is not None,
    }
    if form == "json":
        _exclude("--format json", {**in_line, "--key": key is not None})
    if files:
        _exclude(
            "--whole-file",
            {**in_line, "--file": source is not None, "--format json": form == "json"},
        )
    if files.count("-") > 1:
        raise click.UsageError("--whole-file - is given twice; stdin can be read once")
    if key is not None:
        _exclude("--key", {"--key-separator": separator is not None})
    shape = Shape(
        separator,
        headers_in_line,
        None if null is None else null.encode(),
        [_header(text) for text in headers],
        None if key is None else key.encode(),
        form == "json",
    )
    _check_transactions(transactional_id, transaction_size, acks)
    quiet_client_log()
    with broker_errors(bootstrap, topics=[topic]):
        connect(bootstrap)
        options: ProducerOptions = {
            "acks": "all" if acks == "all" else 1 if acks == "1" else 0,
            "compression": cast("Compression", compression),
            "delivery_timeout": timeout,
            "max_block": 0.5,  # and then looks whether it is interrupted
            "client_id": "ottla-cli",
        }
        found = look_up(bootstrap, topic) or _created(bootstrap, topic, timeout)
        if partition is not None and partition >= found.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {partition} of topic {topic!r}; {_numbers(found)}",
            )
        # A batch that is larger than the topic allows would be refused with all that is in it.
        sizes = {"message.max.bytes": _NO_LIMIT, "batch.size": min(_BATCH, found.limit or _BATCH)}
        options["config"] = {**CONFIG, **sizes}
        producer = _made(bootstrap, options, transactional_id)
    target = Target(topic, partition, found.partitions, found.limit, compression != "none")
    stream = source or sys.stdin.buffer
    total = _file_size(files, stream)
    if total is None and stream.isatty() and not quiet:
        say("Ctrl-D ends the record" if files else "one record per line; Ctrl-D ends")
    with ExitStack() as stack:
        sender = _sender(producer, transactional_id, transaction_size, target, bootstrap)
        if total is not None and not quiet:
            sender.progress = stack.enter_context(bytes_progress("sending", total))
        if files:
            report = sender.send_files(_whole_files(files, shape))
        else:
            bound = max(_LONGEST, _LONGEST_PER_BYTE * (found.limit or 0))
            ends = total is not None  # then Ctrl-C is not how one says that this was all
            report = sender.send_lines(bounded_lines(stream, bound), shape, is_file=ends)
    _tell(report, topic, quiet, as_json)


def _check_transactions(name: str | None, size: int | None, acks: str) -> None:
    if name is None:
        if size is not None:
            raise click.UsageError("--transaction-size needs --transactional-id")
        return
    if not name:
        raise click.UsageError("--transactional-id is empty")
    _exclude("--transactional-id", {f"--acks {acks}": acks != "all"})


def _made(
    bootstrap: str, options: ProducerOptions, transactional_id: str | None
) -> Producer[bytes | str, bytes | str]:
    """The producer; one with a transactional id has it taken over already."""
    from ottla.client.producer import Producer

    if transactional_id is None:
        return Producer(bootstrap, **options)
    timeout = options["delivery_timeout"]
    options["transactional_id"] = transactional_id
    options["transaction_timeout"] = max(_TRANSACTION_SECONDS, timeout)
    options["max_block"] = timeout
    try:
        producer = Producer(bootstrap, **options)
    except ValueError as error:
        raise click.UsageError(f"--timeout with --transactional-id: {error}") from None
    try:
        producer.init_transactions()
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise click.UsageError(f"--timeout with --transactional-id: {error.message}") from None
    return producer


def _sender(
    producer: Producer[bytes | str, bytes | str],
    transactional_id: str | None,
    size: int | None,
    target: Target,
    bootstrap: str,
) -> Sender:
    if transactional_id is None:
        return Sender(producer, target, bootstrap)
    return TransactionalSender(Transacting(producer, size), target, bootstrap)


def _tell(report: Report, topic: str, quiet: bool, as_json: bool) -> None:
    if as_json:
        show_json({"topic": topic, **report._asdict()})
    elif not quiet:
        say(
            f"sent {count(report.sent, 'record')} ({count(report.bytes, 'byte')}) to {topic} "
            f"in {report.seconds:,.2f} s"
        )
    if report.error is not None:
        raise click.ClickException(report.error)


def _exclude(option: str, others: dict[str, bool]) -> None:
    for other, given in others.items():
        if given:
            raise click.UsageError(f"{option} and {other} exclude each other")


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header {text!r}: expected NAME=VALUE")
    return name, value.encode()


# -- where it goes


class Found(NamedTuple):
    """What a topic is like."""

    partitions: int
    limit: int | None
    """Its max.message.bytes, if the broker tells."""


def look_up(bootstrap: str, topic: str) -> Found | None:
    """A topic as it is; None when there is none, which this does not change."""
    from ottla.client.direct import TOPIC, DirectAdmin

    with DirectAdmin(bootstrap, client_id="ottla-cli") as admin:
        try:
            [described] = admin.describe_topics([topic])
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None
        try:
            [limit] = admin.describe_configs(TOPIC, topic, keys=["max.message.bytes"])
        except (KafkaError, ValueError):  # not everybody may ask for settings
            return Found(len(described.partitions), None)
        return Found(len(described.partitions), int(limit.value) if limit.value else None)


def _created(bootstrap: str, topic: str, timeout: float) -> Found:
    """Where brokers make a topic that is written to, as Kafka's do by default, it is there now: who
    has misspelt its name wants to know."""
    from ottla.cli import names
    from ottla.client.producer import Producer

    question = names.did_you_mean(topic, names.known_topics(bootstrap))
    try:
        with Producer(bootstrap, client_id="ottla-cli", config=CONFIG) as asking:
            partitions = asking.partitions(topic, timeout=min(timeout, 5.0))
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise KafkaError(
            error.code, f"there is no topic {topic!r}; create it with `ottla topic create {topic}`"
        ) from None
    say(
        f"there was no topic {topic!r}: the broker has created it, with "
        f"{count(partitions, 'partition')}"
        + (f"; {question} `ottla topic delete {topic}` removes it" if question else "")
    )
    return look_up(bootstrap, topic) or Found(partitions, None)


def _numbers(found: Found) -> str:
    last = found.partitions - 1
    return "it has only partition 0" if last == 0 else f"it has 0 to {last}"


# -- what is sent


def _whole_files(files: tuple[str, ...], shape: Shape) -> Iterator[WholeFile]:
    for path in files:
        with click.open_file(path, "rb") as file:
            size = 0 if path == "-" else os.fstat(file.fileno()).st_size
            read = cast("Callable[[], bytes]", file.read)
            yield WholeFile("stdin" if path == "-" else path, size, read, shape.key, shape.headers)


def _file_size(files: tuple[str, ...], stream: IO[bytes]) -> int | None:
    """How many bytes there are to send; None when that shows only at the end."""
    try:
        if files:
            return None if "-" in files else sum(os.path.getsize(path) for path in files)
        status = os.fstat(stream.fileno())
        return status.st_size - stream.tell() if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):
        return None
