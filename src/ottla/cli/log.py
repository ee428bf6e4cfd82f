"""`ottla log`: segments, indexes and snapshots, read and repaired offline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Noun
from ottla.cli.output import Column, count, grouped, json_text, show_table

if TYPE_CHECKING:
    from ottla.cli.progress import Bar

_SHORT = 60
_LINES = 2_000
"""Lines of one table; a longer file gets several."""

Cells = Callable[[dict[str, object]], Sequence[object]]


@click.group(cls=Noun)
def log() -> None:
    """Look into and repair segment files, without a broker."""


@log.command()
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True, type=click.Path())
@click.option("--records", is_flag=True, help="Also the records inside the batches.")
@click.option("--verify", is_flag=True, help="Check everything and print only a line per file.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line.")
def dump(paths: tuple[str, ...], records: bool, verify: bool, as_json: bool) -> None:  # noqa: C901 - one refusal for each thing that can be wrong
    """Decode the files of a partition or of a whole data folder.

    Segments (.log), indexes (.index, .timeindex, .txnindex), producer snapshots and checkpoints.
    --verify checks lengths, offsets, checksums and records of segments, and indexes against them;
    the exit code is 1 when something is wrong.

    \b
    JSON: {"file", "kind", ...} with, by kind,
      batch       position size base_offset last_offset record_count leader_epoch compression
                  timestamp_type base_timestamp max_timestamp producer_id producer_epoch
                  base_sequence last_sequence transactional control crc crc_ok
                  records: [{offset timestamp key value headers}] with --records, and
                  decoded: {key value} in logs of coordinators
      index       offset position
      timeindex   timestamp offset
      txnindex    producer_id first_offset last_offset last_stable_offset
      producer    producer_id producer_epoch last_sequence last_offset offset_delta
                  last_timestamp coordinator_epoch txn_start_offset
      epoch       epoch start_offset
      checkpoint  topic partition offset
      partition   topic_id
      folder      version node_id cluster_id directory_id
      damage      position problem
      verified    ok summary problems (with --verify)
    """
    from ottla.cli import dump as decode

    files: list[str] = []
    for path in paths:
        if not os.path.exists(path):
            raise click.ClickException(f"there is no file or folder {path}")
        found = decode.find(path)
        if not found:
            raise click.ClickException(f"there is none of Kafka's files in {path}")
        files += found
    damaged = 0
    try:
        if verify:
            damaged = _verify(files, as_json)
        else:
            _dump(files, records, as_json)
    except decode.UnknownFileError as error:
        raise click.ClickException(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise  # not of what is read, but of what is printed
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    if damaged:
        raise click.ClickException(f"{count(damaged, 'file')} of {grouped(len(files))} damaged")
    if verify and not as_json:
        click.echo(f"all is well: {count(len(files), 'file')} checked, none damaged")


@log.command()
@click.argument("folder", metavar="FOLDER", type=click.Path())
@click.option("--yes", "accept", is_flag=True, help="Accept the loss and do it.")
@click.option(
    "--truncate",
    is_flag=True,
    help="End the log at the first damage, instead of keeping what is readable behind it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def repair(folder: str, accept: bool, truncate: bool, as_json: bool) -> None:
    """Cut what is damaged out of a partition's log, accepting the loss.

    FOLDER is the folder of one partition, as the broker names it when it refuses a damaged log.
    Without --yes this only shows what would be lost. What is readable keeps its offsets; consumers
    skip the gap. The broker must be stopped.

    \b
    JSON: {"folder", "damaged", "repaired", "bytes", "records" (at most; null when unknown),
           "losses": [{"file", "position", "bytes", "first_offset",
                       "end_offset" (null when the log ends there), "problem"}]}
    """
    from ottla.cli import repair as mending
    from ottla.cli.output import show_json

    outcome = mending.examine(folder, truncate=truncate, accept=accept)
    if as_json:
        show_json(outcome.document())
    else:
        mending.show(outcome, truncate=truncate)


def _dump(files: Sequence[str], records: bool, as_json: bool) -> None:
    from ottla.cli.dump import rows

    for number, path in enumerate(files):
        if as_json:
            for row in rows(path, records=records):
                click.echo(json_text({"file": path, **row}))
        else:
            if number:
                click.echo()
            _show(path, rows(path, records=records))


def _verify(files: Sequence[str], as_json: bool) -> int:
    """Check files one by one; how many are damaged."""
    from ottla.cli.dump import verify
    from ottla.cli.progress import bytes_progress

    sizes = {path: os.path.getsize(path) for path in files if path.endswith(".log")}
    damaged = done = records = 0
    with bytes_progress("verifying", sum(sizes.values())) as bar:
        for path in files:
            step = _Step(bar, done, records)
            summary, problems = verify(path, str if as_json else grouped, step)
            damaged += bool(problems)
            done, records = done + sizes.get(path, 0), step.records
            with bar.aside():
                _say_verified(path, summary, problems, as_json)
    return damaged


class _Step:
    """Hands on how far a file is, as a part of all, ten times a second."""

    def __init__(self, bar: Bar, before: int, records: int) -> None:
        self._bar = bar
        self._before = before
        self._records_before = self.records = records
        self._due = 0.0

    def __call__(self, done: int, records: int) -> None:
        self.records = self._records_before + records
        now = time.monotonic()
        if now >= self._due:
            self._due = now + 0.1
            self._bar(self._before + done, self.records)


def _say_verified(path: str, summary: str, problems: list[str], as_json: bool) -> None:
    if as_json:
        document = {"ok": not problems, "summary": summary, "problems": problems}
        click.echo(json_text({"file": path, "kind": "verified", **document}))
        return
    click.echo(f"{path}  {'damaged' if problems else 'ok'}  {summary}")
    for problem in problems:
        click.echo(f"  {problem}")


def _show(path: str, rows: Iterator[dict[str, object]]) -> None:
    """Tables of what is in a file, as many as it takes: a segment may be larger than memory."""
    title = path
    for part in _parts(rows):
        _show_part(title, part)
        title = ""
    if title:
        click.echo(f"{path}  (empty)")


def _parts(rows: Iterator[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    part: list[dict[str, object]] = []
    lines = 0
    for row in rows:
        part.append(row)
        lines += 1 + len(list(_records(row)))
        if lines >= _LINES:
            yield part
            part, lines = [], 0
    if part:
        yield part


def _show_part(title: str, rows: list[dict[str, object]]) -> None:
    for kind in dict.fromkeys(row["kind"] for row in rows):
        if kind == "damage":
            continue
        columns, cells = _table(str(kind))
        mine = [row for row in rows if row["kind"] == kind]
        show_table(columns, [cells(row) for row in mine], title=title)
        title = ""
        records = [record for row in mine for record in _records(row)]
        if records:
            click.echo()
            show_table(
                [
                    Column("OFFSET", True),
                    Column("TIMESTAMP"),
                    Column("KEY"),
                    Column("VALUE"),
                    Column("HEADERS"),
                ],
                [_record_cells(record) for record in records],
            )
    for row in rows:
        if "problem" in row:
            where = f"at byte {row['position']:,}: " if "position" in row else ""
            click.echo(f"{title and title + ': '}{where}{row['problem']}", err=True)


def _records(row: dict[str, object]) -> Iterable[dict[str, object]]:
    found = row.get("records")
    return found if isinstance(found, list) else ()


def _table(kind: str) -> tuple[list[Column], Cells]:
    if kind == "batch":
        return _BATCH, _batch_cells
    fields = _FIELDS[kind]
    columns = [Column(name.replace("_", " ").upper(), True, name in _NAMES) for name in fields]
    return columns, lambda row: [_cell(name, row[name]) for name in fields]


_BATCH = [
    Column("OFFSETS", True),
    Column("POSITION", True),
    Column("SIZE", True),
    Column("RECORDS", True),
    Column("CODEC"),
    Column("LATEST TIMESTAMP"),
    Column("EPOCH", True, is_name=True),
    Column("PRODUCER"),
    Column("FLAGS"),
    Column("CRC"),
]

_FIELDS = {
    "index": ("offset", "position"),
    "timeindex": ("timestamp", "offset"),
    "txnindex": ("producer_id", "first_offset", "last_offset", "last_stable_offset"),
    "producer": (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_offset",
        "last_timestamp",
        "coordinator_epoch",
        "txn_start_offset",
    ),
    "epoch": ("epoch", "start_offset"),
    "checkpoint": ("topic", "partition", "offset"),
    "partition": ("topic_id",),
    "folder": ("version", "node_id", "cluster_id", "directory_id"),
}


# Numbers that count nothing.
_NAMES = frozenset(
    (
        "producer_id",
        "producer_epoch",
        "coordinator_epoch",
        "epoch",
        "partition",
        "version",
        "node_id",
    )
)


def _batch_cells(row: dict[str, object]) -> Sequence[object]:
    from ottla.cli.dump import moment

    flags = [
        *(["append-time"] if row["timestamp_type"] == "append" else []),
        *(["transactional"] if row["transactional"] else []),
        *([f"control:{row['control']}"] if row["control"] else []),
    ]
    producer = None
    if row["producer_id"] != -1:
        producer = f"{row['producer_id']}:{row['producer_epoch']} seq {row['base_sequence']}"
    return (
        f"{row['base_offset']:,}-{row['last_offset']:,}",
        row["position"],
        row["size"],
        row["record_count"],
        row["compression"],
        moment(row["max_timestamp"]),
        row["leader_epoch"],
        producer,
        " ".join(flags) or None,
        "ok" if row["crc_ok"] else "WRONG",
    )


def _record_cells(record: dict[str, object]) -> Sequence[object]:
    from ottla.cli.dump import moment

    headers = record["headers"]
    return (
        record["offset"],
        moment(record["timestamp"]),
        _text(record, "key"),
        _text(record, "value"),
        " ".join(f"{name}={value}" for name, value in headers) or None
        if isinstance(headers, list)
        else None,
    )


def _text(record: dict[str, object], name: str) -> str | None:
    decoded = record.get("decoded")
    if isinstance(decoded, dict):
        return _spoken(decoded[name])
    text = record[name]
    if text is None and f"{name}_base64" in record:
        text = f"base64:{record[f'{name}_base64']}"
    if text is None:
        return None
    # One line of a table, whatever is in it: control characters are escaped.
    shown = (
        str(text).encode("unicode_escape").decode("ascii")
        if not str(text).isprintable()
        else str(text)
    )
    return shown if len(shown) <= _SHORT else shown[: _SHORT - 1] + "…"


def _spoken(found: object) -> str | None:
    """A coordinator's key or value in one line: what there is to know is not cut short."""
    data = found.get("data") if isinstance(found, dict) else found
    if not isinstance(data, dict):
        return None if data is None else str(data)
    return " ".join(f"{name}={json_text(value)}" for name, value in data.items())


def _cell(name: str, value: object) -> object:
    if name in ("timestamp", "last_timestamp"):
        from ottla.cli.dump import moment

        return moment(value)
    return None if value == -1 and name != "producer_id" else value
