"""One broker, and every command of a file typed at it twice: with Apache's tool, then with ours.

What commands need to be there (records of a known age, groups with a member that reads) is made
here with librdkafka, for each side under its own names.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as rd
from confluent_kafka.admin import AdminClient, NewTopic

from bench import maven
from bench.processes import BenchError, run, wait_port
from bench.systems import Ottla, new_node
from bench.tools.compare import Answer, Verdict, compare
from bench.tools.script import SIDES, fill, read_file
from ottla.cli.kafka_compat.run_class import CLASSES
from ottla.client.groups import Groups
from ottla.client.settings import parse_address
from ottla.client.wire import Wire
from ottla.errors import KafkaError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.records.builder import build_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.systems import Node
    from bench.tools.script import Step

COMMANDS = Path(__file__).parent / "commands"
FIRST_TIMESTAMP = 1_700_000_000_000  # 2023-11-14T22:13:20Z, a second apart
LOGS = {"OFFSETS": "__consumer_offsets", "TRANSACTIONS": "__transaction_state"}
"""What commands call the segments of coordinators."""
LAST_UNVERIFIED = 11
"""The last version of Produce with which a leader includes no partition in a transaction."""
_START_TIMEOUT = 60.0
_TOOL_TIMEOUT = 600.0
_WAIT = 60.0
# A tool lives for a second: the quick compiler and the small collector suit it best. An archive of
# its classes would, too, but Jackson then writes the fields of an object in another order.
_JVM = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def command_files() -> list[Path]:
    return sorted(COMMANDS.glob("*.txt"))


class Member(threading.Thread):
    """A consumer that reads until it is told to leave; `static` is the consumer protocol's, too."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        super().__init__(daemon=True)
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "app",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 100,
        }
        if protocol != "classic":
            config["group.protocol"] = "consumer"
        if protocol == "static":
            config["group.instance.id"] = "one"
        self.consumer = rd.Consumer(config)
        self.consumer.subscribe([topic])
        self.leaving = threading.Event()

    def run(self) -> None:
        while not self.leaving.is_set():
            self.consumer.poll(0.05)
        self.consumer.close()


class Stage:
    """A broker with the things that a command file asks for."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.names = {"BROKER": node.bootstrap, "DATA": str(node.data), "TMP": str(folder)}
        self.members: list[Member] = []
        self.producers: dict[str, rd.Producer] = {}
        self.programs = Path(sys.executable).parent
        self.classes = {tool: java for java, tool in reversed(CLASSES.items())}
        self.java = [maven.java(), *_JVM, "-cp", maven.fetch(maven.BROKER).classpath]

    def command(self, side: str, tool: str) -> list[str]:
        if side == "ours":
            return [str(self.programs / tool)]
        return [*self.java, self.classes[tool]]

    def play(self, step: Step) -> Verdict | None:
        if step.action:
            for side in SIDES.values():
                self.act(step, {**self.names, "SIDE": side})
                if step.shared:
                    break
            return None
        names = dict(self.names)
        for name, topic in LOGS.items():
            if name in step.words:
                names = {name: self.segments(topic), **names}
        answers = {}
        for side, word in SIDES.items():
            line = [*self.command(side, step.tool), *step.arguments({**names, "SIDE": word})]
            stdin = fill("".join(step.stdin), {**names, "SIDE": word})
            done = run(step.tool, line, timeout=_TOOL_TIMEOUT, stdin=stdin, check=False)
            answers[side] = Answer(done.returncode, done.stdout, done.stderr)
        return compare(step, answers["Apache's"], answers["ours"], names)

    # -- what the stage does

    def act(self, step: Step, names: dict[str, str]) -> None:
        verb, *words = fill(step.words, names).split()
        match verb:
            case "write":
                Path(words[0]).write_text(fill("".join(step.stdin), names))
            case "records":
                self.send(words[0], [int(count) for count in words[1:]])
            case "segments":
                self.fill_segments(words[0], int(words[1]))
            case "commit":
                self.commit(words[0], words[1:])
            case "member":
                self.join(*words)
            case "leave":
                self.leave()
            case "begin":
                self.begin(words[0], words[1:])
            case "end":
                self.end(*words)
            case "hang":
                self.hang(words[0], int(words[1]))
            case _:
                raise BenchError(f"the stage cannot {verb}")

    def send(
        self, topic: str, counts: list[int], size: int = 0, config: dict[str, Any] | None = None
    ) -> None:
        """Records a second apart, so many to each partition."""
        producer = rd.Producer({"bootstrap.servers": self.node.bootstrap, **(config or {})})
        for partition, count in enumerate(counts):
            for number in range(count):
                value = f"value {number}".ljust(size).encode()
                at = FIRST_TIMESTAMP + 1000 * number
                producer.produce(topic, value, partition=partition, timestamp=at)
        if producer.flush(_WAIT):
            raise BenchError(f"the records for {topic} were not taken")

    def fill_segments(self, topic: str, count: int) -> None:
        """Batches of a record each, in segments as small as Kafka allows."""
        small = {"segment.bytes": "1048576", "retention.ms": "-1"}
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap})
        for made in admin.create_topics([NewTopic(topic, 1, 1, config=small)]).values():
            made.result(_WAIT)
        self.send(topic, [count], 4000, {"batch.num.messages": 1})

    def commit(self, group: str, offsets: list[str]) -> None:
        consumer = rd.Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": group})
        split = [each.rsplit(":", 2) for each in offsets]
        wanted = [rd.TopicPartition(topic, int(p), int(offset)) for topic, p, offset in split]
        consumer.commit(offsets=wanted, asynchronous=False)
        consumer.close()

    def join(self, group: str, topic: str, protocol: str) -> None:
        member = Member(self.node.bootstrap, group, topic, protocol)
        member.start()
        self.members.append(member)
        with Groups(self.node.bootstrap) as groups:
            until(f"{group} to be caught up", lambda: _caught_up(groups, group))

    def leave(self) -> None:
        for member in self.members:
            member.leaving.set()
        for member in self.members:
            member.join(_WAIT)
        self.members.clear()

    def begin(self, name: str, topics: list[str]) -> None:
        """A transaction with a record in each topic, left open."""
        config = {
            "bootstrap.servers": self.node.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
        producer = self.producers[name] = rd.Producer(config)
        producer.init_transactions(_WAIT)
        producer.begin_transaction()
        for topic in topics:
            producer.produce(topic, b"value", partition=0)
        if producer.flush(_WAIT):
            raise BenchError(f"the records of {name} were not taken")

    def end(self, name: str, how: str) -> None:
        """Commit or abort it."""
        producer = self.producers.pop(name)
        if how == "commit":
            producer.commit_transaction(_WAIT)
        else:
            producer.abort_transaction(_WAIT)

    def hang(self, topic: str, producer_id: int) -> None:
        """A transaction in partition 0 of which no coordinator knows; the broker has to let it in
        without asking one (transaction.partition.verification.enable=false)."""
        record = (FIRST_TIMESTAMP, None, b"value", ())
        batch = build_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=memoryview(batch))
        request = ProduceRequest(
            transactional_id=f"lost-{producer_id}",
            acks=-1,
            timeout_ms=round(_WAIT * 1000),
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        wire = Wire(
            *parse_address(self.node.bootstrap),
            timeout=_WAIT,
            client_id="stage",
            newest={ApiKey.PRODUCE: LAST_UNVERIFIED},
        )
        with closing(wire):
            [answered] = wire.ask(request).responses
        code = answered.partition_responses[0].error_code
        if code:
            raise BenchError(f"the hanging transaction was not taken: error {code}")

    def segments(self, topic: str) -> str:
        """The segments of a coordinator's topic that hold something."""
        found = sorted(self.node.data.glob(f"{topic}-*/*.log"))
        return ",".join(str(path) for path in found if path.stat().st_size)


def _caught_up(groups: Groups, name: str) -> bool:
    try:
        rows = groups.lag(name)
    except KafkaError:
        return False
    return bool(rows) and all(row.lag == 0 and row.member for row in rows)


def until(what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT
    while not ready():
        if time.monotonic() > deadline:
            raise BenchError(f"waited in vain for {what}")
        time.sleep(0.05)


@contextmanager
def staged(folder: Path, *, second: bool = False) -> Iterator[Stage]:
    """A fresh broker whose address and node id are what Apache's defaults would give, if need be
    with a second data folder."""
    node = new_node(folder / "broker")
    system = Ottla()
    if second:
        system.more_data = (folder / "second",)
    settings = {
        "node.id": "1",
        "num.partitions": "1",
        "advertised.listeners": f"PLAINTEXT://{node.bootstrap}",
        "group.initial.rebalance.delay.ms": "0",
    }
    system.prepare(node, settings)
    files = folder / "files"
    files.mkdir()
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        stage = Stage(node, files)
        if second:
            stage.names["SECOND"] = str(folder / "second")
        try:
            yield stage
        finally:
            stage.leave()


def compare_file(path: Path, folder: Path, tell: Callable[[Verdict], None]) -> list[Verdict]:
    """Every command of a file; each verdict is told as soon as it is there."""
    verdicts = []
    folder.mkdir()
    steps = read_file(path)
    second = any("SECOND" in "".join((step.words, *step.stdin)) for step in steps)
    with staged(folder, second=second) as stage:
        for step in steps:
            verdict = stage.play(step)
            if verdict is not None:
                verdicts.append(verdict)
                tell(verdict)
    return verdicts
