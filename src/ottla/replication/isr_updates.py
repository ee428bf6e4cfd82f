"""Changes of in-sync sets on their way to the store, many in one commit.

A leader proposes; the store decides by compare-and-set. With every commit goes the demand that this
broker, and each replica that is to be added, is still what it was when that was judged: admitted,
under the same registration; and nobody is added who is about to stop. So nobody is added who has
come back with an empty disk since, or who was just taken out because it stops, and a leader that
was fenced changes nothing.

A change goes out at once, unless another has gone out a moment ago: then it waits, and goes with
all that come meanwhile. When many brokers come back together, each leader would else commit once
for each of them, and every commit is read by everybody. The more brokers there are, the longer it
waits, so that all of them together commit no more often, and for a random moment in addition, since
whoever comes back does so for all leaders at once. A change that producers wait for does neither:
one that takes a replica out, or adds one where too few are in sync. It takes the others along.

While the outcome is not known the partition counts both sets (`isr.py`). Whatever it is shows in
the next image; where the store was out of reach it is read until it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from ottla.cluster import layout
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import Check, StoreClosed, StoreError
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import PartitionChange
from ottla.replication.isr import NOBODY, InSyncReplicas, with_isr
from ottla.replication.partition import Partition
from ottla.runtime.logs import first_few
from ottla.runtime.tasks import Tasks

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
MOST_TOGETHER = 1_000
GATHER_SECONDS = 0.1
"""Between the beginnings of two commits of few brokers: what comes meanwhile goes together."""


class Proposal(NamedTuple):
    """A change that a leader asks for; `added` has the epochs under which replicas were judged."""

    partition: Partition
    in_sync: InSyncReplicas
    change: PartitionChange
    added: dict[int, int]

    @property
    def is_awaited(self) -> bool:
        """Whether producers wait for it: a replica that does not follow is taken out, or too few
        were in sync, or the mark stands still because of those who are eligible."""
        before = self.change.before
        return (
            len(before.isr) < self.in_sync.min_insync
            or bool(before.elr)
            or not {*before.isr} <= {*self.change.after.isr}
        )

    @property
    def stands(self) -> bool:
        """Whether the leader still counts on it. It does not once it has led anew, be it under the
        same epoch: then it has forgotten what it had asked for, and the mark may have moved on."""
        in_sync = self.in_sync
        return (
            self.partition.in_sync is in_sync
            and in_sync.in_flight
            and in_sync.state == self.change.before
        )


class IsrUpdates:
    """The proposals of one broker."""

    def __init__(
        self, registry: Registry, node_id: int, broker_epoch: Callable[[], int], tasks: Tasks
    ) -> None:
        self._registry = registry
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._tasks = tasks
        self._queue: dict[TopicPartition, Proposal] = {}
        self._worker: asyncio.Task[None] | None = None
        self._last_at = float("-inf")  # when the last commit began, by the loop's clock
        self._awaited = asyncio.Event()  # while the queue has one that is
        self._unsubscribe: Callable[[], None] | None = registry.subscribe(self._on_image)
        # what became of them
        self.shrinks = 0
        self.expands = 0
        self.failed = 0

    def propose(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = NOBODY
    ) -> None:
        """Ask for other sets, unless that was done already: see `proposal`. What waits to be sent
        is replaced: somebody in it does not follow any more, for whom the mark would wait as long
        as the store is away, or until it is this broker's turn."""
        waiting = self._queue.pop(partition.id, None)
        if waiting is not None:
            forget(waiting)
        made = proposal(partition, isr, lost)
        if made is None:
            return
        self._queue[partition.id] = made
        if made.is_awaited:
            self._awaited.set()
        if self._worker is None or self._worker.done():
            self._worker = self._tasks.start("changing in-sync replicas", self._work())

    def _on_image(self, change: ImageChange) -> None:
        """Withdraw what would add somebody who has gone while it waited: the mark waits for him."""
        if not change.brokers:
            return
        for tp, made in tuple(self._queue.items()):
            if not made.added.keys().isdisjoint(change.brokers) and not self._is_sound(made):
                del self._queue[tp]
                if made.stands:
                    forget(made)
                    made.partition.isr.review()
                    self._count([], 1)

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None  # it may be called twice
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            await asyncio.sleep(max(0.0, self._last_at + GATHER_SECONDS - loop.time()))
            await self._let_others_go()
            self._last_at = loop.time()
            together = dict(list(self._queue.items())[:MOST_TOGETHER])
            for tp in together:
                del self._queue[tp]
            if not any(made.is_awaited for made in self._queue.values()):
                self._awaited.clear()
            try:
                await self._commit(list(together.values()))
            except StoreClosed:
                return

    async def _let_others_go(self) -> None:
        """Wait among many brokers, but no longer than until there is something that is awaited."""
        spread = GATHER_SECONDS * (self._registry.crowding - 1)
        if spread and not self._awaited.is_set():
            left = self._last_at + GATHER_SECONDS + spread - asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left) + self._registry.any_part_of(spread)):
                    await self._awaited.wait()

    async def _commit(self, proposals: list[Proposal]) -> None:
        # What was overtaken while it waited must not spoil the others.
        proposals = [made for made in proposals if made.stands]
        if not proposals:
            return
        changes = [made.change for made in proposals]
        again = False
        try:
            refused = await self._registry.change_partitions(
                changes, demands=lambda: self._demands(proposals)
            )
        except StoreClosed:
            raise
        except StoreError as error:
            logger.warning("in-sync replicas cannot be changed now: %s", error)
            await self._learn()
            refused = changes
            again = True
        except KafkaError as error:
            if len(proposals) > 1:
                await self._commit_apart(proposals, error)
                return
            unchanged = proposals[0].partition.id
            logger.debug("%s: in-sync replicas stay as they are: %s", unchanged, error)
            refused = changes
        not_taken = set(refused)
        taken: list[Proposal] = []
        for made in proposals:
            if made.change in not_taken:
                forget(made)
                if again:
                    made.partition.isr.review()
            else:
                taken.append(made)
        self._count(taken, len(proposals))
        report(taken)

    async def _commit_apart(self, proposals: list[Proposal], error: KafkaError) -> None:
        """Some of them spoil the others, which go together without these. A broker that comes back
        again and again may spoil hundreds, and each commit is read by everybody."""
        sound: list[Proposal] = []
        unsound: list[Proposal] = []
        for made in proposals:
            (sound if self._is_sound(made) else unsound).append(made)
        if not unsound:  # it is none by itself, or the image is another by now
            sound, unsound = [], sound
        names = first_few(made.partition.id for made in unsound)
        logger.info("in-sync replicas are changed one by one (%s): %s", error, names)
        if sound:
            await self._commit(sound)
        # Once for all of them: to be told each for itself would take a read of the store each.
        await self._learn()
        for made in unsound:
            if self._is_sound(made):
                await self._commit([made])
            elif made.stands:
                forget(made)
                self._count([], 1)

    def _is_sound(self, made: Proposal) -> bool:
        try:
            self._demands([made])
        except KafkaError:
            return False
        return True

    def _count(self, taken: Collection[Proposal], asked: int) -> None:
        self.failed += asked - len(taken)
        for made in taken:
            before, after = {*made.change.before.isr}, {*made.change.after.isr}
            self.shrinks += bool(before - after)
            self.expands += bool(after - before)

    def _demands(self, proposals: list[Proposal]) -> list[Check]:
        image = self._registry.image
        relied_on = {(self._node_id, self._broker_epoch())}
        for made in proposals:
            if not made.stands:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was led anew meanwhile")
            relied_on.update(made.added.items())
            for each in made.added:
                state = image.broker_states.get(each)
                if state is not None and state.stopping:
                    raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {each} is stopping")
        checks = []
        for broker_id, epoch in sorted(relied_on):
            broker = image.brokers.get(broker_id)
            version = self._registry.version(layout.broker_state_key(broker_id))
            if broker is None or broker.epoch != epoch or version is None:
                raise KafkaError(
                    ErrorCode.INELIGIBLE_REPLICA, f"broker {broker_id} was fenced meanwhile"
                )
            checks.append(Check(layout.broker_state_key(broker_id), version))
        return checks

    async def _learn(self) -> None:
        """Read the store until it answers: the image then shows what became of the proposals."""
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self._registry.load()
                return
            except StoreClosed:
                raise
            except StoreError:
                continue


def proposal(
    partition: Partition, isr: tuple[int, ...], lost: Collection[int] = NOBODY
) -> Proposal | None:
    """What the leader of a partition asks the store for when `isr` are in sync, and the `lost` lack
    records that they once had; the partition counts it as in flight from here on. None while
    another change is in flight, and where nothing would change."""
    in_sync = partition.in_sync
    if in_sync is None or in_sync.in_flight:
        return None
    before = in_sync.state
    after = with_isr(before, isr, in_sync.rules, lost=lost)
    if after is before:
        return None
    in_sync.proposed(isr)
    return Proposal(
        partition,
        in_sync,
        PartitionChange(partition.topic_id, partition.id.partition, before, after),
        {each: in_sync.followers[each].broker_epoch for each in isr if each not in before.isr},
    )


def forget(made: Proposal) -> None:
    """The proposal was certainly not taken, or the image has shown what became of it."""
    if made.stands:
        made.in_sync.refused()
        made.partition.recount()


def report(taken: Collection[Proposal]) -> None:
    """A line for each broker that has joined or left, however many partitions that concerns."""
    moved: dict[tuple[int, str], list[Proposal]] = {}
    for made in taken:
        before, after = made.change.before.isr, made.change.after.isr
        for verb, brokers in (("joined", {*after} - {*before}), ("left", {*before} - {*after})):
            for broker in brokers:
                moved.setdefault((broker, verb), []).append(made)
    for (broker, verb), proposals in sorted(moved.items()):
        if len(proposals) == 1:
            [made] = proposals
            now = sorted(made.change.after.isr)
            tp = made.partition.id
            logger.info("%s: broker %d %s the in-sync replicas, now %s", tp, broker, verb, now)
        else:
            names = first_few(made.partition.id for made in proposals)
            text = "broker %d %s the in-sync replicas of %d partitions: %s"
            logger.info(text, broker, verb, len(proposals), names)
