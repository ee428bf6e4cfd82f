"""`ottla consume`: the records of topics on standard output.

Without a group nothing is shared and nothing is remembered: all partitions are assigned, from
where the options say. Output is written as it was stored, byte for byte, a line per record.
"""

from __future__ import annotations

import io
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from ottla.cli.command import Command
from ottla.cli.options import (
    CONFIG,
    bootstrap_option,
    complete_topics,
    connect,
    quiet_client_log,
)
from ottla.cli.output import broker_errors, count, grouped, say
from ottla.cli.printing import Printer
from ottla.cli.progress import WaitingLine, signals_kill, sigterm_interrupts
from ottla.cli.record_lines import for_terminal, line_writer
from ottla.client.interrupts import Interrupts
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.record_lines import LineWriter
    from ottla.client.consumer import Consumer
    from ottla.client.positions import Position
    from ottla.client.records import Record

# Between two looks at whether anybody still reads our output.
_LOOK = 0.5
_BATCH = 500
# A cluster that has just been started makes its offsets topic for the first group.
_COORDINATOR_TIMEOUT = 15.0
_HIGHEST = 2**63 - 1
# Kafka's words for a place, and those of kcat and rpk.
_WORDS: Mapping[str, Literal["earliest", "latest"]] = {
    "earliest": "earliest",
    "beginning": "earliest",
    "start": "earliest",
    "latest": "latest",
    "end": "latest",
}


@click.command(cls=Command)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True,
                shell_complete=complete_topics)  # fmt: skip
@click.option("--from-beginning", is_flag=True, help="The same as --offset earliest.")
@click.option(
    "--offset",
    metavar="N|earliest|latest|-N",
    help="Where to start in each partition; -N is N records before its end; beginning, start and "
    "end do as well.  [default: latest]",
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
    help="Share the topics with this group, and go on where it was. Where it has read nothing yet: "
    "from the beginning, or with --offset latest from the end.",
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
def consume(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    topics: tuple[str, ...],
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
    """Print the records of topics.

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
    if group is not None:
        check_group_options(group, topics[0], start, partitions)
    chosen = tuple(dict.fromkeys(topics))
    write = line_writer(as_json, template, with_key, with_headers, null)
    if is_terminal():
        write = for_terminal(write)
    quiet_client_log()
    with broker_errors(bootstrap, topics=chosen):
        connect(bootstrap)
        from ottla.client.consumer import Consumer

        # Where records are deleted before we come to them, the next ones are not to be missed.
        options: dict[str, Any] = {"reset": "earliest"}
        if group is not None:
            options = {
                "group": group,
                "reset": "latest" if start == "latest" else "earliest",
                "timeout": _COORDINATOR_TIMEOUT,
            }
        with (
            stopped_by_signals(),
            ExitStack() as end,
            Consumer(
                bootstrap,
                client_id="ottla-cli",
                read_uncommitted=read_uncommitted,
                config=CONFIG,
                **options,
            ) as consumer,
            kill_on_second(end),
        ):
            printed = Printed()
            found = [tp for topic in chosen for tp in choose(known(consumer, topic), numbers)]
            if group is not None:
                committed = committed_offsets(consumer, group, found)
                if note := where_it_begins(group, chosen, committed, start):
                    say(note)
                consumer.subscribe(chosen, on_revoke=printed.forget)
            elif isinstance(start, int) and start >= 0:
                consumer.assign(beginnings(consumer, found, start))
            else:
                consumer.assign(found, "latest" if start is None else start)
            copy(
                consumer,
                buffered_stdout(),
                write,
                most=most,
                until_end=exit_at_end,
                idle=timeout,
                printed=printed,
                waiting=WaitingLine(what_for(consumer, chosen, len(found), start is None)),
            )


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
    if word := _WORDS.get(offset):
        return word
    try:
        number = int(offset.replace(",", ""))  # as tables show it
        if abs(number) > _HIGHEST:
            raise ValueError
        return number
    except ValueError:
        raise click.UsageError(
            f"--offset {offset!r}: expected a number, -N for N before the end, earliest or latest"
        ) from None


def parse_time(text: str) -> datetime:
    """A moment in ISO 8601 (local time without a zone) or in milliseconds since the epoch."""
    from datetime import UTC, timedelta

    try:
        if text.isascii() and text.isdigit():
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(text))
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
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


def beginnings(
    consumer: Consumer[bytes, bytes], partitions: list[TopicPartition], start: int
) -> Mapping[TopicPartition, Position]:
    """Where each partition begins; says where an offset is not there (any more, or yet).

    librdkafka would go on at the other end, over all the records that are there. A partition that
    is offline is begun as it is asked for, so that the others are read."""
    found: dict[TopicPartition, Position] = dict.fromkeys(partitions, start)
    for tp, (first, end) in _extents(consumer, partitions).items():
        found[tp] = at = min(max(start, first), end)
        if at > start:
            say(f"{tp} begins at offset {grouped(at)}: {grouped(start)} is deleted")
        elif at < start:
            say(f"{tp} ends at offset {grouped(at)}: there is no {grouped(start)} yet")
    return found


def _extents(
    consumer: Consumer[bytes, bytes], partitions: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Start and end of the partitions; without those that nobody leads, unless it is the only."""
    try:
        first = consumer.offsets(partitions, "earliest")
        end = consumer.offsets(partitions, "latest")
    except KafkaError as error:
        if error.code is not ErrorCode.LEADER_NOT_AVAILABLE or len(partitions) == 1:
            raise
        found: dict[TopicPartition, tuple[int, int]] = {}
        for tp in partitions:
            with suppress(KafkaError):
                found |= _extents(consumer, [tp])
        return found
    return {tp: (first[tp], end[tp]) for tp in partitions}


def check_group_options(
    group: str, topic: str, start: Position | None, partitions: str | None
) -> None:
    """Complain about options that a group's own offsets and assignment would make meaningless."""
    if partitions is not None:
        raise click.UsageError(
            "a group decides by itself who reads which partition; leave out --partitions or --group"
        )
    if start not in (None, "earliest", "latest"):
        raise click.UsageError(
            f"a group goes on where it was; leave out --offset and --timestamp, or move the group "
            f"first: ottla group reset {group} --topic {topic} --to OFFSET|TIME --execute"
        )


def known(consumer: Consumer[bytes, bytes], topic: str) -> tuple[TopicPartition, ...]:
    """The partitions of a topic; complains, with what to do, when there is no such topic."""
    try:
        return consumer.partitions(topic)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise KafkaError(
            error.code, f"there is no topic {topic!r}; create it with `ottla topic create {topic}`"
        ) from None


def committed_offsets(
    consumer: Consumer[bytes, bytes], group: str, partitions: list[TopicPartition]
) -> Mapping[TopicPartition, int | None]:
    """What a group has committed.

    Complains when no broker takes care of groups; librdkafka would look for one for ever."""
    try:
        return consumer.committed(*partitions)
    except KafkaError as error:
        if error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"no broker coordinates the group {group!r}; leave out --group to read on your own",
        ) from None


def where_it_begins(
    group: str,
    topics: tuple[str, ...],
    committed: Mapping[TopicPartition, int | None],
    start: Position | None,
) -> str | None:
    """What to say about where a group begins; None when it goes on where it was, as expected.

    As with Kafka's console consumer, a start that is asked for holds where nothing is committed."""
    names = ", ".join(map(repr, topics))
    begins = (
        "at the end, with what comes from now on" if start == "latest" else "at the first record"
    )
    new = sum(offset is None for offset in committed.values())
    if new == len(committed):
        return f"the group {group!r} has read nothing of {names} yet: it begins {begins}"
    if start is None:
        return None
    flags = " ".join(f"--topic {topic}" for topic in topics)
    again = f"to begin anew: ottla group reset {group} {flags} --to {start} --execute"
    if not new:
        return f"the group {group!r} has read {names} before and goes on where it was; {again}"
    return (
        f"the group {group!r} begins {begins} in {count(new, 'partition')}, and goes on where it "
        f"was in the other {grouped(len(committed) - new)}; {again}"
    )


def what_for(
    consumer: Consumer[bytes, bytes], topics: tuple[str, ...], partitions: int, only_new: bool
) -> Callable[[], str]:
    """The line about what is waited for, made anew each time."""
    names = ", ".join(topics)

    def line() -> str:
        if consumer.group is None:
            hint = "; --from-beginning shows the old ones" if only_new else ""
            what = f"new records of {names} ({count(partitions, 'partition')}){hint}"
        elif consumer.joining:
            what = f"the group {consumer.group} to assign partitions of {names}"
        elif mine := len(consumer.assignment()):
            what = f"new records of {names} ({mine} of {count(partitions, 'partition')})"
        else:
            what = f"a partition of {names}: other members of {consumer.group} read all of them"
        return f"waiting for {what}; Ctrl-C ends"

    return line


class Printed:
    """Where to go on behind what was printed, in each partition that is still ours: what another
    member has gone on reading since, we must not commit."""

    def __init__(self) -> None:
        self.count = 0
        self.offsets: dict[TopicPartition, int] = {}

    def add(self, records: Sequence[Record[bytes, bytes]]) -> None:
        """These were printed."""
        self.count += len(records)
        for record in records:
            self.offsets[TopicPartition(record.topic, record.partition)] = record.offset + 1

    def forget(self, partitions: tuple[TopicPartition, ...]) -> None:
        """These are no longer ours; what was printed of them is committed."""
        for partition in partitions:
            self.offsets.pop(partition, None)


def copy(
    consumer: Consumer[bytes, bytes],
    output: IO[bytes],
    write: LineWriter,
    *,
    most: int | None = None,
    until_end: bool = False,
    idle: float | None = None,
    printed: Printed | None = None,
    waiting: WaitingLine | None = None,
) -> int:
    """Print records until there is a reason to stop, Ctrl-C among them; returns how many.

    When it is interrupted, what was printed is committed for the group, and nothing else: a record
    that did not make it to the output comes again.
    """
    line = waiting or WaitingLine(str)
    done = printed or Printed()
    try:
        with Interrupts() as interrupts:
            _copy(consumer, output, write, most, until_end, idle, done, line, interrupts)
    except KeyboardInterrupt:
        line.over()
        if done.offsets and consumer.group is not None:
            with signals_kill():
                consumer.commit(done.offsets)
        raise
    finally:
        line.over()
    return done.count


def _copy(  # noqa: PLR0913, PLR0917 - what the one call has made of the options, each used here
    consumer: Consumer[bytes, bytes],
    output: IO[bytes],
    write: LineWriter,
    most: int | None,
    until_end: bool,
    idle: float | None,
    done: Printed,
    line: WaitingLine,
    interrupts: Interrupts,
) -> None:
    """`copy`; `done` says at any moment where to go on behind what was written."""
    finished = consumer.end_check() if until_end else None
    printer = Printer(output, interrupts)
    last = time.monotonic()
    while most is None or done.count < most:
        want = _BATCH if most is None else min(_BATCH, most - done.count)
        # Whatever waits for a broker is interrupted at once, and printing is not.
        interrupts.raising = True
        interrupts.check()
        records = consumer.take(want)
        if not records:
            if finished is not None and finished():
                break
            now = time.monotonic()
            if consumer.joining:
                last = now
            quiet = now - last
            if (idle is not None and quiet >= idle) or reader_is_gone(output):
                break
            line.waiting()
            wait = _LOOK if idle is None else min(_LOOK, idle - quiet)
            records = consumer.take(want, wait)
        lines = [write(record) for record in records]
        interrupts.raising = False
        if records:
            line.over()
            done.add(records[: printer.write(lines)])
            last = time.monotonic()


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
    try:
        with sigterm_interrupts():
            yield
    except KeyboardInterrupt:
        pass


@contextmanager
def kill_on_second(end: ExitStack) -> Iterator[None]:
    """After the first signal another one ends the program at once, until `end` is over."""
    try:
        yield
    except KeyboardInterrupt:
        end.enter_context(signals_kill())
        raise


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
