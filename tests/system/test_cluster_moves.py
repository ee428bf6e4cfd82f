"""`ottla cluster rebalance`, `ottla cluster drain` and `ottla topic replicate`, under load."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ottla.cli.kafka_compat import run as run_tool
from ottla.cli.main import cli as command_line
from ottla.client import reassignments
from ottla.client.direct import BROKER, SET, TOPIC, DirectAdmin
from ottla.client.producer import Producer
from ottla.client.reassignments import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    Movements,
    Ongoing,
    begin,
    lift_broker_limits,
    limit_copies,
    ongoing,
    replica_limits,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import PartitionState
from ottla.testing import Cluster, NewTopic

PARTITIONS = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # The offsets topic has as many partitions as brokers, so that what is moved is soon there.
    config = {"offsets.topic.num.partitions": 3, "offsets.topic.replication.factor": 2}
    topic = NewTopic("t", assignment=[[1, 2], [2, 1], [1, 2]], config={"min.insync.replicas": "2"})
    with Cluster(2, config, topics=[topic]) as cluster:
        yield cluster


def ottla(cluster: Cluster, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(command_line, ["cluster", *arguments, "-b", cluster[1].bootstrap])
    assert done.exit_code == code, done.output
    return done


def states(cluster: Cluster, *names: str) -> list[PartitionState]:
    """The partitions of these topics, or of all, as the controller knows them: it has told the
    commands what they waited for, and the others may hear of it later."""
    controller = cluster.controller
    assert controller is not None
    topics = controller._services().image.topics
    return [state for name in names or topics for state in topics[name].partitions]


def held(cluster: Cluster) -> Counter[int]:
    """How many replicas each broker holds."""
    return Counter(each for state in states(cluster) for each in state.replicas)


def limits(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The rates of brokers, as the controller knows them."""
    controller = cluster.controller
    assert controller is not None
    configs = controller._services().image.broker_configs
    found = {
        broker: {name: value for name, value in config.items() if "throttled" in name}
        for broker, config in configs.items()
    }
    return {broker: rates for broker, rates in found.items() if rates}


def fill(cluster: Cluster) -> None:
    """So much that copies take a while at a thousand bytes a second."""
    with Producer(cluster.bootstrap) as producer:
        for index in range(PARTITIONS):
            for _ in range(4):
                producer.send("t", b"x" * 500_000, partition=index)


@contextmanager
def typed(cluster: Cluster, *arguments: str) -> Iterator[Callable[[], Result]]:
    """Type a command, and do other things meanwhile; it has ended when the block has."""
    words = ["cluster", *arguments, "-b", cluster[2].bootstrap]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(CliRunner().invoke, command_line, words)
        yield running.result


def wait_for_moves(cluster: Cluster) -> dict[TopicPartition, Ongoing]:
    found: dict[TopicPartition, Ongoing] = {}
    with DirectAdmin(cluster[2].bootstrap) as admin:
        cluster.wait_until(lambda: found.update(ongoing(admin.router)) or found)
    return found


def lift_rates(cluster: Cluster) -> None:
    """Let copies go as fast as they can, whatever a command has said."""
    with DirectAdmin(cluster[2].bootstrap) as admin:
        lift_broker_limits(admin, [each for each in cluster.brokers if cluster[each].running])


def test_a_new_broker_gets_its_share_and_an_old_one_is_emptied(
    cluster: Cluster, start_load: Callable[..., Any]
) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    cluster.add()
    before = held(cluster)
    shown = ottla(cluster, "rebalance", "--dry-run", "--yes").output
    assert "to move" in shown
    assert "nothing is changed without --yes" in shown
    document = json.loads(ottla(cluster, "rebalance", "--throttle", "1000", "--json").output)
    assert not document["executed"]
    assert document["seconds"] == pytest.approx(document["bytes"] / 1000, rel=1)
    assert held(cluster) == before
    shown = ottla(cluster, "rebalance", "--throttle", "100000000", "--yes").output
    assert "moved" in shown
    load.wait_for_more()
    counts = held(cluster)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert ottla(cluster, "rebalance").output == "everything is where it should be\n"
    shown = ottla(cluster, "drain", "1", "--yes").output
    assert shown.endswith("broker 1 holds no partitions: it can be stopped and removed\n")
    assert held(cluster)[1] == 0
    load.wait_for_more()
    cluster[1].stop()
    load.wait_for_more()
    load.check_kept()
    cluster.wait_until(lambda: 1 not in cluster._live(cluster[2]))
    assert unregister(cluster, 2) == 1, "it runs"
    assert unregister(cluster, 1) == 0
    cluster.wait_until(
        lambda: all(1 not in each._services().image.broker_states for each in cluster.running)
    )
    assert unregister(cluster, 1) == 1, "it is not known any more"
    configs = cluster[2]._services().image.broker_configs
    assert not any("throttled" in name for each in configs.values() for name in each)


def test_a_dead_broker_is_drained_from_the_other_replicas(cluster: Cluster) -> None:
    cluster.add()
    cluster[2].crash()
    cluster.wait_until(lambda: 2 not in cluster._live(cluster[1]))
    ottla(cluster, "drain", "2", "--yes")
    assert held(cluster)[2] == 0
    cluster.wait_in_sync("t")


def test_what_is_on_a_dead_broker_alone_is_not_waited_for(cluster: Cluster) -> None:
    cluster.create(NewTopic("alone", assignment=[[2]]))
    cluster.add()
    cluster[2].crash()
    cluster.wait_until(lambda: 2 not in cluster._live(cluster[1]))
    before = held(cluster)
    shown = ottla(cluster, "drain", "2", "--yes", code=1).output
    assert "1 partition cannot be moved, as alone-0, which nobody leads: nothing was" in shown
    assert held(cluster) == before


def test_the_limit_of_a_broker_that_is_dead_or_dies_is_lifted_too(cluster: Cluster) -> None:
    cluster.add()
    cluster[2].crash()
    cluster.wait_until(lambda: 2 not in cluster._live(cluster[1]))
    ottla(cluster, "drain", "2", "--throttle", "100000000", "--yes")
    assert held(cluster)[2] == 0
    assert limits(cluster) == {}
    cluster[2].start()
    cluster.wait_until(lambda: all(2 in cluster._live(each) for each in cluster.running))
    fill(cluster)
    with typed(cluster, "drain", "3", "--throttle", "1000", "--yes") as drained:
        wait_for_moves(cluster)
        cluster[3].crash()
        lift_rates(cluster)
    assert drained().exit_code == 0, drained().output
    assert held(cluster)[3] == 0
    assert limits(cluster) == {}


def test_a_drain_that_somebody_cancels_is_no_success(cluster: Cluster) -> None:
    cluster.add()
    fill(cluster)
    with typed(cluster, "drain", "1", "--throttle", "1000", "--yes") as drained:
        moving = wait_for_moves(cluster)
        with DirectAdmin(cluster[2].bootstrap) as admin:
            assert not begin(admin.router, dict.fromkeys(moving))
    assert drained().exit_code == 1
    assert "did not arrive, as t-0, which is on 2,1: another command has" in drained().output
    assert "can be stopped and removed" not in drained().output
    assert limits(cluster) == {}


def test_a_broker_that_got_new_partitions_meanwhile_is_not_empty(cluster: Cluster) -> None:
    cluster.add()
    fill(cluster)
    with typed(cluster, "drain", "1", "--throttle", "1000", "--yes") as drained:
        wait_for_moves(cluster)
        cluster.create(NewTopic("new", assignment=[[1]]))
        lift_rates(cluster)
    assert drained().exit_code == 1
    shown = drained().output
    assert "broker 1 has got 1 partition meanwhile, as new-0: type the same command again" in shown
    assert ottla(cluster, "drain", "1", "--yes").output.endswith("stopped and removed\n")


def test_limits_that_an_operator_has_set_stay(cluster: Cluster) -> None:
    cluster.add()
    with DirectAdmin(cluster[1].bootstrap) as admin:
        rates = [(name, SET, "77777777") for name in (LEADER_RATE, FOLLOWER_RATE)]
        for broker in "123":
            admin.alter_configs(BROKER, broker, rates)
        everything = [(name, SET, "*") for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
        admin.alter_configs(TOPIC, "t", everything)
        before = limits(cluster), replica_limits(admin)
        ottla(cluster, "rebalance", "--yes")
        assert (limits(cluster), replica_limits(admin)) == before
        ottla(cluster, "drain", "3", "--throttle", "88888888", "--yes")
        assert (limits(cluster), replica_limits(admin)) == before


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), KafkaError(ErrorCode.REQUEST_TIMED_OUT)])
def test_a_plan_that_is_not_handed_over_leaves_no_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    cluster.add()

    def fail(*arguments: object) -> None:
        assert limits(cluster)
        raise fault

    monkeypatch.setattr(reassignments, "begin", fail)
    code = 130 if isinstance(fault, KeyboardInterrupt) else 1
    shown = ottla(cluster, "drain", "1", "--throttle", "1000", "--yes", code=code).output
    assert "goes on by itself" not in shown
    assert limits(cluster) == {}
    with DirectAdmin(cluster[1].bootstrap) as admin:
        assert replica_limits(admin) == {}


def test_it_is_told_for_whom_a_move_waits(cluster: Cluster) -> None:
    cluster.add()
    cluster[3].crash()
    cluster.wait_until(lambda: all(3 not in cluster._live(each) for each in cluster.running))
    with DirectAdmin(cluster[1].bootstrap) as admin:
        assert not begin(admin.router, {TopicPartition("t", 0): [1, 3]})
    told = threading.Event()

    def note(text: str, **others: object) -> None:
        if "broker 3 is not there, and partitions wait for it" in text:
            told.set()

    with pytest.MonkeyPatch.context() as patch, typed(cluster, "rebalance", "--yes") as done:
        patch.setattr(click, "echo", note)
        assert told.wait(60)
        cluster[3].start()
    assert done().exit_code == 0


def test_the_settings_of_a_broker_that_is_away_are_changed_by_another(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster[2].crash()
    cluster.wait_until(lambda: 2 not in cluster._live(cluster[1]))

    def alter(broker: str, code: int) -> None:
        words = ["--bootstrap-server", cluster[1].bootstrap, "--alter", "--entity-type", "brokers"]
        words += ["--entity-name", broker, "--add-config", "follower.replication.throttled.rate=5"]
        assert run_tool("kafka-configs", words) == code

    alter("2", 0)
    rates = {"follower.replication.throttled.rate": "5"}
    assert cluster[1]._services().image.broker_configs["2"] == rates
    alter("9", 1)
    assert "there is no broker 9" in capsys.readouterr().err


def test_a_drain_that_leaves_too_few_replicas_changes_nothing(cluster: Cluster) -> None:
    before = held(cluster)
    shown = ottla(cluster, "drain", "2", "--yes", code=1).output
    assert "without broker 2 there is 1 broker" in shown
    assert "add a broker first" in shown
    assert held(cluster) == before
    shown = ottla(cluster, "drain", "9", "--yes", code=1).output
    assert "there is no broker 9; this cluster has 1, 2" in shown


def test_a_topic_gets_more_replicas_and_fewer_again(
    cluster: Cluster, start_load: Callable[..., Any]
) -> None:
    load = start_load(cluster.bootstrap)
    load.wait_for_more()
    cluster.add()

    def replicate(*arguments: str, code: int = 0) -> str:
        words = ["topic", "replicate", *arguments, "-b", cluster[1].bootstrap]
        done = CliRunner().invoke(command_line, words)
        assert done.exit_code == code, done.output
        return done.output

    def replicas() -> list[int]:
        return [len(state.replicas) for state in states(cluster, "t")]

    assert "nothing is changed without --yes" in replicate("t", "--replication", "3")
    assert replicas() == [2, 2, 2]
    assert "3 partitions moved" in replicate("t", "--replication", "3", "--yes")
    assert replicas() == [3, 3, 3]
    load.wait_for_more()
    assert replicate("t", "--replication", "3") == "everything is where it should be\n"
    assert "4 replicas need as many brokers, and there are 3" in replicate(
        "t", "--replication", "4", "--yes", code=1
    )
    assert "there is no topic 'other'" in replicate("other", "--replication", "3", code=1)
    replicate("t", "--replication", "2", "--yes")
    assert replicas() == [2, 2, 2]
    load.wait_for_more()
    load.check_kept()


def test_replicas_that_the_brokers_would_add_again_cannot_be_taken_away(cluster: Cluster) -> None:
    """It was done, and undone at once, and another command was blamed."""
    name = "__consumer_offsets"

    def replicate(code: int = 0) -> str:
        words = ["topic", "replicate", name, "--replication", "1", "--yes"]
        done = CliRunner().invoke(command_line, [*words, "-b", cluster[1].bootstrap])
        assert done.exit_code == code, done.output
        return done.output

    with DirectAdmin(cluster[1].bootstrap) as admin:
        admin.router.coordinator_node("g")  # for whose offsets the topic is made
    cluster.wait_in_sync(name)
    before = states(cluster, name)
    assert {len(state.replicas) for state in before} == {2}
    shown = replicate(code=1)
    assert "would get 2 replicas again, since offsets.topic.replication.factor is 2" in shown
    assert states(cluster, name) == before
    cluster[2].stop()
    cluster.wait_until(lambda: all(2 not in cluster._live(each) for each in cluster.running))
    assert "3 partitions moved" in replicate()
    assert {state.replicas for state in states(cluster, name)} == {(1,)}


def test_the_limits_of_a_command_that_was_interrupted_are_lifted_by_the_next(
    cluster: Cluster,
) -> None:
    cluster.add()
    with DirectAdmin(cluster[1].bootstrap) as admin:
        moved: Movements = {TopicPartition("t", 0): ({1}, {3}), TopicPartition("t", 1): ({2}, {3})}
        limit_copies(admin, moved, 1000)  # what has arrived meanwhile is not to be moved any more
        assert list(replica_limits(admin)) == ["t"]
        ottla(cluster, "rebalance", "--yes")
        assert replica_limits(admin) == {}
        limit_copies(admin, moved, 1000)
        assert ottla(cluster, "rebalance", "--yes").output == "everything is where it should be\n"
        assert replica_limits(admin) == {}


def test_what_is_on_its_way_is_waited_for(cluster: Cluster) -> None:
    cluster.add()
    cluster[3].crash()
    cluster.wait_until(lambda: all(3 not in cluster._live(each) for each in cluster.running))
    with DirectAdmin(cluster[1].bootstrap) as admin:
        assert not begin(admin.router, {TopicPartition("t", 0): [1, 3]})
    shown = ottla(cluster, "rebalance").output
    assert shown.startswith("1 partition on the way already\n")
    cluster[3].start()
    ottla(cluster, "rebalance", "--yes")
    assert not any(state.reassigning for state in states(cluster))


def test_a_broker_that_partitions_name_is_not_forgotten(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster[2].crash()
    cluster.wait_until(lambda: 2 not in cluster._live(cluster[1]))
    assert unregister(cluster, 2) == 1
    assert "ottla cluster drain 2" in capsys.readouterr().err
    assert 2 in cluster[1]._services().image.broker_states


def test_numbers_that_no_request_can_hold_are_one_line(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unregister(cluster, 2**40) == 1
    assert "this does not fit into a request" in capsys.readouterr().err
    servers = cluster[1].bootstrap
    words = ["--bootstrap-server", servers, "--election-type", "preferred", "--topic", "t"]
    assert run_tool("kafka-leader-election", [*words, "--partition", str(2**40)]) == 1
    assert "this does not fit into a request" in capsys.readouterr().err


def unregister(cluster: Cluster, broker: int) -> int:
    servers = cluster.running[0].bootstrap
    return run_tool(
        "kafka-cluster", ["unregister", "--bootstrap-server", servers, "--id", str(broker)]
    )
