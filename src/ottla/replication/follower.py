"""Following: one fetcher for all partitions that are led by the same broker.

A fetcher asks its leader for what comes after the end of each log, appends what it gets as it is,
and asks again: the next request tells the leader how far this follower has come. One request is in
flight; it names only what has changed since the one before (KIP-227). A round costs what it has to
do: partitions about which the leader said nothing, and which nobody has touched, are not looked at.

Each request names the epoch of the last record of a log. Where the leader has another history it
says up to where that epoch reached in its own, and the follower drops what is beyond (KIP-595);
then it asks again, until both agree.

A topic may ask for fsync before anything counts (`flush.messages`): then a follower syncs what it
got before its next request tells the leader of it, all such partitions together.

A truncation that has begun is carried through, whoever leads meanwhile; another leader is asked
when it is over.

A partition that is held back, to spare the network while it catches up (`throttle.py`), is left out
of the requests for a moment.

A leader that does not answer is tried again after a pause. What the image says meanwhile comes
before: a partition whose leader has moved leaves this fetcher, and one that is new to it, or has a
new epoch, ends the pause; but not at once, since many may come one after the other, and each time
all are asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ottla.config.broker import BrokerConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, TopicId, TopicPartition
from ottla.replication.partition import Partition
from ottla.runtime.clock import SystemClock
from ottla.runtime.logs import RateLimit
from ottla.runtime.tasks import Tasks
from ottla.storage.following import UnexpectedOffset
from ottla.storage.truncation import Cut

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.02
LEAST_PAUSE = 0.02
"""After a leader did not answer, whatever is new."""
HELD_BACK_SECONDS = 0.1
EARLIEST = -2
LATEST = -1
UNKNOWN_OFFSET = -1
COMPLAIN_SECONDS = 60.0
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors of the leader's that the next image or a moment puts right."""


class Wanted(NamedTuple):
    """What is asked of the leader about one partition."""

    partition: Partition
    offset: int
    leader_epoch: int
    last_epoch: int
    log_start: int


@dataclass(slots=True)
class Fetched:
    """What the leader answered about one partition."""

    partition: Partition
    error: ErrorCode
    records: memoryview
    high_watermark: int
    log_start: int
    diverging_epoch: int = NO_LEADER_EPOCH
    diverging_end: int = UNKNOWN_OFFSET


class Unreachable(Exception):
    """The leader did not answer; the message says why."""


class LeaderEndpoint(Protocol):
    """The leader, as a follower needs it."""

    @property
    def remembers(self) -> bool:
        """Whether the leader knows what it was asked last: else the next fetch has to name it."""
        ...

    async def fetch(
        self, wanted: Collection[Wanted], forgotten: Collection[Partition]
    ) -> list[Fetched]:
        """Ask; `wanted` has those that changed since the last answer. Raises Unreachable."""
        ...

    async def offset(self, partition: Partition, which: int) -> int:
        """The first (EARLIEST) or the next (LATEST) offset of the leader's log."""
        ...

    def reset(self) -> None:
        """Begin anew: the next fetch names every partition."""
        ...

    def close(self) -> None: ...


class Fetcher:
    """Fetches from one leader."""

    def __init__(
        self,
        leader: int,
        endpoint: LeaderEndpoint,
        config: Callable[[], BrokerConfig],
        truncate: Callable[[Sequence[Cut]], Awaitable[None]],
        holds_back: Callable[[Partition, int], bool] = lambda partition, size: False,
    ) -> None:
        self._leader = leader
        self._truncate = truncate
        self._endpoint = endpoint
        self._config = config
        # Told how many bytes of a partition came; whether it is to wait.
        self._holds_back = holds_back
        self._partitions: dict[TopicPartition, Partition] = {}
        self._complaints = RateLimit(logger, SystemClock(), burst=1, interval=COMPLAIN_SECONDS)
        self._touched: dict[TopicPartition, Partition] = {}  # the leader may know it otherwise
        self._asked: dict[TopicPartition, Wanted] = {}  # as the leader knows it
        self._unsynced: dict[TopicPartition, Partition] = {}  # it is not to know of yet
        self._forgotten: dict[tuple[TopicId, int], Partition] = {}
        self._resting: dict[TopicPartition, float] = {}  # after an error: not before this time
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        """Follow a partition, or go on under a new epoch of its leader."""
        self._partitions[partition.id] = self._touched[partition.id] = partition
        if partition.log.flush_due:
            self._unsynced[partition.id] = partition
        self._forgotten.pop(_key(partition), None)
        self._resting.pop(partition.id, None)
        self._awake.set()

    def remove(self, partition: Partition) -> None:
        self._partitions.pop(partition.id, None)
        self._touched.pop(partition.id, None)
        self._resting.pop(partition.id, None)
        if self._asked.pop(partition.id, None) is not None:
            self._forgotten[_key(partition)] = partition

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(f"following broker {self._leader}", self._run(), endless=True)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._endpoint.close()

    async def stopped(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # ------------------------------------------------------------------ fetching

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        reported = False
        while True:
            if not self._partitions:
                self._awake.clear()
                await self._awake.wait()
                continue
            try:
                await self._round()
            except Unreachable as error:
                if not reported:
                    logger.warning("broker %d cannot be followed: %s", self._leader, error)
                reported = True
                self._begin_anew()
                await asyncio.sleep(LEAST_PAUSE)
                await self._doze(pause - LEAST_PAUSE)
                pause = min(2 * pause, self._config().replica_fetch_backoff_ms / 1000)
            else:
                if reported:
                    logger.info("broker %d is followed again", self._leader)
                reported = False
                pause = FIRST_PAUSE

    def _begin_anew(self) -> None:
        self._asked.clear()
        self._forgotten.clear()
        self._endpoint.reset()

    async def _doze(self, seconds: float) -> None:
        """Wait, unless there is something new to follow since the last round, or from now on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    async def _round(self) -> None:
        await self._sync()
        self._awake.clear()
        now = asyncio.get_running_loop().time()
        wanted = self._wanted(now)
        if not self._asked:
            await self._doze(max(0.0, min(self._resting.values(), default=now) - now))
            return
        forgotten, self._forgotten = self._forgotten, {}
        answers = await self._endpoint.fetch(wanted, forgotten.values())
        cuts: dict[Partition, Cut] = {}
        begun_before: list[Fetched] = []
        for answer in answers:
            partition = answer.partition
            if partition.id in self._partitions:
                self._touched[partition.id] = self._partitions[partition.id]
            if not self._is_current(partition):
                continue
            try:
                cut = await self._take(answer)
            except KafkaError as error:
                self._fail(partition, error)
            else:
                if cut is not None:
                    cuts[partition] = cut
                    if len(answer.records):
                        begun_before.append(answer)
        await self._make(cuts)
        for answer in begun_before:
            self._take_from(answer, cuts[answer.partition].offset)

    def _wanted(self, now: float) -> list[Wanted]:
        """What the leader is to be told of: how far the logs have come that it may know
        otherwise. Those that rest are forgotten by it."""
        if not self._endpoint.remembers:
            self._asked.clear()
            self._forgotten.clear()
        if not self._asked:
            self._touched = dict(self._partitions)
        elif self._resting:
            for tp in self._resting:
                self._touched[tp] = self._partitions[tp]
        wanted = []
        for tp, partition in self._touched.items():
            self._lay_to_rest(partition, now)
            if self._resting and self._resting.get(tp, 0.0) > now:
                if self._asked.pop(tp, None) is not None:
                    self._forgotten[_key(partition)] = partition
                continue
            want = _wanted(partition)
            if self._asked.get(tp) != want:
                self._asked[tp] = want
                self._forgotten.pop(_key(partition), None)
                wanted.append(want)
        self._touched.clear()
        return wanted

    def _lay_to_rest(self, partition: Partition, now: float) -> None:
        """Leave a partition out that must not be asked for now."""
        if partition.truncating:
            # By the fetcher of an earlier leader: what is asked for now might be cut off after
            # it was counted.
            self._resting[partition.id] = now + FIRST_PAUSE
        elif self._holds_back(partition, 0):
            self._resting[partition.id] = now + HELD_BACK_SECONDS

    def _is_current(self, partition: Partition) -> bool:
        """Whether the partition is still followed here, as it was when the leader was asked."""
        asked = self._asked.get(partition.id)
        return (
            asked is not None
            and self._is_followed(partition, asked)
            and asked.offset == partition.log.log_end_offset
        )

    def _is_followed(self, partition: Partition, asked: Wanted) -> bool:
        return (
            self._partitions.get(partition.id) is partition
            and not partition.leading
            and not partition.truncating
            and asked.leader_epoch == partition.leader_epoch
        )

    async def _make(self, cuts: dict[Partition, Cut]) -> None:
        """Cut logs, all together: so the folders' checkpoints are written once."""
        current = {each: cut for each, cut in cuts.items() if self._is_current(each)}
        if not current:
            return
        for partition in current:
            partition.begin_truncation()

        def done(_: object) -> None:
            for partition in current:
                partition.end_truncation()

        # Who is stopped meanwhile leaves it to its end: half of it would be worse than either.
        cutting = asyncio.ensure_future(self._truncate(list(current.values())))
        cutting.add_done_callback(done)
        try:
            await asyncio.shield(cutting)
        except KafkaError as error:
            for partition in current:
                self._fail(partition, error)

    async def _take(self, answer: Fetched) -> Cut | None:
        """Append what came; or say where the log has to be cut first."""
        partition = answer.partition
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._meet(partition)
        if answer.error is not ErrorCode.NONE:
            self._rest(partition, answer.error.name)
        elif answer.diverging_epoch != NO_LEADER_EPOCH or answer.diverging_end >= 0:
            return Cut(partition.id, _common_end(partition, answer))
        else:
            try:
                partition.append_replicated(answer.records, answer.high_watermark, answer.log_start)
            except UnexpectedOffset as error:
                # The leader's first offset lies inside of a batch, which was sent whole. The log
                # begins with that batch, then, and takes this answer (`_take_from`): the leader
                # would not give it to who asks for its first record.
                log = partition.log
                if log.log_start_offset == log.log_end_offset:
                    return Cut(partition.id, error.first_offset, fully=True)
                if error.first_offset < partition.high_watermark:
                    raise
                # This log has other records there. The leader's epochs do not tell that any more:
                # what was before its first offset is deleted.
                return Cut(partition.id, error.first_offset)
            self._resting.pop(partition.id, None)
            self._holds_back(partition, len(answer.records))
            if partition.log.flush_due:
                self._unsynced[partition.id] = partition
        return None

    async def _sync(self) -> None:
        """Sync what has to be before the leader is told of it."""
        waiting: list[tuple[Partition, asyncio.Future[None]]] = []
        while self._unsynced:
            tp, partition = self._unsynced.popitem()
            if self._partitions.get(tp) is partition and not partition.leading:
                flush = partition.wait_written()
                if flush is not None:
                    waiting.append((partition, flush))
        for partition, flush in waiting:
            try:
                await flush
            except KafkaError as error:
                self._fail(partition, error)
                if self._partitions.get(partition.id) is partition:
                    self._unsynced[partition.id] = partition

    def _take_from(self, answer: Fetched, offset: int) -> None:
        """Append to a log that was made to begin where the answer does."""
        partition, asked = answer.partition, self._asked.get(answer.partition.id)
        log = partition.log
        if asked is None or not self._is_followed(partition, asked) or log.log_end_offset != offset:
            return
        try:
            partition.append_replicated(answer.records, answer.high_watermark, answer.log_start)
        except KafkaError as error:
            self._fail(partition, error)
            return
        if partition.log.flush_due:
            self._unsynced[partition.id] = partition

    async def _meet(self, partition: Partition) -> Cut | None:
        """The leader's log does not reach to the end of this one, or starts behind it."""
        latest = await self._endpoint.offset(partition, LATEST)
        end = partition.log.log_end_offset
        if latest < end:
            logger.warning(
                "%s: the leader's log ends at %d, this one at %d", partition.id, latest, end
            )
            return Cut(partition.id, latest)
        earliest = await self._endpoint.offset(partition, EARLIEST)
        if earliest > end:
            logger.info(
                "%s: the leader's log starts at %d; beginning there", partition.id, earliest
            )
            return Cut(partition.id, earliest, fully=True)
        self._rest(partition, ErrorCode.OFFSET_OUT_OF_RANGE.name)
        return None

    def _fail(self, partition: Partition, error: KafkaError) -> None:
        """What came cannot be taken. Unless the image is about to change that does not pass by
        itself, and nothing else tells why this replica falls behind."""
        reason = f"{error.code.name}: {error.message or error.code.text}"
        if error.code not in PASSING:
            self._complaints.warning(
                str(partition.id),
                "%s: cannot follow broker %d, and tries again: %s",
                partition.id,
                self._leader,
                reason,
            )
        self._rest(partition, reason)

    def _rest(self, partition: Partition, reason: str) -> None:
        """Leave a partition alone for a while: usually the image is about to change."""
        if self._partitions.get(partition.id) is not partition:
            return
        logger.debug("%s: not followed for a moment: %s", partition.id, reason)
        pause = self._config().replica_fetch_backoff_ms / 1000
        self._resting[partition.id] = asyncio.get_running_loop().time() + pause


def _key(partition: Partition) -> tuple[TopicId, int]:
    """What a partition is to the leader's session: another topic of the same name is another."""
    return partition.topic_id, partition.id.partition


def _wanted(partition: Partition) -> Wanted:
    log = partition.log
    last = log.latest_epoch
    return Wanted(
        partition,
        log.log_end_offset,
        partition.leader_epoch,
        NO_LEADER_EPOCH if last is None else last,
        log.log_start_offset,
    )


def _common_end(partition: Partition, answer: Fetched) -> int:
    """Up to where the two logs have the same records, as far as this answer tells."""
    end = partition.log.log_end_offset
    if answer.diverging_epoch == NO_LEADER_EPOCH:
        return min(answer.diverging_end, end)
    epoch, local_end = partition.log.epoch_end_offset(answer.diverging_epoch)
    if local_end < 0:
        return min(answer.diverging_end, end)
    if epoch != answer.diverging_epoch:
        return min(local_end, end)
    return min(answer.diverging_end, local_end, end)
