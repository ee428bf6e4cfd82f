"""Moving logs from one data folder of the broker to another, while they are used (KIP-113).

A move copies the log into the other folder batch by batch, as a follower would, until it has come
to the end; then, in one turn of the event loop, the copy takes the log's place. Clients see nothing
of it: what was being sent goes on from the old files, whoever waits for a flush waits for the
copy's, producers, transactions and epochs are taken over as they are.

What holds at every moment, also for kill -9 and a power cut (`move_marks` has the files):

- Exactly one of the two folders is the log, and it has every acknowledged record.
- What was durable in the old folder is durable in the new one when the mark is renamed, and so is
  all that was appended more than a moment before: the system may have written it long ago. For that
  the old log's flushes wait while the copy's last records are synced: a few milliseconds, in which
  nothing is acknowledged that has to be on the disk first. What is appended after the rename is
  durable with the next flush, which syncs the mark's name as well.
- The old folder goes when the mark is on the disk, and the mark when the old folder has gone.

The log lives on meanwhile: where it is truncated the copy is, what retention takes is not copied,
and it is not compacted. A copy that cannot go on, because its folder fails or is full, is given up
with one line in the log; the partition stays where it is. After an unclean stop a move begins from
the start, after a clean one it goes on, unless the log is compacted.

Everything here runs on the event loop; what waits for a disk is done in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.storage import paths
from ottla.storage.copying import FULL, CopyHost, Copying, Move, missing_bytes
from ottla.storage.faults import (
    OutOfDescriptors,
    concerns_one_file,
    is_shortage,
    short_of_descriptors,
)
from ottla.storage.move_marks import (
    has_arrived,
    is_unfinished,
    make_marked,
    mark_moved,
    remove_mark,
    throw_away,
)
from ottla.storage.open_log import open_log
from ottla.storage.recovery import mark_lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ottla.model.ids import TopicPartition
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import FileSystem
    from ottla.runtime.tasks import Tasks
    from ottla.runtime.workers import Workers
    from ottla.storage.directory import LogDirectories
    from ottla.storage.log import Log

logger = logging.getLogger(__name__)

_PAUSE, _LONGEST_PAUSE = 0.05, 10.0
_HOLD_SECONDS = 5.0
"""How long the old log's flushes may wait for the copy's, before that is tried again later."""
_ROUNDS = 20
_UNFINISHED, _LEFT = "the unfinished copy", "the older one that it had just left"


class Owner(Protocol):
    """Whoever uses the logs."""

    def may_replace(self, partition: TopicPartition) -> bool:
        """Whether nobody is in the middle of something with the log."""
        ...

    def replaced(self, partition: TopicPartition, log: Log) -> None:
        """Another log has taken its place."""
        ...


@dataclass(frozen=True, slots=True)
class MoveStatistics:
    """The moves, counted since the start; `lag` is the most records that a copy lacks."""

    running: int
    finished: int
    given_up: int
    bytes_copied: int
    lag: int


class Moves:
    """The moves of one broker."""

    def __init__(
        self,
        directories: LogDirectories,
        fs: FileSystem,
        clock: Clock,
        workers: Workers,
        tasks: Tasks,
    ) -> None:
        self.copying = Copying(clock, workers)
        self.owner: Owner | None = None
        self.at_once: Callable[[], int | None] = lambda: None
        """How many logs are copied at the same time; None: as many as there are folders."""
        self._directories = directories
        self._fs = fs
        self._workers = workers
        self._watched = tasks
        self._moves: dict[TopicPartition, Move] = {}
        # To be begun anew, and whereto. What there is of the copies stays until then, so that the
        # next start knows of them if this one ends before.
        self._again: dict[TopicPartition, str] = {}
        self._left: dict[TopicPartition, tuple[str, int]] = {}  # folders that a log has left
        self._settling: set[TopicPartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Lock()
        self._started = False
        self._finished = self._given_up = 0

    # --- for others ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def into(self, folder: str) -> list[Move]:
        """The moves into one data folder."""
        return [move for move in self._moves.values() if move.to == folder]

    def waiting_for(self, folder: str) -> list[Log]:
        """The logs that are to be moved into a data folder, as soon as that is begun anew."""
        logs = self._directories.logs
        return [logs[each] for each, to in self._again.items() if to == folder and each in logs]

    def arriving_in(self, folder: str) -> list[Log]:
        """The copies that the checkpoints of a folder are to name, since they may be its logs by
        the time that these are read."""
        return [move.log for move in self._moves.values() if move.arriving and move.to == folder]

    def statistics(self) -> MoveStatistics:
        return MoveStatistics(
            running=len(self._moves) + len(self._again),
            finished=self._finished,
            given_up=self._given_up,
            bytes_copied=self.copying.bytes,
            lag=max((move.lag for move in self._moves.values()), default=0),
        )

    async def request(self, partition: TopicPartition, to: str) -> None:
        """Have a log moved to another data folder; to where it is: leave it there. Returns when the
        move has begun. Raises KafkaError."""
        async with self._asking:
            await self._request(partition, to)

    async def _request(self, partition: TopicPartition, to: str) -> None:
        try:
            await self._carry_out_request(partition, to)
        finally:
            self._again.pop(partition, None)

    async def _carry_out_request(self, partition: TopicPartition, to: str) -> None:
        again = self._again.get(partition)
        move = self._moves.get(partition)
        if move is not None and move.to == to:
            return
        source = self._directories.find(partition)
        if source is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not here")
        self._require(to)
        here = _data_folder(source)
        if again is not None and (again != to or here == to):
            self._remove_unfinished(f"{again}/{paths.partition_dir(partition)}")
        before = again if move is None else move.to
        if before not in (None, to):
            logger.info("the move of %s to %s is cancelled", partition, before)
        if move is not None:
            self.abandon(partition)
        if here != to:
            await self._begin(source, here, to)

    def start(self) -> None:
        """Go on with the moves that were begun before this start, and with those to come."""
        self._started = True
        if self._again:
            self._spawn(self._begin_again())
        self._go_on()

    async def stop(self) -> set[str]:
        """End the work; what has been copied is kept, and flushed, for the next start. Returns the
        data folders that the next start must not trust: there are copies that were not flushed, or
        logs that are older than those which were moved away."""
        self._started = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        moves = list(self._moves.values())
        kept = [move for move in moves if not move.ended and move.log.close()]
        await asyncio.gather(*(self._flush(move.log) for move in kept), return_exceptions=True)
        for move in moves:
            move.log.close_files()
        left = {path.rpartition("/")[0] for path, _ in self._left.values()}
        left.update(self._again.values())
        return left | {each.to for each in moves if each not in kept or each.log.unflushed_messages}

    def abandon_all(self) -> None:
        """Stop as kill -9 does, for tests."""
        self._started = False
        for task in self._tasks:
            task.cancel()
        for move in self._moves.values():
            move.over = True
            move.log.close_files()

    def abandon(self, partition: TopicPartition) -> None:
        """The log goes, or stays where it is: its copy is of no use. What it has moved away from is
        not to be found under its name any more, either."""
        again = self._again.pop(partition, None)
        if again in self._directories.folders:
            self._remove_unfinished(f"{again}/{paths.partition_dir(partition)}")
        move = self._moves.pop(partition, None)
        if move is not None:
            self._discard(move)
        self._retire(partition)

    def folder_failed(self, folder: str, lost: Sequence[TopicPartition]) -> None:
        """A data folder is offline: so are copies in it, and those of `lost` logs end there."""
        for move in list(self._moves.values()):
            if move.to == folder:
                self._end(move, f"the data folder {folder} is offline")
            elif move.partition in lost:
                # As much of it as there is may be all that is left.
                self._moves.pop(move.partition, None)
                move.over = True
                self._given_up += 1
                self.set_aside(move.log.folder, move.partition, _UNFINISHED)
                move.log.deleted(move.log.folder)
        for partition in self._left.keys() & set(lost):
            # The next start, if it is without that folder, must not take this for the log.
            self.set_aside(self._left.pop(partition)[0], partition, _LEFT)

    # --- at the start -------------------------------------------------------------------------

    def found(self, partition: TopicPartition, folder: str, *, clean: bool) -> None:
        """There is an unfinished copy in a data folder. If all was closed cleanly it is gone on
        with, else, or if it cannot be used, the move begins from the start."""
        path = f"{folder}/{paths.partition_dir(partition)}"
        source = self._directories.logs.get(partition)
        if source is None:
            self.set_aside(path, partition, _UNFINISHED)
            return
        move = self._reopen(source, path, folder) if clean else None
        if move is not None:
            self._take(move)
        else:
            self._again[partition] = folder

    def _reopen(self, source: Log, path: str, folder: str) -> Move | None:
        if source.compaction.wanted or source.compaction.cleaned_to is not None:
            # The copy's folder may have been away for a while. What was compacted meanwhile, a
            # deleted key with its tombstone, would come back with it.
            return None
        host = CopyHost(self._directories)
        context = replace(self._directories.context, host=host)
        try:
            log = open_log(context, path, source.partition, source.config, clean=True)
        except Exception as error:
            logger.warning("the copy in %s cannot be used, it is begun anew: %s", path, error)
            return None
        # As with a follower: who has the last record's epoch up to there has the same records.
        epoch = -1 if log.latest_epoch is None else log.latest_epoch
        known, end = source.epoch_end_offset(epoch)
        same = known == epoch and log.log_end_offset <= end if epoch >= 0 else log.is_pristine
        if log.topic_id == source.topic_id and same:
            return Move(source, log, host, folder)
        log.close_files()
        return None

    def set_aside(self, path: str, partition: TopicPartition, what: str) -> None:
        """Keep what there is of a partition besides its log, which cannot be used, where nothing
        takes it for one."""
        folder = path.rpartition("/")[0]
        kept = f"{folder}/{paths.stray_dir(partition, self._directories.unique())}"
        try:
            self._fs.rename(path, kept)
        except OSError as error:
            self._directories.file_failed(folder, error, f"setting {partition} aside", path)
            return
        logger.warning(
            "%s was being moved, and its log cannot be used: %s was kept in %s",
            partition,
            what,
            kept,
        )

    async def _begin_again(self) -> None:
        while self._again:
            async with self._asking:
                partition, to = next(iter(self._again.items()), (None, ""))
                if partition is None:
                    return  # somebody has cancelled the last of them
                try:
                    await self._request(partition, to)
                except KafkaError as error:
                    logger.warning(
                        "%s is not moved to %s: %s", partition, to, error.message or error
                    )

    # --- beginning and ending -----------------------------------------------------------------

    async def _begin(self, source: Log, here: str, to: str) -> None:
        partition = source.partition
        path = f"{to}/{paths.partition_dir(partition)}"
        while partition in self._settling:
            await asyncio.sleep(_PAUSE)
        await self._forget_mark(source)
        why = None
        if has_arrived(self._fs, source.folder):
            why = "an earlier move has left something in a folder that is offline; mend that first"
        elif self._fs.exists(path) and not is_unfinished(self._fs, path):
            why = f"{path} exists; move it away"
        if why is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be moved to {to}: {why}"
            )
        await self._make_folder(source, here, to)
        host = CopyHost(self._directories)
        try:
            context = replace(self._directories.context, host=host)
            log = open_log(context, path, partition, source.config, clean=True)
            log.set_topic_id(source.topic_id)
        except (OSError, KafkaError) as error:
            throw_away(self._directories, self._fs, path)
            if isinstance(error, KafkaError):
                raise
            raise self._not_begun(partition, to, error) from None
        log.mark_new()
        logger.info("%s is being moved from %s to %s", partition, here, to)
        self._take(Move(source, log, host, to))

    async def _make_folder(self, source: Log, here: str, to: str) -> None:
        """Make the copy's folder, to stay. Raises KafkaError."""
        partition = source.partition
        path = f"{to}/{paths.partition_dir(partition)}"
        unique = self._directories.unique()
        try:
            made = await self._workers.run_to_end(
                make_marked, self._fs, to, partition, here, unique
            )
            # On the loop: the topic may have been made anew meanwhile, in that very folder.
            if not self._is_log(source):
                self._directories.discard([made], 0)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is gone")
            self._remove_unfinished(path)  # if this begins anew: not before, or a crash forgets it
            self._fs.rename(made, path)
            await self._workers.run_to_end(self._fs.sync_dir, to)
        except OSError as error:
            self._remove_unfinished(path)
            raise self._not_begun(partition, to, error) from None
        if not self._is_log(source):
            self._remove_unfinished(path)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is gone")
        self._require(to)  # it may have failed meanwhile

    def _require(self, folder: str) -> None:
        """Nothing goes into a folder that is offline, though its disk may work again: nobody looks
        for a log there before the next start. Raises KafkaError."""
        if folder not in self._directories.folders:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the data folder {folder} is offline")

    def _remove_unfinished(self, path: str) -> None:
        if is_unfinished(self._fs, path):  # else it is a log
            throw_away(self._directories, self._fs, path)

    def _is_log(self, log: Log) -> bool:
        return log.failure is None and self._directories.logs.get(log.partition) is log

    async def _forget_mark(self, source: Log) -> None:
        """The mark of an earlier move must not come back with the power: with that of this one,
        there would be two logs to which all others are older."""
        try:
            await self._workers.run_to_end(self._fs.sync_dir, source.folder)
        except FileNotFoundError:
            pass  # the topic has been deleted
        except OSError as error:
            raise source.storage_failed(error, "moving") from None

    def _not_begun(self, partition: TopicPartition, to: str, error: OSError) -> KafkaError:
        doing = f"beginning to move {partition}"
        if error.errno not in FULL and not concerns_one_file(error):
            self._directories.file_failed(to, error, doing, to)
        why = error.strerror or str(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{doing} to {to} failed: {why}")

    def _take(self, move: Move) -> None:
        move.source.compaction.paused = True
        self._moves[move.partition] = move
        self._go_on()

    def _go_on(self) -> None:
        """Have as many logs copied as may be at the same time, in the order they were asked for."""
        if not self._started:
            return
        room = self.at_once() or len(self._directories.folders)
        room -= sum(move.running for move in self._moves.values())
        for move in self._moves.values():
            if room <= 0:
                break
            if not move.running:
                move.running = True
                room -= 1
                self._spawn(self._run(move))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._watched.start("moving a log", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, move: Move) -> None:
        try:
            await self._carry_out(move)
        except KafkaError as error:
            self._end(move, error.message or str(error))
        except Exception as error:
            logger.exception("moving %s failed", move.partition)
            self._end(move, f"{type(error).__name__}: {error}")
        finally:
            move.running = False
        if self._moves.get(move.partition) is move:  # a log has failed, and nobody said so
            self._end(move, move.log.failure or move.source.failure or "it has ended")
        self._go_on()

    def _end(self, move: Move, reason: str) -> None:
        """Give a move up: the log stays where it is."""
        if self._moves.get(move.partition) is not move:
            return
        del self._moves[move.partition]
        self._given_up += 1
        logger.error(
            "the move of %s from %s to %s is given up, it stays where it is: %s",
            move.partition,
            _data_folder(move.source),
            move.to,
            reason,
        )
        self._discard(move)

    def _discard(self, move: Move) -> None:
        move.over = True
        move.source.compaction.paused = False
        path = move.log.folder
        move.log.deleted(path)
        if move.to in self._directories.folders:
            throw_away(self._directories, self._fs, path)

    # --- copying ------------------------------------------------------------------------------

    async def _carry_out(self, move: Move) -> None:
        while self._directories.cleaner.is_cleaning(move.partition) and not move.ended:
            await asyncio.sleep(_PAUSE)
        pause = _PAUSE
        while not move.ended:
            try:
                await self.copying.copy(move)
                if not move.ended and await self._take_over(move):
                    break
            except OutOfDescriptors:
                pass  # it was said, and may pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if move.partition in self._settling:
            try:
                await self._settle(move)
            finally:
                self._settling.discard(move.partition)

    # --- taking over --------------------------------------------------------------------------

    async def _take_over(self, move: Move) -> bool:
        """Let the copy take the log's place; False: not now."""
        source, log, cuts = move.source, move.log, move.cuts
        await self.copying.copy(move, upto=source.log_end_offset)
        if move.ended or not self._is_quiet(move, cuts):
            return False
        log.high_watermark = source.high_watermark
        log.advance_start(min(source.log_start_offset, log.log_end_offset))
        log.compaction.cleaned_to = source.compaction.cleaned_to
        move.arriving = True
        try:
            await self._flush(log)
            known = len(log.truncations)
            if not await self._directories.write_checkpoints():
                return False
            async with asyncio.timeout(_HOLD_SECONDS), self._holding(source):
                upto = source.log_end_offset
                for _ in range(_ROUNDS):
                    await self.copying.copy(move, upto=upto, paced=False)
                    await self._flush(log)
                    # What was cut off meanwhile must not be what the checkpoints call durable.
                    if (
                        move.ended
                        or not self._is_quiet(move, cuts)
                        or known != len(log.truncations)
                    ):
                        return False
                    if self._replace(move):
                        return True
        except TimeoutError:
            pass
        finally:
            move.arriving = False
        return False

    @asynccontextmanager
    async def _holding(self, log: Log) -> AsyncIterator[None]:
        commit = self._directories.group_commit
        try:
            await commit.hold(log)
            yield
        finally:
            commit.release(log)

    def _is_quiet(self, move: Move, cuts: int) -> bool:
        """Whether nobody is in the middle of cutting the log, and nobody was since."""
        source = move.source
        if source.truncating_to is not None or source.has_unsynced_truncation:
            return False
        if len(source.truncations) != cuts:
            return False
        return self.owner is None or self.owner.may_replace(move.partition)

    async def _flush(self, log: Log) -> None:
        await self._directories.group_commit.wait_flushed(log, log.log_end_offset)

    def _replace(self, move: Move) -> bool:
        """In one turn of the loop: copy what is missing still, and let the copy be the log."""
        source, log, commit = move.source, move.log, self._directories.group_commit
        self.copying.follow(move)
        missing = missing_bytes(move)
        if commit.is_flushing(log) or missing > 2 * move.chunk:
            return False
        if log.recovery_point < source.recovery_point and (missing or log.unflushed_messages):
            return False
        while log.log_end_offset < source.log_end_offset:
            upper = source.log_end_offset
            offset = max(log.log_end_offset, source.log_start_offset)
            region = source.read(offset, move.chunk, upper=upper).region
            if region is None:
                break
            self.copying.append(move, region.read())
        old = source.folder
        try:
            log.following.succeed(source)
            if log.lost_records or log.has_gap:
                mark_lost(self._fs, log.folder, gap=log.has_gap)
            mark_moved(self._fs, log.folder)
        except OSError as error:
            failed = log.storage_failed(error, "taking over")
            # It may share what the other log knows by now: it is not to be gone on with.
            log.take_offline(failed.message or str(failed))
            raise failed from None
        del self._moves[move.partition]
        move.over = move.host.arrived = True
        self._left[move.partition] = old, source.config.file_delete_delay_ms
        self._settling.add(move.partition)
        self._directories.replace(source, log)
        commit.hand_over(source, log)
        source.deleted(old)
        if self.owner is not None:
            self.owner.replaced(move.partition, log)
        self._finished += 1
        return True

    async def _settle(self, move: Move) -> None:
        """The copy is the log: make that durable, then remove what was the log before."""
        partition, log, here = move.partition, move.log, _data_folder(move.source)
        logger.info("%s was moved from %s to %s", partition, here, move.to)
        self._directories.group_commit.request(log)  # its small files, too
        with suppress(KafkaError):  # a truncation may have taken what was to be flushed
            await self._flush(log)
        if log.failure is not None:
            return
        try:
            await self._sync_names(log.folder)
        except FileNotFoundError:
            return  # the topic has been deleted
        except OSError as error:
            log.storage_failed(error, "moving")
            return
        self._retire(partition)
        try:
            await self._sync_names(here)
        except OSError as error:
            self._directories.file_failed(here, error, "moving a log away", here)
            return
        try:
            remove_mark(self._fs, log.folder)
        except OSError as error:
            log.storage_failed(error, "moving")

    async def _sync_names(self, folder: str) -> None:
        """Sync a folder, as soon as there is a descriptor for it. Raises OSError."""
        pause = _PAUSE
        while True:
            try:
                await self._workers.run_to_end(self._fs.sync_dir, folder)
            except OSError as error:
                if not is_shortage(error):
                    raise
                short_of_descriptors(error, "moving", folder)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _retire(self, partition: TopicPartition) -> None:
        """Rename the folder that a log has left, if that was not done."""
        left = self._left.pop(partition, None)
        if left is None:
            return
        path, delay_ms = left
        throw_away(self._directories, self._fs, path, delay_ms=delay_ms)
        self._directories.checkpoint_soon()


def _data_folder(log: Log) -> str:
    return log.folder.rpartition("/")[0]
