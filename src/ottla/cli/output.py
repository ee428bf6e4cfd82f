"""What commands print: tables for people, JSON for programs, one line when something is wrong.

On a terminal a table is drawn by rich, with colour. One that is wider than the terminal would be
folded there beyond recognition, so it is printed as plain aligned columns, whose long lines the
terminal wraps. So it is in a pipe, where rich is not even loaded. `--json` fields are an interface:
they are documented in each command's help and only ever added to.

Exit codes: 0 when what was asked for is done, 1 when it is not, 2 for a misused command line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import click

from ottla.cli.harmless import harmless
from ottla.errors import ErrorCode, KafkaError


class Column(NamedTuple):
    """A column of a table: its title, and whether it holds numbers.

    Whole numbers get separators between their thousands, unless they are names, such as that of a
    partition or a broker."""

    title: str
    numeric: bool = False
    is_name: bool = False

    def text(self, cell: object) -> str:
        """A cell as it is shown; None is a dash."""
        if cell is None:
            return "-"
        if isinstance(cell, int) and not isinstance(cell, bool) and not self.is_name:
            return grouped(cell)
        return str(cell)


def json_text(document: object, indent: int | None = None) -> str:
    """JSON that people can read, and that a terminal does not obey."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


def show_json(document: object) -> None:
    """One document, indented."""
    click.echo(json_text(document, 2))


def show_table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, title: str | None = None
) -> None:
    """A table; None is shown as a dash."""
    texts = [[column.text(cell) for column, cell in zip(columns, row, strict=True)] for row in rows]
    if sys.stdout.isatty():
        # What names hold reaches a terminal escaped.
        safe = [[harmless(text) for text in row] for row in texts]
        _draw(columns, safe, None if title is None else harmless(title))
        return
    if title:
        click.echo(title)
    for line in aligned(columns, texts):
        click.echo(line)


def aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a plain table: two spaces between columns, numbers to the right."""
    widths = [len(column.title) for column in columns]
    for row in rows:
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    for row in ([column.title for column in columns], *rows):
        cells = [
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if title:
        # A title of rich's own would be folded to the width of a table that may be narrow.
        console.print(Text(title, style="bold"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        table.add_column(column.title, justify=justify, style="cyan" if number == 0 else None)
    for row in rows:
        table.add_row(*map(Text, row))
    unlimited = console.options.update(width=sys.maxsize)
    if console.measure(table, options=unlimited).maximum <= console.width:
        console.print(table)
        return
    header, *lines = aligned(columns, rows)
    console.print(Text(header, style="bold"), soft_wrap=True)
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def say(text: str) -> None:
    """A line about what is going on, where it does not get into the output."""
    click.echo(text, err=True)


def count(number: int, noun: str) -> str:
    """`1 record`, `2 records`, `12,000 records`."""
    return f"{grouped(number)} {noun}" if number == 1 else f"{grouped(number)} {noun}s"


def grouped(number: int) -> str:
    """`1234567` as people read it: `1,234,567`."""
    return f"{number:,}"


def explain(error: KafkaError, bootstrap: str) -> str:
    """One line: what is wrong, and what to do about it."""
    local = getattr(error, "local", None)
    other = "start one with `ottla server start`, or name another with --bootstrap"
    if local in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"):
        return f"no broker answers at {bootstrap}; {other}"
    if error.code is ErrorCode.BROKER_NOT_AVAILABLE:
        return f"no broker answers: {error.message or bootstrap}; {other}"
    if local in ("_TIMED_OUT", "_TIMED_OUT_QUEUE"):
        return (
            f"the broker at {bootstrap} did not answer in time; is it a Kafka broker, and can "
            f"the addresses it advertises be reached from here?"
        )
    if error.code is ErrorCode.NOT_CONTROLLER:
        return (
            f"there is no controller that can do it ({error.message or error.code.text}); "
            "`ottla cluster status` tells why, try again when there is one"
        )
    if error.message is None:
        return error.code.text
    return error.message.rstrip(".") + _meant(error.message)


def _meant(message: str) -> str:
    """The setting of a topic that was probably meant, where a broker knows none of that name."""
    start = "Unknown topic config name: "
    if not message.startswith(start):
        return ""
    from ottla.cli.names import nearest
    from ottla.config.topic import TopicConfig

    name = message.removeprefix(start).partition(";")[0].rstrip(".")
    near = nearest(name, TopicConfig.settings)
    return "" if near is None else f"; did you mean {near}?"


@contextmanager
def broker_errors(bootstrap: str, *, topics: Sequence[str] = ()) -> Iterator[None]:
    """Turn what a broker or client complains about into one line on stderr and exit code 1.

    `topics` are those that the command line names: for one that is not there, the name that was
    probably meant is suggested."""
    try:
        yield
    except KafkaError as raised:
        from ottla.cli.names import with_suggestion

        error = with_suggestion(raised, bootstrap, topics)
        failures = getattr(error, "failures", None)
        if isinstance(failures, dict) and failures:
            lines = [f"{name}: {explain(each, bootstrap)}" for name, each in failures.items()]
            raise click.ClickException("\nError: ".join(lines)) from None
        raise click.ClickException(explain(error, bootstrap)) from None
