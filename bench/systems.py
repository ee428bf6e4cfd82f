"""The two brokers behind one face: make a data folder, start, list topics from the command line.

Both get a temporary folder and free loopback ports and run with their default settings. Apache
Kafka is one combined KRaft node with a fixed heap of 1 GB and the JVM flags of its own start
script; replication factors of its internal topics are 1 because there is one broker.

A cluster is some such nodes: of Apache Kafka combined ones, which keep the metadata themselves; of
Ottla brokers, with a ZooKeeper beside them.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench import maven
from bench.processes import BenchError, Child, free_port_block, free_ports, run
from ottla.cli.kafka_compat.run_class import CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What kafka-run-class.sh passes when nobody has set anything.
JVM_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
_BROKER_HEAP = ("-Xms1G", "-Xmx1G")
_TOOL_HEAP = ("-Xmx256M",)
_QUORUM_LEADER = re.compile(r"^LeaderId:\s+(\d+)$", re.MULTILINE)
_ALONE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
# Former names come last.
_CLASSES = {tool: java for java, tool in reversed([*CLASSES.items()])}


@dataclass(frozen=True, slots=True)
class Node:
    """Where one broker keeps its data and where it will listen."""

    folder: Path
    port: int
    controller_port: int
    number: int = 1

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def output(self) -> Path:
        return self.folder / "broker.out"


def new_node(folder: Path) -> Node:
    folder.mkdir(parents=True, exist_ok=True)
    port, controller_port = free_ports(2)
    return Node(folder, port, controller_port)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Some nodes that are one cluster, and where its metadata is served if not by themselves."""

    folder: Path
    nodes: tuple[Node, ...]
    store_port: int

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)


def new_cluster(folder: Path, brokers: int) -> Cluster:
    """Brokers numbered from 1, on ports in a row."""
    # A row for the brokers, one for their controllers, and one for the store.
    first = free_port_block(2 * brokers + 1)
    nodes = []
    for index in range(brokers):
        home = folder / f"{folder.name}-{index + 1}"
        home.mkdir(parents=True, exist_ok=True)
        nodes.append(Node(home, first + index, first + brokers + index, index + 1))
    return Cluster(folder, tuple(nodes), first + 2 * brokers)


class System(Protocol):
    """A broker implementation that can be started on a node."""

    @property
    def name(self) -> str: ...

    @property
    def splits(self) -> bool:
        """Whether it uses more cores by more processes."""
        ...

    def prepare(self, node: Node, settings: Mapping[str, str]) -> None:
        """Everything that is done once before the first start."""
        ...

    def start(self, node: Node, *, apart: bool = False) -> Child:
        """Start the process, `apart` in a session of its own; it need not listen yet."""
        ...

    def start_split(self, node: Node, processes: int) -> Child:
        """The same, with so many processes on ports in a row where it is one that splits."""
        ...

    def prepare_cluster(self, cluster: Cluster, settings: Mapping[str, str]) -> None:
        """What is done once for all nodes, each of which is then started by itself."""
        ...

    def start_store(self, cluster: Cluster) -> Child | None:
        """Start what keeps the cluster's metadata, where that is a process of its own."""
        ...

    def start_lent(self, cluster: Cluster) -> Child | None:
        """All brokers by one command that keeps the metadata as well, where there is one."""
        ...

    def controller_of(self, cluster: Cluster) -> int:
        """The number of the broker that is the controller now."""
        ...

    def list_topics_command(self, node: Node) -> list[str]:
        """The command a person types to see the topics."""
        ...

    def classic_command(self, tool: str, *arguments: str) -> list[str]:
        """One of Kafka's tools by its classic name, as this system brings it."""
        ...


class ApacheKafka:
    """Apache Kafka, combined KRaft nodes."""

    splits = False

    def __init__(self, name: str = "Apache Kafka") -> None:
        self.name = name
        self.libraries = maven.fetch(maven.BROKER)
        self._java = maven.java()

    def prepare(self, node: Node, settings: Mapping[str, str]) -> None:
        self._prepare([node], {**_ALONE, **settings})

    def prepare_cluster(self, cluster: Cluster, settings: Mapping[str, str]) -> None:
        self._prepare(cluster.nodes, settings)

    def _prepare(self, nodes: Sequence[Node], settings: Mapping[str, str]) -> None:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        while cluster_id.startswith("-"):  # the tool would take it for an option
            cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        for node in nodes:
            file = self._properties(node)
            properties = {**combined_properties(node, nodes), **settings}
            file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
            self.tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file))

    def start(self, node: Node, *, apart: bool = False) -> Child:
        command = [self._java, *_BROKER_HEAP, *JVM_FLAGS, "-cp", self.libraries.classpath]
        command += ["kafka.Kafka", str(self._properties(node))]
        return Child(self.name, command, output=node.output, apart=apart)

    def start_split(self, node: Node, processes: int) -> Child:
        return self.start(node, apart=True)

    def start_store(self, cluster: Cluster) -> None:
        """The brokers themselves keep the metadata."""

    def start_lent(self, cluster: Cluster) -> None:
        """There is no other way to start a cluster."""

    def controller_of(self, cluster: Cluster) -> int:
        asked = ("--bootstrap-server", cluster.bootstrap, "describe", "--status")
        out, err, _code = self.tool_output(
            "org.apache.kafka.tools.MetadataQuorumCommand", *asked, timeout=60.0
        )
        found = _QUORUM_LEADER.search(out)
        if found is None:
            raise BenchError(f"no controller is known:\n{out[-1000:]}{err[-1000:]}")
        return int(found[1])

    def list_topics_command(self, node: Node) -> list[str]:
        return self.tool_command(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", node.bootstrap, "--list"
        )

    def classic_command(self, tool: str, *arguments: str) -> list[str]:
        return self.tool_command(_CLASSES[tool], *arguments)

    def tool_command(self, main: str, *arguments: str) -> list[str]:
        """The command line of one of Kafka's tools, as its shell script would run it."""
        return [
            self._java,
            *_TOOL_HEAP,
            *JVM_FLAGS,
            "-cp",
            self.libraries.classpath,
            main,
            *arguments,
        ]

    def tool(self, main: str, *arguments: str, timeout: float = 300.0) -> None:
        """Run one of Kafka's tools to a good end."""
        run(main, self.tool_command(main, *arguments), timeout=timeout)

    def tool_output(
        self, main: str, *arguments: str, timeout: float = 300.0
    ) -> tuple[str, str, int]:
        """Run one of Kafka's tools and return both its outputs and its exit code."""
        done = run(main, self.tool_command(main, *arguments), timeout=timeout, check=False)
        return done.stdout, done.stderr, done.returncode

    def _properties(self, node: Node) -> Path:
        return node.folder / "server.properties"


def combined_properties(node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    """The settings of one of some nodes that are brokers and controllers, as in a quickstart."""
    voters = [f"{each.number}@127.0.0.1:{each.controller_port}" for each in nodes]
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.voters": ",".join(voters),
        "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{node.bootstrap}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(node.data),
    }


class Ottla:
    """Ottla, from the environment that runs the bench."""

    name = "Ottla"
    splits = True

    def __init__(self) -> None:
        self._program = Path(sys.executable).parent / "ottla"
        if not self._program.exists():
            raise BenchError(
                "the `ottla` command is not in this environment; run `make setup` first."
            )
        self.profile_into: Path | None = None
        self.more_data: tuple[Path, ...] = ()
        """Data folders of a node beside its own."""

    def prepare(self, node: Node, settings: Mapping[str, str]) -> None:
        (node.folder / "server.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )

    def prepare_cluster(self, cluster: Cluster, settings: Mapping[str, str]) -> None:
        for node in cluster.nodes:
            identity = {
                "broker.id": str(node.number),
                "zookeeper.connect": f"127.0.0.1:{cluster.store_port}",
            }
            self.prepare(node, {**identity, **settings})

    def start(self, node: Node, *, apart: bool = False) -> Child:
        command = [str(self._program), "server", "start"]
        if self.profile_into is not None:
            self.profile_into.mkdir(exist_ok=True)
            target = self.profile_into / f"{node.folder.name}.prof"
            command = [sys.executable, "-m", "cProfile", "-o", str(target), *command]
        return Child(self.name, [*command, *self._places(node)], output=node.output, apart=apart)

    def start_split(self, node: Node, processes: int) -> Child:
        if processes == 1:
            return self.start(node, apart=True)
        command = [str(self._program), "server", "start", "--processes", str(processes)]
        return Child(self.name, [*command, *self._places(node)], output=node.output, family=True)

    def _places(self, node: Node) -> list[str]:
        file = str(node.folder / "server.properties")
        data = ",".join(map(str, (node.data, *self.more_data)))
        return ["--config", file, "--listen", node.bootstrap, "--data-dir", data]

    def start_store(self, cluster: Cluster) -> Child:
        command = [str(self._program), "zookeeper", "start"]
        command += ["--listen", f"127.0.0.1:{cluster.store_port}"]
        command += ["--data-dir", str(cluster.folder / "zookeeper")]
        return Child("ZooKeeper", command, output=cluster.folder / "zookeeper.out")

    def start_lent(self, cluster: Cluster) -> Child:
        command = [str(self._program), "cluster", "up", "--brokers", str(len(cluster.nodes))]
        command += ["--base-port", str(cluster.nodes[0].port)]
        command += ["--data-dir", str(cluster.folder / "lent")]
        return Child(self.name, command, output=cluster.folder / "lent.out", family=True)

    def controller_of(self, cluster: Cluster) -> int:
        command = [str(self._program), "cluster", "status", "--json"]
        done = run("ottla cluster status", [*command, "--bootstrap", cluster.bootstrap], timeout=60)
        return int(json.loads(done.stdout)["controller"])

    def list_topics_command(self, node: Node) -> list[str]:
        return [str(self._program), "topic", "list", "--bootstrap", node.bootstrap]

    def classic_command(self, tool: str, *arguments: str) -> list[str]:
        return [str(self._program.parent / tool), *arguments]
