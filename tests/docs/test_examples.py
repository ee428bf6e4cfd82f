"""The examples at the end of every help, typed into a shell: those that come to an end do so well.

What runs until it is stopped is left out, and what needs several brokers
(tests/system/test_processes.py has them). So is what needs a pipeline that has run, or Spark:
tests/pipelines/test_pipeline_verbs.py has offsets, reset, status and stop in other words,
tests/pipelines/test_pipeline_pages.py types `run --once`; `preview`, `test` and `redrive` are only
tested below the command. That all of them are understood at least is held by
tests/unit/cli/test_command.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as rd
import pytest

from ottla import Admin, NewTopic, Producer, TopicPartition
from ottla.cli.examples import EXAMPLES
from ottla.client.groups import Groups
from ottla.testing.process import BrokerProcess
from ottla.verify.history import Recorder

ENDLESS = {
    "ottla consume orders returns",
    "ottla group watch",
    "ottla group watch billing -i 5",
    "ottla cluster status --watch -i 1",
    *EXAMPLES["cluster up"],
    *EXAMPLES["server start"],
    *EXAMPLES["verify cluster"],
    *EXAMPLES["zookeeper start"],
}
HANGING = {"ottla txn abort -t orders -p 0 -o 42"}  # tests/conformance/test_transaction_tools.py
SEVERAL_BROKERS = {
    *EXAMPLES["cluster add"],
    *EXAMPLES["cluster restart"],
    *EXAMPLES["cluster drain"],
    *EXAMPLES["topic replicate"],
    *EXAMPLES["cluster move-logs"],  # and, of one broker, several data folders
}
NO_PIPELINE_NEEDED = {"ottla pipeline status", "ottla pipeline validate orders.yaml"}
AFTER_A_RUN = {
    line
    for verb, lines in EXAMPLES.items()
    if verb.startswith("pipeline") and verb.split()[-1] not in ("validate", "schema", "list")
    for line in lines
} - NO_PIPELINE_NEEDED
OFFLINE = ("ottla log ", "ottla metadata ")
PIPELINE = """\
name: orders
source: {topic: {name: orders, format: string}}
sink: {files: {path: out, format: json}}
"""
TOPICS = ("orders", "returns", "profiles", "pings")
RECORDS = 12_000  # no fewer than the examples of perf read

LINES = sorted(
    {line for lines in EXAMPLES.values() for line in lines}
    - ENDLESS
    - SEVERAL_BROKERS
    - HANGING
    - AFTER_A_RUN
)
ONLINE_LINES = [line for line in LINES if not line.startswith(OFFLINE)]
OFFLINE_LINES = [line for line in LINES if line.startswith(OFFLINE)]


class Shop:
    """A folder with a broker's data in `data`, and the files that examples name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder, settings={"group.initial.rebalance.delay.ms": 0})
        with Recorder(folder / "run.history.gz", {"seed": 7}) as recorder:
            recorder.record("writer-0", "send", "invoke", p=0, writer=0, first=0, count=1)
            recorder.record("writer-0", "send", "ok", offset=0)
        (folder / "orders.txt").write_text("one\ntwo\n")
        (folder / "orders.yaml").write_text(PIPELINE)
        (folder / "server.properties").write_text(f"log.dirs={folder / 'data'}\n")
        (folder / ".config" / "fish" / "completions").mkdir(parents=True)

    def fill(self) -> None:
        """Topics with records, and a group that has read some of them."""
        admin = Admin(self.broker.bootstrap)
        there = {topic.name for topic in admin.list_topics()}
        missing = [NewTopic(name, 3) for name in TOPICS if name not in there]
        admin.create_topics(missing)
        if "orders" not in there:
            with Producer(self.broker.bootstrap) as producer:
                for number in range(RECORDS):
                    producer.send("orders", b"%d" % number)
        with Groups(self.broker.bootstrap) as groups:
            groups.set_offsets("billing", {TopicPartition("orders", n): 20 for n in range(3)})

    def begin(self) -> None:
        """A transaction that is open; the one of before is aborted by that."""
        settings = {"bootstrap.servers": self.broker.bootstrap, "log_level": 0}
        self.producer = rd.Producer({**settings, "transactional.id": "payments"})
        self.producer.init_transactions(60)
        self.producer.begin_transaction()
        self.producer.produce("orders", b"one")
        assert self.producer.flush(60) == 0

    def empty(self) -> None:
        """No topics, for those that are about to be created."""
        admin = Admin(self.broker.bootstrap)
        there = {topic.name for topic in admin.list_topics()}
        admin.delete_topics(*(name for name in TOPICS if name in there))

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Have a shell run a line here."""
        scripts = str(Path(sys.executable).parent)
        return subprocess.run(
            ["sh", "-c", line.replace("127.0.0.1:9092", self.broker.bootstrap)],
            cwd=self.folder,
            env={
                **os.environ,
                "HOME": str(self.folder),
                "OTTLA_BOOTSTRAP": self.broker.bootstrap,
                "PATH": scripts + os.pathsep + os.environ["PATH"],
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One that is open."""
    found = Shop(tmp_path_factory.mktemp("shop"))
    with found.broker:
        found.broker.start()
        yield found


@pytest.fixture(scope="module")
def closed_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """One whose broker has been stopped."""
    found = Shop(tmp_path_factory.mktemp("closed"))
    with found.broker:
        found.broker.start()
        found.fill()
        assert found.broker.terminate() == 0
    shutil.copytree(found.folder / "data", found.folder / "kept")
    return found


@pytest.mark.parametrize("line", ONLINE_LINES)
def test_an_example_works(line: str, shop: Shop) -> None:
    if line.startswith("ottla topic create"):
        shop.empty()
    else:
        shop.fill()
    if line.startswith("ottla txn"):
        shop.begin()
    result = shop.type(line)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("line", OFFLINE_LINES)
def test_an_example_for_a_stopped_broker_works(line: str, closed_shop: Shop) -> None:
    data = closed_shop.folder / "data"
    shutil.rmtree(data)
    shutil.copytree(closed_shop.folder / "kept", data)
    if "import" in line:
        assert closed_shop.type("ottla metadata export backup.json -d data").returncode == 0
    if "metadata export" not in line and "--replace" not in line:
        # What one restores is lost.
        shutil.rmtree(data / "metadata")
    result = closed_shop.type(line)
    assert result.returncode == 0, result.stderr
