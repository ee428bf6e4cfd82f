"""Partitions move to other brokers under load, and nothing that was acknowledged is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.handlers import fetch
from ottla.handlers.fetch import many
from ottla.handlers.fetch.plan import Plan
from ottla.records.batch import batches
from ottla.testing import Cluster, NewTopic

PARTITIONS = 3

StartLoad = Callable[..., Any]
Connect = Callable[..., Any]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    topic = NewTopic(
        "t",
        assignment=[[1, 2, 3]] * PARTITIONS,
        config={"min.insync.replicas": "2"},
    )
    # Replicas that are taken away are gone at once, so that a test can see it.
    with Cluster(5, {"log.segment.delete.delay.ms": 0}, topics=[topic]) as cluster:
        yield cluster


def reassign(
    connection: Any, replicas: list[int] | None, partitions: range = range(PARTITIONS)
) -> list[ErrorCode]:
    """Ask for these replicas of the partitions, or to cancel; the outcome of each."""
    parts = [{"partition_index": index, "replicas": replicas} for index in partitions]
    answer = connection.ask(
        "alter_partition_reassignments", 1, topics=[{"name": "t", "partitions": parts}]
    )
    assert answer.error_code == 0
    return [ErrorCode(part.error_code) for part in answer.responses[0].partitions]


def in_progress(connection: Any) -> dict[int, Any]:
    answer = connection.ask("list_partition_reassignments", 0, topics=None)
    assert answer.error_code == 0
    return {part.partition_index: part for topic in answer.topics for part in topic.partitions}


def wait_for(cluster: Cluster, replicas: list[int]) -> None:
    """Wait until the partitions are exactly there, all in sync."""

    def there() -> bool:
        states = [cluster.state("t", index) for index in range(PARTITIONS)]
        return all(
            list(state.replicas) == replicas
            and {*state.isr} == {*replicas}
            and not state.reassigning
            for state in states
        )

    cluster.wait_until(there)


def folders(cluster: Cluster, node_id: int) -> list[str]:
    return sorted(
        path.name for path in Path(cluster[node_id].data_dir).rglob("t-*") if path.is_dir()
    )


def check(cluster: Cluster, load: Any) -> None:
    """Every acknowledged record is there, no batch twice, and all replicas have the same."""
    load.check_kept()
    cluster.wait_in_sync("t")
    for index in range(PARTITIONS):
        ends = {
            cluster.replica(broker, "t", index).log.log_end_offset
            for broker in cluster.state("t", index).replicas
        }
        assert len(ends) == 1, f"replicas of partition {index} differ: {ends}"
        sent = [
            (header.producer_id, header.producer_epoch, header.base_sequence)
            for path in sorted(Path(cluster.leader("t", index).data_dir).rglob(f"t-{index}/*.log"))
            for _, header in batches(path.read_bytes())
        ]
        assert len({*sent}) == len(sent), f"a batch is twice in partition {index}"


def test_partitions_move_under_load(cluster: Cluster, start_load: StartLoad, wire: Connect) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    epoch = cluster.state("t", 0).leader_epoch
    anybody = wire(cluster[5].bootstrap)
    assert reassign(anybody, [4, 5, 3]) == [ErrorCode.NONE] * PARTITIONS
    wait_for(cluster, [4, 5, 3])
    assert not in_progress(anybody)
    assert cluster.state("t", 0).leader in (3, 4, 5)
    assert cluster.state("t", 0).leader_epoch > epoch
    load.wait_for_more()
    check(cluster, load)
    assert not load.failures
    for node_id in (1, 2):
        cluster.wait_until(lambda node_id=node_id: not folders(cluster, node_id))
    assert folders(cluster, 4) == ["t-0", "t-1", "t-2"]


def test_more_and_fewer_replicas(cluster: Cluster, start_load: StartLoad, wire: Connect) -> None:
    load = start_load(cluster.bootstrap)
    connection = wire(cluster[1].bootstrap)
    for replicas in ([1, 2, 3, 4, 5], [5, 4], [2], [2, 1, 3]):
        load.wait_for_more()
        assert reassign(connection, replicas) == [ErrorCode.NONE] * PARTITIONS
        wait_for(cluster, replicas)
    load.wait_for_more()
    check(cluster, load)


def test_a_single_replica_moves_and_is_written_to_all_the_time(
    start_load: StartLoad, wire: Connect
) -> None:
    """min.insync.replicas is 2 here: new replicas must not make acks=all wait for two."""
    topic = NewTopic("t", assignment=[[1]] * PARTITIONS)
    with Cluster(3, topics=[topic]) as cluster:
        load = start_load(cluster.bootstrap)
        load.wait_for_more()
        cluster[2].crash()
        connection = wire(cluster[1].bootstrap)
        assert reassign(connection, [2, 3]) == [ErrorCode.NONE] * PARTITIONS
        part = in_progress(connection)[0]
        assert list(part.replicas) == [2, 3, 1]
        assert (list(part.adding_replicas), list(part.removing_replicas)) == ([2, 3], [1])
        load.wait_for_more()
        cluster[2].start()
        wait_for(cluster, [2, 3])
        load.wait_for_more()
        check(cluster, load)
        assert not load.failures


def test_it_waits_for_a_broker_that_is_away_and_can_be_cancelled(
    cluster: Cluster, start_load: StartLoad, wire: Connect
) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    connection = wire(cluster[1].bootstrap)
    assert reassign(connection, None) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS] * PARTITIONS
    cluster[5].crash()
    assert reassign(connection, [3, 4, 5]) == [ErrorCode.NONE] * PARTITIONS
    cluster.wait_until(lambda: 4 in cluster.state("t", 0).isr)
    load.wait_for_more()
    assert {*in_progress(connection)} == {0, 1, 2}
    assert reassign(connection, None) == [ErrorCode.NONE] * PARTITIONS
    wait_for(cluster, [3, 1, 2])
    assert not in_progress(connection)
    load.wait_for_more()
    cluster.wait_until(lambda: not folders(cluster, 4))
    check(cluster, load)


def test_it_outlives_the_controller_the_leader_and_the_new_replica(
    cluster: Cluster, start_load: StartLoad, wire: Connect
) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    cluster[5].crash()
    assert reassign(wire(cluster[1].bootstrap), [4, 5]) == [ErrorCode.NONE] * PARTITIONS
    controller = cluster.controller
    assert controller is not None
    controller.crash()
    cluster.wait_until(lambda: cluster.controller not in (None, controller))
    controller.start()
    load.wait_for_more()
    leader = cluster.leader("t", 0)
    leader.crash()
    leader.start()
    load.wait_for_more()
    cluster[4].crash()
    cluster[4].start()
    cluster[5].start()
    wait_for(cluster, [4, 5])
    load.wait_for_more()
    check(cluster, load)


def test_a_broker_that_was_away_when_its_replicas_went_sets_them_aside(
    cluster: Cluster, start_load: StartLoad, wire: Connect
) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    cluster[3].crash()
    assert reassign(wire(cluster[1].bootstrap), [1, 2]) == [ErrorCode.NONE] * PARTITIONS
    wait_for(cluster, [1, 2])
    cluster[3].start()
    names = folders(cluster, 3)
    assert len(names) == PARTITIONS
    assert all(name.endswith("-stray") for name in names)
    assert reassign(wire(cluster[1].bootstrap), [3, 2]) == [ErrorCode.NONE] * PARTITIONS
    wait_for(cluster, [3, 2])
    load.wait_for_more()
    check(cluster, load)


def test_groups_go_on_when_their_coordinator_moves(cluster: Cluster, wire: Connect) -> None:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
    consumer.close()
    cluster.wait_in_sync("__consumer_offsets")
    states = cluster[1]._services().image.topics["__consumer_offsets"].partitions
    target = {
        index: [5 if each == state.leader else each for each in state.replicas if each != 5] or [5]
        for index, state in enumerate(states)
    }
    parts = [{"partition_index": index, "replicas": target[index]} for index in target]
    answer = wire(cluster[1].bootstrap).ask(
        "alter_partition_reassignments",
        0,
        topics=[{"name": "__consumer_offsets", "partitions": parts}],
    )
    assert not any(part.error_code for part in answer.responses[0].partitions)

    def moved() -> bool:
        now = cluster[1]._services().image.topics["__consumer_offsets"].partitions
        return all(
            list(state.replicas)[: len(target[index])] == target[index] and not state.reassigning
            for index, state in enumerate(now)
        )

    cluster.wait_until(moved)
    again = Consumer(settings)
    [found] = again.committed([TopicPartition("t", 0)], timeout=120)
    assert found.offset == 7
    again.commit(offsets=[TopicPartition("t", 0, 8)], asynchronous=False)
    again.close()


SIDES = {"leader": "0:1,1:1,2:1", "follower": "0:4,1:4,2:4"}


@pytest.mark.parametrize("side", SIDES)
def test_a_throttle_holds_back_who_catches_up_and_nobody_in_sync(
    side: str, start_load: StartLoad, wire: Connect
) -> None:
    topic = NewTopic(
        "t",
        assignment=[[1, 2, 3]] * PARTITIONS,
        config={f"{side}.replication.throttled.replicas": SIDES[side]},
    )
    # A fetch takes a batch or two of each partition.
    with Cluster(4, {"replica.fetch.max.bytes": 1}, topics=[topic]) as cluster:
        load = start_load(cluster.bootstrap)
        load.wait_for_more(600)
        limit(wire(cluster[1].bootstrap), f"{side}.replication.throttled.rate", "1")
        connection = wire(cluster[1].bootstrap)
        assert reassign(connection, [1, 2, 4]) == [ErrorCode.NONE] * PARTITIONS
        # Those in sync are as fast as ever, or nothing would be acknowledged; the new one waits.
        load.wait_for_more(600)
        assert {*in_progress(connection)} == {0, 1, 2}
        assert not any(4 in cluster.state("t", index).isr for index in range(PARTITIONS))
        limit(wire(cluster[1].bootstrap), f"{side}.replication.throttled.rate", None)
        wait_for(cluster, [1, 2, 4])
        check(cluster, load)


def test_who_is_held_back_is_not_looked_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch, start_load: StartLoad, wire: Connect
) -> None:
    """Of many partitions, without a session: there is more for the follower, and not for now."""
    tries: Counter[int] = Counter()
    fetches: list[object] = []  # kept, so that each has an address of its own
    wait = many._wait_for_many

    def counted(plan: Plan, *more: Any) -> Any:
        fetches.append(plan)
        tries[id(plan)] += 1
        return (yield from wait(plan, *more))

    topic = NewTopic(
        "t",
        assignment=[[1, 2, 3]] * PARTITIONS,
        config={"leader.replication.throttled.replicas": SIDES["leader"]},
    )
    settings = {"replica.fetch.max.bytes": 1, "max.incremental.fetch.session.cache.slots": 0}
    with Cluster(4, settings, topics=[topic]) as cluster:
        load = start_load(cluster.bootstrap)
        load.wait_for_more(600)
        connection = wire(cluster[1].bootstrap)
        limit(connection, "leader.replication.throttled.rate", "1")
        assert reassign(connection, [1, 2, 4]) == [ErrorCode.NONE] * PARTITIONS
        load.check()  # from here on nothing is appended
        monkeypatch.setattr(many, "_wait_for_many", counted)
        monkeypatch.setattr(fetch, "MANY", PARTITIONS - 1)
        cluster.wait_until(lambda: len(tries) > 8)
        monkeypatch.undo()
    assert max(tries.values()) < 10


def limit(connection: Any, name: str, value: str | None) -> None:
    """Set a rate for all brokers, or remove it."""
    change = {"name": name, "config_operation": 0 if value else 1, "value": value}
    answer = connection.ask(
        "incremental_alter_configs",
        1,
        resources=[{"resource_type": 4, "resource_name": "", "configs": [change]}],
        validate_only=False,
    )
    assert not answer.responses[0].error_code, answer.responses[0].error_message
