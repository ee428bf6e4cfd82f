"""fsync, off the event loop and shared by all who wait for it.

`GroupCommit` runs at most one flush of a log at a time, in a thread. Whoever asks meanwhile is
served by the next one, together with everybody else who came: with `flush.messages=1` a hundred
waiting produce requests cost one fdatasync, not a hundred. Different logs flush side by side.

A flush that fails is never repeated. The kernel may have dropped the dirty pages and call the next
fsync a success without having written anything, so the data folder is taken offline instead and
every waiter gets KAFKA_STORAGE_ERROR. One that lacked a descriptor to begin with has failed at
nothing: it is tried again for a while, and may be asked for anew after that.

A log that moves to another data folder takes with it who waits for it (`hand_over`), and for a
moment before that its flushes wait (`hold`): what is durable of it must not change meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.tasks import Tasks
from ottla.storage.faults import OutOfDescriptors, is_shortage

if TYPE_CHECKING:
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import File, FileSystem
    from ottla.runtime.workers import Workers


RETRY_SECONDS = 0.5
"""How long to wait for a free descriptor before trying again."""
RETRIES = 20


@dataclass(frozen=True, slots=True)
class FlushJob:
    """What has to be synced so that a log is durable up to `end_offset`."""

    end_offset: int
    files: tuple[File, ...]
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    generation: int = 0
    """How often the log had been truncated when the job was made."""
    names_first: bool = False
    """A truncation is not durable yet: the segments that it took must not come back, with a gap
    before them, when the one that it cut has been synced."""

    def run(self, fs: FileSystem) -> None:
        """Sync contents first, then the names that lead to them. Blocks; raises OSError."""
        if self.names_first:
            self._sync_folders(fs)
        for file in self.files:
            file.sync()
        for path in self.paths:
            try:
                opened = fs.open(path)
            except FileNotFoundError:
                continue  # retention or a later snapshot has removed it: nothing to keep
            try:
                opened.sync()
            finally:
                opened.close()
        self._sync_folders(fs)

    def _sync_folders(self, fs: FileSystem) -> None:
        for folder in self.folders:
            try:
                fs.sync_dir(folder)
            except FileNotFoundError:
                continue  # the partition has been deleted


class Flushable(Protocol):
    """What `GroupCommit` needs of a log."""

    recovery_point: int
    """Everything below is durable."""

    @property
    def failure(self) -> str | None:
        """Why the log is offline, if it is."""
        ...

    @property
    def has_unsynced_truncation(self) -> bool:
        """Whether a power cut could bring back records that were truncated."""
        ...

    def begin_flush(self) -> FlushJob | None:
        """What is to be synced now; None when everything is."""
        ...

    def finish_flush(self, job: FlushJob, now_ms: int) -> None:
        """The job is done: move the recovery point."""
        ...

    def undo_flush(self, job: FlushJob) -> None:
        """The job could not be run to its end: the next one has to do all of it."""
        ...

    def storage_failed(self, error: OSError, doing: str) -> KafkaError:
        """Take the data folder offline; returns what a client is to be told."""
        ...


class _Lane:
    """The flushes of one log."""

    __slots__ = ("again", "waiting")

    def __init__(self) -> None:
        self.again = False
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []


class GroupCommit:
    """All flushes of the broker. Its methods are called on the event loop."""

    def __init__(
        self, fs: FileSystem, workers: Workers, clock: Clock, tasks: Tasks | None = None
    ) -> None:
        self._fs = fs
        self._workers = workers
        self._clock = clock
        self._watched = tasks or Tasks()
        self._lanes: dict[Flushable, _Lane] = {}
        # Flushes that nobody waits for go one by one: two thousand new partitions must not stand
        # in the threads' queue before a producer's record.
        self._background: dict[Flushable, _Lane] = {}
        self._background_runs = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[Flushable, asyncio.Future[None]] = {}
        self._held: dict[Flushable, asyncio.Event] = {}
        self.flushes = 0
        """How many flushes have been run."""

    def wait_flushed(
        self, log: Flushable, offset: int, *, urgent: bool = True
    ) -> asyncio.Future[None]:
        """Done when everything below `offset` is durable: pass the last offset plus one. So is then
        every truncation that was made before.

        Without `urgent` it takes its turn behind the flushes that nobody waits for, until somebody
        wants this log's at once.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if _is_durable(log, offset):
            future.set_result(None)
        elif log.failure is not None:
            future.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.failure))
            future.exception()
        else:
            lane = self._lane(log) if urgent else self._later(log)
            lane.waiting.append((offset, future))
        return future

    def request(self, log: Flushable) -> None:
        """Flush a log when there is time: a segment was rolled, or `flush.ms` is over."""
        if log.failure is None:
            self._later(log)

    def is_flushing(self, log: Flushable) -> bool:
        """Whether a flush of the log is under way."""
        return log in self._running

    async def hold(self, log: Flushable) -> None:
        """Let no flush of the log begin before `release`; returns when none is under way."""
        self._held.setdefault(log, asyncio.Event())
        running = self._running.get(log)
        if running is not None:
            await asyncio.wait([running])

    def release(self, log: Flushable) -> None:
        held = self._held.pop(log, None)
        if held is not None:
            held.set()

    def hand_over(self, log: Flushable, successor: Flushable) -> None:
        """Another log has taken this one's place: who waits for its flush waits for the other's."""
        lane = self._lanes.get(log) or self._background.pop(log, None)
        if lane is not None and lane.waiting:
            self._lane(successor).waiting += lane.waiting
            lane.waiting = []

    async def wait_idle(self) -> None:
        """Wait until every flush asked for so far has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _lane(self, log: Flushable) -> _Lane:
        """The log's lane, with a flush to come that begins after now."""
        lane = self._lanes.get(log)
        if lane is not None:
            lane.again = True
            return lane
        lane = self._lanes[log] = self._background.pop(log, _Lane())
        self._spawn(self._serve(log, lane))
        return lane

    def _later(self, log: Flushable) -> _Lane:
        """The log's lane, with a flush to come when it is its turn."""
        lane = self._lanes.get(log)
        if lane is not None:
            lane.again = True
            return lane
        lane = self._background.get(log)
        if lane is None:
            lane = self._background[log] = _Lane()
        if not self._background_runs:
            self._background_runs = True
            self._spawn(self._serve_background())
        return lane

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._watched.start("flushing the logs", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_background(self) -> None:
        try:
            while self._background:
                log = next(iter(self._background))
                lane = self._lanes[log] = self._background.pop(log)
                await self._serve(log, lane)
        except BaseException as error:
            while self._background:
                _abandon(self._background.popitem()[1].waiting, error)
            raise
        finally:
            self._background_runs = False

    async def _serve(self, log: Flushable, lane: _Lane) -> None:
        try:
            await self._serve_all(log, lane)
        except BaseException as error:
            # A bug, or the broker's end: whoever waits is told, and does not wait for ever.
            self._lanes.pop(log, None)
            _abandon(lane.waiting, error)
            raise

    async def _serve_all(self, log: Flushable, lane: _Lane) -> None:
        retries = RETRIES
        while True:
            lane.again = False
            failure: KafkaError | None = None
            try:
                await self._flush(log)
            except KafkaError as error:
                failure = error
            except OSError as error:
                failure = log.storage_failed(error, "flushing")
                if isinstance(failure, OutOfDescriptors) and retries:
                    retries -= 1
                    await asyncio.sleep(RETRY_SECONDS)
                    if log.failure is None:
                        continue
            lane.waiting = _settle(log, lane.waiting, failure)
            if not lane.again or failure is not None:
                # Nothing can have come since the last await: the lane is left in one step. Who
                # is still waiting then waits for records that a truncation has taken.
                del self._lanes[log]
                gone = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "truncated before the flush")
                _settle(log, lane.waiting, gone)
                return

    async def _flush(self, log: Flushable) -> None:
        while (held := self._held.get(log)) is not None:
            await held.wait()
            if log.failure is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.failure)
        job = log.begin_flush()
        if job is None:
            return
        self.flushes += 1
        done = self._running[log] = asyncio.get_running_loop().create_future()
        try:
            await self._workers.run_in_thread(job.run, self._fs)
            log.finish_flush(job, self._clock.now_ms())
        except OSError as error:
            if is_shortage(error):
                log.undo_flush(job)
            raise
        finally:
            del self._running[log]
            done.set_result(None)


def _is_durable(log: Flushable, offset: int) -> bool:
    return log.recovery_point >= offset and not log.has_unsynced_truncation


def _settle(
    log: Flushable,
    waiting: list[tuple[int, asyncio.Future[None]]],
    failure: KafkaError | None,
) -> list[tuple[int, asyncio.Future[None]]]:
    """Answer whom this flush served; the rest came too late for it and stays."""
    left: list[tuple[int, asyncio.Future[None]]] = []
    for offset, future in waiting:
        if future.done():
            continue
        if _is_durable(log, offset):
            future.set_result(None)
        elif failure is not None:
            future.set_exception(type(failure)(failure.code, failure.message))
            future.exception()  # whoever asked may have gone: that is not worth a log line
        else:
            left.append((offset, future))
    return left


def _abandon(waiting: list[tuple[int, asyncio.Future[None]]], error: BaseException) -> None:
    """No flush comes any more for those who wait."""
    for _, future in waiting:
        if future.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
            future.exception()
    waiting.clear()
