"""What happens to logs by itself: retention, rolling, flush.ms, expiry, checkpoints, removal, and
indexes that have to be rebuilt.

Each kind of work is one task that sleeps, works, and sleeps again. Work over all logs is done in
slices, so that a broker with thousands of partitions answers requests in between; what waits for
the disk is done in a thread. An error in what is repeated ends neither the task nor the others: a
failed disk has taken its folder offline already, and anything else is a bug that is logged with its
traceback, once per round. A task that dies nevertheless ends the broker (`runtime.tasks`).

Retention looks at every log each `log.retention.check.interval.ms`, and at once at those whose
settings have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from ottla.config.setting import MAX_LONG
from ottla.errors import KafkaError
from ottla.runtime.files import OsFileSystem
from ottla.runtime.workers import ChildDied, NoChild
from ottla.storage import paths
from ottla.storage.check import check_file
from ottla.storage.faults import is_shortage

if TYPE_CHECKING:
    from ottla.model.ids import TopicPartition
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import FileSystem
    from ottla.runtime.tasks import Tasks
    from ottla.runtime.workers import Workers
    from ottla.storage.directory import LogDirectories
    from ottla.storage.log import Log
    from ottla.storage.segment import Segment

logger = logging.getLogger(__name__)

_SLICE = 100
"""Logs worked on before others get their turn."""
_WORK_PAUSE = 4
"""After a log that had segments to delete or roll, others get this multiple of the time it took."""
_FLUSH_TICK = 1.0
_SHORTEST_TICK = 0.05
_REWRITE_PAUSE = 4
"""Rest after writing the checkpoints because of a deletion, in multiples of the time it took."""
_REMOVE_AGAIN_MS = 10_000


class Schedule:
    """The background work of a broker's logs."""

    def __init__(
        self,
        directories: LogDirectories,
        fs: FileSystem,
        clock: Clock,
        workers: Workers,
        tasks: Tasks,
    ) -> None:
        self._directories = directories
        self._fs = fs
        self._clock = clock
        self._workers = workers
        self._watched = tasks
        self._tasks: set[asyncio.Task[None]] = set()
        self._removals: dict[int, asyncio.TimerHandle] = {}
        self._rewriting = False
        self._rewrite_again = False
        self._changed: dict[TopicPartition, Log] = {}  # retention is to look at them now
        self._following = False  # a task does that
        self._started = False
        self._stopped = False

    def start(self) -> None:
        self._started = True
        settings = self._directories.settings
        delay = settings.initial_task_delay_ms
        self._repeat(self._retention, settings.retention_check_interval_ms, delay)
        self._repeat(self._expire, settings.producer_id_expiration_check_interval_ms, delay)
        for name, interval in (  # each of paths.CHECKPOINTS
            (paths.RECOVERY_POINT_CHECKPOINT, settings.recovery_point_checkpoint_interval_ms),
            (paths.LOG_START_CHECKPOINT, settings.log_start_checkpoint_interval_ms),
            (paths.HIGH_WATERMARK_CHECKPOINT, settings.high_watermark_checkpoint_interval_ms),
            (paths.CLEANER_CHECKPOINT, settings.recovery_point_checkpoint_interval_ms),
        ):
            self._repeat(self._checkpoint(name), interval, delay)
        self._spawn(self._flush_old())

    async def stop(self) -> None:
        """End the work, that in threads too: afterwards nothing is written from here. Files that
        still wait for removal go at the next start."""
        self._stopped = True
        for handle in self._removals.values():
            handle.cancel()
        self._removals.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the work -----------------------------------------------------------------------------

    async def apply_retention(self) -> int:
        """Delete what retention lets go, in every log, and roll what has been open for too long;
        how many rules deleted something."""
        count = 0
        async for log in self._each():
            count += await self._retain(log)
        return count

    def retain_soon(self, log: Log) -> None:
        """The settings of a log have changed: apply retention to it now, off the caller's path.

        Before `start` there is no need to: the first round is to come."""
        if not self._started or self._stopped:
            return
        self._changed[log.partition] = log
        if not self._following:
            self._following = True
            self._spawn(self._retain_changed())

    async def _retain_changed(self) -> None:
        try:
            while self._changed:
                log = self._changed.pop(next(iter(self._changed)))
                if log.failure is None:
                    await self._retain(log)
                await asyncio.sleep(0)
        except Exception:
            logger.exception("retention after a change of settings failed")
        finally:
            self._following = False

    async def _retain(self, log: Log) -> int:
        began = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        try:
            deleted = log.delete_old(now_ms, self._directories.positions)
            # Not before a truncation is durable: a power cut would bring back what the segment has
            # lost, and leave an empty one behind it.
            rolled = not log.has_unsynced_truncation and log.roll_old(now_ms)
        except KafkaError:
            return 0
        for line in deleted:
            logger.info("%s", line)
        if deleted or rolled:
            await asyncio.sleep(_WORK_PAUSE * (self._clock.monotonic() - began))
        return len(deleted)

    async def expire_producers(self) -> int:
        """Forget producers that have been silent for too long, in every log."""
        count = 0
        async for log in self._each():
            count += log.expire_producers(self._clock.now_ms())
        return count

    def flush_old(self) -> float:
        """Ask for a flush of the logs whose `flush.ms` is over; seconds until the next look."""
        now_ms = self._clock.now_ms()
        tick = _FLUSH_TICK
        for log in self._directories.logs.values():
            flush_ms = log.config.flush_ms
            if flush_ms == MAX_LONG:
                continue
            tick = min(tick, flush_ms / 1000)
            if log.unflushed_messages > 0 and now_ms - log.last_flush_ms >= flush_ms:
                self._directories.group_commit.request(log)
        return max(tick, _SHORTEST_TICK)

    def remove_later(self, names: Sequence[str], delay_ms: int) -> None:
        """Remove renamed files or folders after a delay, in a thread."""
        if self._stopped or not names:
            return
        loop = asyncio.get_running_loop()
        key = id(names)
        while key in self._removals:
            key += 1

        def begin() -> None:
            del self._removals[key]
            self._spawn(self._remove(list(names)))

        self._removals[key] = loop.call_later(delay_ms / 1000, begin)

    def rebuild_indexes(self, segment: Segment) -> None:
        """The indexes of a rolled segment are wrong: make them anew, off the loop."""
        if not self._stopped:
            self._spawn(self._rebuild(segment))

    async def _rebuild(self, segment: Segment) -> None:
        path, folder = segment.path, segment.path.rpartition("/")[0]
        log = next((log for log in self._directories.logs.values() if log.folder == folder), None)
        if log is None or log.failure is not None:
            return
        facts = (self._fs, path, segment.base_offset, segment.size, log.config.index_interval_bytes)
        in_child = (
            isinstance(self._fs, OsFileSystem)
            and segment.size > self._directories.settings.child_scan_bytes
        )
        run = self._workers.run_in_child if in_child else self._workers.run_in_thread
        try:
            checked = await run(check_file, *facts)
            if checked.damage is not None:
                logger.error(
                    "the indexes of %s cannot be rebuilt, at byte %d %s: see `ottla log repair`",
                    path,
                    checked.damage.position,
                    checked.damage.problem,
                )
            elif log.take_indexes(segment, checked):
                logger.info("the indexes of %s are rebuilt", path)
        except (OSError, KafkaError, ChildDied, NoChild) as error:
            logger.warning("the indexes of %s are not rebuilt: %s", path, error)

    def checkpoint_soon(self) -> None:
        """A partition has gone: write the checkpoints without it, before its name is used again.

        Two thousand that go together cost one round, and those that go one by one as many rounds
        as fit into a fifth of the time.
        """
        if self._stopped:
            return
        self._rewrite_again = True
        if not self._rewriting:
            self._rewriting = True
            self._spawn(self._rewrite_checkpoints())

    async def _rewrite_checkpoints(self) -> None:
        while self._rewrite_again:
            self._rewrite_again = False
            started = self._clock.monotonic()
            try:
                await self._directories.write_checkpoints()
            except Exception:
                logger.exception("writing the checkpoints failed")
            if self._rewrite_again:
                await asyncio.sleep(_REWRITE_PAUSE * (self._clock.monotonic() - started))
        self._rewriting = False

    async def _remove(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._workers.run_to_end(_remove_one, self._fs, name)
            except OSError as error:
                if is_shortage(error):
                    self.remove_later([name], _REMOVE_AGAIN_MS)
                else:
                    logger.warning("%s could not be removed: %s", name, error.strerror or error)

    # --- repetition ---------------------------------------------------------------------------

    async def _retention(self) -> None:
        await self.apply_retention()

    async def _expire(self) -> None:
        await self.expire_producers()

    def _checkpoint(self, name: str) -> Callable[[], Awaitable[object]]:
        return lambda: self._directories.write_checkpoint(name)

    async def _flush_old(self) -> None:
        while True:
            await asyncio.sleep(self.flush_old())

    def _repeat(
        self, work: Callable[[], Awaitable[object]], interval_ms: int, delay_ms: int
    ) -> None:
        async def repeat() -> None:
            await asyncio.sleep(delay_ms / 1000)
            while True:
                try:
                    await work()
                except Exception:
                    logger.exception("background work on the logs failed")
                await asyncio.sleep(interval_ms / 1000)

        self._spawn(repeat())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._watched.start("background work on the logs", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _each(self) -> AsyncIterator[Log]:
        for count, log in enumerate(list(self._directories.logs.values()), start=1):
            if log.failure is None:
                yield log
            if count % _SLICE == 0:
                await asyncio.sleep(0)


def _remove_one(fs: FileSystem, path: str) -> None:
    try:
        if fs.is_dir(path):
            fs.remove_tree(path)
        else:
            fs.remove(path)
    except FileNotFoundError:
        pass
