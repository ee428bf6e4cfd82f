"""A replicated cluster loses nothing that was acknowledged, whoever dies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Cluster, NewTopic

PARTITIONS = 3

StartLoad = Callable[..., Any]


def check(cluster: Cluster, load: Any) -> None:
    """Every acknowledged record is there once, and all replicas have the same."""
    load.check()
    cluster.wait_in_sync("t")
    for partition in range(PARTITIONS):
        ends = {
            cluster.replica(broker, "t", partition).log.log_end_offset
            for broker in cluster.state("t", partition).replicas
        }
        assert len(ends) == 1, f"replicas of partition {partition} differ: {ends}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    topic = NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})
    with Cluster(3, topics=[topic]) as cluster:
        yield cluster


def test_the_leader_dies(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    leader = cluster.leader("t", 0)
    leader.crash()
    load.wait_for_more()
    assert cluster.leader("t", 0) is not leader
    leader.start()
    load.wait_for_more()
    check(cluster, load)


def test_each_broker_dies_in_turn(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    for broker in cluster:
        load.wait_for_more()
        broker.crash()
        load.wait_for_more()
        broker.start()
        cluster.wait_in_sync("t")
    check(cluster, load)


def test_the_controller_dies(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    controller = cluster.controller
    assert controller is not None
    controller.crash()
    load.wait_for_more()
    cluster.wait_until(lambda: cluster.controller not in (None, controller))
    controller.start()
    check(cluster, load)


def test_a_broker_stops_cleanly_and_hands_over(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    leader = cluster.leader("t", 0)
    leader.stop()
    load.wait_for_more()
    assert cluster.leader("t", 0) is not leader
    leader.start()
    check(cluster, load)


def test_a_broker_stands_still_and_comes_back(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    leader = cluster.leader("t", 0)
    (node_id,) = [each for each, broker in cluster.brokers.items() if broker is leader]
    others = [broker for broker in cluster if broker is not leader]
    with cluster.paused(node_id):
        cluster.wait_until(
            lambda: others[0]._services().image.topics["t"].partitions[0].leader != node_id
        )
        load.wait_for_more()
    check(cluster, load)


def test_all_brokers_die_at_once(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    for broker in cluster:
        broker.crash()
    for broker in cluster:
        broker.start()
    load.wait_for_more()
    check(cluster, load)


def test_the_metadata_store_goes_and_comes_back(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    before = [cluster.state("t", index).leader for index in range(PARTITIONS)]
    cluster.stop_metadata()
    cluster.start_metadata()
    load.wait_for_more()
    cluster.wait_until(lambda: cluster.controller is not None)
    after = [cluster.state("t", index).leader for index in range(PARTITIONS)]
    assert after == before
    check(cluster, load)


def test_a_broker_comes_back_with_an_empty_disk(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    leader = cluster.leader("t", 0)
    leader.crash()
    shutil.rmtree(leader.data_dir)
    leader.start()
    load.wait_for_more()
    check(cluster, load)


def test_a_broker_loses_power(cluster: Cluster, start_load: StartLoad) -> None:
    load = start_load(cluster.bootstrap)
    for broker in cluster:
        load.wait_for_more()
        broker.crash(power_loss=True)
        load.wait_for_more()
        broker.start()
        cluster.wait_in_sync("t")
    check(cluster, load)


def test_when_all_lose_power_the_longest_log_leads_and_that_is_reported(
    cluster: Cluster, start_load: StartLoad, caplog: pytest.LogCaptureFixture
) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    for broker in cluster:
        broker.crash(power_loss=True)
    for broker in cluster:
        broker.start()
    load.wait_for_more()  # with gaps: what nobody had synced is gone
    load.stop()
    cluster.wait_in_sync("t")
    assert "unclean recovery" in caplog.text


def test_below_the_minimum_in_sync_nothing_is_acknowledged(
    cluster: Cluster, wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    first, second, third = cluster
    cluster.wait_in_sync("t")

    def produce(acks: int) -> int:
        data = [{"index": 0, "records": batch([b"x"])}]
        topics = [{"name": "t", "partition_data": data}]
        answer = wire(first.bootstrap).ask(
            "produce", 9, acks=acks, timeout=30_000, topic_data=topics
        )
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    second.crash()
    third.crash()
    cluster.wait_until(lambda: cluster.state("t", 0).isr == (1,))
    assert ErrorCode.of(produce(-1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert ErrorCode.of(produce(1)) is ErrorCode.NONE
    log = cluster.replica(1, "t", 0)
    assert (log.high_watermark, log.log.log_end_offset) == (0, 1), "the mark stands still"
    assert cluster.state("t", 0).elr, "who left last stays eligible"
    second.start()
    third.start()
    cluster.wait_in_sync("t")
    cluster.wait_until(lambda: cluster.leader("t", 0) is not None)
    assert ErrorCode.of(produce(-1)) in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_broker_that_ends_follows_nobody_any_more() -> None:
    # Files that are made at the very end would begin to be followed after everything else ended.
    with Cluster(2, topics=[NewTopic("t", assignment=[[1, 2]])]) as cluster:
        cluster.wait_in_sync("t")
        follower = cluster[2]
        thread, replication = follower._thread, follower._services().replication
        assert thread is not None
        partition = cluster.replica(2, "t", 0)
        thread.call(replication.stop(), 120)
        thread.do(lambda: replication.start_following(partition))
        assert not replication._fetchers
