"""`ottla cluster status` on a cluster whose brokers die."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ottla.cli.kafka_compat import run as run_tool
from ottla.client import cluster_health
from ottla.client.direct import DirectAdmin
from ottla.errors import KafkaError
from ottla.testing import Cluster, NewTopic

Eventually = Callable[..., Any]

UNCLEAN = "kafka_controller_controller_stats_unclean_leader_elections_total"


def status(bootstrap: str, *flags: str) -> str:
    return run(bootstrap, "cluster", "status", *flags)


def run(bootstrap: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "ottla", *arguments, "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_broker_that_holds_nothing_is_missing_until_it_is_unregistered(
    ottla_cluster: Cluster, eventually: Eventually
) -> None:
    def states() -> dict[int, str]:
        document = json.loads(status(ottla_cluster[1].bootstrap, "--json"))
        return {each["id"]: each["state"] for each in document["brokers"]}

    ottla_cluster[3].stop()
    eventually(lambda: states() == {1: "up", 2: "up", 3: "missing"})
    bootstrap = ["--bootstrap-server", ottla_cluster[1].bootstrap]
    assert run_tool("kafka-cluster", ["unregister", *bootstrap, "--id", "3"]) == 0
    eventually(lambda: states() == {1: "up", 2: "up"})


def test_who_watches_sees_on_when_the_broker_that_was_named_stands_still() -> None:
    with Cluster(3, session_seconds=2.0) as cluster:
        line = [sys.executable, "-m", "ottla", "cluster", "status", "--watch", "--json"]
        line += ["--interval", "0.2", "--bootstrap", cluster[1].bootstrap]
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stdout is not None
            seen = map(json.loads, watching.stdout)
            assert next(seen)["brokers"][0]["state"] == "up"
            with cluster.paused(1):
                # The output would end, if it did not go on.
                assert any(each["brokers"][0]["state"] == "missing" for each in seen)
            watching.send_signal(signal.SIGINT)
            _, told = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert "; trying again" in told


@pytest.mark.ottla(topics=[NewTopic("t", assignment=[[2, 1, 3]])])
def test_the_partitions_of_a_broker_that_dies_meanwhile_are_looked_at_once_more(
    ottla_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ottla_cluster.wait_in_sync("t")
    ask = cluster_health._ask_brokers
    asked: list[list[int]] = []

    def ask_late(
        admin: DirectAdmin, live: Iterable[int], ours: bool | None
    ) -> cluster_health.Known:
        asked.append([*live])
        if len(asked) == 1:
            ottla_cluster[2].crash()
            ottla_cluster.wait_until(lambda: ottla_cluster.state("t", 0).leader != 2)
        return ask(admin, asked[-1], ours)

    monkeypatch.setattr(cluster_health, "_ask_brokers", ask_late)
    with DirectAdmin(ottla_cluster.bootstrap) as admin:
        found = cluster_health.look(admin)
    assert asked == [[1, 2, 3], [1, 3]]
    assert [(each.state, each.leads, each.in_sync) for each in found.brokers][1] == (
        "missing", 0, 0,
    )  # fmt: skip
    assert [each.name for each in found.troubled] == ["t-0"]


@pytest.mark.ottla(
    topics=[NewTopic("alone", assignment=[[2]]), NewTopic("t", assignment=[[1, 2, 3]])]
)
def test_status_tells_who_is_missing_and_who_is_waited_for(
    ottla_cluster: Cluster, eventually: Eventually
) -> None:
    def told() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(status(ottla_cluster[1].bootstrap, "--json"))
        return found

    ottla_cluster.wait_in_sync("t")
    eventually(lambda: told()["silent"] == [])  # a busy machine lets a broker answer late
    whole = told()
    assert [each["state"] for each in whole["brokers"]] == ["up", "up", "up"]
    assert {each["host"] for each in whole["brokers"]} == {socket.gethostname()}
    since = [each["since"] for each in whole["brokers"]]
    assert min(since) > 0
    assert whole["controller"] in (1, 2, 3)
    assert (whole["partitions"], whole["troubled"]) == (2, [])

    ottla_cluster[2].crash()
    ottla_cluster.wait_until(lambda: ottla_cluster.state("alone", 0).leader == -1)
    ottla_cluster.wait_until(lambda: 2 not in ottla_cluster.state("t", 0).isr)
    eventually(lambda: told()["silent"] == [])
    broken = told()
    assert broken["under_replicated"] == 2
    missing = broken["brokers"][1]
    assert (missing["state"], missing["host"]) == ("missing", socket.gethostname())
    assert missing["since"] >= since[1], "from its end on"
    [alone, led] = broken["troubled"]
    assert (alone["topic"], alone["state"], alone["waits_for"]) == ("alone", "offline", [2])
    assert (led["topic"], led["state"], led["in_sync"]) == ("t", "under-replicated", [1, 3])
    assert led["waits_for"] == [2]
    text = status(ottla_cluster[1].bootstrap)
    assert "2 brokers up" in text
    assert "1 offline, 1 under min.insync, 2 under-replicated" in text
    assert "broker 2" in next(line for line in text.splitlines() if line.startswith("alone-0"))

    ottla_cluster[2].restart()
    eventually(lambda: told()["troubled"] == [])


def test_what_is_shown_without_the_store_is_called_old(
    ottla_cluster: Cluster, eventually: Eventually
) -> None:
    def told() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(status(ottla_cluster[1].bootstrap, "--json"))
        return found

    eventually(lambda: (told()["store_away"], told()["silent"]) == ([], []))
    ottla_cluster.stop_metadata()
    eventually(lambda: len(told()["store_away"]) == 3)
    ottla_cluster[3].crash()
    eventually(lambda: told()["silent"] == [3])
    text = status(ottla_cluster[1].bootstrap)
    assert "the metadata store is out of reach of brokers 1,2 since 20" in text
    assert "called up, but without an answer: broker 3" in text

    ottla_cluster.start_metadata()
    eventually(lambda: told()["store_away"] == [])
    eventually(lambda: told()["silent"] == [])


STUCK = NewTopic("t", assignment=[[1, 2, 3]], config={"min.insync.replicas": "1"})


@pytest.mark.ottla(topics=[STUCK])
def test_a_replica_that_never_returns_can_be_given_up(
    ottla_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ottla_cluster
    cluster.wait_in_sync("t")
    # Each one has one record less than the one before: 2 has none of them, and comes first.
    for number, left in ((2, (1, 3)), (3, (1,))):
        cluster[number].crash()
        cluster.wait_until(lambda left=left: cluster.state("t", 0).isr == left)
        cluster[1].produce("t", b"record", partition=0)
    cluster[1].crash()
    cluster[2].start()
    cluster[3].start()
    cluster.wait_until(lambda: cluster.state("t", 0).leader == -1)
    bootstrap = cluster[2].bootstrap
    elect = ("topic", "elect", "t", "--accept-loss", "--json")

    def planned(*flags: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run(bootstrap, *elect, *flags))
        return found

    cluster.wait_until(lambda: [each["given_up"] for each in planned()["plan"]] == [[1]])
    told = planned()
    [plan] = told["plan"]
    assert (plan["leader"], plan["end_offset"], plan["waits_for"]) == (3, 1, [1])
    assert not told["executed"]
    assert cluster.state("t", 0).leader == -1, "it was only shown"

    assert planned("--yes")["elected"] == [{"topic": "t", "partition": 0}]
    assert cluster.state("t", 0).leader == 3
    assert "t-0 is led by broker 3" in caplog.text
    counted = [broker.metrics()[UNCLEAN] for broker in cluster.running]
    assert sorted(counted) == [0, 1], "by the controller"
    cluster[1].start()
    cluster.wait_in_sync("t")
    assert cluster.replica(1, "t", 0).log.log_end_offset == 1
    assert run(bootstrap, "topic", "elect", "--accept-loss").startswith("every partition has")


def test_a_file_that_does_not_count_is_told(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(2, {"min.insync.replicas": 2}) as cluster:
        cluster._config["min.insync.replicas"] = 1
        third = cluster.add()
        assert "min.insync.replicas=1 in the settings of this broker does not count" in caplog.text
        assert third._services().config.min_insync_replicas == 2

        def told() -> tuple[int, list[dict[str, int]]]:
            found = json.loads(status(cluster.bootstrap, "--json"))
            return found["min_insync"], found["overruled"]

        eventually(lambda: told() == (2, [{"broker": 3, "min_insync": 1}]))
        eventually(lambda: "1 in that of broker 3" in status(cluster.bootstrap))


def test_a_leader_with_a_failed_disk_is_waited_for(eventually: Eventually) -> None:
    alone = NewTopic("alone", assignment=[[2]])
    with Cluster(2, topics=[alone], folders=2) as cluster:
        cluster[2].produce("alone", b"before", partition=0)
        folder = cluster.replica(2, "alone", 0).log.folder.rpartition("/")[0]
        cluster[2].faults.full_disk(folder=folder)
        with pytest.raises(KafkaError):
            cluster[2].produce("alone", b"after", partition=0)

        def troubled() -> list[dict[str, Any]]:
            # Whoever is asked first: the broker itself has to tell.
            found = json.loads(status(cluster[1].bootstrap, "--json"))["troubled"]
            return [each for each in found if each["topic"] == "alone"]

        def judged() -> list[tuple[Any, ...]]:
            return [(each["state"], each["waits_for"], each["broken"]) for each in troubled()]

        eventually(lambda: judged() == [("offline", [2], [2])])
        assert "the log of broker 2" in status(cluster[1].bootstrap)


def test_one_answer_that_is_lost_makes_no_broker_look_older(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    asked = cluster_health._ask_broker
    lost: list[int] = []
    monkeypatch.setattr(
        cluster_health,
        "_ask_broker",
        lambda admin, broker: None if broker in lost else asked(admin, broker),
    )
    with Cluster(3) as cluster, DirectAdmin(cluster.bootstrap) as admin:
        eventually(lambda: len(cluster_health.look(admin).known.versions) == 3)
        lost.append(1)
        known = cluster_health.look(admin).known
        lost += [2, 3]
        nobody = cluster_health.look(admin, ours=True).known
        others = cluster_health.look(admin).known
    assert known.ours
    assert known.silent == {1}
    assert set(known.versions) == {2, 3}
    assert nobody.silent == {1, 2, 3}
    assert not others.ours
    assert not others.silent
