"""Copying a log into another data folder, batch by batch, while it is used.

The copy is filled as a follower's log is. It goes through what happens to the log meanwhile: where
that is truncated the copy is, and what retention takes is not copied. The event loop is left to
others most of the time, and no more is copied than the pace allows.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER_SIZE, read_header
from ottla.runtime.files import ColdRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.runtime.clock import Clock
    from ottla.runtime.workers import Workers
    from ottla.storage.directory import LogDirectories
    from ottla.storage.log import Log

FULL = (errno.ENOSPC, errno.EDQUOT)

_FIRST_CHUNK = 128 * 1024
_LEAST_CHUNK, _MOST_CHUNK = 16 * 1024, 1024 * 1024
_SHORT_TURN, _LONG_TURN = 0.001, 0.004
"""A chunk whose append took less than this is followed by a larger one, or by a smaller one if it
took longer: many small batches take much longer than a large one."""
_REST = 3
"""After an append the loop is left to others for this multiple of the time it took."""
_PAUSE = 0.05  # seconds between two looks at the pace
_ANY_EPOCH = 2**31 - 1


class Pace(Protocol):
    """How fast copies may go."""

    @property
    def exceeded(self) -> bool:
        """Whether more was copied in the last seconds than may be."""
        ...

    def record(self, size: int) -> None:
        """So many bytes were copied."""
        ...


class Move:
    """One log on its way. `log` is the copy."""

    __slots__ = (
        "arriving", "chunk", "cuts", "host", "log", "over", "partition", "running", "source", "to",
    )  # fmt: skip

    def __init__(self, source: Log, log: Log, host: CopyHost, to: str) -> None:
        self.partition = source.partition
        self.source = source
        self.log = log
        self.host = host
        self.to = to  # the data folder
        self.chunk = _FIRST_CHUNK  # bytes that are read and appended in one go
        self.cuts = len(source.truncations)  # those that the copy has been through
        self.arriving = False  # the checkpoints of its folder name it already
        self.running = False
        self.over = False

    @property
    def lag(self) -> int:
        return max(0, self.source.log_end_offset - self.log.log_end_offset)

    @property
    def ended(self) -> bool:
        """Whether nothing is to be copied any more, for whatever reason."""
        return self.over or self.source.failure is not None or self.log.failure is not None


class CopyHost:
    """The `LogHost` of a copy: that its disk is full is the end of the move, not of the folder."""

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories
        self.arrived = False

    def folder_failed(self, log: Log, error: OSError, doing: str) -> None:
        if self.arrived or error.errno not in FULL:
            self._directories.folder_failed(log, error, doing)

    def flush_wanted(self, log: Log) -> None:
        self._directories.flush_wanted(log)

    def discard(self, files: Sequence[str], delay_ms: int) -> None:
        self._directories.discard(files, delay_ms)

    def retention_changed(self, log: Log) -> None:
        if self.arrived:
            self._directories.retention_changed(log)


class Copying:
    """The copying of one broker."""

    def __init__(self, clock: Clock, workers: Workers) -> None:
        self.pace: Pace | None = None
        self.bytes = 0  # that were copied, since the start
        self._clock = clock
        self._workers = workers

    async def copy(self, move: Move, *, upto: int = 0, paced: bool = True) -> None:
        """Copy what the log has and the copy lacks, but for the last chunk, since more may come all
        the time; all below `upto`."""
        while not move.ended:
            self.follow(move)
            if missing_bytes(move) <= move.chunk and move.log.log_end_offset >= upto:
                return
            data = await self._read(move)
            if data is None or move.ended:
                return
            if len(move.source.truncations) != move.cuts:
                continue
            began = self._clock.monotonic()
            self.append(move, data)
            took = self._clock.monotonic() - began
            if took > _LONG_TURN:
                move.chunk = max(move.chunk // 2, _LEAST_CHUNK)
            elif took < _SHORT_TURN:
                move.chunk = min(move.chunk * 2, _MOST_CHUNK)
            await asyncio.sleep(_REST * took)
            while paced and self.pace is not None and self.pace.exceeded and not move.ended:
                await asyncio.sleep(_PAUSE)

    def follow(self, move: Move) -> None:
        """Let the copy go through what has happened to the start and the end of the log."""
        source, log = move.source, move.log
        cuts = source.truncations[move.cuts :]
        if cuts:
            move.cuts += len(cuts)
            if min(cuts) < log.log_end_offset:
                log.truncate_to(min(cuts))
        if log.log_end_offset < source.log_start_offset:
            first = _first_base(source)
            if log.log_end_offset < first:
                log.truncate_fully_and_start_at(first)

    async def _read(self, move: Move) -> bytes | None:
        source = move.source
        offset = max(move.log.log_end_offset, source.log_start_offset)
        upper = source.log_end_offset
        if offset >= upper:
            return None
        try:
            region = source.read(offset, move.chunk, upper=upper, cached_only=True).region
        except ColdRead:
            with suppress(OSError):  # a segment may go meanwhile
                await self._workers.run_in_thread(source.warm_up(offset, upper))
            if move.ended or not source.log_start_offset <= offset <= source.log_end_offset:
                return b""  # and look again
            region = source.read(offset, move.chunk, upper=source.log_end_offset).region
        if region is None:
            return None
        return await self._workers.run_in_thread(region.read)

    def append(self, move: Move, data: bytes) -> None:
        """Take over what was read of the log."""
        log = move.log
        if not data:
            return
        info = log.append_replicated(memoryview(data), leader_epoch=_ANY_EPOCH)
        if not info.bytes:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"no whole batch was found at offset {log.log_end_offset}",
            )
        self.bytes += info.bytes
        if self.pace is not None:
            self.pace.record(info.bytes)


def _first_base(log: Log) -> int:
    """Where the batch begins that holds the log's first record, which may be in its middle."""
    start = log.log_start_offset
    region = log.read(start, 1, upper=log.log_end_offset).region
    if region is None:
        return start
    return min(start, read_header(region.file.pread(HEADER_SIZE, region.position)).base_offset)


def missing_bytes(move: Move) -> int:
    """How many bytes the copy lacks."""
    return move.source.bytes_from(move.log.log_end_offset, move.source.log_end_offset)
