"""kafka-consumer-groups and kafka-groups against what Apache Kafka 4.2's own tools print.

Each case is a command line, run against a broker with topics and groups that are made here. What
it prints is compared with a file that Apache's tool wrote for the same command line:

    OTTLA_TEST_BOOTSTRAP=127.0.0.1:9092 OTTLA_GOLDEN_CLASSPATH='kafka/libs/*' \
        pytest tests/conformance/test_group_tools.py

runs Apache's tools (java, from that class path) instead of ours and writes the files anew. Names
are unique for each run but always of the same length, so that columns stay where they are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as rd
import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.client.ages import lag_seconds
from ottla.client.groups import Groups
from ottla.client.overview import look_at_groups
from ottla.model.ids import TopicPartition

GOLDEN = Path(__file__).parents[1] / "unit/cli/kafka_compat/golden/consumer-groups"
CLASSPATH = os.environ.get("OTTLA_GOLDEN_CLASSPATH")
CLASSES = {
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
}
FIRST_TIMESTAMP = 1_700_000_000_000  # 2023-11-14T22:13:20Z
RECORDS = (10, 20, 30)


class Case(NamedTuple):
    """A command line; `{orders}` and the like stand for this run's names."""

    name: str
    arguments: str
    code: int = 0
    tool: str = "kafka-consumer-groups"


RESET = "--reset-offsets --group {idle} --topic {orders} --dry-run"

CASES = (
    Case("describe-idle", "--describe --group {idle}"),
    Case("describe-idle-verbose", "--describe --group {idle} --offsets --verbose"),
    Case("describe-idle-members", "--describe --group {idle} --members"),
    Case("describe-idle-state", "--describe --group {idle} --state"),
    Case("describe-live", "--describe --group {live}"),
    Case("describe-live-members", "--describe --group {live} --members"),
    Case("describe-live-members-verbose", "--describe --group {live} --members --verbose"),
    Case("describe-live-state", "--describe --group {live} --state"),
    Case("describe-live-state-verbose", "--describe --group {live} --state --verbose"),
    Case("describe-fresh", "--describe --group {fresh}"),
    Case("describe-fresh-members", "--describe --group {fresh} --members"),
    Case("describe-fresh-members-verbose", "--describe --group {fresh} --members --verbose"),
    Case("describe-fresh-state-verbose", "--describe --group {fresh} --state --verbose"),
    Case("describe-two", "--describe --group {live} --group {idle}"),
    Case("describe-absent", "--describe --group {none}", 1),
    Case("reset-earliest", RESET + " --to-earliest"),
    Case("reset-latest", RESET + " --to-latest"),
    Case("reset-current", RESET + " --to-current"),
    Case("reset-offset", RESET + " --to-offset 15"),
    Case("reset-datetime", RESET + " --to-datetime 2023-11-14T22:13:25.000"),
    Case("reset-datetime-zone", RESET + " --to-datetime 2023-11-14T23:13:25.000+01:00"),
    Case("reset-duration", RESET + " --by-duration P1D"),
    Case("reset-shift", "--reset-offsets --group {idle} --all-topics --dry-run --shift-by -3"),
    Case("reset-some-partitions",
         "--reset-offsets --group {idle} --topic {orders}:0,2 --to-earliest --dry-run"),
    Case("reset-export", RESET + " --to-earliest --export"),
    Case("reset-two-export",
         "--reset-offsets --group {idle} --group {live} --topic {orders}:0 --to-earliest "
         "--export --dry-run", 1),
    Case("reset-file", "--reset-offsets --group {idle} --from-file {plan} --dry-run"),
    Case("reset-file-with-groups",
         "--reset-offsets --group {idle} --group {none} --from-file {plans} --dry-run"),
    Case("reset-no-such-file", "--reset-offsets --group {idle} --from-file {gone} --dry-run", 1),
    Case("reset-without-execute", "--reset-offsets --group {idle} --topic {orders} --to-latest"),
    Case("reset-live", "--reset-offsets --group {live} --topic {orders} --to-latest --execute", 1),
    Case("reset-unborn", "--reset-offsets --group {none} --topic {orders} --to-latest --dry-run"),
    Case("reset-absent-partition",
         "--reset-offsets --group {idle} --topic {orders}:7 --to-latest --dry-run", 1),
    Case("delete-offsets", "--delete-offsets --group {idle} --topic {empty}"),
    Case("delete-offsets-absent",
         "--delete-offsets --group {idle} --topic {empty}:0,9 --topic {none}", 1),
    Case("delete-offsets-no-group", "--delete-offsets --group {none} --topic {empty}", 1),
    Case("delete-offsets-live", "--delete-offsets --group {live} --topic {orders}", 1),
    Case("delete", "--delete --group {gone1}"),
    Case("delete-some", "--delete --group {gone2} --group {none} --group {live}", 1),
    Case("regex-good", "--validate-regex (a+)+$"),
    Case("regex-bad", "--validate-regex (a"),
    Case("groups-list", "--list", tool="kafka-groups"),
    Case("groups-consumer", "--list --consumer", tool="kafka-groups"),
    Case("groups-type", "--list --group-type classic", tool="kafka-groups"),
    Case("groups-protocol", "--list --protocol consumer", tool="kafka-groups"),
)  # fmt: skip


@dataclass
class Scene:
    """The broker, and the names of what was made in it."""

    bootstrap: str
    names: dict[str, str]

    def fill(self, text: str) -> str:
        return text.format_map(self.names)


class Member(threading.Thread):
    """A consumer that reads until it is told to stop."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        super().__init__(daemon=True)
        self.consumer = rd.Consumer(config)
        self.consumer.subscribe([topic])
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.consumer.poll(0.05)
        self.consumer.close()


@pytest.fixture(scope="module")
def scene(
    bootstrap: str, tmp_path_factory: pytest.TempPathFactory, until: Callable[..., None]
) -> Iterator[Scene]:
    """Two topics; a group without members, and one of each protocol with a member."""
    mark = uuid.uuid4().hex[:8]
    names = {
        name: f"{name}-{mark}"
        for name in ("orders", "empty", "idle", "live", "fresh", "none", "gone1", "gone2")
    }
    folder = tmp_path_factory.mktemp("plans")
    for name in ("plan", "plans", "gone"):
        names[name] = str(folder / f"{name}.csv")
    (folder / "plan.csv").write_text(
        f"{names['orders']},0,3\n{names['orders']},1,500\n", encoding="utf-8"
    )
    (folder / "plans.csv").write_text(
        f'"{names["idle"]}",{names["orders"]},0,3\n{names["none"]},{names["orders"]},1,4\n',
        encoding="utf-8",
    )
    scene = Scene(bootstrap, names)
    make_topics(bootstrap, names, until)
    orders = names["orders"]
    with Groups(bootstrap) as groups:
        groups.set_offsets(
            names["idle"],
            {
                TopicPartition(orders, 0): 5,
                TopicPartition(orders, 1): 7,
                TopicPartition(names["empty"], 0): 0,
            },
        )
        for gone in ("gone1", "gone2"):
            groups.set_offsets(names[gone], {TopicPartition(orders, 0): 1})
        members = [
            Member(member_config(bootstrap, names["live"]), orders),
            Member(
                member_config(bootstrap, names["fresh"])
                | {"group.protocol": "consumer", "group.instance.id": "one"},
                orders,
            ),
        ]
        for member in members:
            member.start()
        for name in ("live", "fresh"):
            until(lambda name=name: caught_up(groups, names[name]))
        yield scene
    for member in members:
        member.stopping.set()
    for member in members:
        member.join(30)


@pytest.fixture(scope="module")
def until() -> Callable[..., None]:
    """Wait for something that comes by itself."""

    def wait(ready: Callable[[], bool], seconds: float = 60.0) -> None:
        done = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if ready():
                return
            done.wait(0.05)
        raise AssertionError("it did not come about")

    return wait


def member_config(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": "app",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 100,
    }


def make_topics(bootstrap: str, names: dict[str, str], until: Callable[..., None]) -> None:
    from ottla.client.admin import Admin

    with Admin(bootstrap) as admin:
        # The records are from 2023; nobody is to find them too old.
        keep = {"retention.ms": "-1"}
        admin.create_topic(names["orders"], partitions=len(RECORDS), config=keep)
        admin.create_topic(names["empty"], partitions=1)
    with Groups(bootstrap) as groups:
        wanted = [TopicPartition(names["orders"], number) for number in range(len(RECORDS))]
        wanted.append(TopicPartition(names["empty"], 0))
        until(lambda: len(groups.topics.ends(wanted)) == len(wanted))
    producer = rd.Producer({"bootstrap.servers": bootstrap})
    for partition, count in enumerate(RECORDS):
        for number in range(count):
            producer.produce(
                names["orders"],
                b"value %d" % number,
                partition=partition,
                timestamp=FIRST_TIMESTAMP + 1000 * number,
            )
    assert producer.flush(30) == 0


def caught_up(groups: Groups, name: str) -> bool:
    from ottla.errors import KafkaError

    try:
        rows = groups.lag(name)
    except KafkaError:
        return False
    return len(rows) == len(RECORDS) and all(row.lag == 0 and row.member for row in rows)


def run(scene: Scene, case: Case) -> subprocess.CompletedProcess[str]:
    arguments = [scene.fill(word) for word in case.arguments.split()]
    arguments = ["--bootstrap-server", scene.bootstrap, *arguments]
    command = [sys.executable, "-m", "ottla.cli.kafka_compat", case.tool]
    if CLASSPATH:
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", CLASSPATH, CLASSES[case.tool]]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=250, check=False
    )


def normal(scene: Scene, case: Case, done: subprocess.CompletedProcess[str]) -> str:
    """What was printed, without what differs from run to run and from Java to us."""
    return (
        f"$ {case.tool} --bootstrap-server ADDRESS {case.arguments}\n"
        f"--- stdout\n{_stable(scene, case, done.stdout)}"
        f"--- stderr\n{_stable(scene, case, _plain_stderr(done.stderr))}"
    )


def _plain_stderr(text: str) -> str:
    """Without Java's logging set-up, stack traces and the page of options after a mistake."""
    lines = text.splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if not re.match(
            r"SLF4J|\s+at |Caused by|\s*\.\.\. |java\.|org\.apache|com\.fasterxml", line
        )
    ]
    return "".join(kept)


def _stable(scene: Scene, case: Case, text: str) -> str:
    for name, value in scene.names.items():
        text = text.replace(value, name + "-########" if "/" not in value else f"{{{name}}}")
    if case.tool == "kafka-groups":
        # The broker has groups of other tests as well, which also make columns wider, and no order.
        lines = re.sub(" {2,}", "  ", text).splitlines(keepends=True)
        kept = [line for line in lines[1:] if "########" in line and not line.startswith("gone")]
        text = "".join(lines[:1] + sorted(kept))
    if case.name.startswith("reset"):
        text = _rows_sorted(text)
    address = scene.bootstrap.replace("localhost", "127.0.0.1")
    text = text.replace(f"{address}  (", "ADDRESS:00000  (")
    text = re.sub(r" \(\d+\)( +)", " (N) ", text)
    text = re.sub(r"app-[0-9a-f-]{36}", "app-" + "#" * 36, text)
    return re.sub(r"(?<= )[\w+/-]{22}(?= +(one|/127))", "#" * 22, text)


def _rows_sorted(text: str) -> str:
    """Java gives partitions in the order of a hash map; what stands between them stays there."""
    lines = re.sub(r"\n\nWarn", "\nWarn", text).splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if re.match(r"(Warn: )|\w+-#{8}", line)]
    for place, line in zip(places, sorted(lines[n] for n in places), strict=True):
        lines[place] = line
    return "".join(lines)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_prints_what_apache_kafka_prints(scene: Scene, case: Case) -> None:
    done = run(scene, case)
    found = normal(scene, case, done)
    path = GOLDEN / f"{case.name}.txt"
    if CLASSPATH:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    assert found == path.read_text(encoding="utf-8")
    assert done.returncode == case.code


# -- the same in the house manner


@pytest.fixture
def ottla(scene: Scene) -> Callable[..., Any]:
    """`ottla("group list")`: the exit code, and what was printed, JSON already read."""

    def call(arguments: str) -> tuple[int, Any]:
        words = [scene.fill(word) for word in arguments.split()]
        result = CliRunner().invoke(cli, [*words, "--bootstrap", scene.bootstrap, "--json"])
        return result.exit_code, json.loads(result.output) if result.output[
            0
        ] in "{[" else result.output

    return call


def test_lag_in_seconds_is_the_age_of_the_next_record(
    scene: Scene, ottla: Callable[..., Any]
) -> None:
    before = time.time()
    code, [found] = ottla("group describe {idle}")
    assert code == 0
    rows = {(row["topic"], row["partition"]): row for row in found["partitions"]}
    row = rows[scene.names["orders"], 1]
    assert (row["committed"], row["end"], row["lag"]) == (7, 20, 13)
    age = before - (FIRST_TIMESTAMP / 1000 + 7)
    assert age - 1 <= row["lag_seconds"] <= age + 60


def test_a_reset_moves_the_offsets_and_one_with_members_is_refused(
    scene: Scene, ottla: Callable[..., Any]
) -> None:
    group, orders = f"moved-{uuid.uuid4().hex}", scene.names["orders"]
    code, found = ottla(f"group reset {group} --topic {{orders}}:0,2 --to 4 --execute --create")
    assert (code, found["executed"]) == (0, True)
    with Groups(scene.bootstrap) as groups:
        moved = {tp: each.offset for tp, each in groups.offsets(group).items()}
        assert moved == {TopicPartition(orders, 0): 4, TopicPartition(orders, 2): 4}
        before = groups.offsets(scene.names["live"])
        code, complaint = ottla("group reset {live} --all-topics --to earliest --execute")
        assert code == 1
        assert "has 1 member; stop it first, nothing was changed" in complaint
        assert groups.offsets(scene.names["live"]) == before
    assert ottla(f"group delete {group}") == (0, {"deleted": [group], "missing": []})
    code, complaint = ottla(f"group describe {group}")
    assert code == 1
    assert "there is no group" in complaint


def test_offsets_config_and_top_see_the_same_topic(scene: Scene, ottla: Callable[..., Any]) -> None:
    _, found = ottla("offsets {orders}")
    assert [row["latest"] for row in found] == list(RECORDS)
    assert found[0]["newest"] == RECORDS[0] - 1
    _, settings = ottla("config describe topic {orders}")
    [setting] = [each for each in settings["settings"] if each["key"] == "retention.ms"]
    assert (setting["value"], setting["source"]) == ("-1", "topic")
    code, complaint = ottla("config alter topic {orders} --set retention.ms=soon")
    assert code == 1
    assert "nothing was changed" in complaint
    _, picture = ottla("top --once --interval 0.1")
    [topic] = [each for each in picture["topics"] if each["topic"] == scene.names["orders"]]
    assert (topic["partitions"], topic["records"], topic["offline"]) == (3, sum(RECORDS), 0)
    [group] = [each for each in picture["groups"] if each["group"] == scene.names["idle"]]
    assert group["lag"] == 18


def test_a_survey_of_all_groups_is_what_each_says_itself(scene: Scene) -> None:
    names = [scene.names[name] for name in ("idle", "live", "fresh")]
    with Groups(scene.bootstrap) as groups:
        found = groups.survey(names)
        assert found == {
            name: (groups.describe(name)[name], groups.offsets(name)) for name in sorted(names)
        }
        everything = groups.survey()
        assert {name: everything[name] for name in found} == found
        seen = look_at_groups(groups, names)
        for name, figures in seen.items():
            rows = groups.lag(name)
            assert figures.partitions == len(rows)
            assert figures.lag == {row.partition: row.lag for row in rows if row.lag is not None}
            late = lag_seconds(groups.router, rows, time.time_ns() // 1_000_000)
            assert figures.late == pytest.approx(late, abs=60)
