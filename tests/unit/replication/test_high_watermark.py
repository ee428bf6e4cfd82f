"""Who holds the high watermark, and that it goes on when nobody does any more."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import pytest

from ottla.cluster.registry import ImageChange
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.model.broker import Broker
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.records.builder import build_batch
from ottla.replication.isr_updates import Proposal, forget, proposal
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.runtime.waiters import Waiter
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

NOW = 1_700_000_000_000
LED = PartitionState(1, 0, 0, (1, 2, 3), (1, 2))
LIVE = {each: Broker(each, each, {}) for each in (1, 2, 3)}


class Rig:
    """Broker 1 leads; 2 is in sync, 3 has caught up and has asked to be."""

    node_id = 1
    broker_epoch = 1
    max_lag_ms = 10_000.0

    def __init__(self, workers: Workers) -> None:
        logs = LogDirectories(MemoryFileSystem(), ["/data"], clock=ManualClock(), workers=workers)
        logs.open_folders()
        self.image = ClusterImage()
        self.replicas = Replicas(
            1,
            logs,
            logs.group_commit,
            lambda topic: TopicConfig.resolve(topic.config, BrokerConfig()),
            self,
        )
        self.proposal: Proposal | None = None
        topic = Topic("t", TopicId(bytes(16)), (LED,), {"min.insync.replicas": "2"})
        self.show(replace(self.image, topics={"t": topic}), "t")
        self.show(replace(self.image, brokers=LIVE, registrations=LIVE))
        self.partition = self.replicas.by_name("t", 0)
        for follower in (2, 3):
            self.partition.fetched_by(follower, follower, 0, 0)

    def show(self, image: ClusterImage, *topics: str) -> None:
        before, self.image = self.image, image
        brokers = frozenset({*before.brokers} ^ {*image.brokers})
        self.replicas.apply(ImageChange(before, image, frozenset(topics), brokers))

    def now_ms(self) -> float:
        return 0.0

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return broker in self.image.brokers

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        self.proposal = proposal(partition, isr, lost)

    def start_following(self, partition: Partition) -> None: ...

    def stop_following(self, partition: Partition) -> None: ...


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    workers = Workers()
    made = Rig(workers)
    yield made
    made.replicas.stop_making()
    workers.close()


def refuse(rig: Rig) -> None:
    """The store did not take the proposal."""
    assert rig.proposal is not None
    forget(rig.proposal)


@pytest.mark.parametrize("refused_first", [True, False])
async def test_who_dies_while_it_joins_is_not_waited_for(rig: Rig, refused_first: bool) -> None:
    assert rig.proposal is not None
    assert rig.proposal.change.after.isr == (1, 2, 3)
    batch = memoryview(bytearray(build_batch([(NOW, None, b"x", ())])))
    acknowledged = rig.partition.wait_committed(rig.partition.append(batch, NOW))
    rig.partition.fetched_by(2, 2, 1, 0)
    assert not acknowledged.done
    without = {each: broker for each, broker in LIVE.items() if each != 3}
    if refused_first:
        refuse(rig)
    rig.show(replace(rig.image, brokers=without, registrations=without))
    if not refused_first:
        refuse(rig)
    assert acknowledged.done
    assert rig.partition.high_watermark == 1


async def test_what_waits_for_more_replicas_goes_on_when_fewer_suffice(rig: Rig) -> None:
    refuse(rig)
    alone = replace(LED, partition_epoch=1, isr=(1,))
    [topic] = rig.image.topics.values()
    rig.show(replace(rig.image, topics={"t": replace(topic, partitions=(alone,))}), "t")
    dead = {1: LIVE[1]}
    rig.show(replace(rig.image, brokers=dead, registrations=dead))
    batch = memoryview(bytearray(build_batch([(NOW, None, b"x", ())])))
    acknowledged = rig.partition.wait_committed(rig.partition.append(batch, NOW))
    assert not acknowledged.done
    fewer = replace(topic, partitions=(alone,), config={"min.insync.replicas": "1"})
    rig.show(replace(rig.image, topics={"t": fewer}), "t")
    assert acknowledged.done


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
async def test_bytes_that_cannot_be_counted_hold_up_nobody(
    rig: Rig, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed disk takes its partitions offline, in the middle of a look at all of them."""
    batch = memoryview(bytearray(build_batch([(NOW, None, b"x", ())])))
    rig.partition.append(batch, NOW)
    rig.partition.fetched_by(2, 2, 1, 0)
    log = rig.partition.log

    def fail(offset: int, upper: int) -> int:
        error = log.storage_failed(OSError(code, "no"), "reading")
        if log.failure is not None:
            rig.replicas.take_offline([rig.partition.id])
        raise error

    monkeypatch.setattr(log, "bytes_from", fail)
    loop = asyncio.get_running_loop()
    waiter = Waiter(loop, [rig.partition.readable], 1, 60, lambda: None)  # counts what it gets
    refuse(rig)
    without = {each: broker for each, broker in LIVE.items() if each != 3}
    rig.show(replace(rig.image, brokers=without, registrations=without))
    assert rig.partition.high_watermark == (1 if code == errno.EMFILE else 0)
    waiter.cancel()
