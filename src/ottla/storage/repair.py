"""Accepting a loss: what `ottla log repair` does to a partition that `recovery` has refused.

The broker must not run on the folder. Every damaged place is cut out of its segment file; batches
after it are kept, at their offsets, unless `truncate` asks to end the log there. A gap in the
offsets is nothing new to a consumer, compaction leaves the same. Indexes are rebuilt and producer
snapshots after the damage are dropped when the log is next opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.storage import paths
from ottla.storage.check import check_segment
from ottla.storage.recovery import mark_lost, remove_segment

if TYPE_CHECKING:
    from ottla.runtime.files import File, FileSystem
    from ottla.storage.check import Damage

_CHUNK = 4 * 1024 * 1024
_NO_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Loss:
    """What a repair took (or, when only looking, would take) out of one file."""

    path: str
    position: int
    bytes: int
    first_offset: int
    end_offset: int | None
    """The offset the log goes on with; None when it ends at `first_offset`."""
    problem: str

    def __str__(self) -> str:
        gone = "the log ends there"
        if self.end_offset is not None:
            gone = f"offsets {self.first_offset} to {self.end_offset - 1} are gone"
        return (
            f"{self.path}: {self.bytes} bytes from position {self.position} on, {self.problem}; "
            f"{gone}"
        )


def repair(
    fs: FileSystem, folder: str, *, truncate: bool = False, dry_run: bool = False
) -> list[Loss]:
    """Remove what is damaged from every segment of a partition's folder; returns what that was.

    With `truncate` the log ends at the first damage and everything after it goes, too.
    """
    losses: list[Loss] = []
    bases = [
        parsed[0]
        for parsed in map(paths.parse_offset_file, fs.listdir(folder))
        if parsed is not None and parsed[1] == paths.LOG_SUFFIX
    ]
    for slot, base_offset in enumerate(bases):
        following = bases[slot + 1] if slot + 1 < len(bases) else None
        found = _repair_segment(fs, folder, base_offset, following, truncate, dry_run)
        losses += found
        if found and not dry_run:
            _drop_derived(fs, folder, base_offset, found[0].first_offset)
        if found and truncate:
            for later in bases[slot + 1 :]:
                path = f"{folder}/{paths.log_name(later)}"
                losses.append(Loss(path, 0, fs.size(path), later, None, "after the damage"))
                if not dry_run:
                    remove_segment(fs, folder, later)
            break
    return losses


def _repair_segment(
    fs: FileSystem,
    folder: str,
    base_offset: int,
    following: int | None,
    truncate: bool,
    dry_run: bool,
) -> list[Loss]:
    path = f"{folder}/{paths.log_name(base_offset)}"
    losses: list[Loss] = []
    good: list[tuple[int, int]] = []
    file = fs.open(path)
    try:
        size = file.size()
        start, expected = 0, base_offset
        while start < size:
            view = _Part(file, start)
            checked = check_segment(view, expected, size - start, index_interval=_NO_INDEX)
            good.append((start, start + checked.size))
            damage = checked.damage
            if damage is None:
                break
            at = start + checked.size
            if damage.intact_at is None or truncate:
                end_offset = None if truncate else following
                losses.append(_loss(path, at, size - at, damage, end_offset))
                break
            resume = start + damage.intact_at
            expected = int.from_bytes(file.pread(8, resume), "big")
            losses.append(_loss(path, at, resume - at, damage, expected))
            start = resume
        if losses and not dry_run:
            mark_lost(fs, folder, gap=losses[0].end_offset is not None)
            _rewrite(fs, file, path, good)
    finally:
        file.close()
    return losses


def _loss(path: str, position: int, count: int, damage: Damage, end: int | None) -> Loss:
    return Loss(path, position, count, damage.offset, end, damage.problem)


class _Part:
    """A file from a position on: what `check_segment` reads of one."""

    def __init__(self, file: File, start: int) -> None:
        self.path = file.path
        self._file = file
        self._start = start

    def pread(self, size: int, position: int) -> bytes:
        return self._file.pread(size, self._start + position)


def _rewrite(fs: FileSystem, file: File, path: str, good: list[tuple[int, int]]) -> None:
    """Replace the file by its good parts, so that a crash leaves the old or the new one."""
    if len(good) == 1:
        file.truncate(good[0][1])
        file.sync()
        return
    temporary = f"{path}{paths.CLEANED_SUFFIX}"
    copy = fs.open(temporary, create=True)
    try:
        copy.truncate(0)
        for start, end in good:
            for position in range(start, end, _CHUNK):
                copy.append(file.pread(min(_CHUNK, end - position), position))
        copy.sync()
    finally:
        copy.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0])


def _drop_derived(fs: FileSystem, folder: str, base_offset: int, offset: int) -> None:
    """Remove the segment's indexes and the snapshots taken behind the damage."""
    for suffix in paths.SEGMENT_SUFFIXES:
        path = f"{folder}/{base_offset:020d}{suffix}"
        if suffix != paths.LOG_SUFFIX and fs.exists(path):
            fs.remove(path)
    for name in fs.listdir(folder):
        parsed = paths.parse_offset_file(name)
        if parsed is not None and parsed[1] == paths.SNAPSHOT_SUFFIX and parsed[0] > offset:
            fs.remove(f"{folder}/{name}")
