"""What docs/reliability.md promises of several brokers: one test for each cell of its table.

A cell that begins with "nothing" is tested here under the names of its row and its column;
tests/docs/test_reliability.py sees to it that the table and these tests are about the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ottla.client.direct import DirectAdmin
from ottla.client.reassignments import begin, ongoing
from ottla.model.ids import TopicPartition
from ottla.testing import Broker, Cluster, NewTopic

PARTITIONS = 3
TOPIC = "t"

COLUMNS: Mapping[str, tuple[Mapping[str, object], Mapping[str, str]]] = {
    "`acks=1`": ({"acks": 1, "enable.idempotence": False}, {}),
    "`acks=all`": ({}, {}),
    "`acks=all`, `flush.messages=1`": ({}, {"flush.messages": "1"}),
}
"""Settings of the producer, and of the topic."""

ONE, ALL, FLUSHED = COLUMNS

Trouble = Callable[[Cluster, Any], None]


def node_of(cluster: Cluster, broker: Broker) -> int:
    [number] = [each for each, found in cluster.brokers.items() if found is broker]
    return number


def follower_dies(cluster: Cluster, load: Any) -> None:
    # One that leads nothing: whatever it has others have too.
    led = {cluster.state(TOPIC, index).leader for index in range(PARTITIONS)}
    [*idle] = {1, 2, 3} - led
    cluster[idle[0]].crash()
    load.wait_for_more()
    cluster[idle[0]].start()


def leader_dies(cluster: Cluster, load: Any) -> None:
    leader = cluster.leader(TOPIC, 0)
    leader.crash()
    load.wait_for_more()
    leader.start()


def controller_dies(cluster: Cluster, load: Any) -> None:
    controller = cluster.controller
    assert controller is not None
    controller.crash()
    load.wait_for_more()
    controller.start()


def all_die(cluster: Cluster, load: Any) -> None:
    for broker in cluster:
        broker.crash()
    for broker in cluster:
        broker.start()


def stands_still(cluster: Cluster, load: Any) -> None:
    number = node_of(cluster, cluster.leader(TOPIC, 0))
    other = next(broker for node, broker in cluster.brokers.items() if node != number)
    with cluster.paused(number):
        cluster.wait_until(
            lambda: other._services().image.topics[TOPIC].partitions[0].leader != number
        )
        load.wait_for_more()


def stops(cluster: Cluster, load: Any) -> None:
    leader = cluster.leader(TOPIC, 0)
    leader.stop()
    load.wait_for_more()
    leader.start()


def loses_power(cluster: Cluster, load: Any) -> None:
    leader = cluster.leader(TOPIC, 0)
    leader.crash(power_loss=True)
    load.wait_for_more()
    leader.start()


def all_lose_power(cluster: Cluster, load: Any) -> None:
    for broker in cluster:
        broker.crash(power_loss=True)
    for broker in cluster:
        broker.start()


def comes_back_empty(cluster: Cluster, load: Any) -> None:
    leader = cluster.leader(TOPIC, 0)
    leader.crash()
    shutil.rmtree(leader.data_dir)
    leader.start()


def disk_fills(cluster: Cluster, load: Any) -> None:
    leader = cluster.leader(TOPIC, 0)
    leader.faults.full_disk()
    load.wait_for_more()
    leader.faults.free_disk()
    if leader.running:
        leader.crash()
    leader.start()


def store_goes(cluster: Cluster, load: Any) -> None:
    cluster.stop_metadata()
    load.wait_for_more()
    cluster.start_metadata()


def partitions_move(cluster: Cluster, load: Any) -> None:
    wanted = {TopicPartition(TOPIC, index): [4, 3, 2] for index in range(PARTITIONS)}
    with DirectAdmin(cluster.bootstrap) as admin:
        assert not begin(admin.router, wanted)
        load.wait_for_more()
        cluster.wait_until(lambda: not ongoing(admin.router))


ROWS: Mapping[str, tuple[Trouble, tuple[str, ...]]] = {
    "a follower is killed": (follower_dies, (ONE, ALL, FLUSHED)),
    "the leader is killed": (leader_dies, (ALL, FLUSHED)),
    "the controller is killed": (controller_dies, (ALL, FLUSHED)),
    "all brokers are killed at once": (all_die, (ALL, FLUSHED)),
    "a broker stands still until its session has expired": (stands_still, (ALL, FLUSHED)),
    "a broker is stopped cleanly": (stops, (ALL, FLUSHED)),
    "a broker loses power": (loses_power, (ALL, FLUSHED)),
    "all brokers lose power at once": (all_lose_power, (FLUSHED,)),
    "a broker comes back with an empty disk": (comes_back_empty, (ALL, FLUSHED)),
    "a broker's disk is full": (disk_fills, (ALL, FLUSHED)),
    "the metadata store is gone for a while": (store_goes, (ONE, ALL, FLUSHED)),
    "partitions are moved to other brokers": (partitions_move, (ALL, FLUSHED)),
}
"""What happens, and the columns whose cells promise that nothing is lost."""

PROMISES = [(row, column) for row, (_, columns) in ROWS.items() for column in columns]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    row, column = request.param
    config = {"min.insync.replicas": "2", **COLUMNS[column][1]}
    # The third broker leads nothing, and the fourth has nothing yet.
    assignment = [[1, 2, 3], [2, 1, 3], [1, 2, 3]]
    topic = NewTopic(TOPIC, assignment=assignment, config=config)
    brokers = 4 if ROWS[row][0] is partitions_move else 3
    with Cluster(brokers, topics=[topic]) as cluster:
        cluster.wait_in_sync(TOPIC)
        yield cluster


@pytest.mark.parametrize(
    ("cluster", "row", "column"),
    [((row, column), row, column) for row, column in PROMISES],
    indirect=["cluster"],
    ids=[f"{row}: {column}" for row, column in PROMISES],
)
def test_nothing_that_was_acknowledged_is_lost(
    cluster: Cluster, row: str, column: str, start_load: Callable[..., Any]
) -> None:
    load = start_load(cluster.bootstrap, config=COLUMNS[column][0])
    load.wait_for_more()
    ROWS[row][0](cluster, load)
    load.wait_for_more()
    if column == ONE:
        load.check_there()
    else:
        load.check()
    cluster.wait_in_sync(TOPIC)
