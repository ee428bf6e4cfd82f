"""kafka-reassign-partitions and kafka-topics, typed at a cluster of several brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ottla.cli.kafka_compat import run as run_tool
from ottla.client.cluster_health import look
from ottla.client.direct import DirectAdmin
from ottla.client.reassignments import begin
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.testing import Cluster, NewTopic

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    topic = NewTopic("t", assignment=[[1, 2], [2, 3]], config={"min.insync.replicas": "1"})
    with Cluster(4, {"replica.fetch.max.bytes": 1}, topics=[topic]) as cluster:
        yield cluster


class Tools:
    """Types tools, and reads what they print."""

    def __init__(self, cluster: Cluster, capsys: Capture, folder: Path) -> None:
        self._cluster = cluster
        self._capsys = capsys
        self.file = folder / "moves.json"

    def write(self, partitions: Mapping[int, Sequence[int]]) -> None:
        self.file.write_text(
            json.dumps(
                {
                    "version": 1,
                    "partitions": [
                        {"topic": "t", "partition": index, "replicas": list(replicas)}
                        for index, replicas in partitions.items()
                    ],
                }
            )
        )

    def reassign(self, *arguments: str, code: int = 0) -> list[str]:
        if arguments[0] != "--list":
            arguments = (*arguments, "--reassignment-json-file", str(self.file))
        return self.type("kafka-reassign-partitions", *arguments, code=code)

    def type(self, tool: str, *arguments: str, code: int = 0) -> list[str]:
        assert run_tool(tool, ["--bootstrap-server", self._cluster.bootstrap, *arguments]) == code
        self._cluster.wait_until(lambda: True)  # whoever is asked next knows of it
        return self._capsys.readouterr().out.splitlines()


@pytest.fixture
def tools(cluster: Cluster, capsys: Capture, tmp_path: Path) -> Tools:
    return Tools(cluster, capsys, tmp_path)


def test_partitions_are_moved_shown_and_arrive(cluster: Cluster, tools: Tools) -> None:
    cluster[4].crash()
    cluster.wait_until(lambda: all(4 not in cluster._live(each) for each in cluster.running))
    tools.write({0: [1, 4], 1: [3, 2]})
    assert tools.reassign("--execute", code=1) == ["Error: Unknown broker id 4"]
    cluster[4].start()
    cluster.wait_until(lambda: all(4 in cluster._live(each) for each in cluster.running))
    fill(cluster)
    shown = tools.reassign("--execute", "--throttle", "1")
    assert shown[0] == "Current partition replica assignment"
    assert [part["replicas"] for part in json.loads(shown[2])["partitions"]] == [[1, 2], [2, 3]]
    assert shown[-2:] == [
        "The inter-broker throttle limit was set to 1 B/s",
        "Successfully started partition reassignments for t-0,t-1",
    ]
    assert tools.reassign("--list") == [
        "Current partition reassignments:",
        "t-0: replicas: 1,4,2. adding: 4. removing: 2.",
    ]
    assert tools.reassign("--verify") == [
        "Status of partition reassignment:",
        "Reassignment of partition t-0 is still in progress.",
        "Reassignment of partition t-1 is completed.",
        "",
    ]
    [described] = [
        line for line in tools.type("kafka-topics", "--describe") if "\tPartition: 0" in line
    ]
    assert "\tReplicas: 1,4,2\tIsr: 1,2\tAdding Replicas: 4\tRemoving Replicas: 2\tElr" in described
    assert not tools.type("kafka-topics", "--describe", "--under-replicated-partitions")
    with DirectAdmin(cluster.bootstrap) as admin:
        health = look(admin)
    assert (health.moving, health.under_replicated, health.troubled) == (1, 0, ())
    assert tools.reassign("--execute", code=1)[0].startswith(
        "Cannot execute because there is an existing partition assignment."
    )
    tools.reassign("--execute", "--additional", "--throttle", "100000000")
    cluster.wait_until(lambda: cluster.state("t", 0).replicas == (1, 4))
    assert tools.reassign("--verify") == [
        "Status of partition reassignment:",
        "Reassignment of partition t-0 is completed.",
        "Reassignment of partition t-1 is completed.",
        "",
        "Clearing broker-level throttles on brokers 1,2,3,4",
        "Clearing topic-level throttles on topic t",
    ]
    assert tools.reassign("--list") == ["No partition reassignments found."]
    assert "throttled" not in "".join(
        tools.type("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", "t")
    )
    tools.write({0: [1, 3]})
    assert "but replica set is 1,4 rather than 1,3." in tools.reassign("--verify")[1]


def test_a_move_is_cancelled(cluster: Cluster, tools: Tools) -> None:
    fill(cluster)
    tools.write({0: [1, 2, 4]})
    tools.reassign("--execute", "--throttle", "1")
    assert tools.reassign("--cancel") == [
        "Successfully cancelled partition reassignment for: t-0",
        "None of the specified partition moves are active."
        "Clearing broker-level throttles on brokers 1,2,3,4",
        "Clearing topic-level throttles on topic t",
    ]
    assert cluster.state("t", 0).replicas == (1, 2)
    assert tools.reassign("--cancel", "--preserve-throttles") == [
        "None of the specified partition reassignments are active.",
        "None of the specified partition moves are active.",
    ]


def test_the_throttle_of_a_broker_that_has_died_is_removed(cluster: Cluster, tools: Tools) -> None:
    fill(cluster)
    tools.write({0: [1, 4]})
    tools.reassign("--execute", "--throttle", "1")
    cluster[4].crash()
    cluster.wait_until(lambda: all(4 not in cluster._live(each) for each in cluster.running))
    assert "4" in cluster[1]._services().image.broker_configs
    assert "throttles on brokers 1,2,3,4" in tools.reassign("--cancel")[1]
    assert not cluster[1]._services().image.broker_configs.get("4")


def test_a_topic_that_is_deleted_while_it_moves_leaves_no_throttle(
    cluster: Cluster, tools: Tools
) -> None:
    """Topics that come after it in the alphabet stayed limited, and with log_dirs all did."""
    cluster.create(NewTopic("gone", assignment=[[1, 2]]), NewTopic("z", assignment=[[1, 2]]))
    folder = cluster[3].data_dirs[0]
    plan = [
        {"topic": name, "partition": 0, "replicas": [1, 3], "log_dirs": ["any", folder]}
        for name in ("gone", "z")
    ]
    tools.file.write_text(json.dumps({"version": 1, "partitions": plan}))
    tools.reassign("--execute", "--throttle", "1000000", "--timeout", "60000")
    cluster.wait_until(lambda: cluster.state("z", 0).replicas == (1, 3))
    with DirectAdmin(cluster.bootstrap) as admin:
        admin.delete_topics(["gone"])
    cluster.wait_until(lambda: True)  # whoever is asked next knows of it
    assert cluster[1]._services().image.topics["z"].config
    assert tools.reassign("--verify") == [
        "Status of partition reassignment:",
        "There is no active reassignment of partition gone-0, but replica set is  rather than 1,3.",
        "Reassignment of partition z-0 is completed.",
        "Partition gone-0 does not exist any more.",
        "Reassignment of replica z-0-3 completed successfully.",
        "Clearing broker-level throttles on brokers 1,2,3,4",
        "Clearing topic-level throttles on topics gone,z",
    ]
    image = cluster[1]._services().image
    assert not image.topics["z"].config
    assert not any("rate" in name for config in image.broker_configs.values() for name in config)
    assert "Clearing topic-level throttles on topics gone,z" in tools.reassign("--cancel")


@pytest.mark.parametrize("partitions", [3, 1_500])
def test_a_plan_that_could_not_be_handed_over_is_not_carried_out_later(
    cluster: Cluster, partitions: int
) -> None:
    """The tool had given up, and the broker waited for a controller twice as long; with a plan of
    many partitions that long for each few of them."""
    cluster.create(NewTopic("many", assignment=[[1, 2]] * partitions))
    wanted = {TopicPartition("many", index): [1, 3] for index in range(partitions)}
    with DirectAdmin(cluster.bootstrap, timeout=3) as admin:
        cluster.stop_metadata()
        with pytest.raises(KafkaError):
            begin(admin.router, wanted)
        cluster.start_metadata()
        cluster.wait_until(lambda: all(len(cluster._live(each)) == 4 for each in cluster.running))
    with DirectAdmin(cluster.bootstrap) as admin:
        begin(admin.router, {TopicPartition("t", 0): [1, 3]})
    cluster.wait_until(lambda: cluster.state("t", 0).replicas == (1, 3))
    assert {cluster.state("many", index).replicas for index in range(partitions)} == {(1, 2)}


def test_a_placement_is_proposed_and_can_be_executed(cluster: Cluster, tools: Tools) -> None:
    fill(cluster)
    topics = tools.file.with_name("topics.json")
    topics.write_text('{"version": 1, "topics": [{"topic": "t"}]}')
    wanted = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list")
    shown = tools.type("kafka-reassign-partitions", *wanted, "3,4")
    assert [shown[0], shown[3]] == [
        "Current partition replica assignment",
        "Proposed partition reassignment configuration",
    ]
    current, proposed = json.loads(shown[1]), json.loads(shown[4])
    assert all(
        folder.startswith("/") for part in current["partitions"] for folder in part["log_dirs"]
    )
    assert all({*part["replicas"]} == {3, 4} for part in proposed["partitions"])
    tools.file.write_text(shown[4])
    tools.reassign("--execute")
    cluster.wait_until(lambda: {*cluster.state("t", 0).replicas} == {3, 4})
    tools.file.write_text(shown[1])
    tools.reassign("--execute", "--additional")
    cluster.wait_until(lambda: cluster.state("t", 0).replicas == (1, 2))
    # One that is still on its way has more replicas, and a broker may hear of its end later.
    refused = ["Error: Replication factor: 2 larger than available brokers: 1"]
    cluster.wait_until(
        lambda: tools.type("kafka-reassign-partitions", *wanted, "3", code=1) == refused
    )


def test_a_folder_that_a_broker_does_not_have_is_refused(cluster: Cluster, tools: Tools) -> None:
    tools.file.write_text(
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3], '
        '"log_dirs": ["any", "/nowhere"]}]}'
    )
    [line] = tools.reassign("--execute", code=1)
    refused = (
        "Error: Failed to alter dir for t-0-3: broker 3 has no log directory /nowhere, it has "
    )
    assert line == refused + cluster[3].data_dirs[0]
    assert cluster.state("t", 0).replicas == (1, 2)


def test_unhealthy_partitions_are_found(cluster: Cluster, tools: Tools) -> None:
    def reported(name: str) -> list[str]:
        lines = tools.type("kafka-topics", "--describe", "--topic", "t", f"--{name}-partitions")
        return [line.split("\t")[2] for line in lines]

    assert not reported("under-replicated")
    cluster[3].crash()
    cluster.wait_until(lambda: reported("under-replicated") == ["Partition: 1"])
    assert reported("at-min-isr") == ["Partition: 1"]
    assert not reported("under-min-isr")
    cluster[2].crash()
    cluster.wait_until(lambda: reported("unavailable") == ["Partition: 1"])
    assert reported("under-min-isr") == ["Partition: 1"]


def fill(cluster: Cluster) -> None:
    """Some batches of records, so that a copy takes more than one fetch."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in range(20):
        producer.produce("t", b"x" * 1000, partition=number % 2)
        assert producer.flush(120) == 0


def test_replicas_are_compared_until_the_tool_is_stopped(cluster: Cluster) -> None:
    fill(cluster)
    arguments = ["--broker-list", cluster.bootstrap, "--time", "-2", "--topics-include", "t"]
    tool = [sys.executable, "-m", "ottla.cli.kafka_compat", "kafka-replica-verification"]
    intervals = ["--report-interval-ms", "1", "--max-wait-ms", "50"]
    with subprocess.Popen(
        [*tool, *arguments, *intervals], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        lines = []
        for line in running.stdout:
            lines.append(line.rstrip().partition(": ")[2])
            if lines[-1].startswith("max lag is 0 for"):
                break
        running.terminate()
    assert lines[0] == "verification process is started"
    assert lines[-1].endswith("at offset 10 among 2 partitions")
    assert not any("match" in line for line in lines)
