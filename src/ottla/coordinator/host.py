"""The host: runs the shards of an internal topic that this broker leads.

For each partition of the topic led by this broker there is a `Slot`. It loads the partition's log
into a new shard, slice by slice, with COORDINATOR_LOAD_IN_PROGRESS for whoever asks meanwhile; then
it runs commands; when the partition is led elsewhere or its disk fails it is gone, and everybody is
told NOT_COORDINATOR.

A command runs in one call: handle, write and replay (see `writing`), `after`. Its own reply is
given first. Those of others that it brought about follow in the loop's next turn: giving one may
bring the next command, and a group's leader, who has the most to do, should not be the last to
know. The straight path makes no future and no task.

Time-outs are the shard's deadlines; a slot has at most one timer of the loop, set to the earliest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from ottla.cluster.registry import ImageChange
from ottla.coordinator.loading import replay_log
from ottla.coordinator.shard import Answer, Now, Parked, Result, Shard, Work
from ottla.coordinator.writing import Turn, Writer, WriterSettings, as_coordinator, settle
from ottla.errors import ErrorCode, KafkaError
from ottla.model.image import ClusterImage
from ottla.records.batch import InvalidBatch
from ottla.replication.partition import Partition
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.faults import OutOfDescriptors

logger = logging.getLogger(__name__)

SHORTAGE_SECONDS = 0.5  # to wait for a free descriptor
LONG_LOAD_SECONDS = 1.0


class Partitions(Protocol):
    """Where partitions are found."""

    def by_name(self, topic: str, index: int) -> Partition:
        """The partition, led by this broker. Raises KafkaError."""
        ...


class HostSettings(WriterSettings, Protocol):
    """What of the broker's settings the host reads."""

    @property
    def load_buffer_bytes(self) -> int: ...


class Host:
    """The shards of one internal topic."""

    def __init__(  # noqa: PLR0913 - handed in once, by name, by the composition root
        self,
        topic: str,
        node_id: int,
        *,
        partitions: Partitions,
        clock: Clock,
        workers: Workers,
        tasks: Tasks | None = None,
        settings: HostSettings,
        make_shard: Callable[[int, ClusterImage], Shard],
        on_loaded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.topic = topic
        self._node_id = node_id
        self.partitions = partitions
        self.clock = clock
        self.workers = workers
        self.tasks = tasks or Tasks()
        self.settings = settings
        self.make_shard = make_shard
        self.on_loaded = on_loaded
        self.image = ClusterImage()
        # One piece of work at a time: the threads are shared with fsync.
        self.work_turn = asyncio.Semaphore(1)
        self.turn = Turn()
        self._slots: dict[int, Slot] = {}
        self._closed = False

    def now(self) -> Now:
        clock = self.clock
        return Now(clock.now_ms(), int(clock.monotonic() * 1000))

    # ------------------------------------------------------------------ commands

    def run(self, index: int, command: Any) -> Any:
        """The reply, or a Deferred of it. Raises KafkaError."""
        slot = self._slots.get(index)
        if slot is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return slot.run(command)

    def run_everywhere(self, make: Callable[[], Any]) -> list[Any]:
        """The replies (or Deferreds) of all shards to a command each. Raises KafkaError when one
        is still being loaded."""
        return [slot.run(make()) for slot in tuple(self._slots.values())]

    def notify(self, command: Any) -> None:
        """Run a command on every shard, after loading if need be; nobody waits for the outcome."""
        for slot in tuple(self._slots.values()):
            slot.notify(command)

    def slot(self, index: int) -> Slot | None:
        """One partition of the topic, if it is led here."""
        return self._slots.get(index)

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._slots.values()))

    # ------------------------------------------------------------------ leadership

    def apply(self, change: ImageChange) -> None:  # noqa: C901 - one branch for each: gone, new, replaced, offline
        """Follow the cluster: load what has become ours, let go what is no longer."""
        self.image = change.new
        if self._closed or self.topic not in change.topics:
            return
        topic = change.new.topics.get(self.topic)
        mine: dict[int, int] = {}
        if topic is not None:
            for index, state in enumerate(topic.partitions):
                if state.leader == self._node_id:
                    mine[index] = state.leader_epoch
        for index in tuple(self._slots):
            if index not in mine:
                self.unload(index)
        for index in mine:
            try:
                partition = self.partitions.by_name(self.topic, index)
            except KafkaError as error:
                logger.error("%s-%d cannot be coordinated: %s", self.topic, index, error)
                self.unload(index)
                continue
            slot = self._slots.get(index)
            if slot is not None and slot.partition is not partition:
                self.unload(index)
                slot = None
            if slot is None:
                self._slots[index] = Slot(self, index, partition)

    def unload(self, index: int) -> None:
        """The shard is no longer ours."""
        slot = self._slots.pop(index, None)
        if slot is not None:
            slot.close()

    def reload(self, index: int) -> None:
        """The state in memory cannot be trusted: make it anew from the log."""
        slot = self._slots.pop(index, None)
        if slot is not None:
            slot.close()
            self._slots[index] = Slot(self, index, slot.partition, slot.missed)

    async def wait_loaded(self) -> None:
        """Returns when nothing is being loaded."""
        while loading := [slot.loading for slot in self if slot.loading is not None]:
            await asyncio.wait(loading)

    async def close(self) -> None:
        """Let go of everything, and take on nothing any more."""
        self._closed = True
        tasks = [slot.loading for slot in self if slot.loading is not None]
        for slot in self:
            slot.writer.write()
            self.unload(slot.index)
        if tasks:
            await asyncio.wait(tasks)


class Slot:
    """One partition: its shard, and what is needed to run it."""

    def __init__(
        self, host: Host, index: int, partition: Partition, missed: Iterable[Any] = ()
    ) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.index = index
        self.partition = partition
        self.shard = host.make_shard(index, host.image)
        self.writer = Writer(partition, self.shard, host.turn, host.settings, self._lost_trust)
        self.active = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._working: dict[Any, asyncio.Task[None]] = {}
        self._answers: list[Answer] = []  # to be given in the next turn
        self.missed: list[Any] = list(missed)  # what has happened since the loading began
        self.loading: asyncio.Task[None] | None = host.tasks.start(
            f"loading {partition.id}", self._load()
        )

    # ------------------------------------------------------------------ loading

    async def _load(self) -> None:
        started = self._host.clock.monotonic()
        try:
            count = await replay_log(
                self.partition.log,
                self.shard,
                slice_bytes=self._host.settings.load_buffer_bytes,
                clock=self._host.clock,
                workers=self._host.workers,
            )
        except asyncio.CancelledError:
            return
        except OutOfDescriptors:
            self._loop.call_later(SHORTAGE_SECONDS, self._host.reload, self.index)
            return
        except (KafkaError, InvalidBatch) as error:
            logger.error("%s cannot be loaded: %s", self.partition.id, error)
            self._host.unload(self.index)
            return
        except Exception:
            logger.exception("%s cannot be loaded", self.partition.id)
            self._host.unload(self.index)
            return
        finally:
            self.loading = None
        if self._closed:
            return
        seconds = self._host.clock.monotonic() - started
        self._host.on_loaded(seconds)
        logger.log(
            logging.INFO if seconds > LONG_LOAD_SECONDS else logging.DEBUG,
            "%s: loaded %d records in %d ms",
            self.partition.id,
            count,
            seconds * 1000,
        )
        now = self._host.now()
        first = self.shard.loaded(now)
        self.active = True
        missed, self.missed = self.missed, []
        for command in (*first, *missed):
            self.run_quietly(command)
        self._arm(now)

    def close(self) -> None:
        """Everybody who waits here must look for the coordinator elsewhere."""
        self._closed = True
        self.active = False
        if self.loading is not None:
            self.loading.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._working.values():
            task.cancel()
        error = KafkaError(ErrorCode.NOT_COORDINATOR)
        taken_back = [(parked, error) for parked, _ in self._answers]
        for parked, value in (*self.shard.unload(error), *taken_back):
            if parked.waiting is not None:
                settle(parked.waiting, value)
        self.writer.close(error)

    def _lost_trust(self, error: KafkaError) -> None:
        """What is in memory is not what is in the log: it is made anew, here or elsewhere."""
        self.active = False
        elsewhere = error.code is ErrorCode.NOT_COORDINATOR
        again = self._host.unload if elsewhere else self._host.reload
        self._loop.call_soon(again, self.index)

    # ------------------------------------------------------------------ running

    def run(self, command: Any) -> Any:
        """The reply, or a Deferred of it. Raises KafkaError."""
        if not self.active:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        now = self._host.now()
        try:
            result = self.shard.handle(command, now)
        except KafkaError as refusal:
            return self.writer.reply(refusal)
        if not result.records and not result.answers and result.after is None:
            reply = result.reply  # nothing to write: the straight path of heartbeats and fetches
            if result.work:
                self._begin(result.work)
        else:
            reply = self._carry_out(result, now)
        due = self.shard.next_due_ms
        if due is not None and (self._timer is None or due < self._timer_due):
            self._arm(now)
        if type(reply) is Parked:
            return self._park(reply)
        return self.writer.reply(reply)

    def notify(self, command: Any) -> None:
        """Run a command now or, while the shard is being loaded, when it has been."""
        if self.active:
            self.run_quietly(command)
        else:
            self.missed.append(command)

    def run_quietly(self, command: Any) -> None:
        """Run a command whose reply nobody waits for."""
        try:
            self.run(command)
        except KafkaError as error:
            logger.warning("%s: %r failed: %s", self.partition.id, command, error)
        except Exception:
            logger.exception("%s: %r failed", self.partition.id, command)

    def _carry_out(self, result: Result, now: Now) -> Any:
        """Append, replay, go on; the reply."""
        answers: list[Answer] = []
        reply = self._apply(result, now, answers)
        for parked, value in answers:
            if parked is reply:
                self.writer.answer(self._park(parked), value)
            elif self.writer.gathering:
                self._answer(parked, value)
            else:
                if not self._answers:
                    self._loop.call_soon(self._give_answers)
                self._answers.append((parked, value))
        return reply

    def _give_answers(self) -> None:
        answers, self._answers = self._answers, []
        if not self._closed:
            for parked, value in answers:
                self._answer(parked, value)

    def _apply(self, result: Result, now: Now, answers: list[Answer]) -> Any:
        reply = result.reply
        error: KafkaError | None = None
        if result.records:
            try:
                self.writer.record(result, now)
            except KafkaError as failure:
                reply = error = as_coordinator(failure)
                if error.code is ErrorCode.NOT_COORDINATOR and not self.writer.broken:
                    self._loop.call_soon(self._host.unload, self.index)
        if error is None:
            answers.extend(result.answers)
            if result.work:
                self._begin(result.work)
        if result.after is not None:
            followed = result.after(error, now)
            if followed is not None:
                more = self._apply(followed, now, answers)
                if more is not None:
                    reply = more
        return reply

    def _answer(self, parked: Parked, value: Any) -> None:
        if parked.waiting is not None:
            self.writer.answer(parked.waiting, value)

    def _park(self, parked: Parked) -> Deferred[Any]:
        if parked.waiting is None:
            parked.waiting = Deferred()
        waiting: Deferred[Any] = parked.waiting
        return waiting

    # ------------------------------------------------------------------ time and work

    def _arm(self, now: Now) -> None:
        due = self.shard.next_due_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None and not self._closed:
            self._timer_due = due
            self._timer = self._loop.call_later(max(due - now.ms, 0) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self.active:
            return
        now = self._host.now()
        try:
            due = self.shard.due(now)
        except Exception as error:
            # The timer would not be set again: no session of this shard would ever time out.
            self._host.tasks.died(f"looking for time-outs in {self.partition.id}", error)
            return
        for command in due:
            self.run_quietly(command)
        if self.active:
            self._arm(self._host.now())

    def _begin(self, work: Sequence[Work]) -> None:
        for it in work:
            if it.key not in self._working:
                self._working[it.key] = self._host.tasks.start(
                    f"work for {self.partition.id}", self._do(it)
                )

    async def _do(self, work: Work) -> None:
        outcome, error = None, None
        try:
            async with self._host.work_turn:
                outcome = await self._host.workers.run_in_thread(work.function)
        except asyncio.CancelledError:
            raise
        except Exception as failure:
            error = failure
        finally:
            self._working.pop(work.key, None)
        if self.active:
            self.run_quietly(work.command(outcome, error))
