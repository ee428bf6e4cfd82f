"""The fsyncs that one partition asks for, where its topic wants records on the disk.

One is for those who wait for an acknowledgement: it takes everything up to the log's end, and
appends meanwhile get the next. One is for readers only, who are not shown what may not be on the
disk: the tail that was there after a restart, and what a leader got while it was a follower. It
comes after everybody else's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from ottla.storage.log import Log

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class Durability(Protocol):
    """Whoever runs fsync for all logs."""

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        """Done when everything below `offset` is on the disk; an error when it cannot be, which is
        OutOfDescriptors if it is worth another try. Without `urgent`, after everybody else's."""
        ...


class Flushes:
    """Those of one partition, which is told of each when it is over (`Partition.flushed`)."""

    __slots__ = ("_durability", "_for_readers", "_partition", "awaited")

    def __init__(self, partition: Partition, durability: Durability) -> None:
        self._partition = partition
        self._durability = durability
        self._for_readers = False  # one is on its way
        self.awaited = False  # so is one that producers wait for

    def ask(self) -> None:
        """Ask for one fsync of everything up to the log's end; appends meanwhile get the next."""
        if self.awaited:
            return
        self.awaited = True
        log = self._partition.log
        end = log.log_end_offset
        self._durability.wait_flushed(log, end).add_done_callback(
            lambda flush: self._on_flushed(flush, end)
        )

    def _on_flushed(self, flush: asyncio.Future[None], end: int) -> None:
        self.awaited = False
        partition = self._partition
        if partition.flushed(flush, end) and partition.log.log_end_offset > end:
            self.ask()

    def ask_for_tail(self) -> None:
        """Ask for an fsync up to the log's end that no producer waits for, only readers."""
        if self._for_readers:
            return
        self._for_readers = True
        log = self._partition.log
        end = log.log_end_offset
        self._durability.wait_flushed(log, end, urgent=False).add_done_callback(
            lambda flush: self._on_tail_flushed(flush, end)
        )

    def ask_for_rest(self) -> None:
        """Have a leader's disk get what it got as a follower: perhaps nobody asks for that."""
        if self._partition.written < self._partition.log.log_end_offset and not self.awaited:
            self.ask_for_tail()

    def _on_tail_flushed(self, flush: asyncio.Future[None], end: int) -> None:
        self._for_readers = False
        if self._partition.flushed(flush, end) and self._partition.leading:
            self.ask_for_rest()

    def wait_written(self) -> asyncio.Future[None]:
        """Done when a follower's disk has what its log has."""
        partition = self._partition
        end = partition.log.log_end_offset
        flush = self._durability.wait_flushed(partition.log, end)
        flush.add_done_callback(lambda done: partition.flushed(done, end))
        return flush
