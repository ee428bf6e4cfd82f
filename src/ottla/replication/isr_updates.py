"""Changes of in-sync sets on their way to the store, many in one commit.

A leader proposes; the store decides by compare-and-set. With every commit goes the demand that this
broker, and each replica that is to be added, is still what it was when that was judged: admitted,
under the same registration. So nobody is added who has come back with an empty disk since, and a
leader that was fenced changes nothing.

A change goes out at once, unless another has gone out a moment ago: then it waits, and goes with
all that come meanwhile. When many brokers come back together, each leader would else commit once
for each of them, and every commit is read by everybody.

While the outcome is not known the partition counts both sets (`isr.py`). Whatever it is shows in
the next image; where the store was out of reach it is read until it answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from ottla.cluster import layout
from ottla.cluster.registry import Registry
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
"""Between the beginnings of two commits: what comes meanwhile goes together."""


class Proposal(NamedTuple):
    """A change that a leader asks for; `added` has the epochs under which replicas were judged."""

    partition: Partition
    in_sync: InSyncReplicas
    change: PartitionChange
    added: dict[int, int]

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
        self._next_at = float("-inf")  # by the loop's clock
        # what became of them
        self.shrinks = 0
        self.expands = 0
        self.failed = 0

    def propose(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = NOBODY
    ) -> None:
        """Ask for other sets, unless that was done already: see `proposal`."""
        made = proposal(partition, isr, lost)
        if made is None:
            return
        self._queue[partition.id] = made
        if self._worker is None or self._worker.done():
            self._worker = self._tasks.start("changing in-sync replicas", self._work())

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            await asyncio.sleep(max(0.0, self._next_at - loop.time()))
            self._next_at = loop.time() + GATHER_SECONDS
            together = dict(list(self._queue.items())[:MOST_TOGETHER])
            for tp in together:
                del self._queue[tp]
            try:
                await self._commit(list(together.values()))
            except StoreClosed:
                return

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
                # One of them spoils the others: each for itself.
                names = first_few(made.partition.id for made in proposals)
                logger.info("in-sync replicas are changed one by one (%s): %s", error, names)
                for made in proposals:
                    await self._commit([made])
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
                    made.partition.expand_isr()
            else:
                taken.append(made)
        self._count(taken, len(proposals))
        report(taken)

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
