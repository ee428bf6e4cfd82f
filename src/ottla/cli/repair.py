"""What `ottla log repair` finds and does: the folder claimed, the loss worked out, then accepted.

A damaged log is never cut by the broker, because what lies behind the damage was acknowledged
(`storage.recovery`). Accepting the loss is a person's decision, so this looks first and changes
nothing until it is told to, and it says in offsets and bytes what will be gone.

The broker must not run. Its lock on the data folder is held for as long as this works, so that
none can be started meanwhile either; a partition's folder that was copied elsewhere has no owner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from ottla.runtime.files import File, FileSystem, OsFileSystem
from ottla.storage import paths
from ottla.storage.check import check_segment
from ottla.storage.repair import Loss, repair

_NO_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is wrong with a partition's log, and what its repair takes."""

    folder: str
    segments: int
    losses: tuple[Loss, ...]
    end_offset: int
    """Where the log ended before: one more than the last offset of its last whole batch."""
    repaired: bool

    @property
    def bytes(self) -> int:
        return sum(loss.bytes for loss in self.losses)

    @property
    def records(self) -> int | None:
        """At most so many records are lost; None when the damage is at the very end: what was
        written there, only the damaged bytes could tell."""
        counts = [self.lost_in(loss) for loss in self.losses]
        return None if None in counts else sum(filter(None, counts))

    def lost_in(self, loss: Loss) -> int | None:
        """Offsets in one loss. A log that ends there loses all that follow."""
        if loss.end_offset is not None:
            return loss.end_offset - loss.first_offset
        if loss.first_offset >= self.end_offset:
            return None if loss.bytes else 0
        later = [each.first_offset for each in self.losses if each.first_offset > loss.first_offset]
        return min([self.end_offset, *later]) - loss.first_offset

    def document(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "folder": self.folder,
            "damaged": bool(self.losses),
            "repaired": self.repaired,
            "bytes": self.bytes,
            "records": self.records,
            "losses": [
                {
                    "file": loss.path,
                    "position": loss.position,
                    "bytes": loss.bytes,
                    "first_offset": loss.first_offset,
                    "end_offset": loss.end_offset,
                    "problem": loss.problem,
                }
                for loss in self.losses
            ],
        }


def examine(folder: str, *, truncate: bool, accept: bool) -> Outcome:
    """Look at a partition's folder and, with `accept`, repair it. Raises ClickException."""
    fs = OsFileSystem()
    folder = folder.rstrip("/") or "/"
    segments = _segments(fs, folder)
    with _claimed(fs, folder):
        try:
            end_offset = _end_offset(fs, folder, segments[-1])
            losses = repair(fs, folder, truncate=truncate, dry_run=True)
            if losses and accept:
                _unmark(fs, folder)
                losses = repair(fs, folder, truncate=truncate)
        except OSError as error:
            raise click.ClickException(f"{error.filename or folder}: {error.strerror}") from None
    return Outcome(folder, len(segments), tuple(losses), end_offset, accept and bool(losses))


def _segments(fs: FileSystem, folder: str) -> list[int]:
    """The base offsets of a partition's segments; refuses any other folder."""
    if not fs.is_dir(folder):
        raise click.ClickException(f"there is no folder {folder}")
    names = fs.listdir(folder)
    found = [
        parsed[0]
        for parsed in map(paths.parse_offset_file, names)
        if parsed is not None and parsed[1] == paths.LOG_SUFFIX
    ]
    if found:
        return found
    partition = next((name for name in names if paths.parse_partition_dir(name)), None)
    if partition is not None:
        raise click.ClickException(
            f"{folder} is a data folder; name the folder of one partition, such as "
            f"{folder}/{partition}"
        )
    raise click.ClickException(f"there is no segment file (.log) in {folder}")


@contextmanager
def _claimed(fs: FileSystem, folder: str) -> Iterator[None]:
    """Hold the lock of the data folder around a partition's, if it is in one."""
    data_folder = os.path.dirname(os.path.abspath(folder))
    lock_path = os.path.join(data_folder, paths.LOCK)
    in_use = fs.exists(lock_path) or fs.exists(os.path.join(data_folder, paths.META_PROPERTIES))
    if not in_use:
        yield
        return
    try:
        lock = fs.lock(lock_path)
    except BlockingIOError:
        raise click.ClickException(
            f"a broker is running on the data folder {data_folder}; stop it first"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{lock_path}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def _unmark(fs: FileSystem, folder: str) -> None:
    """The data folder was not left as a broker closed it: the next one to open it must check the
    logs, and give them a new leader epoch, so that consumers notice what is gone."""
    data_folder = os.path.dirname(os.path.abspath(folder))
    mark = os.path.join(data_folder, paths.CLEAN_SHUTDOWN)
    if fs.exists(mark):
        fs.remove(mark)
        fs.sync_dir(data_folder)


def _end_offset(fs: FileSystem, folder: str, base_offset: int) -> int:
    """The offset behind the last whole batch, damage before it or not."""
    file = fs.open(f"{folder}/{paths.log_name(base_offset)}")
    try:
        size, start, end_offset = file.size(), 0, base_offset
        while start < size:
            checked = check_segment(
                _From(file, start), end_offset, size - start, index_interval=_NO_INDEX
            )
            end_offset = checked.end_offset
            if checked.damage is None or checked.damage.intact_at is None:
                break
            start += checked.damage.intact_at
        return end_offset
    finally:
        file.close()


class _From:
    """A file from a position on."""

    def __init__(self, file: File, start: int) -> None:
        self._file = file
        self._start = start

    def pread(self, size: int, position: int) -> bytes:
        return self._file.pread(size, self._start + position)


def show(outcome: Outcome, *, truncate: bool) -> None:
    """The outcome for people."""
    from ottla.cli.output import count

    if not outcome.losses:
        click.echo(f"{outcome.folder}: no damage in {count(outcome.segments, 'segment')}")
        return
    for loss in outcome.losses:
        click.echo(f"{loss.path}")
        click.echo(
            f"  {count(loss.bytes, 'byte')} from position {loss.position:,} on: {loss.problem}"
        )
        click.echo(f"  {_gone(loss, outcome)}")
    verb = "were removed" if outcome.repaired else "would be removed"
    records = outcome.records
    lost = "" if records is None else f" and at most {count(records, 'record')}"
    click.echo(f"{count(outcome.bytes, 'byte')}{lost} {verb}")
    if outcome.repaired:
        click.echo("repaired; start the broker, which rebuilds the indexes")
        return
    again = f"ottla log repair --yes {'--truncate ' if truncate else ''}{outcome.folder}"
    click.echo(
        f"nothing was changed: restore the file from a copy if you have one, or accept the loss "
        f"with: {again}"
    )


def _gone(loss: Loss, outcome: Outcome) -> str:
    offsets = outcome.lost_in(loss)
    if offsets is None:
        return f"the log ends at offset {loss.first_offset:,}: no whole batch is found behind it"
    if not offsets:
        return "no offset is lost"
    last = loss.first_offset + offsets - 1
    span = f"offset {last:,}" if offsets == 1 else f"offsets {loss.first_offset:,} to {last:,}"
    stay = "" if loss.end_offset is None else "; what follows stays where it is"
    return f"lost: {span}{stay}"
