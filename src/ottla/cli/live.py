"""Output that is printed anew at intervals, where there is no terminal (for that, see `top.py`).

A command gives a function that makes the next `Frame`. In a pipe each is printed below the last,
and with --json each is one line of JSON. Ctrl-C ends it without a word, as that is how one leaves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from ottla.cli.output import Column, json_text, show_json, show_table

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a frame."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What is shown at one moment, and the same for programs."""

    tables: Sequence[Table]
    document: object


def show(frame: Frame, *, as_json: bool) -> None:
    """One frame."""
    if as_json:
        show_json(frame.document)
        return
    for number, table in enumerate(frame.tables):
        if number:
            click.echo()
        show_table(table.columns, table.rows, title=table.title)


def keep_showing(next_frame: Callable[[], Frame], interval: float, *, as_json: bool) -> None:
    """Frames until Ctrl-C, or until nobody reads them."""
    try:
        _print_frames(next_frame, interval, as_json)
    except KeyboardInterrupt:
        pass


def _print_frames(next_frame: Callable[[], Frame], interval: float, as_json: bool) -> None:
    first = True
    while True:
        frame = next_frame()
        if as_json:
            click.echo(json_text(frame.document))
        else:
            if not first:
                click.echo()
            show(frame, as_json=False)
        sys.stdout.flush()
        first = False
        time.sleep(interval)


def age(seconds: float | None) -> str | None:
    """`850 ms`, `12 s`, `3 min 10 s`, `2 h 5 min`, `4 d 3 h`; None for what is not known."""
    if seconds is None:
        return None
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, name, smaller, smaller_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return (
                f"{whole // size} {name} {rest} {smaller_name}"
                if rest
                else f"{whole // size} {name}"
            )
    return f"{whole} s"


def in_bytes(size: float) -> str:
    """`512 B`, `1.5 kB`, `20 MB`: thousands, as disks and networks are measured."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    return (
        f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:.1f} {_UNITS[unit]}"
    )
