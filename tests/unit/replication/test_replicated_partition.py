"""A partition of several replicas: as its leader, as a follower, and between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.isr import InSyncReplicas, Rules
from ottla.replication.lease import DRIFT_MS, LEASE_MS
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.storage.log import AppendInfo, Log
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000
LED = PartitionState(leader=1, leader_epoch=5, partition_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3))
FOLLOWED = replace(LED, leader=2, leader_epoch=6, partition_epoch=1)


class Neighbours:
    """The cluster, as a partition sees it; it remembers what was proposed."""

    node_id = 1
    max_lag_ms = 1_000.0
    session_alive = False  # the store is away

    def __init__(self) -> None:
        self.now = 0.0
        self.proposed: list[tuple[tuple[int, ...], frozenset[int]]] = []

    def now_ms(self) -> float:
        return self.now

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return broker_epoch == broker

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        self.proposed.append((isr, frozenset(lost)))


class SlowDisk:
    """fsync that ends when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future


class Replica:
    """Broker 1's replica of a partition on 1, 2 and 3."""

    def __init__(self, config: TopicConfig | None = None, *, records: int = 0) -> None:
        self.cluster = Neighbours()
        self.disk = SlowDisk()
        bench = LogBench(config or TopicConfig())
        log = bench.open()
        if records:
            bench.append(log, *[b"x"] * records, epoch=4)
        self.partition = Partition(
            TopicPartition("t", 0), TopicId(bytes(16)), log, LED, self.disk, self.cluster
        )

    def lead(self, state: PartitionState = LED, min_insync: int = 2) -> Partition:
        self.partition.lead(state, Rules(min_insync))
        return self.partition

    def fetch(self, **offsets: int) -> None:
        for name, offset in offsets.items():
            broker = int(name[1:])
            self.partition.fetched_by(broker, broker, offset, 0)


def append(led: Partition, *values: bytes) -> AppendInfo:
    batch = bytearray(build_batch([(NOW, None, value, ()) for value in values]))
    return led.append(memoryview(batch), NOW)


def code_of(done: Deferred[None]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        done.result()
    return caught.value.code


async def test_who_does_not_lead_takes_no_records() -> None:
    replica = Replica()
    replica.partition.follow(FOLLOWED)
    with pytest.raises(KafkaError) as caught:
        append(replica.partition, b"a")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replica.partition.log.log_end_offset == 0


async def test_acks_all_waits_for_the_slowest_in_sync_replica_and_acks_1_for_nobody() -> None:
    replica = Replica()
    led = replica.lead()
    info = append(led, b"a")
    assert led.committed(info, acks=1)
    assert not led.committed(info)
    answer = led.wait_committed(info)
    replica.fetch(b2=1)
    assert not answer.done
    replica.fetch(b3=1)
    assert answer.done
    answer.result()
    assert led.high_watermark == 1


async def test_who_waits_is_told_at_once_when_leadership_is_lost() -> None:
    replica = Replica(TopicConfig(flush_messages=1))
    led = replica.lead()
    info = append(led, b"a")
    answers = [led.wait_committed(info), led.wait_committed(info, acks=1)]
    led.follow(FOLLOWED)
    assert [code_of(each) for each in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


async def test_who_waits_no_longer_is_not_kept() -> None:
    replica = Replica()
    led = replica.lead()
    info = append(led, b"a")
    gone, stays = led.wait_committed(info), led.wait_committed(info)
    gone.abandon()
    assert len(led._waiting) == 1
    replica.fetch(b2=1, b3=1)
    assert stays.done
    assert not gone.done
    assert not led._waiting


async def test_with_flush_messages_acks_1_waits_for_this_disk_and_the_mark_for_all() -> None:
    replica = Replica(TopicConfig(flush_messages=1))
    led = replica.lead()
    info = append(led, b"a")
    here, everywhere = led.wait_committed(info, acks=1), led.wait_committed(info)
    replica.fetch(b2=1, b3=1)
    assert led.high_watermark == 0, "this replica has not synced it yet"
    assert not here.done
    replica.disk.waiting[0].set_result(None)
    await asyncio.sleep(0)
    assert here.done
    assert everywhere.done
    assert led.high_watermark == 1


async def test_below_the_minimum_acks_all_is_refused_and_the_mark_stands() -> None:
    replica = Replica()
    led = replica.lead(replace(LED, isr=(1,), elr=(2, 3)))
    with pytest.raises(KafkaError) as caught:
        led.check_enough_in_sync()
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    append(led, b"a")
    assert led.high_watermark == 0


async def test_a_new_leader_knows_its_mark_when_all_have_reached_its_epoch() -> None:
    replica = Replica(records=3)
    led = replica.lead()
    assert led.high_watermark == 0
    assert not led.knows_high_watermark
    replica.fetch(b2=3, b3=3)
    assert led.high_watermark == 3
    assert led.knows_high_watermark


async def test_a_follower_that_is_no_replica_is_turned_away() -> None:
    replica = Replica()
    replica.lead()
    with pytest.raises(KafkaError) as caught:
        replica.fetch(b4=0)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_who_has_caught_up_is_proposed_for_the_in_sync_set() -> None:
    replica = Replica(records=3)
    replica.lead(replace(LED, isr=(1, 2)))
    replica.fetch(b2=3, b3=2)
    assert not replica.cluster.proposed
    replica.fetch(b3=3)
    assert replica.cluster.proposed == [((1, 2, 3), frozenset())]


async def test_who_lags_is_proposed_to_leave_and_stays_eligible() -> None:
    replica = Replica(records=3)
    led = replica.lead()
    replica.fetch(b2=3)
    replica.cluster.now = 1_001.0
    led.isr.shrink()
    assert replica.cluster.proposed == [((1, 2), frozenset())]


async def test_who_lost_what_it_had_leaves_at_once_and_is_not_eligible() -> None:
    replica = Replica(records=3)
    replica.lead()
    replica.fetch(b2=3, b3=3)
    replica.fetch(b3=1)
    assert replica.cluster.proposed == [((1, 2), frozenset({3}))]


async def test_an_eligible_replica_that_lost_what_it_had_is_reported() -> None:
    replica = Replica(records=3)
    led = replica.lead(replace(LED, isr=(1, 2)))
    replica.fetch(b2=3)
    led.lead(replace(LED, partition_epoch=1, isr=(1,), elr=(2,)), Rules(2))
    replica.cluster.proposed.clear()
    replica.partition.fetched_by(2, 2, 0, 0)
    assert replica.cluster.proposed == [((1,), frozenset({2}))]


async def test_with_a_smaller_minimum_the_mark_moves_when_nobody_else_may_lead() -> None:
    replica = Replica(records=3)
    led = replica.lead(replace(LED, isr=(1,), elr=(2, 3)))
    led.lead(led.state, Rules(1))
    assert led.high_watermark == 0
    assert replica.cluster.proposed == [((1,), frozenset())]
    led.lead(replace(LED, partition_epoch=1, isr=(1,)), Rules(1))
    assert led.high_watermark == 3


async def test_a_leader_that_becomes_the_only_replica_waits_for_nobody() -> None:
    replica = Replica()
    led = replica.lead()
    answer = led.wait_committed(append(led, b"a"))
    led.lead(replace(LED, partition_epoch=1, replicas=(1,), isr=(1,)), Rules(2))
    assert answer.done
    assert led.high_watermark == 1


async def test_who_is_elected_while_its_log_is_cut_leads_when_that_is_done() -> None:
    replica = Replica(records=3)
    partition = replica.partition
    partition.follow(FOLLOWED)
    partition.begin_truncation()
    again = replace(LED, leader_epoch=7, partition_epoch=2)
    partition.lead(again, Rules(2))
    assert not partition.leading
    assert not partition.knows_high_watermark, "it has that of a follower"
    partition.log.truncate_to(2)
    partition.end_truncation()
    assert partition.leading
    assert not partition.knows_high_watermark
    assert partition.leader_epoch == 7
    assert partition.written == 2
    assert partition.in_sync is not None
    assert partition.in_sync.epoch_start == 2


async def test_who_was_elected_during_a_cut_and_lost_that_again_follows() -> None:
    replica = Replica(records=3)
    partition = replica.partition
    partition.begin_truncation()
    partition.lead(replace(LED, leader_epoch=7), Rules(2))
    partition.follow(replace(FOLLOWED, leader_epoch=8))
    partition.end_truncation()
    assert not partition.leading
    assert partition.leader_epoch == 8


async def test_a_follower_takes_records_and_the_mark_from_its_leader() -> None:
    replica = Replica()
    replica.partition.follow(FOLLOWED)
    batch = build_batch([(NOW, None, b"a", ()), (NOW, None, b"b", ())])
    replica.partition.append_replicated(memoryview(batch), 1, 0)
    assert replica.partition.log.log_end_offset == 2
    assert replica.partition.high_watermark == 1
    replica.partition.append_replicated(memoryview(b""), 9, 1)
    assert replica.partition.high_watermark == 2
    assert replica.partition.log_start_offset == 1


async def test_a_follower_beyond_the_end_of_the_log_has_none_of_it() -> None:
    """Its log is another one: empty, say, from where the log of an earlier leader began."""
    replica = Replica(records=3)
    led = replica.lead(replace(LED, isr=(1, 2)))
    replica.fetch(b2=3)
    with pytest.raises(KafkaError) as caught:
        replica.fetch(b3=10)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not replica.cluster.proposed
    replica.cluster.proposed.clear()
    led.lead(replace(LED, partition_epoch=1), Rules(2))
    append(led, b"a")
    replica.fetch(b2=4)
    assert led.high_watermark == 3, "3 has nothing of it"


async def test_a_leader_syncs_what_it_got_as_a_follower() -> None:
    replica = Replica(TopicConfig(flush_messages=1))
    partition = replica.partition
    partition.follow(FOLLOWED)
    batch = build_batch([(NOW, None, b"a", ())])
    partition.append_replicated(memoryview(batch), 0, 0)
    partition.lead(replace(LED, leader_epoch=7, partition_epoch=2), Rules(2))
    replica.fetch(b2=1, b3=1)
    assert partition.high_watermark == 0, "this replica has not synced it yet"
    [flush] = replica.disk.waiting
    flush.set_result(None)
    await asyncio.sleep(0)
    assert partition.high_watermark == 1
    assert partition.knows_high_watermark


async def test_a_leader_syncs_what_it_got_while_it_synced_what_it_had_found() -> None:
    """Else ListOffsets would be OFFSET_NOT_AVAILABLE until somebody appends to it."""
    replica = Replica(TopicConfig(flush_messages=1), records=2)
    partition = replica.partition
    partition.follow(FOLLOWED)
    batch = bytearray(build_batch([(NOW, None, b"a", ())], base_offset=2))
    partition.append_replicated(memoryview(batch), 0, 0)
    partition.lead(replace(LED, leader_epoch=7, partition_epoch=2), Rules(2))
    replica.fetch(b2=3, b3=3)
    [found] = replica.disk.waiting
    found.set_result(None)
    await asyncio.sleep(0)
    assert (partition.high_watermark, partition.knows_high_watermark) == (2, False)
    [got] = replica.disk.waiting[1:]
    got.set_result(None)
    await asyncio.sleep(0)
    assert (partition.high_watermark, partition.knows_high_watermark) == (3, True)


@pytest.mark.parametrize("led_before", [False, True])
async def test_who_is_left_alone_tells_its_end_when_it_has_synced_what_others_may_have_shown(
    led_before: bool,
) -> None:
    """2 has shown both records; the partition is given to 1 alone, which has not synced them."""
    replica = Replica(TopicConfig(flush_messages=1))
    partition = replica.partition
    partition.follow(FOLLOWED)
    batch = build_batch([(NOW, None, b"a", ()), (NOW, None, b"b", ())])
    partition.append_replicated(memoryview(batch), 0, 0)
    if led_before:
        partition.lead(replace(LED, leader_epoch=7, partition_epoch=2), Rules(2))
        assert not partition.knows_high_watermark
    alone = replace(LED, leader_epoch=8, partition_epoch=3, replicas=(1,), isr=(1,))
    partition.lead(alone, Rules(2))
    assert (partition.high_watermark, partition.knows_high_watermark) == (0, False)
    partition.lead(replace(alone, partition_epoch=4), Rules(2))
    assert not partition.knows_high_watermark
    for flush in replica.disk.waiting:
        flush.set_result(None)
    await asyncio.sleep(0)
    assert (partition.high_watermark, partition.knows_high_watermark) == (2, True)


async def test_who_was_cut_has_not_shown_what_is_gone() -> None:
    """What it knew to be safe before a kill was given up since: by an unclean election."""
    bench = LogBench(TopicConfig(flush_messages=1))
    log = bench.open()
    bench.append(log, b"a", b"b", b"c", epoch=4)
    disk, tp = SlowDisk(), TopicPartition("t", 0)
    partition = Partition(tp, TopicId(bytes(16)), log, LED, disk, Neighbours(), high_watermark=3)
    partition.follow(FOLLOWED)
    partition.begin_truncation()
    log.truncate_to(1)
    partition.end_truncation()
    partition.lead(replace(LED, leader_epoch=7, partition_epoch=2, replicas=(1,), isr=(1,)))
    assert (partition.high_watermark, partition.knows_high_watermark) == (1, True)


@pytest.mark.parametrize("target", [(1, 3), (1,)])
async def test_a_leader_to_which_a_partition_was_moved_waits_for_the_one_before(
    target: tuple[int, ...],
) -> None:
    """2 has led, is taken away, and is not told at once. It goes on in good faith, and tells from
    memory: for as long as that, what is written here is kept back."""
    replica = Replica()
    partition, cluster = replica.partition, replica.cluster
    moving = replace(FOLLOWED, replicas=(*target, 2), isr=(*target, 2), removing=(2,))
    partition.follow(moving)
    before = InSyncReplicas(2, moving, 0, Rules(2), 0.0)
    cluster.now = 5_000.0
    for each in target:
        before.fetched(each, each, 0, 0, cluster.now, asked_after_ms=cluster.now)
    moved = replace(moving, leader=1, leader_epoch=7, replicas=target, isr=target, removing=())
    replica.lead(moved)
    for each in target[1:]:
        replica.fetch(**{f"_{each}": 0})
    assert before.certain(cluster.now + LEASE_MS - 1, session_alive=True)
    assert not partition.tenure.has_succeeded
    cluster.now += LEASE_MS
    assert not before.certain(cluster.now, session_alive=True)
    assert not partition.tenure.has_succeeded, "clocks differ"
    cluster.now += DRIFT_MS
    assert partition.tenure.has_succeeded


async def test_a_leader_that_stays_when_others_go_waits_for_nobody() -> None:
    replica = Replica()
    partition = replica.lead(replace(LED, replicas=(1, 2, 3), removing=(2, 3)))
    replica.fetch(_2=0, _3=0)
    assert partition.tenure.has_succeeded
    replica.lead(replace(LED, leader_epoch=6, partition_epoch=1, replicas=(1,), isr=(1,)))
    assert partition.tenure.has_succeeded


async def test_a_leader_that_stays_waits_for_who_led_before_it_though_that_one_goes() -> None:
    """3 was cut off, 1 is elected, and the partition is moved away from 3 within the second for
    which 3 is certain because 2 has vouched for it."""
    replica = Replica()
    partition, cluster = replica.partition, replica.cluster
    first = replace(LED, leader=3)
    partition.follow(first)
    before = InSyncReplicas(3, first, 0, Rules(2), 0.0)
    cluster.now = 5_000.0
    before.fetched(2, 2, 0, 0, cluster.now, asked_after_ms=cluster.now)
    second = replace(LED, leader_epoch=6, partition_epoch=1, isr=(1, 2), removing=(3,))
    replica.lead(second)
    replica.fetch(_2=0)
    cluster.now += 100
    replica.lead(replace(second, leader_epoch=7, partition_epoch=2, replicas=(1, 2), removing=()))
    replica.fetch(_2=0)
    assert before.certain(cluster.now, session_alive=False)
    assert not partition.tenure.has_succeeded
    cluster.now += LEASE_MS + DRIFT_MS
    assert not before.certain(cluster.now, session_alive=False)
    assert partition.tenure.has_succeeded


async def test_a_leader_that_comes_back_waits_for_who_led_meanwhile_though_that_one_goes() -> None:
    """1 learns late of what became of its partition: 3 was elected, and 2 followed it; then the
    partition was moved away from 3, which is certain for a second, and 1 elected again."""
    replica = Replica()
    partition, cluster = replica.partition, replica.cluster
    replica.lead()
    replica.fetch(_2=0, _3=0)
    assert partition.tenure.has_succeeded
    cluster.now = 5_000.0
    between = replace(LED, leader=3, leader_epoch=6, partition_epoch=1)
    other = InSyncReplicas(3, between, 0, Rules(2), cluster.now)
    other.fetched(2, 2, 0, 0, cluster.now, asked_after_ms=cluster.now)
    cluster.now += 100
    moved = replace(LED, leader_epoch=7, partition_epoch=2, replicas=(1, 2), isr=(1, 2))
    replica.lead(moved)
    replica.fetch(_2=0)
    assert other.certain(cluster.now, session_alive=False)
    assert not partition.tenure.has_succeeded
    cluster.now += LEASE_MS + DRIFT_MS
    assert not other.certain(cluster.now, session_alive=False)
    assert partition.tenure.has_succeeded


@pytest.mark.parametrize(("seconds", "told"), [(0.1, 1), (3.0, 2)])
async def test_what_the_leader_before_kept_to_itself_is_not_told_at_once(
    seconds: float, told: int
) -> None:
    """3 was cut off under epoch 5; 2 has led under epoch 6, has committed a record, and would have
    kept it to itself for a second. 1 is elected."""
    replica = Replica(records=1)
    partition, cluster = replica.partition, replica.cluster
    cluster.now = 1_000.0
    partition.follow(replace(LED, leader=3))
    partition.append_replicated(memoryview(b""), 1, 0)
    cluster.now = 5_000.0
    partition.follow(FOLLOWED)
    batch = bytearray(build_batch([(NOW, None, b"a", ())], base_offset=1, leader_epoch=6))
    partition.append_replicated(memoryview(batch), 2, 0)
    cluster.now += seconds * 1_000
    replica.lead(replace(LED, leader_epoch=7, partition_epoch=2))
    replica.fetch(_2=2)
    assert not partition.tenure.has_succeeded
    assert (partition.high_watermark, partition.tenure.told_below) == (2, told)


async def test_a_record_of_an_epoch_that_has_lasted_is_told_at_once() -> None:
    """As after any failover: who led before the last one has stopped long ago."""
    replica = Replica()
    partition, cluster = replica.partition, replica.cluster
    partition.follow(FOLLOWED)
    for offset in range(4):
        cluster.now += LEASE_MS + DRIFT_MS
        batch = build_batch([(NOW, None, b"a", ())], base_offset=offset, leader_epoch=6)
        partition.append_replicated(memoryview(batch), offset, 0)
    replica.lead(replace(LED, leader_epoch=7, partition_epoch=2))
    assert partition.tenure.told_below == 4
    append(partition, b"b")
    assert not partition.tenure.has_succeeded
    partition.follow(replace(FOLLOWED, leader_epoch=8))
    partition.lead(replace(LED, leader_epoch=9), Rules(2))
    assert partition.tenure.told_below == 2, (
        "it was not over, and who led in 8 may lack the last ones"
    )


@pytest.mark.parametrize("learned", [True, False])
async def test_what_who_led_meanwhile_may_lack_is_not_told_at_once(learned: bool) -> None:
    """2 has led under epoch 6. When it hands over to 3, a record is not committed that 1 has and 3
    has not. 2 follows 3, which is certain then, for as long as it is cut off; 1 has not asked 3 for
    anything yet when it is elected, and 2 takes the record from it."""
    replica = Replica()
    partition, cluster = replica.partition, replica.cluster
    partition.follow(FOLLOWED)
    for offset in range(2):
        batch = build_batch([(NOW, None, b"a", ())], base_offset=offset, leader_epoch=6)
        partition.append_replicated(memoryview(batch), 1, 0)
        cluster.now += LEASE_MS + DRIFT_MS
    between = replace(LED, leader=3, leader_epoch=7, partition_epoch=2)
    other = InSyncReplicas(3, between, 1, Rules(2), cluster.now)
    other.fetched(2, 2, 1, 1, cluster.now, asked_after_ms=cluster.now)
    if learned:
        partition.follow(between)
    cluster.now += 100
    replica.lead(replace(LED, leader_epoch=8, partition_epoch=3, isr=(1, 2)))
    replica.fetch(_2=2)
    assert partition.high_watermark == 2
    assert other.certain(cluster.now, session_alive=False)
    assert not partition.tenure.has_succeeded
    assert partition.tenure.told_below == 1
    cluster.now += LEASE_MS + DRIFT_MS
    assert not other.certain(cluster.now, session_alive=False)
    assert partition.tenure.has_succeeded


async def test_what_a_replica_knew_when_it_started_is_told_after_a_second_whoever_comes_over() -> (
    None
):
    """The brokers of all replicas were started anew, and only this one came back: it cannot wait
    for others. Who was certain before, and lacks what was committed then, has stopped."""
    replica = Replica(records=1)
    partition, cluster = replica.partition, replica.cluster
    partition.follow(replace(LED, leader=2))
    partition.append_replicated(memoryview(b""), 1, 0)
    cluster.now += 100
    replica.lead(replace(LED, leader_epoch=6, isr=(1,), elr=(2,), replicas=(1, 2)))
    assert (partition.high_watermark, partition.tenure.told_below) == (1, 0)
    cluster.now += LEASE_MS + DRIFT_MS
    cluster.session_alive = True
    assert partition.tenure.certain
    assert not partition.tenure.has_succeeded
    assert partition.tenure.told_below == 1


async def test_nobody_has_led_before_the_first_epoch() -> None:
    replica = Replica()
    partition = replica.partition
    partition.follow(replace(LED, leader=2, leader_epoch=0))
    batch = build_batch([(NOW, None, b"a", ())], leader_epoch=0)
    partition.append_replicated(memoryview(batch), 1, 0)
    replica.lead(replace(LED, leader_epoch=1))
    assert partition.tenure.told_below == 1
    replica.lead(replace(LED, leader_epoch=2))
    assert partition.tenure.told_below == 0, "who led in epoch 1 may have lacked it"


async def test_who_has_caught_up_while_a_change_was_in_flight_is_added_after_it() -> None:
    """The high watermark waits for 3, which a throttle keeps from fetching until it is in sync."""
    replica = Replica()
    moving = replace(LED, isr=(1,), adding=(2, 3))
    led = replica.lead(moving, min_insync=1)
    append(led, b"a")
    replica.fetch(_2=1)
    assert led.in_sync is not None
    led.in_sync.proposed((1, 2))
    replica.fetch(_3=1)
    info = append(led, b"b")
    replica.fetch(_2=2)
    replica.lead(replace(moving, isr=(1, 2), partition_epoch=1), min_insync=1)
    assert not led.committed(info)
    assert replica.cluster.proposed == [((1, 2), frozenset()), ((1, 2, 3), frozenset())]


async def test_who_lags_while_a_change_was_in_flight_is_taken_out_after_it() -> None:
    """Else acks=all would wait until it is looked for such replicas the next time."""
    replica = Replica()
    moving = replace(LED, isr=(1, 2))
    led = replica.lead(moving, min_insync=1)
    replica.fetch(_2=0)
    assert led.in_sync is not None
    led.in_sync.proposed((1, 2, 3))
    append(led, b"a")
    replica.cluster.now += replica.cluster.max_lag_ms + 1
    replica.fetch(_3=1)
    replica.cluster.proposed.clear()
    replica.lead(replace(moving, isr=(1, 2, 3), partition_epoch=1), min_insync=1)
    assert replica.cluster.proposed == [((1, 3), frozenset())]


async def test_who_has_left_is_not_about_to_join_before_it_has_caught_up_again() -> None:
    """Its disk has failed: it has given up its place by itself, and fetches no more."""
    replica = Replica()
    led = replica.lead()
    append(led, b"a")
    replica.fetch(_2=1, _3=1)
    left = replace(LED, isr=(1, 2), partition_epoch=1)
    replica.lead(left)
    led.isr.expand()
    assert not replica.cluster.proposed
    info = append(led, b"b")
    replica.fetch(_2=2)
    assert led.committed(info), "nobody waits for it"
    led.isr.expand()
    assert not replica.cluster.proposed
    replica.fetch(_3=2)
    assert replica.cluster.proposed == [((1, 2, 3), frozenset())]


async def test_who_could_not_be_replaced_needs_no_session_to_be_without_a_rival() -> None:
    replica = Replica()
    alone = replica.lead(replace(LED, isr=(1,)), min_insync=1)
    assert alone.tenure.unrivalled
    assert not alone.tenure.certain
    others = replica.lead(replace(LED, partition_epoch=1), min_insync=1)
    assert not others.tenure.unrivalled
    for each in (2, 3):
        others.fetched_by(each, each, 0, 0, asked_after_ms=0.0)
    assert others.tenure.unrivalled
    replica.cluster.now = LEASE_MS
    assert not others.tenure.unrivalled
    all_needed = replica.lead(replace(LED, partition_epoch=2), min_insync=3)
    assert not all_needed.tenure.unrivalled, "they can do nothing alone, but may be more by now"
    replica.cluster.session_alive = True
    assert all_needed.tenure.unrivalled
    others.follow(FOLLOWED)
    assert not others.tenure.unrivalled


async def test_who_does_not_fetch_from_an_idle_leader_leaves_when_its_word_is_needed() -> None:
    replica = Replica()
    led = replica.lead(min_insync=1)
    append(led, b"a")
    replica.fetch(_2=1, _3=1)
    replica.cluster.now = 900.0
    replica.fetch(_2=1)
    led.isr.leave_out_silent()
    replica.cluster.now = 1_001.0
    led.isr.shrink()
    assert not replica.cluster.proposed, "it has everything"
    led.isr.leave_out_silent()
    assert replica.cluster.proposed == [((1, 2), frozenset())]
    assert led.in_sync is not None
    led.in_sync.proposed((1, 2))
    replica.cluster.now = 9_000.0
    led.isr.leave_out_silent()
    assert len(replica.cluster.proposed) == 1, "one change is in flight"
    led.follow(FOLLOWED)
    led.isr.leave_out_silent()


async def test_who_was_not_heard_of_yet_has_its_time_before_its_word_is_needed() -> None:
    replica = Replica()
    led = replica.lead()
    replica.cluster.now = 1_000.0
    led.isr.leave_out_silent()
    assert not replica.cluster.proposed
    replica.cluster.now = 1_001.0
    led.isr.leave_out_silent()
    assert replica.cluster.proposed == [((1,), frozenset())]
