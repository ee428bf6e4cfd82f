"""Replicas moved between the data folders of a broker that is used: clients notice nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import ottla
from ottla.cli.kafka_compat import run as run_tool
from ottla.cli.main import cli
from ottla.client.direct import BROKER, DirectAdmin
from ottla.client.folder_moves import begin_moves, limit_folder_moves, places
from ottla.client.reassignments import FOLDER_RATE, replica_limits
from ottla.errors import ErrorCode
from ottla.model.ids import Replica, TopicPartition
from ottla.testing import Broker, Cluster, NewTopic

T0 = TopicPartition("t", 0)
ONE = Replica(1, T0)
CONFIG = {"node.id": 1, "log.segment.bytes": 1_048_576}
SLOWLY = 1_000  # bytes a second: three megabytes are not there before somebody has looked


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG, topics=["t"], folders=2) as broker:
        yield broker


@pytest.fixture
def admin(broker: Broker) -> Iterator[DirectAdmin]:
    with DirectAdmin(broker.bootstrap) as admin:
        yield admin


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    over = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < over, "it did not happen"
        time.sleep(0.02)


def elsewhere(broker: Broker, admin: DirectAdmin) -> str:
    """The folder that t-0 is not in."""
    here = places(admin, [1])[ONE].folder
    [other] = [folder for folder in broker.data_dirs if folder != here]
    return other


def move(broker: Broker, admin: DirectAdmin) -> str:
    to = elsewhere(broker, admin)
    assert begin_moves(admin, {ONE: to}) == {ONE: None}
    return to


def has_arrived(admin: DirectAdmin, folder: str) -> bool:
    place = places(admin, [1])[ONE]
    return place.folder == folder and place.future is None


def throttle(broker: Broker, rate: int | None) -> None:
    broker.configure({"replica.alter.log.dirs.io.max.bytes.per.second": rate})


class Writer(threading.Thread):
    """Writes numbers, in order, and notes which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._servers = bootstrap
        self.over = threading.Event()
        self.acked: list[int] = []

    def run(self) -> None:
        with ottla.Producer(self._servers) as producer:
            number = 0
            while not self.over.is_set():
                futures = []
                for _ in range(50):
                    value = b"%d" % number + b"." * 1000
                    futures.append((number, producer.send("t", value, partition=0)))
                    number += 1
                producer.flush()
                for each, future in futures:
                    future.result()
                    self.acked.append(each)


def fill(broker: Broker, count: int) -> None:
    for first in range(0, count, 100):
        broker.produce("t", *(b"%d" % each + b"." * 1000 for each in range(first, first + 100)))


def read_numbers(broker: Broker) -> list[int]:
    return [int(record.value.rstrip(b".")) for record in broker.consume("t", partition=0)]


def test_every_record_is_there_once_and_in_order(broker: Broker, admin: DirectAdmin) -> None:
    writer = Writer(broker.bootstrap)
    seen: list[int] = []
    over = threading.Event()

    def read() -> None:
        with ottla.Consumer(broker.bootstrap) as consumer:
            consumer.assign([T0], "earliest")
            while not over.is_set() or len(seen) < len(writer.acked):
                record = consumer.poll(0.2)
                if record is not None:
                    assert record.value is not None
                    seen.append(int(record.value.rstrip(b".")))

    reader = threading.Thread(target=read)
    writer.start()
    reader.start()
    try:
        until(lambda: len(writer.acked) > 500)
        for _ in range(4):
            to = move(broker, admin)
            until(lambda to=to: has_arrived(admin, to))
            so_far = len(writer.acked)
            until(lambda so_far=so_far: len(writer.acked) > so_far)
    finally:
        writer.over.set()
        writer.join()
        over.set()
        reader.join(120)
    assert read_numbers(broker) == writer.acked == list(range(len(writer.acked)))
    assert seen == writer.acked
    assert broker.metrics()["ottla_log_moves_finished_total"] == 4


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_move_goes_on_after_a_crash(broker: Broker, admin: DirectAdmin, power_loss: bool) -> None:
    fill(broker, 3_000)
    broker.configure({"flush.messages": 1}, topic="t")
    broker.produce("t", b"3000")
    throttle(broker, SLOWLY)
    to = move(broker, admin)
    until(lambda: places(admin, [1])[ONE].copied > 0)
    broker.crash(power_loss=power_loss)
    broker.start()
    assert read_numbers(broker) == list(range(3_001))
    with DirectAdmin(broker.bootstrap) as later:
        assert places(later, [1])[ONE].future == to
        throttle(broker, None)
        until(lambda: has_arrived(later, to))
    broker.restart()
    with DirectAdmin(broker.bootstrap) as later:
        assert has_arrived(later, to)
    assert read_numbers(broker) == list(range(3_001))
    [other] = [Path(folder) for folder in broker.data_dirs if folder != to]
    assert not (other / "t-0").exists()


def test_a_partition_to_come_is_made_where_it_was_asked_for(
    broker: Broker, admin: DirectAdmin
) -> None:
    wanted = {Replica(1, TopicPartition("later", n)): broker.data_dirs[1] for n in range(4)}
    answers = begin_moves(admin, wanted).values()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {None if each is None else each.code for each in answers} == {unknown}
    broker.create_topic("later", partitions=4)
    broker.produce("later", b"x")
    until(lambda: sum(each.partition.topic == "later" for each in places(admin, [1])) == 4)
    found = places(admin, [1])
    assert {found[each].folder for each in wanted} == {broker.data_dirs[1]}


class Tool:
    """Types kafka-reassign-partitions with a file that names folders."""

    def __init__(self, broker: Broker, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._broker, self._capsys, self._file = broker, capsys, folder / "moves.json"

    def type(self, *arguments: str, to: str, code: int = 0) -> list[str]:
        part = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [to]}
        self._file.write_text(json.dumps({"version": 1, "partitions": [part]}))
        server = ["--bootstrap-server", self._broker.bootstrap]
        file = ["--reassignment-json-file", str(self._file)]
        assert run_tool("kafka-reassign-partitions", [*server, *arguments, *file]) == code
        return self._capsys.readouterr().out.splitlines()


def test_kafkas_tool_moves_verifies_and_cancels(
    broker: Broker, admin: DirectAdmin, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fill(broker, 3_000)
    tool, to = Tool(broker, capsys, tmp_path), elsewhere(broker, admin)
    here = places(admin, [1])[ONE].folder
    assert here is not None
    [complaint] = tool.type("--execute", to="/nowhere", code=1)
    assert complaint == (
        "Error: Failed to alter dir for t-0-1: broker 1 has no log directory /nowhere, "
        f"it has {', '.join(sorted(broker.data_dirs))}"
    )
    shown = tool.type("--execute", "--replica-alter-log-dirs-throttle", str(SLOWLY), to=to)
    assert shown[-3:] == [
        f"The replica-alter-dir throttle limit was set to {SLOWLY} B/s",
        "Successfully started partition reassignment for t-0",
        f"Successfully started moving log directory to {to} for replica t-0 with broker 1 ",
    ]
    shown = tool.type("--verify", to=to)
    assert shown == [
        "Status of partition reassignment:",
        "Reassignment of partition t-0 is completed.",
        "Reassignment of replica t-0-1 is still in progress.",
    ]
    other = f"Partition t-0 on broker 1 is being moved to log dir {to} instead of {here}."
    assert tool.type("--verify", to=here)[-1] == other
    assert run_tool("kafka-log-dirs", ["--bootstrap-server", broker.bootstrap, "--describe"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    shown_in = {
        folder["logDir"]: part
        for folder in document["brokers"][0]["logDirs"]
        for part in folder["partitions"]
        if part["partition"] == "t-0"
    }
    assert not shown_in[here]["isFuture"]
    assert shown_in[to]["isFuture"]
    assert shown_in[to]["offsetLag"] > 0
    shown = tool.type("--cancel", "--preserve-throttles", to=to)
    assert shown == [
        "None of the specified partition reassignments are active.",
        f"Successfully started moving log directory to {here} for replica t-0 with broker 1 ",
    ]
    assert places(admin, [1])[ONE].future is None
    last = f"Partition t-0 on broker 1 is not being moved from log dir {here} to {to}."
    assert tool.type("--verify", to=to)[2] == last  # and the throttle is lifted
    tool.type("--execute", to=to)
    until(lambda: has_arrived(admin, to))
    shown = tool.type("--verify", to=to)
    assert shown[2] == "Reassignment of replica t-0-1 completed successfully."
    assert "Clearing broker-level throttles on broker 1" in shown
    assert len(broker.consume("t")) == 3_000


def test_ottla_shows_a_plan_and_carries_it_out(broker: Broker, admin: DirectAdmin) -> None:
    fill(broker, 100)
    to = elsewhere(broker, admin)
    server = ["-b", broker.bootstrap]

    def typed(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["cluster", "move-logs", *arguments, *server])
        assert result.exit_code == code, result.output
        return result.output

    assert "there is no broker 7; this cluster has 1" in typed("7", to, code=1)
    assert "broker 1 has no data folder data" in typed("1", "data", code=1)
    assert "there is no topic 'nowhere'" in typed("1", to, "nowhere", code=1)
    plan = typed("1", f"{to}/", "t")  # as a shell completes it
    assert f"1 partition to move to {to}, " in plan
    assert "nothing is changed without --yes" in plan
    assert not has_arrived(admin, to)
    done = typed("1", to, "t", "--throttle", "50000000", "--yes")
    assert done.splitlines()[-1] == "1 partition moved"
    assert has_arrived(admin, to)
    assert "everything is where it should be" in typed("1", to, "t", "--yes")
    document = json.loads(typed("1", elsewhere(broker, admin), "t", "--from", f"{to}/", "--json"))
    assert (document["executed"], [each["from"] for each in document["moves"]]) == (False, [to])


def test_a_limit_is_lifted_by_who_set_it(broker: Broker, admin: DirectAdmin) -> None:
    here = places(admin, [1])[ONE].folder
    assert here is not None

    def typed(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["cluster", *arguments, "--yes", "-b", broker.bootstrap])
        assert result.exit_code == 0, result.output
        return result.output

    def limit() -> list[str | None]:
        return [each.value for each in admin.describe_configs(BROKER, "1", keys=[FOLDER_RATE])]

    limit_folder_moves(admin, [1], 200_000)  # as by a command that was interrupted
    assert typed("rebalance") == "everything is where it should be\n"
    assert limit() == ["200000"]
    assert "everything is where" in typed("move-logs", "1", here, "t", "--throttle", "100000")
    assert limit() == []


def test_a_broker_that_dies_meanwhile_is_said_to_go_on(broker: Broker, admin: DirectAdmin) -> None:
    fill(broker, 2000)
    to = elsewhere(broker, admin)
    words = ["cluster", "move-logs", "1", to, "t", "--yes", "-b", broker.bootstrap, "--throttle"]
    with ThreadPoolExecutor(1) as pool:
        typed = pool.submit(CliRunner().invoke, cli, [*words, "1000"])
        until(lambda: places(admin, [1])[ONE].future is not None)
        broker.crash()
        result = typed.result()
    assert result.exit_code == 1
    assert "goes on by itself" in result.output
    assert "the same command shows how far, and lifts the limit in the end" in result.output
    broker.start()
    result = CliRunner().invoke(cli, [*words, "100000000"])
    assert result.exit_code == 0, result.output
    with DirectAdmin(broker.bootstrap) as again:
        assert has_arrived(again, to)
        assert list(again.describe_configs(BROKER, "1", keys=[FOLDER_RATE])) == []


def test_a_follower_moves_while_it_follows() -> None:
    """And a leader, and one that becomes the other meanwhile; flushed before it is acknowledged."""
    topic = NewTopic("t", assignment=[[1, 2]], config={"flush.messages": "1"})
    with Cluster(2, {"log.segment.bytes": 1_048_576}, topics=[topic], folders=2) as cluster:
        writer = Writer(cluster.bootstrap)
        writer.start()
        try:
            with DirectAdmin(cluster.bootstrap) as admin:
                until(lambda: len(writer.acked) > 200)
                for broker in (2, 1):
                    replica = Replica(broker, T0)
                    here = places(admin, [broker])[replica].folder
                    [to] = [each for each in cluster[broker].data_dirs if each != here]
                    assert begin_moves(admin, {replica: to}) == {replica: None}
                    until(
                        lambda replica=replica, to=to: (
                            places(admin, [replica.broker])[replica].folder == to
                        )
                    )
                    so_far = len(writer.acked)
                    until(lambda so_far=so_far: len(writer.acked) > so_far)
        finally:
            writer.over.set()
            writer.join()
        assert writer.acked == list(range(len(writer.acked)))
        cluster[2].crash(power_loss=True)
        cluster[2].start()
        until(lambda: in_sync(cluster[1]) == {1, 2})
        assert read_numbers(cluster[1]) == writer.acked
        cluster[1].stop()
        until(lambda: in_sync(cluster[2]) == {2})
        assert read_numbers(cluster[2]) == writer.acked


def in_sync(broker: Broker) -> set[int]:
    with DirectAdmin(broker.bootstrap) as admin:
        [topic] = admin.describe_topics(["t"])
        return {*topic.partitions[0].isr}


def test_a_full_disk_ends_the_move_and_an_offline_one_is_refused(
    broker: Broker, admin: DirectAdmin, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fill(broker, 3_000)
    to = elsewhere(broker, admin)
    throttle(broker, SLOWLY)
    assert begin_moves(admin, {ONE: to}) == {ONE: None}
    until(lambda: places(admin, [1])[ONE].copied > 0)
    broker.faults.full_disk(folder=to)
    throttle(broker, None)
    until(lambda: broker.metrics()["ottla_log_moves_given_up_total"] == 1)
    assert places(admin, [1])[ONE].folder != to
    assert read_numbers(broker) == list(range(3_000))
    assert broker.metrics()["kafka_log_log_manager_offline_log_directory_count"] == 0
    # A log of its own takes a full folder offline.
    begin_moves(admin, {Replica(1, TopicPartition("u", 0)): to})
    broker.create_topic("u")
    until(lambda: broker.metrics()["kafka_log_log_manager_offline_log_directory_count"] == 1)
    [answer] = begin_moves(admin, {ONE: to}).values()
    assert answer is not None
    assert answer.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert Tool(broker, capsys, tmp_path).type("--execute", "--throttle", "1", to=to, code=1) == [
        f"Error: Failed to alter dir for t-0-1: log directory {to} of broker 1 is offline"
    ]
    assert replica_limits(admin) == {}
    assert read_numbers(broker) == list(range(3_000))


def test_a_replica_to_come_goes_to_the_folder_that_was_named(tmp_path: Path) -> None:
    topic = NewTopic("t", assignment=[[1]], config={"min.insync.replicas": "1"})
    with Cluster(2, topics=[topic], folders=2) as cluster, DirectAdmin(cluster.bootstrap) as admin:
        two, to = Replica(2, T0), cluster[2].data_dirs[1]
        [answer] = begin_moves(admin, {two: to}).values()
        assert answer is not None
        assert answer.code is ErrorCode.REPLICA_NOT_AVAILABLE
        file = tmp_path / "moves.json"
        part = {"topic": "t", "partition": 0, "replicas": [2], "log_dirs": [to]}
        file.write_text(json.dumps({"version": 1, "partitions": [part]}))
        arguments = ["--bootstrap-server", cluster.bootstrap, "--execute"]
        arguments += ["--reassignment-json-file", str(file)]
        assert run_tool("kafka-reassign-partitions", arguments) == 0
        until(lambda: in_sync(cluster[2]) == {2})
        assert places(admin, [2])[two].folder == to
