"""Where each leader's reign begins in a log (KIP-101, KIP-279).

Every batch carries the epoch of the leader that wrote it. This keeps the first offset of each
epoch, in memory and in the partition's `leader-epoch-checkpoint`, so that a follower can find the
last offset it shares with a new leader, and a consumer whether its position was truncated away.

Entries are strictly increasing in epoch and in offset. An epoch that begins where a later one
begins has written nothing and is dropped. The latest may have written nothing yet: a leader's epoch
begins, in memory, when it is elected, and is in the file from its first batch on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.storage.checkpoints import CheckpointError, read_lines, write_lines

if TYPE_CHECKING:
    from ottla.runtime.files import FileSystem

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
_MAX_EPOCH = 2**31 - 1


class EpochStart(NamedTuple):
    """`epoch` begins at this offset: nothing from here on was written under an earlier one."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of one log. The file is written when an entry comes or goes, which is rare: an
    append under the known epoch costs one comparison."""

    __slots__ = ("_entries", "_fs", "_path", "_unwritten")

    def __init__(self, fs: FileSystem, path: str, *, is_new: bool = False) -> None:
        """Reads the file, unless `is_new` says that there is none yet."""
        self._fs = fs
        self._path = path
        self._entries: list[EpochStart] = []
        self._unwritten = False
        for number, line in () if is_new else read_lines(fs, path):
            self._put(self._parse(number, line))

    def _parse(self, number: int, line: str) -> EpochStart:
        try:
            epoch, start_offset = map(int, line.split())
        except ValueError:
            raise CheckpointError(self._path, number, f"not 'epoch offset': {line!r}") from None
        if epoch < 0 or start_offset < 0:
            raise CheckpointError(self._path, number, f"negative: {line!r}")
        if epoch >= _MAX_EPOCH:
            raise CheckpointError(self._path, number, f"no epoch can follow: {line!r}")
        return EpochStart(epoch, start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """The newest epoch; there may be no record under it yet."""
        return self._entries[-1].epoch if self._entries else None

    @property
    def unwritten(self) -> bool:
        """Whether the file lacks something that is known here."""
        return self._unwritten

    def begin(self, epoch: int, start_offset: int) -> None:
        """A leader has been elected: its epoch begins here. Nothing is written to the disk: without
        a batch the epoch need not survive this process, and thousands may begin at once."""
        if self._put(_entry(epoch, start_offset)):
            self._unwritten = True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` wrote a batch at `start_offset`; only its first one changes anything.

        Entries of a later epoch, or at the same or a later offset, are contradicted by this one and
        dropped.
        """
        if self._put(_entry(epoch, start_offset)) or self._unwritten:
            self._write()

    def _put(self, entry: EpochStart) -> bool:
        """Add an entry; says whether anything has changed."""
        entries = self._entries
        before = len(entries)
        while entries and (
            entries[-1].epoch > entry.epoch or entries[-1].start_offset >= entry.start_offset
        ):
            if entries[-1] == entry:
                return len(entries) < before
            entries.pop()
        if entries and entries[-1].epoch == entry.epoch:
            return len(entries) < before
        entries.append(entry)
        return True

    def end_offset_for(self, requested_epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch not above the requested one, and the offset at which it ended.

        That is the start of the next epoch, or `log_end` for the latest. An epoch from before the
        log's first entry ends where that begins, under its own number. An unknown later epoch, or
        -1, gives (-1, -1): nothing can be said.
        """
        entries = self._entries
        if requested_epoch == UNDEFINED_EPOCH or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if requested_epoch == entries[-1].epoch:
            return requested_epoch, log_end
        floor = requested_epoch
        for entry in entries:
            if entry.epoch > requested_epoch:
                return floor, entry.start_offset
            floor = entry.epoch
        return UNDEFINED_EPOCH, UNDEFINED_OFFSET

    def epoch_for(self, offset: int) -> int | None:
        """The epoch under which `offset` was written; None before the first entry."""
        found = None
        for entry in self._entries:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or after `end_offset`."""
        entries = self._entries
        before = len(entries)
        while end_offset >= 0 and entries and entries[-1].start_offset >= end_offset:
            entries.pop()
        if len(entries) != before:
            self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that end before `start_offset`; the one around it now begins there."""
        entries = self._entries
        gone = 0
        while gone < len(entries) and entries[gone].start_offset <= start_offset:
            gone += 1
        if gone == 0:
            return
        first = EpochStart(entries[gone - 1].epoch, start_offset)
        if gone == 1 and entries[0] == first:
            return
        entries[:gone] = [first]
        self._write()

    def succeed(self, before: LeaderEpochs) -> None:
        """Become what another log of the same records knew."""
        self._entries = list(before._entries)
        self._write()

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._write()

    def _write(self) -> None:
        self._unwritten = True  # until it has worked: it may fail for want of a descriptor
        write_lines(self._fs, self._path, (f"{epoch} {start}" for epoch, start in self._entries))
        self._unwritten = False


def _entry(epoch: int, start_offset: int) -> EpochStart:
    if epoch < 0 or start_offset < 0:
        raise ValueError(f"epoch {epoch} at offset {start_offset}")
    return EpochStart(epoch, start_offset)
