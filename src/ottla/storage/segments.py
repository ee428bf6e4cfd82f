"""The segments of one log, oldest first: the list that `Log` works on.

There is always at least one, and the last is the active one. Base offsets are kept beside the
segments in a list of their own, because finding the segment of an offset is one bisection of it.
Raises OSError as it comes.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from ottla.storage import paths
from ottla.storage.segment import OpenFiles, Segment

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from ottla.config.topic import TopicConfig
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import File, FileSystem

logger = logging.getLogger(__name__)


class Segments:
    """Owns the list; `config` decides what the next segment will be like."""

    __slots__ = (
        "_clock",
        "_files",
        "_list",
        "_rng",
        "active",
        "bases",
        "config",
        "folder",
        "generation",
        "size",
    )

    def __init__(
        self,
        files: OpenFiles,
        folder: str,
        segments: Sequence[Segment],
        config: TopicConfig,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._files = files
        self._clock = clock
        self._rng = rng
        self.folder = folder
        self.config = config
        self._list = list(segments)
        self.bases = [segment.base_offset for segment in segments]
        self.size = sum(segment.size for segment in segments)
        """Bytes of all `.log` files."""
        self.generation = 0
        """Raised whenever records are taken away: what a thread has found since is not believed."""
        self.active = segments[-1]
        self._activate()

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    def __getitem__(self, slot: int) -> Segment:
        return self._list[slot]

    def from_slot(self, slot: int) -> list[Segment]:
        return self._list[slot:]

    def slot_of(self, offset: int) -> int:
        """Which segment an offset belongs to; the oldest for offsets before it."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def end_of(self, segment: Segment) -> int | None:
        """Where the segment after this one begins; None for the active one."""
        slot = bisect_right(self.bases, segment.base_offset)
        return self.bases[slot] if slot < len(self.bases) else None

    def add(self, base_offset: int) -> Segment:
        """Go on in a new, empty segment."""
        segment = Segment(
            self._files,
            self.folder,
            base_offset,
            size=0,
            index_entries=None,
            time_entries=None,
            now_ms=self._clock.now_ms(),
        )
        segment.create_file()
        self._list.append(segment)
        self.bases.append(base_offset)
        self.active = segment
        self._activate()
        return segment

    def remove(self, first: int, stop: int) -> list[str]:
        """Take segments out and rename their files out of the way; returns the new names.

        Retention takes from the start and truncation from the end, each inwards, so that a crash in
        between leaves no gap; and of a segment the `.log` goes last, because indexes without their
        records look like a loss. When that is all of them, `add` must follow."""
        renamed: list[str] = []
        self.generation += 1
        removed = self._list[first:stop]
        if stop == len(self._list):
            removed.reverse()
        for segment in removed:
            self.size -= segment.size
            segment.close_file()
            for path in reversed(segment.file_paths()):
                target = f"{path}{paths.DELETED_SUFFIX}"
                try:
                    self._files.fs.rename(path, target)
                except FileNotFoundError:
                    logger.warning("%s was to be deleted and is gone already", path)
                else:
                    renamed.append(target)
        del self._list[first:stop]
        del self.bases[first:stop]
        return renamed

    def replace(self, first: int, stop: int, segment: Segment) -> list[str]:
        """Put one segment, whose files are ready under `.swap` names, in the place of others, none
        of them the active one; returns the renamed files of those.

        First the old names go, then the new ones come: `open_log` finishes it from any step."""
        fs = self._files.fs
        fs.size(f"{segment.path}{paths.SWAP_SUFFIX}")  # or nothing goes
        renamed = self.remove(first, stop)
        for path in segment.swapped_paths():
            swap = f"{path}{paths.SWAP_SUFFIX}"
            if fs.exists(swap):
                fs.rename(swap, path)
        self._list.insert(first, segment)
        self.bases.insert(first, segment.base_offset)
        self.size += segment.size
        return renamed

    def make(
        self, base_offset: int, *, size: int, index_entries: int, time_entries: int
    ) -> Segment:
        """A rolled segment over files that are, or will be, in the folder."""
        return Segment(
            self._files,
            self.folder,
            base_offset,
            size=size,
            index_entries=index_entries,
            time_entries=time_entries,
            now_ms=self._clock.now_ms(),
        )

    @property
    def fs(self) -> FileSystem:
        return self._files.fs

    def truncate_to(self, offset: int) -> list[str]:
        """Drop every batch that ends at or after `offset`; returns the renamed files of segments
        that went as a whole."""
        renamed = self.remove(bisect_right(self.bases, offset), len(self._list))
        self.active = self._list[-1]
        self._activate()
        self.size -= self.active.truncate_to(offset, self._clock.now_ms())
        return renamed

    def unflushed(self, recovery_point: int) -> tuple[list[File], list[str]]:
        """The `.log` files with anything above the recovery point, and, of rolled segments, the
        indexes: after a power cut they are trusted. Those of the active one are rebuilt then."""
        logs: list[File] = []
        indexes: list[str] = []
        for segment in self._list[self.slot_of(recovery_point) :]:
            logs.append(segment.file)
            if segment is not self.active:
                indexes += segment.file_paths()[1:]
        return logs, indexes

    def close_files(self) -> None:
        for segment in self._list:
            segment.close_file()

    def _activate(self) -> None:
        config = self.config
        spread = min(config.segment_jitter_ms, config.segment_ms)
        self.active.activate(
            index_interval=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
            jitter_ms=self._rng.randrange(spread) if spread > 0 else 0,
        )
