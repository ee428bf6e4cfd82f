"""The host: runs the shards of an internal topic that this broker leads.

For each partition of the topic led by this broker there is a `Slot`. It loads the partition's log
into a new shard, slice by slice, with COORDINATOR_LOAD_IN_PROGRESS for whoever asks meanwhile; then
it runs commands; when the partition is led elsewhere or its disk fails it is gone, and everybody is
told NOT_COORDINATOR. A slot stands for one leader epoch. A new epoch means that another broker may
have led in between, so the shard is loaded anew, even if this broker leads again or still.

A command runs in one call: handle, write and replay, `after`, and again while `after` brings more.
That makes one reply, and answers to earlier commands. Whether they may be known yet is for
`writing` to say; the reply is given first, and on the straight path without a future or a task.
There is a picture in docs/internals/groups.md.

Time-outs are the shard's deadlines; a slot has at most one timer of the loop, set to the earliest.

A coordinator that was cut off may not know that there is another one. What it would tell from
memory, committed offsets, it tells only while it is certain (`replication/lease.py`); in doubt for
longer than a moment it sends its clients to look for the coordinator, and has a follower that says
nothing any more taken out of the in-sync replicas, as a write would. To those who only say that
they live it listens in doubt, too, or they would lose their membership by a follower that stands
still; but it confirms nothing, or a member that was replaced elsewhere would go on for ever. Nor
does it let anybody wait for others who may have gone there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ottla.cluster.registry import ImageChange
from ottla.coordinator.errors import as_coordinator
from ottla.coordinator.loading import replay_log
from ottla.coordinator.replies import begin, settle
from ottla.coordinator.shard import Answer, Now, Parked, Result, Shard, Work
from ottla.coordinator.writing import Turn, Writer, WriterSettings
from ottla.errors import ErrorCode, KafkaError
from ottla.model.image import ClusterImage
from ottla.records.batch import InvalidBatch
from ottla.replication.marker import Marker
from ottla.replication.partition import Partition
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import AppendInfo

logger = logging.getLogger(__name__)

SHORTAGE_SECONDS = 0.5  # to wait for a free descriptor
LONG_LOAD_SECONDS = 1.0
TRUNCATION_PAUSE = 0.01
WATCH_PAUSE = 0.02
EFFECT_PAUSE = 0.1
DOUBT_SECONDS = 1.0
"""How long a question waits for certainty: a follower that was late vouches again meanwhile."""


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
        on_effect: Callable[[Slot, Any], None] = lambda slot, effect: None,
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
        self.on_effect = on_effect
        self.image = ClusterImage()
        # One piece of work at a time: the threads are shared with fsync.
        self.work_turn = asyncio.Semaphore(1)
        self.turn = Turn()
        self._slots: dict[int, Slot] = {}
        self._looking_again: asyncio.TimerHandle | None = None
        self._watched: dict[Slot, None] = {}  # those that wait for what nobody tells them of
        self._watcher: asyncio.TimerHandle | None = None
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

    def run_certainly(self, index: int, command: Any) -> Any:
        """As `run`, for a reply that must not be older than what another coordinator has told."""
        slot = self._slots.get(index)
        if slot is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return slot.run_certainly(command)

    def run_and_confirm(
        self, index: int, command: Any, at_once: Callable[[Any], bool] = lambda reply: False
    ) -> Any:
        """As `run`, for a sign of life: it counts at once, the reply waits for who is in doubt,
        unless it may be told `at_once`."""
        slot = self._slots.get(index)
        if slot is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return slot.run_and_confirm(command, at_once)

    def run_together(self, index: int, command: Any) -> Any:
        """As `run_and_confirm`, for a reply that may wait for what others do."""
        slot = self._slots.get(index)
        if slot is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return slot.run_together(command)

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

    def apply(self, change: ImageChange) -> None:
        """Follow the cluster; after the partitions have."""
        self.image = change.new
        if self.topic in change.topics or self._node_id in change.brokers:
            self.look()

    def look(self) -> None:  # noqa: C901, PLR0912 - one branch for each: gone, new, replaced, offline
        """Load partitions that this broker leads now, unload the others.

        A broker leads only while it is registered and admitted: so there is something to look at
        when that has changed, too, although no partition has.
        """
        if self._closed:
            return
        topic = self.image.topics.get(self.topic)
        mine: dict[int, int] = {}
        if topic is not None:
            for index, state in enumerate(topic.partitions):
                if state.leader == self._node_id:
                    mine[index] = state.leader_epoch
        for index in tuple(self._slots):
            if index not in mine:
                self.unload(index)
        for index, epoch in mine.items():
            try:
                partition = self.partitions.by_name(self.topic, index)
            except OutOfDescriptors:
                self.unload(index)
                self._look_again()
                continue
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:  # the broker is not admitted
                    logger.error("%s-%d cannot be coordinated: %s", self.topic, index, error)
                self.unload(index)
                continue
            slot = self._slots.get(index)
            if slot is None:
                self._slots[index] = Slot(self, index, partition, epoch)
            elif slot.partition is not partition:
                self.unload(index)
                self._slots[index] = Slot(self, index, partition, epoch)
            elif slot.leader_epoch != epoch:
                logger.info("%s: loaded anew for leader epoch %d", partition.id, epoch)
                self._replace(slot, epoch)

    def _look_again(self) -> None:
        """A partition has no files yet, and no descriptor was free to make them."""
        if self._looking_again is None:
            loop = asyncio.get_running_loop()
            self._looking_again = loop.call_later(SHORTAGE_SECONDS, self._apply_again)

    def _apply_again(self) -> None:
        self._looking_again = None
        self.apply(ImageChange(self.image, self.image, frozenset({self.topic})))

    def watch(self, slot: Slot) -> None:
        """Have the slot look again and again, until there is nothing more that it waits for."""
        self._watched[slot] = None
        if self._watcher is None:
            loop = asyncio.get_running_loop()
            self._watcher = loop.call_later(WATCH_PAUSE, self._look_at_watched)

    def _look_at_watched(self) -> None:
        self._watcher = None
        watched, self._watched = self._watched, {}
        for slot in watched:
            if slot.look():
                self.watch(slot)

    def unload(self, index: int) -> None:
        """The shard is no longer ours."""
        slot = self._slots.pop(index, None)
        if slot is not None:
            slot.close()

    def reload(self, index: int) -> None:
        """The state in memory cannot be trusted: make it anew from the log."""
        slot = self._slots.get(index)
        if slot is not None:
            self._replace(slot, slot.leader_epoch)

    def _replace(self, slot: Slot, epoch: int) -> None:
        slot.close()
        self._slots[slot.index] = Slot(self, slot.index, slot.partition, epoch, slot.missed)

    async def wait_loaded(self) -> None:
        """Returns when nothing is being loaded."""
        while loading := [slot.loading for slot in self if slot.loading is not None]:
            await asyncio.wait(loading)

    async def close(self) -> None:
        """Unload everything, and load nothing any more."""
        self._closed = True
        if self._looking_again is not None:
            self._looking_again.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        tasks = [slot.loading for slot in self if slot.loading is not None]
        for slot in self:
            slot.writer.write()
            self.unload(slot.index)
        if tasks:
            await asyncio.wait(tasks)


class _Doubted(NamedTuple):
    """A reply that is told once it is certain that there is no other coordinator."""

    until: float
    certain: Callable[[], bool]
    reply: Callable[[], Any]
    waiting: Deferred[Any]


class Slot:
    """One partition in one leader epoch: its shard, and what is needed to run it."""

    def __init__(
        self,
        host: Host,
        index: int,
        partition: Partition,
        leader_epoch: int,
        missed: Iterable[Any] = (),
    ) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.index = index
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.shard = host.make_shard(index, host.image)
        self.writer = Writer(
            partition, leader_epoch, self.shard, host.turn, host.settings, self._lost_trust
        )
        self.active = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._effects: list[Any] = []  # of the command that runs now
        self._working: dict[Any, asyncio.Task[None]] = {}
        self._doubted: list[_Doubted] = []
        self._together: list[Deferred[Any]] = []  # replies that wait for what others do
        self.missed: list[Any] = list(missed)  # what has happened since the loading began
        self.loading: asyncio.Task[None] | None = host.tasks.start(
            f"loading {partition.id}", self._load()
        )

    # ------------------------------------------------------------------ loading

    async def _load(self) -> None:
        started = self._host.clock.monotonic()
        try:
            while self.partition.truncating:  # elected meanwhile: what goes now never counted
                await asyncio.sleep(TRUNCATION_PAUSE)
            count = await replay_log(
                self.partition,
                self.shard,
                slice_bytes=self._host.settings.load_buffer_bytes,
                clock=self._host.clock,
                workers=self._host.workers,
            )
        except asyncio.CancelledError:
            return
        except OutOfDescriptors:
            self._loop.call_later(SHORTAGE_SECONDS, self._reload)
            return
        except (KafkaError, InvalidBatch) as error:
            logger.error("%s cannot be loaded: %s", self.partition.id, error)
            self._unload()
            return
        except Exception:
            logger.exception("%s cannot be loaded", self.partition.id)
            self._unload()
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
        self.writer.loaded()
        if not self.writer.look_for_succession():
            self._host.watch(self)
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
        doubted, self._doubted = self._doubted, []
        for each in doubted:
            each.waiting.fail(error)
        for parked, value in self.shard.unload(error):
            if parked.waiting is not None:
                settle(parked.waiting, value)
        self.writer.close(error)

    def _lost_trust(self, error: KafkaError) -> None:
        """What is in memory is not what is in the log: it is made anew, here or elsewhere."""
        self.active = False
        elsewhere = error.code is ErrorCode.NOT_COORDINATOR
        self._loop.call_soon(self._unload if elsewhere else self._reload)

    def _unload(self) -> None:
        if not self._closed:  # else there may be another slot in this one's place
            self._host.unload(self.index)

    def _reload(self) -> None:
        if not self._closed:
            self._host.reload(self.index)

    # ------------------------------------------------------------------ running

    def run(self, command: Any) -> Any:
        """The reply, or a Deferred of it. Raises KafkaError."""
        if not self.active:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        now = self._host.now()
        try:
            result = self.shard.handle(command, now)
        except KafkaError as refusal:
            return self.writer.reply(refusal, command)
        if not (result.records or result.answers or result.after or result.effects):
            reply = result.reply  # nothing to write: the straight path of heartbeats and fetches
            if result.work:
                self._begin(result.work)
        else:
            reply = self._carry_out(result, command, now)
        due = self.shard.next_due_ms
        if due is not None and (self._timer is None or due < self._timer_due):
            self._arm(now)
        if type(reply) is Parked:
            return self._park(reply)
        if not self._effects:
            return self.writer.reply(reply, command)
        try:
            return self.writer.reply(reply, command)
        finally:
            self._pass_effects_on()

    def run_certainly(self, command: Any) -> Any:
        """As `run`, once no other coordinator can have told anything newer; NOT_COORDINATOR when
        that stays in doubt."""
        if not self.active or self.partition.tenure.certain:
            return self.run(command)
        return self._doubt(self._is_certain, partial(self.run, command))

    def run_and_confirm(
        self, command: Any, at_once: Callable[[Any], bool] = lambda reply: False
    ) -> Any:
        """As `run`; the reply, or the refusal, is told once nobody else can have taken over from
        this coordinator, NOT_COORDINATOR when that stays in doubt; or `at_once`."""
        if not self.active:
            return self.run(command)
        try:
            reply = self.run(command)
        except KafkaError as refusal:
            if self.partition.tenure.unrivalled:
                raise
            return self._doubt(self._is_unrivalled, partial(_refuse, refusal.code, refusal.message))
        # A Deferred is told when what it depends on is committed: nothing is, of who was replaced.
        if isinstance(reply, Deferred) or at_once(reply) or self.partition.tenure.unrivalled:
            return reply
        return self._doubt(self._is_unrivalled, lambda: reply)

    def _is_certain(self) -> bool:
        return self.partition.tenure.certain

    def _is_unrivalled(self) -> bool:
        return self.partition.tenure.unrivalled

    def run_together(self, command: Any) -> Any:
        """As `run_and_confirm`. A reply that waits for others, whom another coordinator may have by
        now, is given up when doubt comes up meanwhile, and stays."""
        reply = self.run_and_confirm(command)
        if isinstance(reply, Deferred) and not reply.done:
            if not self._together:
                self._loop.call_later(DOUBT_SECONDS, self._look_at_together)
            self._together.append(reply)
        return reply

    def _look_at_together(self) -> None:
        self._together = [each for each in self._together if not each.done]
        if self._closed or not self._together:
            return
        if self.partition.tenure.unrivalled:
            self._loop.call_later(DOUBT_SECONDS, self._look_at_together)
        else:
            self._doubt(self._is_unrivalled, lambda: None).on_done(self._part)

    def _part(self, doubt: Deferred[Any]) -> None:
        """The doubt is over, or stays."""
        if isinstance(doubt.error, KafkaError):
            together, self._together = self._together, []
            for each in together:
                each.fail(doubt.error)
        else:
            self._look_at_together()

    def _doubt(self, certain: Callable[[], bool], reply: Callable[[], Any]) -> Deferred[Any]:
        waiting: Deferred[Any] = Deferred()
        until = self._loop.time() + DOUBT_SECONDS
        self._doubted.append(_Doubted(until, certain, reply, waiting))
        self._host.watch(self)
        return waiting

    def look(self) -> bool:
        """See whether what is waited for has come; True while there is something left."""
        if self._closed:
            return False
        if self._doubted:
            doubted, self._doubted = self._doubted, []
            now = self._loop.time()
            in_doubt: set[Callable[[], bool]] = set()  # thousands may wait for one answer
            for each in doubted:
                if each.certain not in in_doubt and each.certain():
                    begin(each.reply, each.waiting)
                    continue
                in_doubt.add(each.certain)
                if now >= each.until:
                    self.partition.isr.leave_out_silent()
                    each.waiting.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
                else:
                    self._doubted.append(each)
        return not self.writer.look_for_succession() or bool(self._doubted)

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

    def _carry_out(self, result: Result, command: Any, now: Now) -> Any:
        """Write, replay and go on until nothing follows; the reply. Others are answered later."""
        reply: Any = None
        answers: list[Answer] = []
        step: Result | None = result
        while step is not None:
            error = self._write(step, command, now) if step.records else None
            outcome = step.reply if error is None else error
            if outcome is not None:
                reply = outcome
            if error is None:
                answers += step.answers
                if step.work:
                    self._begin(step.work)
                for effect in step.effects:
                    if self.writer.has_committed(command):
                        self._effects.append(effect)
                    else:
                        self._await_effect(effect, command)
            step = None if step.after is None else step.after(error, now)
        own = reply
        for parked, value in answers:
            if parked is own:
                reply = value
            elif parked.waiting is not None:
                self.writer.answer(parked.waiting, value, command)
        return reply

    def _pass_effects_on(self) -> None:
        """Those of a command whose records are committed already, before anybody is answered.

        Else the client could be there with its next request while they wait for the turn's end:
        it would be told to wait for them, and wait far longer than they take.
        """
        effects, self._effects = self._effects, []
        for effect in effects:
            if self.active:
                self._host.on_effect(self, effect)

    def _await_effect(self, effect: Any, command: Any) -> None:
        """Pass an effect on as soon as what the command has written is committed.

        However long that takes: only answers to clients are given up. In a slot that is closed
        nothing happens any more: who loads the shard next finds in the log what is left to do.
        """
        waiting: Deferred[Any] = Deferred()

        def committed(done: Deferred[Any]) -> None:
            if not self.active:
                return
            try:
                done.result()
            except KafkaError:
                self._loop.call_later(EFFECT_PAUSE, self._await_effect_again, effect, command)
                return
            self._host.on_effect(self, effect)

        waiting.on_done(committed)
        self.writer.answer(waiting, effect, command)

    def _await_effect_again(self, effect: Any, command: Any) -> None:
        if self.active:
            self._await_effect(effect, command)

    def end_transaction(self, marker: Marker) -> AppendInfo:
        """Write the marker that ends a producer's transaction in this log, and apply it. Raises
        KafkaError; COORDINATOR_LOAD_IN_PROGRESS while who loads might or might not see it."""
        if not self.active:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self.writer.end_transaction(marker, self._host.now())

    def _write(self, step: Result, command: Any, now: Now) -> KafkaError | None:
        """The error, if nothing was written."""
        try:
            self.writer.record(step, command, now)
        except KafkaError as failure:
            error = as_coordinator(failure)
            if error.code is ErrorCode.NOT_COORDINATOR and not self.writer.broken:
                self._loop.call_soon(self._unload)
            return error
        return None

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
        for piece in work:
            if piece.key not in self._working:
                self._working[piece.key] = self._host.tasks.start(
                    f"work for {self.partition.id}", self._do(piece)
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


def _refuse(code: ErrorCode, message: str | None) -> None:
    raise KafkaError(code, message)
