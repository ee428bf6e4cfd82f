"""Rows that cannot be read again the same way, kept in a folder until their batch is finished.

A database gives other rows a moment later, and a web page other pages. So what was found is first
written here, durably, and only then told to Spark as an offset that names the file. A batch that is
run again reads the same file: the same rows in the same order, in the same tasks.

An offset (`Standing`) says: these rows are in this file, and this is the source's cursor after all
that was found. What one look at the source has found may be too much for one batch: `pending` names
the files that the next batches take, before the source is asked again.

    seq       of the file; grows by one with each batch
    before    how many rows all earlier batches had: the first row's sequence

A source that waits for what is away says so in the file `WAITS`, for whoever watches the query: it
is asked in a process of its own, which cannot tell anybody while it waits.

Files are named by `seq` and a random part: one that was written and never told is never mistaken
for one that was. Written as a temporary file, synced, renamed; then the folder is synced.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
SUFFIX: Final = ".arrow"
WAITS: Final = "waits-for"
ROWS_PER_PART: Final = 10_000
"""Rows of one record batch in a file."""
PARTS_PER_TASK: Final = 3
"""Record batches of one task, at least."""
MOST_TASKS: Final = 8


@dataclass(frozen=True, slots=True)
class Staged:
    """One file: its name and how many rows it has."""

    name: str
    rows: int

    @property
    def seq(self) -> int:
        return int(self.name.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a source stands: an offset, as the checkpoint keeps it."""

    seq: int = 0
    before: int = 0
    staged: Staged | None = None
    pending: tuple[Staged, ...] = ()
    cursor: Any = None

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Standing:
        if offset.get("v") != VERSION:
            raise ValueError(
                f"the checkpoint holds an offset of version {offset.get('v')}, and this Ottla "
                f"reads version {VERSION}: run the version that wrote it, or reset the pipeline"
            )
        staged = offset["staged"]
        return cls(
            seq=offset["seq"],
            before=offset["before"],
            staged=None if staged is None else Staged(*staged),
            pending=tuple(Staged(*each) for each in offset["pending"]),
            cursor=offset["cursor"],
        )

    def offset(self) -> dict[str, Any]:
        """As JSON; `of` reads it."""
        return {
            "v": VERSION,
            "seq": self.seq,
            "before": self.before,
            "staged": None if self.staged is None else [self.staged.name, self.staged.rows],
            "pending": [[each.name, each.rows] for each in self.pending],
            "cursor": self.cursor,
        }

    @property
    def total(self) -> int:
        """How many rows there were up to the end of this batch."""
        return self.before + (0 if self.staged is None else self.staged.rows)

    def next(self) -> Standing:
        """The batch of the first pending file."""
        first, *rest = self.pending
        return Standing(self.seq + 1, self.total, first, tuple(rest), self.cursor)

    def moved(self, cursor: Any) -> Standing:
        """A batch without rows, for the cursor's sake."""
        return Standing(self.seq + 1, self.total, None, (), cursor)

    def found(self, files: tuple[Staged, ...], cursor: Any) -> Standing:
        """The batch of the first of the files that were found from here."""
        return replace(self, pending=files, cursor=cursor).next()


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: some record batches of a file."""

    path: str
    first: int
    stop: int
    sequence: int


def parts(folder: Folder, standing: Standing) -> list[Part]:
    """The tasks of a batch. They follow from the file alone, so that they are the same again."""
    if standing.staged is None or not standing.staged.rows:
        return []
    count = -(-standing.staged.rows // ROWS_PER_PART)
    tasks = max(1, min(MOST_TASKS, count // PARTS_PER_TASK))
    bounds = [number * count // tasks for number in range(tasks + 1)]
    path = str(folder.path / standing.staged.name)
    return [
        Part(path, first, stop, standing.before + first * ROWS_PER_PART)
        for first, stop in itertools.pairwise(bounds)
    ]


class Folder:
    """The folder of one pipeline's source. Making one touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, seq: int, table: pa.Table) -> Staged:
        """Keep these rows; they are durable when this returns."""
        import pyarrow as pa

        self.path.mkdir(parents=True, exist_ok=True)
        staged = Staged(f"{seq:012d}-{uuid.uuid4().hex[:8]}{SUFFIX}", table.num_rows)
        temporary = self.path / f".{staged.name}.tmp"
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        try:
            with temporary.open("wb") as file:
                with pa.ipc.new_file(file, table.schema, options=options) as writer:
                    # combined first: chunks of other sizes would be parts of other sizes
                    writer.write_table(table.combine_chunks(), max_chunksize=ROWS_PER_PART)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        temporary.rename(self.path / staged.name)
        self._sync()
        return staged

    def sweep(self, standing: Standing) -> None:
        """Remove all but what `standing` waits to read: its batch is finished."""
        kept = {each.name for each in standing.pending}
        for path in self._files():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def remove_up_to(self, seq: int) -> None:
        """Remove the files of finished batches."""
        for path in self._files():
            number = path.name.lstrip(".").partition("-")[0]
            if number.isdigit() and int(number) <= seq:
                path.unlink(missing_ok=True)

    def remove(self, files: Iterable[Staged]) -> None:
        """Remove files that nobody was told of."""
        for each in files:
            (self.path / each.name).unlink(missing_ok=True)

    def wait_for(self, what: str | None) -> None:
        """Say what is waited for; None: nothing any more. If that cannot be, nobody is told."""
        path = self.path / WAITS
        with suppress(OSError):
            if what is None:
                path.unlink(missing_ok=True)
                return
            self.path.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(what)
            temporary.rename(path)

    def waits_for(self) -> str | None:
        """What was said last."""
        try:
            return (self.path / WAITS).read_text()
        except OSError:
            return None

    def _files(self) -> list[Path]:
        try:
            return [path for path in self.path.iterdir() if SUFFIX in path.name]
        except FileNotFoundError:
            return []

    def _sync(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def local_folder(place: str) -> Path:
    """The folder that a path or `file:` URI names; ValueError for any other file system."""
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path) if parts.scheme else place).absolute()
    raise ValueError(
        f"rows are staged in a folder that this machine and Spark's workers see under the same "
        f"path, and {place} is none: let the pipeline's state be in such a folder"
    )


def read_part(part: Part, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the columns of `schema`, which may have changed since."""
    import pyarrow as pa

    try:
        source = pa.memory_map(part.path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{part.path} is gone. It held rows that were read and not yet processed, and they "
            "cannot be read again the same way. Put it back, or reset the pipeline to begin anew."
        ) from None
    with source:
        reader = pa.ipc.open_file(source)
        for number in range(part.first, part.stop):
            yield conform(reader.get_batch(number), schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in these columns: what it has not is null, what it has besides is left out."""
    import pyarrow as pa

    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(index)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
