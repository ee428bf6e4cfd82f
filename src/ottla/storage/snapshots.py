"""The producer snapshots of a log: files, each named after the offset it was taken at.

One is taken when a segment is rolled and at a clean shutdown, so that a restart replays one segment
and not the whole log. They are written in place on the event loop and synced by the log's next
flush, which is safe: a torn one fails its CRC and is passed over for the one before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.storage import paths
from ottla.storage.producers import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ottla.runtime.files import FileSystem
    from ottla.storage.producers import ProducerStates


class ProducerSnapshots:
    """The `.snapshot` files in one partition's folder."""

    __slots__ = ("_folder", "_fs", "_offsets")

    def __init__(self, fs: FileSystem, folder: str, offsets: Sequence[int] | None = None) -> None:
        """With `offsets` those that are known to be there, ascending; else they are looked for."""
        self._fs = fs
        self._folder = folder
        if offsets is not None:
            self._offsets = list(offsets)
            return
        found = (paths.parse_offset_file(name) for name in fs.listdir(folder))
        self._offsets = sorted(
            offset for offset, suffix in filter(None, found) if suffix == paths.SNAPSHOT_SUFFIX
        )

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where snapshots were taken, ascending."""
        return tuple(self._offsets)

    def path(self, offset: int) -> str:
        return os.path.join(self._folder, paths.snapshot_name(offset))

    def take(self, states: ProducerStates, *, sync: bool = False) -> str | None:
        """Write a snapshot at the states' end, unless there is one; returns its path."""
        offset = states.end_offset
        if offset <= (self._offsets[-1] if self._offsets else 0):
            return None
        path = self.path(offset)
        file = self._fs.open(path, create=True)
        try:
            file.truncate(0)
            file.append(states.snapshot())
            if sync:
                file.sync()
        finally:
            file.close()
        self._offsets.append(offset)
        return path

    def reload(
        self,
        states: ProducerStates,
        *,
        log_start_offset: int,
        log_end_offset: int,
        now_ms: int,
        expiration_ms: int,
    ) -> list[str]:
        """Bring `states` to the newest usable snapshot not above the log's end.

        The log is then to be replayed from `states.end_offset`. Snapshots outside of the log are
        removed, as are corrupt ones, whose problems are returned.
        """
        problems: list[str] = []
        for offset in self.offsets:
            if not log_start_offset < offset <= log_end_offset:
                self._remove(offset)
        while self._offsets:
            offset = self._offsets[-1]
            try:
                data = self._fs.read_bytes(self.path(offset))
                states.load(data, offset, now_ms=now_ms, expiration_ms=expiration_ms)
            except SnapshotError as error:
                problems.append(f"{self.path(offset)}: {error}")
                self._remove(offset)
            else:
                return problems
        states.reset(log_start_offset)
        return problems

    def remove_before(self, offset: int) -> None:
        """Remove the snapshots of segments that retention has deleted."""
        for taken in self.offsets:
            if taken < offset:
                self._remove(taken)

    def remove_from(self, offset: int) -> None:
        """Remove the snapshots at and above an offset."""
        for taken in self.offsets:
            if taken >= offset:
                self._remove(taken)

    def remove_strays(self, segment_base_offsets: Collection[int]) -> None:
        """Remove the snapshots that belong to no segment.

        The newest stays even so when it is above every segment's base: it was taken at a clean
        shutdown, at the end of the log.
        """
        bases = set(segment_base_offsets)
        strays = [offset for offset in self._offsets if offset not in bases]
        if strays and (not bases or strays[-1] > max(bases)):
            strays.pop()
        for offset in strays:
            self._remove(offset)

    def clear(self) -> None:
        for offset in self.offsets:
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        self._offsets.remove(offset)
        try:
            self._fs.remove(self.path(offset))
        except FileNotFoundError:
            pass
