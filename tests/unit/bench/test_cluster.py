"""The clusters of the bench: settings, frames, processes, and what is made of the answers."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import pytest
from bench import processes
from bench.cluster import ClusterSession
from bench.load import frames, group_frames
from bench.load.pauses import longest_gap
from bench.processes import BenchError
from bench.rows import FULL, ROWS
from bench.selection import Selection
from bench.split import FIGURES, SplitSession
from bench.systems import Node, Ottla, combined_properties, new_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_brokers_of_a_cluster_have_places_of_their_own(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path / "side-cluster-1", 3)
    assert [node.number for node in cluster.nodes] == [1, 2, 3]
    assert cluster.bootstrap == "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    ports = {port for node in cluster.nodes for port in (node.port, node.controller_port)}
    assert len(ports | {cluster.store_port}) == 7
    assert len({node.data for node in cluster.nodes}) == 3


def test_nodes_of_apache_kafka_know_one_another(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, 3)
    settings = combined_properties(cluster.nodes[1], cluster.nodes)
    assert settings["node.id"] == "2"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:5"


def test_brokers_of_ottla_share_a_zookeeper(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, 3)
    Ottla().prepare_cluster(cluster, {"num.partitions": "2"})
    assert (cluster.nodes[2].folder / "server.properties").read_text().splitlines() == [
        "broker.id=3",
        "zookeeper.connect=127.0.0.1:7",
        "num.partitions=2",
    ]


class Probe(contextlib.AbstractContextManager["Probe"]):
    """A socket of a machine on which every port from 20,100 on is taken."""

    def bind(self, address: tuple[str, int]) -> None:
        if address[1] >= 20_100:
            raise OSError("taken")

    def __exit__(self, *_error: object) -> None: ...


@pytest.fixture
def _few_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.processes.socket.socket", Probe)


@pytest.mark.usefixtures("_few_ports")
def test_row_of_free_ports_has_no_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_BLOCKS", range(20_000, 20_200))
    firsts = {processes.free_port_block(50) for _ in range(200)}
    assert firsts <= set(range(20_000, 20_051))


@pytest.mark.usefixtures("_few_ports")
def test_row_that_is_nowhere_free_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_BLOCKS", range(20_090, 20_200))
    with pytest.raises(BenchError, match="in a row"):
        processes.free_port_block(50)


def test_request_for_a_topic_names_replicas_and_settings() -> None:
    frame = frames.create_topic("t", 3, {"a": "b"})
    assert struct.unpack_from(">ihh", frame) == (len(frame) - 4, 19, 2)
    body = b"\x00\x00\x00\x01" + b"\x00\x01t" + struct.pack(">ihii", 1, 3, 0, 1)
    assert frame.endswith(body + b"\x00\x01a\x00\x01b" + struct.pack(">i?", 30_000, False))


def test_error_of_a_topic_is_read_behind_its_name() -> None:
    answer = struct.pack(">iii", 1, 0, 1) + b"\x00\x02tt" + struct.pack(">hh", 38, -1)
    assert frames.read_created_error(answer) == 38


def test_coordinator_is_read_behind_the_message() -> None:
    answer = struct.pack(">iih", 1, 0, 0) + struct.pack(">h", -1) + struct.pack(">i", 2)
    answer += b"\x00\x04host" + struct.pack(">i", 9093)
    assert group_frames.read_coordinator(answer) == ("host", 9093)


@pytest.mark.parametrize(
    ("times", "since", "longest"),
    [
        ([10, 20, 30], 15, 10),
        ([0, 100, 110, 150], 105, 40),  # the long one was over before
        ([0, 100, 110], 50, 100),  # it had begun before
        ([110, 0, 100], 50, 100),  # acknowledgements of several partitions come in any order
        ([], 0, 0),
    ],
)
def test_pause_is_the_longest_gap_that_ended_after_the_kill(
    times: list[int], since: int, longest: int
) -> None:
    assert longest_gap(times, since) == longest


class Machine:
    """A system that is started, and asks nothing of anybody."""

    name = "a system"

    def __init__(self, *, splits: bool) -> None:
        self.splits = splits


class Split(SplitSession):
    """Figures that depend on the number of processes alone."""

    def __init__(self, folder: Path, *, splits: bool) -> None:
        system: Any = Machine(splits=splits)
        self.told: dict[str, list[float]] = {}
        self.starts: list[int] = []
        super().__init__(system, system, folder, FULL, Selection.of(ROWS), self._tell)

    def _tell(self, key: str, value: float) -> None:
        self.told.setdefault(key, []).append(value)

    def _started(self, processes: int) -> dict[str, list[float]]:
        self.starts.append(processes)
        return {figure: [10.0 + processes] for figure in FIGURES}


def test_processes_are_compared_with_one(tmp_path: Path) -> None:
    split = Split(tmp_path, splits=True)
    split.run()
    assert split.starts == [1, 2, 4]
    assert split.told["cluster-processes-4-requests"] == [14.0]
    assert split.told["cluster-processes-commits-kept"] == [12.0 / 11.0]
    assert set(split.told) == {row.key for row in ROWS if row.key.startswith("cluster-processes-")}


def test_system_that_does_not_split_is_started_once(tmp_path: Path) -> None:
    split = Split(tmp_path, splits=False)
    split.run()
    assert split.starts == [1]
    assert split.told["cluster-processes-4-requests"] == [11.0]
    assert split.told["cluster-processes-requests-kept"] == [1.0]


class Broker:
    """A child process that was started."""

    def __init__(self, node: Node, log: list[str]) -> None:
        self.node, self._log = node, log

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_error: object) -> None:
        self._log.append(f"end {self.node.number}")

    def kill(self) -> None:
        self._log.append(f"kill {self.node.number}")

    def stop(self) -> None:
        self._log.append(f"stop {self.node.number}")


class Brokers:
    name = "a system"

    def __init__(self) -> None:
        self.log: list[str] = []

    def start(self, node: Node) -> Broker:
        self.log.append(f"start {node.number}")
        return Broker(node, self.log)

    def controller_of(self, _cluster: object) -> int:
        return 2


@pytest.fixture
def session(tmp_path: Path) -> Iterator[ClusterSession]:
    system: Any = Brokers()
    made = ClusterSession(system, system, tmp_path, FULL, Selection.of(ROWS), lambda *_: None)
    made._brokers = {node.number: system.start(node) for node in made._cluster.nodes}
    yield made
    made._stack.close()


def test_leader_that_is_killed_is_not_the_controller(session: ClusterSession) -> None:
    assert session._replicas_for("topic") == (1, 3, 2)


@pytest.mark.parametrize(("kill", "how"), [(True, "kill 1"), (False, "stop 1")])
def test_broker_that_was_ended_is_started_again(
    session: ClusterSession, kill: bool, how: str
) -> None:
    system: Any = session._system
    with contextlib.suppress(BenchError), session._without(1, kill=kill):
        assert list(session._brokers) == [2, 3]
        assert system.log[-1] == how
        raise BenchError("the load failed")
    assert system.log[-1] == "start 1"
    assert list(session._brokers) == [1, 2, 3]
