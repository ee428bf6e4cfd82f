"""Partitions whose log cannot be served here are left to the other replicas.

A data folder fails, or a log is found damaged at the start: the broker lives on, and whoever looks
at its registration takes it for a leader that can lead. So it gives up its place itself, in the
in-sync and in the eligible replicas, by compare-and-set like every change of a leader's; whoever
is left leads. The last one of a partition keeps its place: nobody else has the records.

What is refused, or cannot be written now, is tried again with the next image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator

from ottla.cluster import layout
from ottla.cluster.registry import Registry
from ottla.cluster.store import Check, StoreError
from ottla.controller.election import is_unclean, settle
from ottla.controller.unclean import UncleanElections
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import NO_LEADER, PartitionChange, Topic
from ottla.replication.isr import Rules
from ottla.runtime.tasks import Tasks

logger = logging.getLogger(__name__)


class OfflinePartitions:
    """Those of one broker. `look` whenever there may be one more, or the image has changed."""

    def __init__(
        self,
        registry: Registry,
        node_id: int,
        *,
        offline: Callable[[], Collection[TopicPartition]],
        rules_of: Callable[[Topic], Rules],
        broker_epoch: Callable[[], int],
        unclean: UncleanElections,
        tasks: Tasks,
    ) -> None:
        self._registry = registry
        self._node_id = node_id
        self._offline = offline
        self._rules_of = rules_of
        self._broker_epoch = broker_epoch
        self._unclean = unclean
        self._tasks = tasks
        self._worker: asyncio.Task[None] | None = None
        self._stopped = False

    def look(self) -> None:
        """Give up what is to be given up, unless that is under way."""
        if self._stopped or not self._offline():
            return
        if self._worker is not None and not self._worker.done():
            return
        if any(True for _ in self._changes()):
            self._worker = self._tasks.start("leaving offline partitions", self._give_up())

    async def stop(self) -> None:
        self._stopped = True  # a broker that is killed in a test loses its disk after this
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _give_up(self) -> None:
        try:
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

    def _changes(self) -> Iterator[PartitionChange]:
        image, node_id = self._registry.image, self._node_id
        if node_id not in image.brokers:
            return
        live = {
            broker
            for broker, state in image.broker_states.items()
            if not state.fenced and not state.stopping
        }
        for name, index in self._offline():
            topic = image.topics.get(name)
            if topic is None or index >= len(topic.partitions):
                continue
            before = topic.partitions[index]
            if node_id not in (*before.isr, *before.elr):
                continue
            after = settle(before, live, self._rules_of(topic), lost=(node_id,))
            if after.leader not in (NO_LEADER, node_id):
                yield PartitionChange(topic.id, index, before, after)

    def _demands(self) -> list[Check]:
        """Only as the broker that the cluster counts on: an earlier life knows nothing."""
        broker = self._registry.image.brokers.get(self._node_id)
        key = layout.broker_state_key(self._node_id)
        version = self._registry.version(key)
        if broker is None or broker.epoch != self._broker_epoch() or version is None:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "this broker is not admitted")
        return [Check(key, version)]
