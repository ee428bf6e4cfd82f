"""Kafka's tools as we have them print what Apache's print: transcripts, recorded and replayed.

A transcript (tests/unit/cli/kafka_compat/golden/*.txt) is a series of commands with what Apache
Kafka 4.2's own tool printed when it was run against a fresh Ottla broker:

    $ kafka-topics --bootstrap-server BROKER --create --topic orders
    Created topic orders.
    => 0

`< ` is a line of standard input, `! ` the first line on stderr (Apache adds its whole help or a
stack trace to it, we a pointer to --help), BROKER the broker, DATA its folder, TMP a folder for
files, which `$ write TMP/name` makes of the lines after it. What changes from run to run (ids,
times, sizes that depend on them) is replaced by its name before anything is compared.

    python tests/conformance/test_kafka_tools.py /path/to/kafka/libs [name …]

runs Apache's tools for all commands again and rewrites the transcripts. Commands after a line
`# ours` are not Apache's to say and keep what is written there.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.kafka_compat import run, tool_name
from ottla.cli.kafka_compat.run_class import CLASSES
from ottla.testing.process import BrokerProcess, free_port

GOLDEN = Path(__file__).parent.parent / "unit" / "cli" / "kafka_compat" / "golden"
ADVERTISED = {"node.id": "1", "num.partitions": "1"}

VOLATILE = (
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: TOPIC-ID"),
    (re.compile(r"Cluster ID: [\w-]{22}"), "Cluster ID: CLUSTER-ID"),
    (re.compile(r"(CreateTime|LogAppendTime): ?\d{13}"), r"\1: TIME"),
    (re.compile(r"timestamp: \d{13}"), "timestamp: TIME"),
    (re.compile(r"crc: \d+"), "crc: CRC"),
    (re.compile(r'"(size|totalBytes|usableBytes)":\d+'), r'"\1":BYTES'),
    (re.compile(r"^(\t\w+\(\d+\)): [^,\n]+", re.MULTILINE), r"\1: VERSIONS"),
    (re.compile(r"directory\.id=[\w-]{22}"), "directory.id=DIRECTORY-ID"),
    # the records of Kafka's own metadata log, which we have not
    (re.compile(r"^Bootstrap metadata: .*\n", re.MULTILINE), ""),
    (re.compile(r'Exception in thread "main" [\w.]+: '), ""),
    (re.compile(r"producerId: \d+"), "producerId: PID"),
    (re.compile(r"\A[\w-]{22}\n\Z"), "UUID\n"),
    (re.compile(r"\t\d{13}\t"), "\tTIMESTAMP\t"),
)


@dataclass
class Step:
    """One command: its words, what it reads, and what it is known to answer."""

    command: str
    stdin: list[str] = field(default_factory=list)
    expected: str = ""
    ours: bool = False


def steps(path: Path) -> list[Step]:
    found: list[Step] = []
    ours = False
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("# "):
            ours = ours or line.startswith("# ours")
        elif line.startswith("$ "):
            found.append(Step(line[2:].rstrip("\n"), ours=ours))
        elif line.startswith("< "):
            found[-1].stdin.append(line[2:])
        else:
            found[-1].expected += line
    return found


class Stage:
    """Where a transcript is played: a broker and two folders."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.names = {
            "BROKER": broker.bootstrap,
            "PORT": str(broker.port),
            "DATA": str(broker.data_dir),
            "TMP": str(folder),
        }

    def filled(self, text: str) -> str:
        for name, value in self.names.items():
            text = re.sub(rf"\b{name}\b", value, text)
        return text

    def normal(self, text: str) -> str:
        for name, value in self.names.items():
            text = text.replace(value, name)
        for pattern, name in VOLATILE:
            text = pattern.sub(name, text)
        return text

    def play(self, step: Step, tool: Callable[..., tuple[int, bytes, bytes]]) -> str:
        words = shlex.split(self.filled(step.command))
        if words[0] == "write":
            Path(words[1]).write_text(self.filled("".join(step.stdin)))
            return ""
        code, out, err = tool(words[0], words[1:], "".join(step.stdin).encode())
        text = out.decode("utf-8", "backslashreplace")
        if text and not text.endswith("\n"):
            text += "\\\n"
        complaint = next((line for line in err.decode().splitlines() if "SLF4J" not in line), "")
        if complaint:
            complaint = complaint.removesuffix(f" (see {words[0]} --help)")
            # where Apache goes on with a stack trace, we say in the same line why
            text += "! " + re.sub(r"^(Error while executing .*?'): .*", r"\1", complaint) + "\n"
        return f"{self.normal(text)}=> {code}\n"


def our_tool(name: str, arguments: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Run one of our tools in this process."""
    kept = sys.stdin, sys.stdout, sys.stderr
    streams = [io.BytesIO(stdin), io.BytesIO(), io.BytesIO()]
    wrapped = [io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in streams]
    sys.stdin, sys.stdout, sys.stderr = wrapped
    try:
        code = run(tool_name(name), arguments)
        return code, streams[1].getvalue(), streams[2].getvalue()
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept


def transcripts() -> list[Path]:
    return sorted(GOLDEN.glob("*.txt"))


@pytest.fixture
def stage(start_broker: Any, tmp_path: Path) -> Stage:
    folder = tmp_path / "files"
    folder.mkdir()
    return Stage(start_broker(settings=ADVERTISED), folder)


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_tools_print_what_apache_kafka_prints(path: Path, stage: Stage) -> None:
    for number, step in enumerate(steps(path), 1):
        assert (number, step.command, stage.play(step, our_tool)) == (
            number,
            step.command,
            step.expected,
        )


def test_a_broker_is_started_and_stopped_by_kafkas_commands(
    tmp_path: Path, eventually: Any, ours_only: None
) -> None:
    port = free_port()
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=77\nlisteners=PLAINTEXT://127.0.0.1:{port}\n")
    data = f"log.dirs={tmp_path / 'data'}"
    line = [sys.executable, "-m", "ottla.cli.kafka_compat", "kafka-server-start"]
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(
            [*line, str(config), "--override", data], stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        reach = ["cluster-id", "--bootstrap-server", f"127.0.0.1:{port}"]
        eventually(lambda: our_tool("kafka-cluster", reach, b"")[0] == 0)
        assert our_tool("kafka-server-stop", ["--node-id", "78"], b"")[:2] == (
            1,
            b"No kafka server to stop\n",
        )
        assert our_tool("kafka-server-stop.sh", ["--node-id", "77"], b"")[0] == 0
        assert broker.wait(20) == 0
    finally:
        broker.kill()
        broker.wait()


def test_a_formatted_folder_gives_the_broker_its_cluster_id(
    start_broker: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "formatted"
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={folder}\n")
    wanted = "4L6g3nShT-eMCtK--X86sw"
    given = ["format", "--config", str(config), "--cluster-id", wanted, "--standalone"]
    assert our_tool("kafka-storage", given, b"")[0] == 0
    broker = start_broker(data_dir=folder, settings=ADVERTISED)
    reach = ["cluster-id", "--bootstrap-server", broker.bootstrap]
    assert our_tool("kafka-cluster", reach, b"")[1] == f"Cluster ID: {wanted}\n".encode()


def test_the_offsets_of_a_group_are_decoded_from_the_log(stage: Stage) -> None:
    reach = ["--bootstrap-server", stage.names["BROKER"], "--topic", "words"]
    our_tool("kafka-topics", [*reach, "--create"], b"")
    assert our_tool("kafka-console-producer", reach, b"one\ntwo\n")[0] == 0
    read = [*reach, "--from-beginning", "--group", "readers", "--max-messages", "2"]
    assert our_tool("kafka-console-consumer", read, b"")[1] == b"one\ntwo\n"
    files = [
        str(path)
        for path in Path(stage.names["DATA"]).glob("__consumer_offsets-*/*.log")
        if path.stat().st_size
    ]
    given = ["--offsets-decoder", "--files", ",".join(files)]
    code, out, _ = our_tool("kafka-dump-log", given, b"")
    assert code == 0
    assert b'key: {"type":"1","data":{"group":"readers","topic":"words","partition":0}}' in out
    assert b'"data":{"offset":2,"leaderEpoch":' in out
    assert b'"subscription":{"topics":["words"]' in out


def test_the_older_names_still_work(stage: Stage) -> None:
    broker = stage.names["BROKER"]
    created = ["kafka.admin.TopicCommand", "--create", "--topic", "t", "--bootstrap-server", broker]
    assert our_tool("kafka-run-class.sh", created, b"")[:2] == (0, b"Created topic t.\n")
    code, out, _ = our_tool("kafka-list-topic.sh", ["--bootstrap-server", broker], b"")
    assert (code, out) == (0, b"topic: t partition: 0 leader: 1 replicas: 1 isr: 1\n")
    reading = ["--topic", "t", "--group", "g", "--timeout-ms", "5000", "--bootstrap-server", broker]
    our_tool("kafka-console-consumer", reading, b"")
    code, again, _ = our_tool("kafka-list-topic", ["--bootstrap-server", broker], b"")
    assert (code, again) == (0, out), "without those that brokers keep for themselves"
    internal = ["--topic", "__consumer_offsets", "--bootstrap-server", broker]
    assert our_tool("kafka-list-topic", internal, b"")[1].count(b"topic: __consumer_offsets ") == 50
    code, _, err = our_tool("kafka-list-topic", ["--zookeeper", "localhost:port"], b"")
    assert code == 1
    assert b"no ZooKeeper address" in err


# -- recording


def record(libs: str, names: list[str]) -> None:
    classes = {tool: java for java, tool in reversed(CLASSES.items())}

    def apache(name: str, arguments: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        java = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*", classes[tool_name(name)]]
        done = subprocess.run([*java, *arguments], input=stdin, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    for path in transcripts():
        if names and path.stem not in names:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            BrokerProcess(Path(folder) / "broker", settings=ADVERTISED) as broker,
        ):
            broker.start()
            files = Path(folder) / "files"
            files.mkdir()
            stage = Stage(broker, files)
            lines: list[str] = []
            ours = False
            for step in steps(path):
                if step.ours and not ours:
                    lines.append("# ours\n")
                    ours = True
                answer = step.expected if step.ours else stage.play(step, apache)
                lines += [f"$ {step.command}\n", *(f"< {line}" for line in step.stdin), answer]
            path.write_text("".join(lines))
            print(path.name, os.path.getsize(path))


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2:])
