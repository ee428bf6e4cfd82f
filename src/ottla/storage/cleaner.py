"""The log cleaner: which log is compacted when, with what, and what happens when it fails.

`log.cleaner.threads` workers take the dirtiest log that is due, one after the other. The work
itself (`cleaning`) is done in child processes of the cleaner's own, at low priority, and throttled;
the event loop plans it and puts each finished segment in place (`compaction`). When nothing is due
the workers look again after `log.cleaner.backoff.ms`, or when a setting has changed.

A cleaning never stands in anybody's way. It is given up, without harm and without a trace but
removed files, when its log is deleted, truncated, fails, or is no longer to be compacted, and when
the cleaner's own settings change. A log that cannot be cleaned, because it is damaged or because
its cleaning dies each time, is uncleanable until the broker is started again: logged once, counted
in a metric, and the others go on. A full disk only postpones.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.config.setting import MAX_DOUBLE
from ottla.errors import KafkaError
from ottla.runtime.files import OsFileSystem
from ottla.runtime.workers import ChildDied, NoChild, Workers
from ottla.storage import paths
from ottla.storage.cleaned_files import remove_leftovers
from ottla.storage.cleaning import CleanedSegment, CleanSummary, clean
from ottla.storage.compaction import Plan, Resources

if TYPE_CHECKING:
    from ottla.model.ids import TopicPartition
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import FileSystem
    from ottla.runtime.tasks import Tasks
    from ottla.storage.cleanable import Cleanable
    from ottla.storage.directory import LogDirectories
    from ottla.storage.log import Log

logger = logging.getLogger(__name__)

_SLICE = 100
"""Logs looked at before others get their turn."""
_WATCH_SECONDS = 0.25
"""How long a cleaning may go on that has become pointless."""
_SHORTEST_PAUSE = 1.0
"""Between two looks at all logs, however many settings change."""
_POSTPONE_SECONDS = 60.0
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""Errors that say nothing about the log or its disk: better later."""
_DEATHS = 2
"""As often as this a cleaning process may die over a log."""

Item = CleanedSegment | CleanSummary


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """The broker's `log.cleaner.*` settings that concern all logs, with Kafka's defaults."""

    enable: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 134_217_728
    load_factor: float = 0.9
    io_buffer_bytes: int = 524_288
    bytes_per_second: float = MAX_DOUBLE
    backoff_ms: int = 15_000

    @property
    def share(self) -> Resources:
        """What each worker gets."""
        threads = max(1, self.threads)
        return Resources(
            map_bytes=self.dedupe_buffer_bytes // threads,
            load_factor=min(max(self.load_factor, 0.01), 1.0),
            buffer_bytes=self.io_buffer_bytes // threads // 2,
            bytes_per_second=self.bytes_per_second / threads,
        )


@dataclass(frozen=True, slots=True)
class CleanerStatistics:
    """What the cleaner has done, and what it found at its last look."""

    runs: int
    given_up: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    running: int
    last_seconds: float
    map_used: float
    max_dirty_ratio: float
    max_overdue_ms: int
    last_look_ms: int
    uncleanable: int
    uncleanable_bytes: int


class _GivenUp(Exception):
    """The cleaning has become pointless."""


class Cleaner:
    """Compacts the logs of a broker. Used on the event loop's thread."""

    def __init__(
        self,
        directories: LogDirectories,
        fs: FileSystem,
        clock: Clock,
        settings: CleanerSettings,
        tasks: Tasks,
        *,
        make_workers: Callable[[], Workers] = lambda: Workers(threads=1, children=1, niceness=15),
    ) -> None:
        self._directories = directories
        self._fs = fs
        self._clock = clock
        self._settings = settings
        self._watched = tasks
        self._make_workers = make_workers
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._started = False

        self._cleaning: set[TopicPartition] = set()
        self._uncleanable: dict[TopicPartition, tuple[Log, str]] = {}
        self._postponed: dict[TopicPartition, float] = {}
        self._deaths: dict[TopicPartition, int] = {}

        self._runs = self._given_up = 0
        self._totals = [0, 0, 0, 0]
        self._last_seconds = self._map_used = self._max_ratio = 0.0
        self._max_overdue = 0
        self._last_look_ms = clock.now_ms()

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True
        count = self._settings.threads if self._settings.enable else 0
        while len(self._tasks) < count:
            self._tasks.append(self._watched.start("the log cleaner", self._work()))
        for task in self._tasks[count:]:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        del self._tasks[count:]

    async def stop(self) -> None:
        """End the work; what is being cleaned is given up."""
        self._started = False
        tasks = [*self._tasks, *self._ending]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Stop as kill -9 does, for tests."""
        for task in (*self._tasks, *self._ending):
            task.cancel()

    def reconfigure(self, settings: CleanerSettings) -> None:
        """Take other settings; what is being cleaned with the old ones begins anew."""
        if settings == self._settings:
            return
        self._settings = settings
        if self._started:
            self.start()
            self.look_soon()

    def look_soon(self) -> None:
        """A topic's settings have changed: do not wait for the next look."""
        self._news.set()

    def statistics(self) -> CleanerStatistics:
        self._forget_replaced()
        bytes_read, bytes_written, records_read, records_kept = self._totals
        return CleanerStatistics(
            runs=self._runs,
            given_up=self._given_up,
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            records_read=records_read,
            records_kept=records_kept,
            running=len(self._cleaning),
            last_seconds=self._last_seconds,
            map_used=self._map_used,
            max_dirty_ratio=self._max_ratio,
            max_overdue_ms=self._max_overdue,
            last_look_ms=self._last_look_ms,
            uncleanable=len(self._uncleanable),
            uncleanable_bytes=sum(log.size for log, _ in self._uncleanable.values()),
        )

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """The partitions that are not cleaned any more, and why."""
        self._forget_replaced()
        return {partition: reason for partition, (_, reason) in self._uncleanable.items()}

    def is_cleaning(self, partition: TopicPartition) -> bool:
        return partition in self._cleaning

    async def _work(self) -> None:
        workers = self._make_workers()
        try:
            while True:
                try:
                    busy = await self.clean_dirtiest(workers)
                except Exception:
                    logger.exception("the log cleaner failed")
                    busy = False
                if not busy:
                    await self._pause()
        finally:
            workers.close()

    async def _pause(self) -> None:
        self._news.clear()
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._settings.backoff_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, _SHORTEST_PAUSE - (self._clock.monotonic() - began)))

    # --- choosing -----------------------------------------------------------------------------

    async def clean_dirtiest(self, workers: Workers) -> bool:
        """Clean the log that needs it most; False when none does."""
        chosen = await self._choose()
        if chosen is None:
            return False
        log, found = chosen
        self._cleaning.add(log.partition)
        try:
            await self._clean(workers, log, found)
        finally:
            self._cleaning.discard(log.partition)
        return True

    async def _choose(self) -> tuple[Log, Cleanable] | None:
        self._forget_replaced()
        self._last_look_ms = now_ms = self._clock.now_ms()
        best: tuple[Log, Cleanable] | None = None
        max_ratio, max_overdue = 0.0, 0
        for count, log in enumerate(list(self._directories.logs.values()), start=1):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
            if not self._is_candidate(log):
                continue
            found = self._assess(log, now_ms)
            if found is None:
                continue
            max_ratio = max(max_ratio, found.ratio)
            max_overdue = max(max_overdue, found.overdue_ms)
            if found.due and (best is None or found.ratio > best[1].ratio):
                best = log, found
        self._max_ratio, self._max_overdue = max_ratio, max_overdue
        if best is not None and not self._is_candidate(best[0]):
            return await self._choose()  # another worker was quicker, or the log has gone
        return best

    def _is_candidate(self, log: Log) -> bool:
        partition = log.partition
        if log.failure is not None or not log.compaction.wanted:
            return False
        if partition in self._cleaning or partition in self._uncleanable:
            return False
        return self._postponed.get(partition, 0.0) <= self._clock.monotonic()

    def _assess(self, log: Log, now_ms: int) -> Cleanable | None:
        try:
            if log.compaction.must_roll(now_ms):
                log.roll()
            if log.compaction.awaits_flush:
                self._directories.flush_wanted(log)
            return log.compaction.assess(now_ms)
        except OSError as error:
            log.storage_failed(error, "looking for what to compact")
        except KafkaError as error:
            if log.failure is None:
                self._mark_uncleanable(log, str(error))
        return None

    # --- cleaning one -------------------------------------------------------------------------

    async def _clean(self, workers: Workers, log: Log, found: Cleanable) -> None:
        settings = self._settings
        began = self._clock.monotonic()
        try:
            plan = log.compaction.plan(found, settings.share, self._clock.now_ms())
        except OSError as error:
            log.storage_failed(error, "planning a compaction")
            return
        try:
            summary = await self._clean_by(plan, workers, log, settings)
        except asyncio.CancelledError:
            self._withdraw(log)
            raise
        except _GivenUp:
            self._given_up += 1
            logger.info("compaction of %s was given up: the log has changed", log.partition)
        except NoChild as error:
            self._postpone(log, error)
        except ChildDied as error:
            self._note_death(log, error)
        except OSError as error:
            self._note_fault(log, plan, error)
        except Exception as error:
            if log.failure is None:
                self._mark_uncleanable(log, str(error) or repr(error))
        else:
            self._note(log, summary, self._clock.monotonic() - began)
            return
        self._withdraw(log)
        await self._tidy(workers, log)

    async def _clean_by(
        self, plan: Plan, workers: Workers, log: Log, settings: CleanerSettings
    ) -> CleanSummary:
        summary: CleanSummary | None = None
        await self._tidy(workers, log)
        async with aclosing(self._run(workers, plan)) as items:
            while True:
                item = await self._next(items, log, plan, settings)
                if item is None:
                    break
                if isinstance(item, CleanSummary):
                    summary = item
                else:
                    await self._swap(workers, log, plan, item)
        if summary is None:
            raise RuntimeError("the cleaning makes no progress")
        if not log.compaction.holds(plan):
            raise _GivenUp
        log.compaction.cleaned_to = summary.end_offset
        await self._directories.write_checkpoint(paths.CLEANER_CHECKPOINT)
        return summary

    def _withdraw(self, log: Log) -> None:
        """Nothing of a cleaning that has ended is to be put in place."""
        with suppress(KafkaError):
            self._directories.discard(log.compaction.withdraw(), 0)

    async def _tidy(self, workers: Workers, log: Log) -> None:
        """Remove what an earlier cleaning of the log has left."""
        if log.failure is not None:
            return
        try:
            await workers.run_to_end(remove_leftovers, self._fs, log.folder)
        except OSError as error:
            if log.failure is None:
                log.storage_failed(error, "removing an unfinished compaction")

    def _run(self, workers: Workers, plan: Plan) -> AsyncGenerator[Item]:
        if isinstance(self._fs, OsFileSystem):
            return workers.stream_from_child(clean, self._fs, plan.task)
        return _stream_from_thread(workers, clean(self._fs, plan.task))

    async def _next(
        self, items: AsyncIterator[Item], log: Log, plan: Plan, settings: CleanerSettings
    ) -> Item | None:
        """What the work tells next; None at its end. Raises _GivenUp when it became pointless."""
        step = asyncio.ensure_future(anext(items, None))
        try:
            while True:
                finished, _ = await asyncio.wait([step], timeout=_WATCH_SECONDS)
                if not log.compaction.holds(plan) or self._settings is not settings:
                    raise _GivenUp
                if finished:
                    return step.result()
        finally:
            if not step.done():
                step.cancel()
                await asyncio.wait([step])
            if not step.cancelled():
                step.exception()  # of no interest when it was given up: its files may be gone

    async def _swap(self, workers: Workers, log: Log, plan: Plan, cleaned: CleanedSegment) -> None:
        """Put a new segment in place, each step durable before the next."""
        if not log.compaction.begin(plan, cleaned):
            raise _GivenUp
        await workers.run_in_thread(self._fs.sync_dir, log.folder)
        files = log.compaction.finish()
        if files is None:
            raise _GivenUp
        try:
            await workers.run_in_thread(self._fs.sync_dir, log.folder)
        finally:
            # Whatever ends the cleaning here, nobody else knows of these files before a start.
            self._directories.discard(files, log.config.file_delete_delay_ms)

    # --- what became of it --------------------------------------------------------------------

    def _note(self, log: Log, summary: CleanSummary, seconds: float) -> None:
        self._runs += 1
        self._last_seconds, self._map_used = seconds, summary.map_used
        self._deaths.pop(log.partition, None)
        for slot, count in enumerate(
            (
                summary.bytes_read,
                summary.bytes_written,
                summary.records_read,
                summary.records_kept,
            )
        ):
            self._totals[slot] += count
        logger.info(
            "compacted %s up to offset %d in %.1f s: %d of %d records stay, %.1f MB read, %.1f MB "
            "written",
            log.partition,
            summary.end_offset,
            seconds,
            summary.records_kept,
            summary.records_read,
            summary.bytes_read / 1e6,
            summary.bytes_written / 1e6,
        )

    def _note_death(self, log: Log, error: ChildDied) -> None:
        deaths = self._deaths[log.partition] = self._deaths.get(log.partition, 0) + 1
        if deaths >= _DEATHS:
            self._mark_uncleanable(
                log,
                f"{error}, {deaths} times in a row. If the machine ran out of memory, lower "
                f"log.cleaner.dedupe.buffer.size, then restart the broker",
            )
        else:
            logger.warning("compacting %s failed and is tried again: %s", log.partition, error)

    def _note_fault(self, log: Log, plan: Plan, error: OSError) -> None:
        removed = isinstance(error, FileNotFoundError) and not log.compaction.is_intact(plan)
        if log.failure is not None or removed:
            self._given_up += 1
        elif error.errno in _PASSING:
            self._postpone(log, error)
        else:
            log.storage_failed(error, "compacting")

    def _postpone(self, log: Log, error: Exception) -> None:
        logger.warning(
            "compacting %s is postponed for %d s: %s; free some space, or raise the limit",
            log.partition,
            _POSTPONE_SECONDS,
            error,
        )
        self._postponed[log.partition] = self._clock.monotonic() + _POSTPONE_SECONDS

    def _mark_uncleanable(self, log: Log, reason: str) -> None:
        logger.error(
            "%s cannot be compacted and will grow: %s. Other partitions are not affected",
            log.partition,
            reason,
        )
        self._uncleanable[log.partition] = log, reason

    def _forget_replaced(self) -> None:
        """A topic that was deleted, and perhaps made anew, has no past."""
        logs = self._directories.logs
        for partition, (log, _) in list(self._uncleanable.items()):
            if logs.get(partition) is not log:
                del self._uncleanable[partition]
                self._deaths.pop(partition, None)
        for partition in self._postponed.keys() - logs.keys():
            del self._postponed[partition]


async def _stream_from_thread(workers: Workers, work: Iterator[Item]) -> AsyncGenerator[Item]:
    """For a disk that only this process has: tests."""
    while True:
        item = await workers.run_to_end(next, work, None)
        if item is None:
            return
        yield item
