"""Replication: what this broker does for its partitions together with other brokers.

As a leader it keeps the in-sync sets current; as a follower it fetches. Which of the two it is for
a partition the partition table says (`replicas.py`), following the image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from ottla.cluster.registry import Registry
from ottla.config.broker import BrokerConfig
from ottla.model.ids import TopicPartition
from ottla.replication.follower import Fetcher
from ottla.replication.isr_updates import IsrUpdates
from ottla.replication.lease import LONG_AGO
from ottla.replication.partition import Partition
from ottla.replication.remote import Peers, RemoteLeader
from ottla.replication.replicas import Replicas
from ottla.replication.throttle import Throttle
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import Tasks
from ottla.storage.truncation import Cut

NO_REGISTRATION = -1


class Replication:
    """One broker's part in replicating partitions."""

    def __init__(
        self,
        node_id: int,
        registry: Registry,
        *,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        tasks: Tasks,
        peers: Peers,
        truncate: Callable[[Sequence[Cut]], Awaitable[None]],
    ) -> None:
        self.node_id = node_id
        self.broker_epoch = NO_REGISTRATION
        self.session_until = LONG_AGO
        """Up to when the store cannot end this broker's session; by the clock, in seconds."""
        self._registry = registry
        self._clock = clock
        self._config = config
        self._tasks = tasks
        self._peers = peers
        self._truncate = truncate
        window = config()
        samples, seconds = (
            window.replication_quota_window_num,
            window.replication_quota_window_size_seconds,
        )
        self.sending = Throttle(
            node_id,
            lambda: config().leader_replication_throttled_rate,
            clock.monotonic,
            samples=samples,
            seconds=seconds,
        )
        self._fetching = Throttle(
            node_id,
            lambda: config().follower_replication_throttled_rate,
            clock.monotonic,
            samples=samples,
            seconds=seconds,
        )
        self.isr_updates = IsrUpdates(registry, node_id, lambda: self.broker_epoch, tasks)
        self._fetchers: dict[int, Fetcher] = {}  # by the leader they fetch from
        self._followed: dict[TopicPartition, int] = {}
        self._replicas: Replicas | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopped = False

    # ------------------------------------------------------------------ for partitions

    @property
    def max_lag_ms(self) -> float:
        return self._config().replica_lag_time_max_ms

    @property
    def session_alive(self) -> bool:
        return self._clock.monotonic() < self.session_until

    def now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        image = self._registry.image
        found = image.brokers.get(broker)
        if found is None or found.epoch != broker_epoch:
            return False
        state = image.broker_states.get(broker)
        return state is None or not state.stopping

    def holds_back(self, partition: Partition, broker: int) -> bool:
        """Whether a follower gets nothing of a partition for now, to spare the network."""
        replicas = partition.log.config.leader_replication_throttled_replicas
        return (
            self.sending.names(partition.id.partition, replicas)
            and self.sending.exceeded
            and not partition.isr.waits_for(broker)
        )

    def note_sent(self, partition: Partition, size: int) -> None:
        """A follower gets so many bytes of a partition."""
        replicas = partition.log.config.leader_replication_throttled_replicas
        if self.sending.names(partition.id.partition, replicas):
            self.sending.record(size)

    def _holds_back(self, partition: Partition, size: int) -> bool:
        """Take note of what was fetched; whether no more is asked for now."""
        throttle = self._fetching
        replicas = partition.log.config.follower_replication_throttled_replicas
        if not throttle.limited or not throttle.names(partition.id.partition, replicas):
            return False
        if size:
            throttle.record(size)
        # At its leader's mark it is about to join, be it that the store has not said so yet: the
        # mark waits for it.
        in_sync = partition.at_mark or self.node_id in partition.state.isr
        return not in_sync and throttle.exceeded

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        self.isr_updates.propose(partition, isr, lost)

    # ------------------------------------------------------------------ for the partition table

    def start_following(self, partition: Partition) -> None:
        if self._stopped:
            return  # a partition whose files were only made now
        leader = partition.state.leader
        known = self._followed.get(partition.id)
        if known is not None and known != leader:
            self.stop_following(partition)
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            endpoint = RemoteLeader(
                leader, self._peers, self.node_id, lambda: self.broker_epoch, self._config
            )
            fetcher = Fetcher(leader, endpoint, self._config, self._truncate, self._holds_back)
            self._fetchers[leader] = fetcher
            fetcher.start(self._tasks)
        self._followed[partition.id] = leader
        fetcher.add(partition)

    def stop_following(self, partition: Partition) -> None:
        leader = self._followed.pop(partition.id, None)
        if leader is None:
            return
        fetcher = self._fetchers[leader]
        fetcher.remove(partition)
        if not len(fetcher):
            del self._fetchers[leader]
            fetcher.stop()

    # ------------------------------------------------------------------ while the broker runs

    def registered(self, epoch: int) -> None:
        """This broker has a new registration, or none any more (NO_REGISTRATION)."""
        self.broker_epoch = epoch
        self.session_until = LONG_AGO
        if self._replicas is not None:
            self._replicas.take_note_of_admission()

    def start(self, replicas: Replicas) -> None:
        """Begin to look after the in-sync sets of the partitions that are led here."""
        self._replicas = replicas
        self._watcher = self._tasks.start("watching followers", self._watch(), endless=True)

    async def stop(self) -> None:
        self._stopped = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        for fetcher in self._fetchers.values():
            fetcher.stop()
        await asyncio.gather(*(fetcher.stopped() for fetcher in self._fetchers.values()))
        self._fetchers.clear()
        self._followed.clear()
        await self.isr_updates.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.max_lag_ms / 2000)
            assert self._replicas is not None
            for partition in list(self._replicas.led()):
                partition.isr.shrink()
                partition.recount()
                partition.isr.expand()
                partition.tell_of_start()
