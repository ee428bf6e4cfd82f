"""`ottla consume`: the records of a topic on standard output.

Without a group nothing is shared and nothing is remembered: all partitions are assigned, from
where the options say. Output is written as it was stored, byte for byte, a line per record.
"""

from __future__ import annotations

import io
import json
import select
import signal
import string
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import click

from ottla.cli.command import Command
from ottla.cli.options import (
    CONFIG,
    bootstrap_option,
    complete_topics,
    connect,
    quiet_client_log,
    unescape,
)
from ottla.cli.output import broker_errors, for_terminals
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.consumer import Consumer
    from ottla.client.positions import Position
    from ottla.client.records import Record

    Raw = Record[bytes, bytes]
    LineWriter = Callable[[Raw], bytes]

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")

# Between two looks at whether anybody still reads our output.
_LOOK = 0.5
_BATCH = 500
# A cluster that has just been started makes its offsets topic for the first group.
_COORDINATOR_TIMEOUT = 15.0


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--from-beginning", is_flag=True, help="The same as --offset earliest.")
@click.option(
    "--offset",
    metavar="N|earliest|latest|-N",
    help="Where to start in each partition; -N is N records before its end.  [default: latest]",
)
@click.option(
    "--timestamp",
    metavar="TIME",
    help="Start at the first record not before this: 2026-05-01T12:00:00Z, or milliseconds.",
)
@click.option("--partitions", metavar="0,2", help="Only these.  [default: all]")
@click.option(
    "--group",
    metavar="NAME",
    help="Share the topic with this group, and go on where it was; a new one from the beginning.",
)
@click.option("--max", "most", type=click.IntRange(1), metavar="N", help="Stop after N records.")
@click.option("--exit-at-end", is_flag=True, help="Stop when everything there now is printed.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop when nothing came for so long; with a group, since it has given us partitions.",
)
@click.option("--key", "with_key", is_flag=True, help="Print the key and a tab before the value.")
@click.option(
    "--headers", "with_headers", is_flag=True, help="Print headers, a:1,b:2, and a tab first."
)
@click.option("--null", default="null", show_default=True, metavar="TEXT", help="What null is.")
@click.option(
    "--format",
    "template",
    metavar="TEXT",
    help="Print this with {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line.")
@click.option("--read-uncommitted", is_flag=True, help="Also records of unfinished transactions.")
@bootstrap_option
def consume(
    topic: str,
    from_beginning: bool,
    offset: str | None,
    timestamp: str | None,
    partitions: str | None,
    group: str | None,
    most: int | None,
    exit_at_end: bool,
    timeout: float | None,
    with_key: bool,
    with_headers: bool,
    null: str,
    template: str | None,
    as_json: bool,
    read_uncommitted: bool,
    bootstrap: str,
) -> None:
    """Print the records of a topic.

    By default only values, of records that come from now on, until Ctrl-C.

    \b
    JSON: {"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value",
           "headers": [[name, value]]}
    Text that is not UTF-8 is null there, and "key_base64" or "value_base64" holds it; such a
    header is {"base64": text} in place of its value.
    """
    if sum((as_json, template is not None, with_key or with_headers)) > 1:
        raise click.UsageError("--json, --format, and --key with --headers exclude each other")
    start = starting_point(from_beginning, offset, timestamp)
    numbers = None if partitions is None else parse_partitions(partitions)
    if group is not None and (numbers is not None or start is not None):
        raise click.UsageError(
            "a group decides by itself what is read and from where; "
            "leave out --partitions, --offset, --timestamp and --from-beginning, or --group"
        )
    write = line_writer(as_json, template, with_key, with_headers, null)
    if is_terminal():
        write = for_terminal(write)
    quiet_client_log()
    with broker_errors(bootstrap):
        connect(bootstrap)
        from ottla.client.consumer import Consumer

        options: dict[str, Any] = {}
        if group is not None:
            options = {"group": group, "reset": "earliest", "timeout": _COORDINATOR_TIMEOUT}
        with (
            stopped_by_signals(),
            Consumer(
                bootstrap,
                client_id="ottla-cli",
                read_uncommitted=read_uncommitted,
                config=CONFIG,
                **options,
            ) as consumer,
        ):
            try:
                if group is not None:
                    partitions_of_group = consumer.partitions(topic)
                    if is_new_group(consumer, group, partitions_of_group):
                        click.echo(
                            f"the group {group!r} has read nothing of {topic!r} yet: it begins at "
                            f"the first record",
                            err=True,
                        )
                    consumer.subscribe(topic)
                else:
                    consumer.assign(
                        choose(consumer.partitions(topic), numbers),
                        "latest" if start is None else start,
                    )
                copy(
                    consumer,
                    buffered_stdout(),
                    write,
                    most=most,
                    until_end=exit_at_end,
                    idle=timeout,
                )
            except KafkaError as error:
                raise _with_advice(error, topic) from None


def starting_point(
    from_beginning: bool, offset: str | None, timestamp: str | None
) -> Position | None:
    """The one place that the options name; None when they name none."""
    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise click.UsageError("--from-beginning, --offset and --timestamp exclude each other")
    if from_beginning:
        return "earliest"
    if timestamp is not None:
        return parse_time(timestamp)
    if offset is None:
        return None
    if offset in ("earliest", "latest"):
        return "earliest" if offset == "earliest" else "latest"
    try:
        return int(offset)
    except ValueError:
        raise click.UsageError(
            f"--offset {offset!r}: expected a number, -N for N before the end, earliest or latest"
        ) from None


def parse_time(text: str) -> datetime:
    """A moment in ISO 8601 (local time without a zone) or in milliseconds since the epoch."""
    from datetime import UTC, timedelta

    if text.isascii() and text.isdigit():
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--timestamp {text!r}: expected a time as 2026-05-01T12:00:00Z, or milliseconds since "
            f"1970 as 1777636800000"
        ) from None


def parse_partitions(text: str) -> list[int]:
    """Numbers with commas between."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise click.UsageError(f"--partitions {text!r}: expected numbers with commas, as 0,2")
    return sorted({int(part) for part in parts})


def choose(
    partitions: tuple[TopicPartition, ...], numbers: list[int] | None
) -> list[TopicPartition]:
    """The partitions with these numbers; complains about one that does not exist."""
    if numbers is None:
        return list(partitions)
    by_number = {tp.partition: tp for tp in partitions}
    for number in numbers:
        if number not in by_number:
            last = len(partitions) - 1
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {number} of topic {partitions[0].topic!r}; "
                + ("it has only partition 0" if last == 0 else f"it has 0 to {last}"),
            )
    return [by_number[number] for number in numbers]


def is_new_group(
    consumer: Consumer[bytes, bytes], group: str, partitions: tuple[TopicPartition, ...]
) -> bool:
    """Whether a group has committed nothing for any of these partitions.

    Complains when no broker takes care of groups; librdkafka would look for one for ever."""
    try:
        return all(offset is None for offset in consumer.committed(*partitions).values())
    except KafkaError as error:
        if error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"no broker coordinates the group {group!r}; leave out --group to read on your own",
        ) from None


def copy(
    consumer: Consumer[bytes, bytes],
    output: IO[bytes],
    write: LineWriter,
    *,
    most: int | None = None,
    until_end: bool = False,
    idle: float | None = None,
) -> int:
    """Print records until there is a reason to stop, Ctrl-C among them; returns how many.

    When it is interrupted, what was printed is committed for the group, and nothing else: a record
    that did not make it to the output comes again.
    """
    done: dict[TopicPartition, int] = {}
    try:
        return _copy(consumer, output, write, most, until_end, idle, done)
    except KeyboardInterrupt:
        output.flush()
        if done and consumer.group is not None:
            consumer.commit(done)
        raise


def _copy(
    consumer: Consumer[bytes, bytes],
    output: IO[bytes],
    write: LineWriter,
    most: int | None,
    until_end: bool,
    idle: float | None,
    done: dict[TopicPartition, int],
) -> int:
    """`copy`; `done` says at any moment where to go on behind what was written."""
    finished = consumer.end_check() if until_end else None
    printed = 0
    last = time.monotonic()
    while most is None or printed < most:
        want = _BATCH if most is None else min(_BATCH, most - printed)
        records = consumer.take(want)
        if not records:
            # Nothing waits: whoever reads our output gets what there is, and then we wait.
            output.flush()
            if finished is not None and finished():
                break
            now = time.monotonic()
            if consumer.joining:
                last = now
            quiet = now - last
            if (idle is not None and quiet >= idle) or reader_is_gone(output):
                break
            wait = _LOOK if idle is None else min(_LOOK, idle - quiet)
            records = consumer.take(want, wait)
        if records:
            output.write(b"".join([write(record) for record in records]))
            for record in records:
                done[TopicPartition(record.topic, record.partition)] = record.offset + 1
            printed += len(records)
            last = time.monotonic()
    output.flush()
    return printed


def buffered_stdout() -> IO[bytes]:
    """Standard output, written whole or not at all. Python's own has no buffer when
    PYTHONUNBUFFERED is set: its `write` may then take only a part."""
    output = sys.stdout.buffer
    if isinstance(output, io.RawIOBase):
        return open(output.fileno(), "wb", closefd=False)
    return output


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside, and are a clean end of the program."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def reader_is_gone(output: IO[bytes]) -> bool:
    """Whether the other end of a pipe is closed; a write would tell, but there is none to do."""
    try:
        descriptor = output.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def for_terminal(write: LineWriter) -> LineWriter:
    """The same lines, harmless to a terminal."""
    return lambda record: for_terminals(write(record))


def line_writer(
    as_json: bool, template: str | None, with_key: bool, with_headers: bool, null: str
) -> LineWriter:
    """The function that makes a line of a record."""
    if as_json:
        return json_line
    if template is not None:
        return template_writer(unescape(template), null)
    nothing = null.encode()

    def write(record: Raw) -> bytes:
        parts = [nothing if record.value is None else record.value]
        if with_key:
            parts.insert(0, nothing if record.key is None else record.key)
        if with_headers:
            parts.insert(0, header_text(record, nothing))
        return b"\t".join(parts) + b"\n"

    return write


def template_writer(template: str, null: str) -> LineWriter:
    """Lines after a template with {fields}."""
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise click.UsageError(f"--format {template!r}: {error}") from None
    for name in used:
        if name not in FIELDS:
            fields = " ".join(f"{{{field}}}" for field in FIELDS)
            raise click.UsageError(f"--format has no field {{{name}}}; there are {fields}")
    nothing = null.encode()

    def text(data: bytes | None) -> str:
        return null if data is None else data.decode("utf-8", "surrogateescape")

    def write(record: Raw) -> bytes:
        line = template.format(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp,
            time=record.time.isoformat(timespec="milliseconds") if "time" in used else "",
            key=text(record.key),
            value=text(record.value),
            headers=text(header_text(record, nothing)) if "headers" in used else "",
        )
        return line.encode("utf-8", "surrogateescape") + b"\n"

    return write


def header_text(record: Raw, nothing: bytes) -> bytes:
    """Headers as `ottla produce --headers-in-line` reads them."""
    return b",".join(
        name.encode() + b":" + (nothing if value is None else value)
        for name, value in record.headers
    )


def json_line(record: Raw) -> bytes:
    """A record as one line of JSON."""
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text = readable(data)
        document[name] = text
        if data is not None and text is None:
            document[f"{name}_base64"] = b64encode(data).decode()
    headers: list[list[object]] = []
    for name, data in record.headers:
        text = readable(data)
        undecodable = data is not None and text is None
        headers.append([name, {"base64": b64encode(data or b"").decode()} if undecodable else text])
    document["headers"] = headers
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def readable(data: bytes | None) -> str | None:
    """Text, if it is text."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _with_advice(error: KafkaError, topic: str) -> KafkaError:
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "no topic" in (error.message or ""):
        return KafkaError(
            error.code, f"there is no topic {topic!r}; create it with `ottla topic create {topic}`"
        )
    return error
