"""The two brokers behind one face: make a data folder, start, list topics from the command line.

Both get a temporary folder and free loopback ports and run with their default settings. Apache
Kafka is one combined KRaft node with a fixed heap of 1 GB and the JVM flags of its own start
script; replication factors of its internal topics are 1 because there is one broker.
"""

from __future__ import annotations

import sys
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench import maven
from bench.processes import BenchError, Child, free_ports, run
from ottla.cli.kafka_compat.run_class import CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping

# What kafka-run-class.sh passes when nobody has set anything.
_JVM_FLAGS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
_BROKER_HEAP = ("-Xms1G", "-Xmx1G")
_TOOL_HEAP = ("-Xmx256M",)
# Former names come last.
_CLASSES = {tool: java for java, tool in reversed([*CLASSES.items()])}


@dataclass(frozen=True, slots=True)
class Node:
    """Where one broker keeps its data and where it will listen."""

    folder: Path
    port: int
    controller_port: int

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


class System(Protocol):
    """A broker implementation that can be started on a node."""

    @property
    def name(self) -> str: ...

    def prepare(self, node: Node, settings: Mapping[str, str]) -> None:
        """Everything that is done once before the first start."""
        ...

    def start(self, node: Node) -> Child:
        """Start the process; it need not listen yet."""
        ...

    def list_topics_command(self, node: Node) -> list[str]:
        """The command a person types to see the topics."""
        ...

    def classic_command(self, tool: str, *arguments: str) -> list[str]:
        """One of Kafka's tools by its classic name, as this system brings it."""
        ...


class ApacheKafka:
    """Apache Kafka, one combined KRaft node."""

    def __init__(self, name: str = "Apache Kafka") -> None:
        self.name = name
        self.libraries = maven.fetch(maven.BROKER)
        self._java = maven.java()

    def prepare(self, node: Node, settings: Mapping[str, str]) -> None:
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{node.controller_port}",
            "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{node.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(node.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **settings,
        }
        file = self._properties(node)
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        while cluster_id.startswith("-"):  # the tool would take it for an option
            cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file))

    def start(self, node: Node) -> Child:
        command = [self._java, *_BROKER_HEAP, *_JVM_FLAGS, "-cp", self.libraries.classpath]
        command += ["kafka.Kafka", str(self._properties(node))]
        return Child(self.name, command, output=node.output)

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
            *_JVM_FLAGS,
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


class Ottla:
    """Ottla, from the environment that runs the bench."""

    name = "Ottla"

    def __init__(self) -> None:
        self._program = Path(sys.executable).parent / "ottla"
        if not self._program.exists():
            raise BenchError(
                "the `ottla` command is not in this environment; run `make setup` first."
            )
        self.profile_into: Path | None = None

    def prepare(self, node: Node, settings: Mapping[str, str]) -> None:
        (node.folder / "server.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )

    def start(self, node: Node) -> Child:
        command = [str(self._program), "server", "start"]
        if self.profile_into is not None:
            self.profile_into.mkdir(exist_ok=True)
            target = self.profile_into / f"{node.folder.name}.prof"
            command = [sys.executable, "-m", "cProfile", "-o", str(target), *command]
        command += ["--config", str(node.folder / "server.properties")]
        command += ["--listen", node.bootstrap, "--data-dir", str(node.data)]
        return Child(self.name, command, output=node.output)

    def list_topics_command(self, node: Node) -> list[str]:
        return [str(self._program), "topic", "list", "--bootstrap", node.bootstrap]

    def classic_command(self, tool: str, *arguments: str) -> list[str]:
        return [str(self._program.parent / tool), *arguments]
