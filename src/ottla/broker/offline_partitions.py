"""Partitions whose log cannot be served here are left to the other replicas.

A data folder fails, or a log is found damaged at the start: the broker lives on, and whoever looks
at its registration takes it for a leader that can lead. So it gives up its place itself, in the
in-sync and in the eligible replicas, by compare-and-set like every change of a leader's; whoever
is left, and there, leads. The last one of a partition keeps its place: nobody else has the records.

A damaged log on a disk that works is then fetched anew, and so is one that lacks a file in its
middle: once the store has confirmed that nobody counts on it any more, and another broker leads, it
is set aside and an empty one follows that leader. The last replica of a damaged log stays offline,
for somebody to restore or repair it (ADR 3).

That a disk has failed is noted in the store as well: a write that failed may be missing although
the file system is whole again after a restart, and then this broker must not be trusted with it.

What is refused, or cannot be written now, is tried again with the next image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from ottla.cluster import layout
from ottla.cluster.membership import Membership
from ottla.cluster.registry import Registry
from ottla.cluster.store import Check, StoreError
from ottla.controller.election import is_unclean, settle
from ottla.controller.unclean import UncleanElections
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import PartitionChange, PartitionState, Topic
from ottla.replication.isr import Rules
from ottla.runtime.tasks import Tasks
from ottla.storage.directory import LogDirectories

logger = logging.getLogger(__name__)

NOTE_SECONDS = 5.0


class Table(Protocol):
    """The broker's partitions."""

    def take_offline(self, lost: Iterable[TopicPartition]) -> None:
        """Let go of partitions, as far as they are there."""
        ...

    def begin_anew(self, tp: TopicPartition) -> None:
        """Make a partition that has no log any more, with an empty one."""
        ...


class OfflinePartitions:
    """Those of one broker. `look` whenever there may be one more, or the image has changed."""

    def __init__(
        self,
        registry: Registry,
        node_id: int,
        *,
        logs: LogDirectories,
        table: Table,
        rules_of: Callable[[Topic], Rules],
        broker_epoch: Callable[[], int],
        unclean: UncleanElections,
        tasks: Tasks,
    ) -> None:
        self._registry = registry
        self._node_id = node_id
        self._logs = logs
        self._table = table
        self._rules_of = rules_of
        self._broker_epoch = broker_epoch
        self._unclean = unclean
        self._tasks = tasks
        self._worker: asyncio.Task[None] | None = None
        self._failed = False  # a disk, and the store does not know it
        self._stopped = False

    def folder_failed(self) -> None:
        """A data folder is offline from now on."""
        self._failed = True
        self.look()

    def look(self) -> None:
        """Give up what is to be given up, unless that is under way; fetch anew what can be."""
        logs = self._logs
        if self._stopped or not (logs.offline_partitions or logs.damaged or self._failed):
            return
        self._fetch_anew()
        if self._worker is not None and not self._worker.done():
            return
        if self._can_note_failure() or any(True for _ in self._changes()):
            self._worker = self._tasks.start("leaving offline partitions", self._work())

    async def note_failure(self) -> None:
        """The broker stops: make known that a disk has failed, unless that was done."""
        try:
            async with asyncio.timeout(NOTE_SECONDS):
                await self._note_failure()
        except (TimeoutError, StoreError) as error:
            logger.warning("that a disk has failed cannot be noted in the store: %s", error)

    async def stop(self) -> None:
        self._stopped = True  # a broker that is killed in a test loses its disk after this
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    # ------------------------------------------------------------------ giving up

    async def _work(self) -> None:
        try:
            await self._note_failure()
            while changes := list(self._changes()):
                refused = await self._registry.change_partitions(changes, demands=self._demands)
                if len(refused) < len(changes):
                    logger.warning(
                        "%d partitions are offline here and left to other brokers",
                        len(changes) - len(refused),
                    )
                names = self._registry.image.topic_names
                self._unclean.note(
                    "unclean election in place of a log that cannot be served",
                    {
                        TopicPartition(names.get(topic_id, "?"), index): after.leader
                        for topic_id, index, before, after in changes
                        if (topic_id, index, before, after) not in refused
                        and is_unclean(before, after, lost=(self._node_id,))
                    },
                )
        except (StoreError, KafkaError) as error:
            logger.warning("offline partitions cannot be left to other brokers now: %s", error)

    def _can_note_failure(self) -> bool:
        states = self._registry.image.broker_states
        return self._failed and self._node_id in states and len(states) > 1  # else who would lead

    async def _note_failure(self) -> None:
        members = Membership(self._registry)
        if self._can_note_failure() and await members.note_failure(
            self._node_id, self._broker_epoch()
        ):
            self._failed = False

    def _changes(self) -> Iterator[PartitionChange]:
        image, node_id = self._registry.image, self._node_id
        if node_id not in image.brokers:
            return
        live = {
            broker
            for broker, state in image.broker_states.items()
            if not state.fenced and not state.stopping
        }
        # As after an outage of the store: they may come back without their records.
        absent = live - set(image.brokers)
        for topic, index, before in self._states(self._logs.offline_partitions):
            if node_id not in (*before.isr, *before.elr):
                continue
            rules = self._rules_of(topic)
            after = settle(before, live, rules, lost=(node_id,), absent=absent)
            if after.leader != node_id and after.leader in image.brokers:
                yield PartitionChange(topic.id, index, before, after)

    def _demands(self) -> list[Check]:
        """Only as the broker that the cluster counts on: an earlier life knows nothing."""
        broker = self._registry.image.brokers.get(self._node_id)
        key = layout.broker_state_key(self._node_id)
        version = self._registry.version(key)
        if broker is None or broker.epoch != self._broker_epoch() or version is None:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "this broker is not admitted")
        return [Check(key, version)]

    # ------------------------------------------------------------------ fetching anew

    def _fetch_anew(self) -> None:
        node_id = self._node_id
        broker = self._registry.image.brokers.get(node_id)
        if not self._logs.damaged or broker is None or broker.epoch != self._broker_epoch():
            return
        for topic, index, state in list(self._states(self._logs.damaged)):
            if node_id not in state.replicas or node_id in (*state.isr, *state.elr):
                continue
            if state.leader == node_id or state.leader not in self._registry.image.brokers:
                continue
            tp = TopicPartition(topic.name, index)
            self._table.take_offline((tp,))
            kept = self._logs.set_aside(tp)
            if kept is None:
                continue  # its folder has failed just now, which was logged
            logger.warning(
                "%s: the damaged log is kept in %s; the partition is fetched anew from broker %d",
                tp,
                kept,
                state.leader,
            )
            self._table.begin_anew(tp)

    def _states(
        self, partitions: Collection[TopicPartition]
    ) -> Iterator[tuple[Topic, int, PartitionState]]:
        """What the image says of these, as far as it knows them."""
        topics = self._registry.image.topics
        for name, index in partitions:
            topic = topics.get(name)
            if topic is not None and index < len(topic.partitions):
                yield topic, index, topic.partitions[index]
