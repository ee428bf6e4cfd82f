"""What clients see of a cluster: who leads, who is there, and where to go instead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, ElectionType, Message, TopicPartition
from confluent_kafka.admin import AdminClient

import ottla
from ottla.cli.kafka_compat import run as run_tool
from ottla.cli.kafka_compat import topics as kafka_topics
from ottla.cli.main import cli as command_line
from ottla.cluster import departed
from ottla.testing import Cluster, NewTopic

OFFSET_OUT_OF_RANGE = 1
NONE, LEADER_NOT_AVAILABLE, NOT_LEADER = 0, 5, 6
REPLICA_NOT_AVAILABLE = 9
COORDINATOR_NOT_AVAILABLE = 15
UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST, INVALID_CONFIG = 3, 42, 40
REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS = 7, 19
FENCED_EPOCH, UNKNOWN_EPOCH = 74, 75
PREFERRED_NOT_AVAILABLE, ELIGIBLE_NOT_AVAILABLE, NOT_NEEDED = 80, 83, 84

# Led by 1, 2 and 3, so that a test knows whom it kills.
EVERYWHERE = NewTopic("t", assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
ALONE = NewTopic("alone", assignment=[[1], [2], [3]])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, topics=[EVERYWHERE, ALONE]) as cluster:
        yield cluster


def by_index(partitions: Any) -> list[Any]:
    return sorted(partitions, key=lambda part: part.partition_index)


def describe(connection: Any, topic: str) -> list[Any]:
    answer = connection.ask(
        "describe_topic_partitions", 0, topics=[{"name": topic}], response_partition_limit=2000
    )
    return by_index(answer.topics[0].partitions)


def metadata(connection: Any, topic: str, version: int = 13) -> tuple[Any, list[Any]]:
    answer = connection.ask("metadata", version, topics=[{"name": topic}])
    return answer, by_index(answer.topics[0].partitions)


# -- who is there


def test_every_broker_tells_the_same(cluster: Cluster, wire: Callable[..., Any]) -> None:
    controller = cluster.controller
    assert controller is not None
    for broker in cluster:
        answer, parts = metadata(wire(broker.bootstrap), "t")
        nodes = {(node.node_id, f"{node.host}:{node.port}") for node in answer.brokers}
        assert nodes == {(number, cluster[number].bootstrap) for number in (1, 2, 3)}
        assert cluster[answer.controller_id] is controller
        assert [part.leader_id for part in parts] == [1, 2, 3]
        assert not any(part.offline_replicas or part.error_code for part in parts)
        described = wire(broker.bootstrap).ask("describe_cluster", 2, endpoint_type=1)
        assert cluster[described.controller_id] is controller
        assert {node.broker_id for node in described.brokers} == {1, 2, 3}


def test_a_dead_broker_is_shown_as_offline(
    cluster: Cluster, wire: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departed, "LISTED_SECONDS", 600.0)  # however long the test takes
    cluster[3].crash()
    cluster.wait_until(lambda: cluster.state("t", 2).leader not in (3, -1))
    cluster.wait_until(lambda: all(3 not in cluster.state("t", each).isr for each in range(3)))
    cluster.wait_until(lambda: cluster.state("alone", 2).leader == -1)
    for broker in cluster.running:
        asked = wire(broker.bootstrap)
        cluster.wait_until(lambda asked=asked: 3 not in live(asked))
        answer, parts = metadata(asked, "t")
        # Its partitions have new leaders, and yet it is listed for some seconds more: librdkafka
        # would lose a partition that moves away from a broker which is taken from the list.
        assert {node.node_id for node in answer.brokers} == {1, 2, 3}
        assert [list(part.offline_replicas) for part in parts] == [[3], [3], [3]]
        assert [part.error_code for part in parts] == [NONE] * 3
        assert all(3 not in part.isr_nodes for part in parts)
        _, lonely = metadata(asked, "alone")
        assert [(part.error_code, part.leader_id) for part in lonely] == [
            (NONE, 1), (NONE, 2), (LEADER_NOT_AVAILABLE, -1),
        ]  # fmt: skip
        assert list(lonely[2].offline_replicas) == [3]
        # DescribeTopicPartitions has no error for it, as in Kafka.
        last = describe(asked, "alone")[2]
        assert (last.error_code, last.leader_id, list(last.offline_replicas)) == (NONE, -1, [3])
        assert (list(last.eligible_leader_replicas), list(last.last_known_elr)) == ([3], [])
        # The oldest version leaves out who is not there, and says that it does.
        _, old = metadata(asked, "t", 0)
        assert all(part.error_code == REPLICA_NOT_AVAILABLE for part in old)
        assert all(sorted(part.replica_nodes) == [1, 2] for part in old)


def live(connection: Any) -> set[int]:
    described = connection.ask("describe_cluster", 2, endpoint_type=1)
    return {node.broker_id for node in described.brokers}


def test_a_broker_that_stops_is_no_longer_listed(
    cluster: Cluster, wire: Callable[..., Any]
) -> None:
    cluster[3].stop()
    for broker in cluster.running:
        asked = wire(broker.bootstrap)
        cluster.wait_until(lambda asked=asked: 3 not in live(asked))
        assert {node.node_id for node in metadata(asked, "t")[0].brokers} == {1, 2}


def test_eligible_replicas_are_shown(cluster: Cluster, wire: Callable[..., Any]) -> None:
    cluster[2].crash()
    cluster.wait_until(lambda: all(2 not in cluster.state("t", each).isr for each in range(3)))
    cluster[3].crash()
    cluster.wait_until(lambda: all(cluster.state("t", each).isr == (1,) for each in range(3)))
    parts = describe(wire(cluster[1].bootstrap), "t")
    # 2 left an in-sync set of three, which was more than min.insync.replicas; 3 one of two.
    assert [list(part.eligible_leader_replicas) for part in parts] == [[3]] * 3
    assert [list(part.isr_nodes) for part in parts] == [[1]] * 3


def test_a_replica_that_lost_its_disk_is_eligible_no_more(
    cluster: Cluster, wire: Callable[..., Any]
) -> None:
    cluster.create(NewTopic("pair", assignment=[[2, 3]]))
    for number in (3, 2):
        cluster[number].crash()
        cluster.wait_until(lambda number=number: number not in cluster.state("pair", 0).isr)
    (part,) = describe(wire(cluster[1].bootstrap), "pair")
    assert (part.leader_id, sorted(part.eligible_leader_replicas)) == (-1, [2, 3])
    shutil.rmtree(cluster[3].data_dir)
    cluster[3].start()
    (part,) = describe(wire(cluster[3].bootstrap), "pair")
    assert (part.leader_id, list(part.offline_replicas)) == (-1, [2])
    # It has nothing to report either, so it is not among those last known to be eligible.
    assert (list(part.eligible_leader_replicas), list(part.last_known_elr)) == ([2], [])


def report(cluster: Cluster, capsys: pytest.CaptureFixture[str], which: str) -> list[str]:
    arguments = ["--bootstrap-server", cluster[1].bootstrap, "--describe", which]
    assert kafka_topics.main([*arguments, "--exclude-internal"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [f"{line.split()[1]}-{line.split()[3]}" for line in lines]


def test_kafka_topics_reports_what_is_wrong(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = ("under-replicated", "unavailable", "under-min-isr", "at-min-isr")

    def found() -> dict[str, list[str]]:
        return {name: report(cluster, capsys, f"--{name}-partitions") for name in reports}

    lonely = ["alone-0", "alone-1", "alone-2"]
    # As Kafka's tool, it compares with min.insync.replicas as it is set, here 2.
    assert found() == {
        "under-replicated": [], "unavailable": [], "under-min-isr": lonely, "at-min-isr": [],
    }  # fmt: skip
    cluster[3].crash()
    cluster.wait_until(lambda: all(len(cluster.state("t", each).isr) == 2 for each in range(3)))
    cluster.wait_until(lambda: cluster.state("alone", 2).leader == -1)
    all_of_it = ["t-0", "t-1", "t-2"]
    assert found() == {
        "under-replicated": ["alone-2", *all_of_it],
        "unavailable": ["alone-2"],
        "under-min-isr": lonely,
        "at-min-isr": all_of_it,
    }
    cluster[2].crash()
    cluster.wait_until(lambda: all(cluster.state("t", each).isr == (1,) for each in range(3)))
    assert found()["under-min-isr"] == [*lonely, *all_of_it]


def find_coordinator(connection: Any, group: str) -> Any:
    answer = connection.ask("find_coordinator", 6, key_type=0, coordinator_keys=[group])
    return answer.coordinators[0]


def test_the_coordinator_is_who_leads_the_groups_partition(wire: Callable[..., Any]) -> None:
    config = {"offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1}
    with Cluster(3, config) as cluster:
        asked_of = [wire(broker.bootstrap) for broker in cluster]
        cluster.wait_until(
            lambda: all(find_coordinator(each, "g").error_code == NONE for each in asked_of)
        )
        found = {find_coordinator(each, "g").node_id for each in asked_of}
        assert found == {cluster.state("__consumer_offsets", 0).leader}
        coordinator = found.pop()
        other = cluster[coordinator % 3 + 1]
        asked = wire(other.bootstrap)
        place = find_coordinator(asked, "g")
        assert f"{place.host}:{place.port}" == cluster[coordinator].bootstrap
        cluster[coordinator].crash()
        cluster.wait_until(lambda: cluster.state("__consumer_offsets", 0).leader == -1)
        cluster.wait_until(
            lambda: find_coordinator(asked, "g").error_code == COORDINATOR_NOT_AVAILABLE
        )
        assert find_coordinator(asked, "g").node_id == -1


# -- where to go instead (KIP-951, KIP-320)


def endpoints(answer: Any) -> dict[int, str]:
    return {node.node_id: f"{node.host}:{node.port}" for node in answer.node_endpoints}


def produce(
    connection: Any, partition: int, records: bytes, version: int = 12, acks: int = -1
) -> tuple[Any, Any]:
    parts = [{"index": partition, "records": records}]
    answer = connection.ask(
        "produce", version, acks=acks, timeout=30_000,
        topic_data=[{"name": "t", "partition_data": parts}],
    )  # fmt: skip
    return answer, answer.responses[0].partition_responses[0]


def fetch(
    connection: Any, partition: int, version: int = 17, *, epoch: int = -1, offset: int = 0,
    **fields: Any,
) -> tuple[Any, Any]:  # fmt: skip
    wanted = {
        "partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20,
        "current_leader_epoch": epoch, "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    named = metadata(connection, "t")[0].topics[0]
    answer = connection.ask(
        "fetch", version, max_wait=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1,
        topics=[{"topic": "t", "topic_id": named.topic_id, "partitions": [wanted]}], **fields,
    )  # fmt: skip
    return answer, answer.responses[0].partitions[0]


@pytest.mark.parametrize("version", [9, 10, 12])
def test_produce_to_a_follower_names_the_leader(
    version: int, cluster: Cluster, wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    answer, part = produce(wire(cluster[2].bootstrap), 0, batch([b"a"]), version)
    assert part.error_code == NOT_LEADER
    if version < 10:
        return
    epoch = cluster.state("t", 0).leader_epoch
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, epoch)
    assert endpoints(answer) == {1: cluster[1].bootstrap}


def test_produce_of_many_partitions_names_every_leader(
    wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    topic = NewTopic("t", assignment=[[1 + index % 3] for index in range(300)])
    with Cluster(3, topics=[topic]) as cluster:
        parts = [{"index": index, "records": batch([b"a"])} for index in range(300)]
        answer = wire(cluster[2].bootstrap).ask(
            "produce", 12, acks=1, timeout=30_000,
            topic_data=[{"name": "t", "partition_data": parts}],
        )  # fmt: skip
        assert endpoints(answer) == {each: cluster[each].bootstrap for each in (1, 3)}
        answers = [each for topic in answer.responses for each in topic.partition_responses]
        assert [each.error_code for each in answers] == [NOT_LEADER, NONE, NOT_LEADER] * 100


@pytest.mark.parametrize("version", [10, 15, 16, 17])
def test_fetch_with_an_old_epoch_names_the_leader(
    version: int, cluster: Cluster, wire: Callable[..., Any]
) -> None:
    cluster[1].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).leader not in (1, -1))
    leader = cluster.leader("t", 0)
    state = cluster.state("t", 0)
    follower = next(each for each in cluster.running if each is not leader)
    for broker in (leader, follower):
        asked = wire(broker.bootstrap)
        cluster.wait_until(lambda asked=asked: metadata(asked, "t")[1][0].leader_id == state.leader)
        answer, part = fetch(asked, 0, version, epoch=state.leader_epoch - 1)
        assert part.error_code == FENCED_EPOCH
        assert fetch(asked, 0, version, epoch=state.leader_epoch + 1)[1].error_code == UNKNOWN_EPOCH
        if version >= 16:
            named = part.current_leader
            assert (named.leader_id, named.leader_epoch) == (state.leader, state.leader_epoch)
            assert endpoints(answer) == {state.leader: leader.bootstrap}
    asked = wire(follower.bootstrap)
    expected = NOT_LEADER if version < 11 else NONE  # from then on a follower may be read from
    assert fetch(asked, 0, version, epoch=state.leader_epoch)[1].error_code == expected


def test_positions_are_judged_by_the_epoch_too(cluster: Cluster, wire: Callable[..., Any]) -> None:
    def list_offsets(connection: Any, epoch: int) -> int:
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
        answer = connection.ask(
            "list_offsets", 9, replica_id=-1, topics=[{"name": "t", "partitions": [part]}]
        )
        return int(answer.topics[0].partitions[0].error_code)

    def epoch_end(connection: Any, epoch: int) -> int:
        part = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": 0}
        answer = connection.ask(
            "offset_for_leader_epoch", 4, replica_id=-1,
            topics=[{"topic": "t", "partitions": [part]}],
        )  # fmt: skip
        return int(answer.topics[0].partitions[0].error_code)

    cluster[1].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).leader not in (1, -1))
    leader = cluster.leader("t", 0)
    epoch = cluster.state("t", 0).leader_epoch
    for broker in cluster.running:
        asked = wire(broker.bootstrap)
        for ask in (list_offsets, epoch_end):
            cluster.wait_until(lambda ask=ask, asked=asked: ask(asked, epoch - 1) == FENCED_EPOCH)
            assert ask(asked, epoch + 1) == UNKNOWN_EPOCH
            expected = NONE if broker is leader else NOT_LEADER
            cluster.wait_until(
                lambda ask=ask, asked=asked, expected=expected: ask(asked, epoch) == expected
            )


# -- elections on request


def elect(
    connection: Any, wanted: dict[str, list[int]] | None, *, unclean: bool = False, version: int = 2
) -> dict[tuple[str, int], int]:
    """Error codes by partition."""
    answer = connection.ask(
        "elect_leaders", version, election_type=int(unclean), timeout=30_000,
        topic_partitions=None if wanted is None else [
            {"topic": topic, "partitions": partitions} for topic, partitions in wanted.items()
        ],
    )  # fmt: skip
    assert version == 0 or answer.error_code == NONE
    return {
        (topic.topic, part.partition_id): part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


@pytest.fixture
def unbalanced(cluster: Cluster) -> Cluster:
    """Partition 0 is not led by its preferred replica 1, which is there and in sync."""
    cluster[1].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).leader == 2)
    cluster[1].start()
    cluster.wait_in_sync("t")
    return cluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_preferred_leader_is_elected_on_request(
    version: int, unbalanced: Cluster, wire: Callable[..., Any]
) -> None:
    cluster = unbalanced
    # Whoever is asked: it is handed on to the controller.
    follower = next(each for each in cluster if each is not cluster.controller)
    asked = wire(follower.bootstrap)
    wanted = {"t": [0, 1, 7], "nobody": [0]}
    assert elect(asked, wanted, version=version) == {
        ("t", 0): NONE,
        ("t", 1): NOT_NEEDED,
        ("t", 7): UNKNOWN_TOPIC_OR_PARTITION,
        ("nobody", 0): UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert metadata(asked, "t")[1][0].leader_id == 1
    assert elect(asked, {"t": [0]}, version=version) == {("t", 0): NOT_NEEDED}


def test_a_produce_that_waits_learns_of_the_new_leader_at_once(
    unbalanced: Cluster, wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    cluster = unbalanced
    leader = cluster[2]
    # Followers wait for records, and are never answered.
    leader.faults.delay(600, "Fetch", times=None).wait_hit(2)
    asked = wire(leader.bootstrap)
    asked.send(
        "produce", 12, acks=-1, timeout=600_000,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch([b"a"])}]}],
    )  # fmt: skip
    cluster.wait_until(lambda: cluster.replica(2, "t", 0).log.log_end_offset == 1)
    assert elect(wire(cluster[3].bootstrap), {"t": [0]}) == {("t", 0): NONE}
    answer = asked.receive()
    part = answer.responses[0].partition_responses[0]
    epoch = cluster.state("t", 0).leader_epoch
    assert part.error_code == NOT_LEADER
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, epoch)
    assert endpoints(answer) == {1: cluster[1].bootstrap}
    leader.faults.heal()


def test_all_partitions_are_asked_for_with_null(
    unbalanced: Cluster, wire: Callable[..., Any]
) -> None:
    asked = wire(unbalanced[3].bootstrap)
    # Those that need no election are left out.
    assert elect(asked, None) == {("t", 0): NONE}
    assert elect(asked, None) == {}


def test_a_preferred_replica_that_is_not_there_cannot_lead(
    cluster: Cluster, wire: Callable[..., Any]
) -> None:
    cluster[1].crash()
    cluster.wait_until(lambda: cluster.state("t", 0).leader == 2)
    asked = wire(cluster[2].bootstrap)
    assert elect(asked, {"t": [0]}) == {("t", 0): PREFERRED_NOT_AVAILABLE}
    assert elect(asked, {"t": [0]}, unclean=True) == {("t", 0): NOT_NEEDED}
    answer = asked.ask("elect_leaders", 2, election_type=7, timeout=1000, topic_partitions=None)
    assert answer.error_code == INVALID_REQUEST


def test_an_unclean_election_takes_who_is_there(cluster: Cluster, wire: Callable[..., Any]) -> None:
    pair = NewTopic("pair", assignment=[[2, 3]], config={"min.insync.replicas": "1"})
    cluster.create(pair)
    cluster[3].crash()
    cluster.wait_until(lambda: cluster.state("pair", 0).isr == (2,))
    # One record that 3 does not have.
    cluster[2].produce("pair", b"lost", partition=0)
    cluster[2].crash()
    cluster.wait_until(lambda: cluster.state("pair", 0).leader == -1)
    asked = wire(cluster[1].bootstrap)
    assert elect(asked, {"pair": [0]}, unclean=True) == {("pair", 0): ELIGIBLE_NOT_AVAILABLE}
    cluster[3].start()
    assert cluster.state("pair", 0).leader == -1
    assert elect(asked, {"pair": [0]}) == {("pair", 0): PREFERRED_NOT_AVAILABLE}
    assert elect(asked, {"pair": [0]}, unclean=True) == {("pair", 0): NONE}
    cluster[2].start()
    cluster.wait_in_sync("pair")
    assert [cluster.replica(each, "pair", 0).log.log_end_offset for each in (2, 3)] == [0, 0]


def test_clients_elect_leaders(
    unbalanced: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = unbalanced
    servers = cluster.bootstrap

    def unbalance() -> None:
        cluster[1].restart()
        cluster.wait_until(lambda: cluster.state("t", 0).leader not in (1, -1))
        cluster.wait_in_sync("t")

    with ottla.Admin(servers) as admin:
        assert admin.elect_leaders([("t", 0), ("t", 1)]) == (ottla.TopicPartition("t", 0),)
        assert admin.elect_leaders() == ()
        with pytest.raises(ottla.KafkaError, match="No such partition as t-9"):
            admin.elect_leaders([("t", 9)])
    unbalance()
    client = AdminClient({"bootstrap.servers": servers})
    outcome = client.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]).result()
    assert list(outcome.values()) == [None]
    unbalance()
    arguments = ["--bootstrap-server", servers, "--election-type", "preferred"]
    one = [*arguments, "--topic", "t", "--partition", "0"]
    assert run_tool("kafka-leader-election", one) == 0
    expected = "Successfully completed leader election (PREFERRED) for partitions t-0\n"
    assert capsys.readouterr().out == expected
    file = tmp_path / "partitions.json"
    file.write_text(
        '{"partitions": [{"topic": "t", "partition": 0}, {"topic": "x", "partition": 1}]}'
    )
    assert run_tool("kafka-leader-election", [*arguments, "--path-to-json-file", str(file)]) == 1
    shown = capsys.readouterr()
    assert "Valid replica already elected for partitions t-0\n" in shown.out
    assert (
        "Error completing leader election (PREFERRED) for partition: x-1: "
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: No such topic as x"
    ) in shown.out
    assert "1 replica(s) could not be elected" in shown.err
    assert run_tool("kafka-leader-election", [*arguments, "--all-topic-partitions"]) == 0
    unbalance()
    cli = CliRunner()
    done = cli.invoke(command_line, ["topic", "elect", "t", "-b", cluster[2].bootstrap])
    assert (done.exit_code, done.output) == (0, "elected leaders of 1 partition\n")
    done = cli.invoke(command_line, ["topic", "elect", "-b", cluster[2].bootstrap, "--json"])
    assert json.loads(done.output) == {"elected": [], "failed": []}


def test_leaders_come_back_by_themselves() -> None:
    config = {"leader.imbalance.check.interval.seconds": 1}
    with Cluster(3, config, topics=[EVERYWHERE]) as cluster:
        cluster[1].crash()
        cluster.wait_until(lambda: cluster.state("t", 0).leader == 2)
        cluster[1].start()
        cluster.wait_until(lambda: cluster.state("t", 0).leader == 1)


def test_leaders_stay_where_they_are_if_that_is_wanted() -> None:
    config = {
        "leader.imbalance.check.interval.seconds": 1,
        "auto.leader.rebalance.enable": False,
    }
    with Cluster(3, config, topics=[EVERYWHERE]) as cluster:
        controller = cluster.controller
        assert controller is not None
        assert controller._services().controller._cluster._balance_at == float("inf")


# -- internal topics


def group_member(cluster: Cluster) -> Consumer:
    return Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0,
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip


def next_record(consumer: Consumer) -> Message:
    """The next record; what librdkafka tells of brokers that are gone is passed over."""
    while True:
        message = consumer.poll(120)
        assert message is not None
        if message.error() is None:
            return message


def test_one_broker_grows_to_three_and_its_groups_outlive_it() -> None:
    config = {"offsets.topic.replication.factor": 3, "min.insync.replicas": 2}
    with Cluster(1, config, topics=[NewTopic("t", 1, 1)]) as cluster:
        first = group_member(cluster)
        first.commit(offsets=[TopicPartition("t", 0, 41)], asynchronous=False)
        first.close()
        for expected in (2, 3):
            cluster.add()
            cluster.wait_until(
                lambda expected=expected: all(
                    len(state.replicas) == expected
                    for state in cluster.running[0]
                    ._services()
                    .image.topics["__consumer_offsets"]
                    .partitions
                )
            )
        cluster.wait_in_sync("__consumer_offsets")
        states = cluster[1]._services().image.topics["__consumer_offsets"].partitions
        assert {state.leader for state in states} == {1}
        # Each broker is preferred for its share; leadership follows when it is balanced.
        shares = [sum(state.replicas[0] == each for state in states) for each in (1, 2, 3)]
        assert max(shares) - min(shares) <= 1
        cluster.create(NewTopic("later", assignment=[[2, 3]]))
        cluster[1].crash()
        second = group_member(cluster)
        (committed,) = second.committed([TopicPartition("t", 0)], timeout=120)
        assert committed.offset == 41
        cluster[2].produce("later", b"a", partition=0)
        second.subscribe(["later"])
        message = next_record(second)
        assert message.value() == b"a"
        second.commit(asynchronous=False)
        (committed,) = second.committed([TopicPartition("later", 0)], timeout=120)
        assert committed.offset == 1
        second.close()


# -- min.insync.replicas, and deleting records everywhere

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


def alter(
    connection: Any, kind: int, name: str, value: str | None, setting: str = "min.insync.replicas"
) -> tuple[int, str | None]:
    config = {
        "name": setting, "config_operation": DELETE if value is None else SET, "value": value,
    }  # fmt: skip
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    answer = connection.ask("incremental_alter_configs", 1, resources=[resource])
    return answer.responses[0].error_code, answer.responses[0].error_message


def test_the_cluster_has_one_min_insync(cluster: Cluster, wire: Callable[..., Any]) -> None:
    follower = next(each for each in cluster if each is not cluster.controller)
    asked = wire(follower.bootstrap)
    # As soon as there are two brokers, the cluster has a value of its own.
    cluster.wait_until(
        lambda: follower._services().image.broker_configs.get("") == {"min.insync.replicas": "2"}
    )
    assert alter(asked, BROKER, "1", "1") == (
        INVALID_CONFIG,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )
    assert alter(asked, BROKER, "", None) == (
        INVALID_CONFIG,
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert alter(asked, BROKER, "", "1") == (NONE, None)


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "")])
def test_another_min_insync_clears_the_eligible_replicas(
    kind: int, name: str, cluster: Cluster, wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    asked = wire(cluster[1].bootstrap)
    assert produce(asked, 0, batch([b"a"]))[1].error_code == NONE
    for number in (2, 3):
        cluster[number].crash()
        cluster.wait_until(lambda number=number: number not in cluster.state("t", 0).isr)
    assert cluster.state("t", 0).elr == (3,)
    assert produce(asked, 0, batch([b"b"]))[1].error_code == NOT_ENOUGH_REPLICAS
    assert alter(asked, kind, name, "1") == (NONE, None)
    # Records are acknowledged without 3 from now on, so it must not lead by right any more.
    for part in describe(asked, "t"):
        assert (list(part.eligible_leader_replicas), list(part.last_known_elr)) == ([], [])
    cluster.wait_until(lambda: produce(asked, 0, batch([b"c"]))[1].error_code == NONE)
    # alone-1 and alone-2 have no leader: whom they wait for is remembered.
    assert [list(part.eligible_leader_replicas) for part in describe(asked, "alone")] == [
        [], [2], [3],
    ]  # fmt: skip


def delete_records(connection: Any, offset: int, timeout: int = 30_000) -> Any:
    part = {"partition_index": 0, "offset": offset}
    answer = connection.ask(
        "delete_records", 2, topics=[{"name": "t", "partitions": [part]}], timeout=timeout
    )
    return answer.topics[0].partitions[0]


def test_records_are_deleted_when_all_live_replicas_have_deleted_them(
    cluster: Cluster, wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    asked = wire(cluster[1].bootstrap)
    assert produce(asked, 0, batch([b"a", b"b", b"c", b"d"]))[1].error_code == NONE
    result = delete_records(asked, 2)
    assert (result.error_code, result.low_watermark) == (NONE, 2)
    starts = [cluster.replica(each, "t", 0).log.log_start_offset for each in (1, 2, 3)]
    assert starts == [2, 2, 2]
    with cluster.paused(2):
        result = delete_records(asked, 3, timeout=200)
        assert (result.error_code, result.low_watermark) == (REQUEST_TIMED_OUT, 2)
    cluster[2].crash()
    # Who is dead is not waited for.
    result = delete_records(asked, 4)
    assert (result.error_code, result.low_watermark) == (NONE, 4)


# -- reading near by (KIP-392)

RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def test_a_consumer_reads_from_its_own_rack(
    wire: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    with Cluster(3, RACK_AWARE, topics=[EVERYWHERE], racks=["a", "b", "c"]) as cluster:
        asked = wire(cluster[1].bootstrap)
        assert produce(asked, 0, batch([b"0", b"1", b"2"]))[1].error_code == NONE
        cluster.wait_until(
            lambda: all(cluster.replica(each, "t", 0).high_watermark == 3 for each in (2, 3))
        )
        for rack, replica in (("a", -1), ("b", 2), ("c", 3), ("d", -1), ("", -1)):
            _, part = fetch(asked, 0, rack_id=rack)
            assert part.preferred_read_replica == replica
            assert bool(part.records) == (replica == -1)
            assert part.high_watermark == 3
        # A follower serves what it knows to be safe, and knows no offset beyond its log.
        near = wire(cluster[3].bootstrap)
        assert fetch(near, 0, rack_id="c")[1].records
        assert fetch(near, 0, rack_id="c", offset=3)[1].error_code == NONE
        assert fetch(near, 0, rack_id="c", offset=4)[1].error_code == OFFSET_OUT_OF_RANGE
        # A version that knows no racks reads from the leader alone.
        assert fetch(near, 0, 10)[1].error_code == NOT_LEADER

        # librdkafka goes where it is sent: all records come from 3, none from 2.
        asked_of = {
            number: cluster[number].faults.delay(0, "Fetch", client_id="near", times=None)
            for number in (1, 2, 3)
        }
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "client.rack": "c",
             "client.id": "near", "auto.offset.reset": "earliest", "log_level": 0}
        )  # fmt: skip
        consumer.assign([TopicPartition("t", 0, 0)])
        values = [next_record(consumer).value() for _ in range(3)]
        consumer.close()
        assert values == [b"0", b"1", b"2"]
        assert asked_of[1].hits >= 1
        assert asked_of[3].hits >= 1
        assert asked_of[2].hits == 0


# -- features


def test_all_brokers_have_the_features_of_the_cluster(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in cluster:
        arguments = ["--bootstrap-server", broker.bootstrap, "describe"]
        assert run_tool("kafka-features", arguments) == 0
        lines = [line.split("\tEpoch")[0] for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            f"Feature: {name}\tSupportedMinVersion: {lowest}\tSupportedMaxVersion: {highest}"
            f"\tFinalizedVersionLevel: {highest}"
            for name, lowest, highest in (
                ("eligible.leader.replicas.version", "0", "1"),
                ("group.version", "0", "1"),
                ("metadata.version", "3.3-IV3", "4.2-IV1"),
                ("ottla.metadata.version", "0", "1"),
                ("transaction.version", "0", "2"),
            )
        ]
