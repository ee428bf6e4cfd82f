"""`ottla pipeline`'s verbs about a pipeline that has run, on a real broker and without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli
from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster
from ottla.pipelines.driver import offsets
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles
from ottla.pipelines.driver.home import Home
from ottla.pipelines.source.offsets import Mark, Progress

HOLD = """
import signal, sys
from pathlib import Path
from ottla.pipelines.driver.home import Home
from ottla.pipelines.driver.lock import Lock
home = Home(Path(sys.argv[1]), sys.argv[2])
lock = Lock(home)
lock.take()
def stop(*_):
    home.tell({"pipeline": home.name, "state": "stopped"})
    sys.exit()
signal.signal(signal.SIGTERM, stop)
home.tell({"pipeline": home.name, "state": "running", "rows": 12, "rows_per_second": 3.4})
print("held", flush=True)
sys.stdin.read()
"""


class Stopped:
    """A pipeline that has read five of ten records of each of two partitions, and has stopped."""

    def __init__(self, bootstrap: str, topic: str, state: Path) -> None:
        self.topic, self.bootstrap, self.state = topic, bootstrap, state
        self.home = Home(state, topic)
        self.home.make()
        self.first, self.second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        self.group = f"ottla-{topic}"
        with DirectAdmin(bootstrap) as admin:
            admin.create_topic(NewTopic(topic, 2, 1))
        with Producer(bootstrap) as producer:
            for number in range(20):
                producer.post(topic, b"%d" % number, partition=number % 2)
        self.home.remember(
            {
                "name": topic,
                "group": self.group,
                "bootstrap": bootstrap,
                "file": "copy.yaml",
                "checkpoint": str(self.home.folder / "checkpoint"),
                "topics": [topic],
                "source": "topic",
                "sink": "console",
                "member": "m",
                "query": {},
            }
        )
        with Cluster(bootstrap) as cluster:
            known = cluster.topics([topic])[topic].id
        progress = Progress.initial({self.first: Mark(known, 5), self.second: Mark(known, 5)})
        folder = self.home.folder / "checkpoint"
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        text = json.dumps(progress.to_json())
        (folder / "offsets" / "0").write_text('v1\n{"conf":{}}\n' + text)
        (folder / "commits" / "0").write_text("v1\n{}")
        (folder / "metadata").write_text('{"id":"run-1"}')
        self.checkpoint = Checkpoint(topic, LocalFiles(folder))
        with Groups(bootstrap) as groups:
            groups.set_offsets(self.group, offsets.commits(progress, "run-1", 0))

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["pipeline", *words, "--state-dir", str(self.state)])

    def json(self, *words: str) -> Any:
        result = self(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def committed(self) -> dict[TopicPartition, int]:
        with Groups(self.bootstrap) as groups:
            return {tp: each.offset for tp, each in groups.offsets(self.group).items()}

    def goes_on_at(self) -> dict[TopicPartition, int]:
        """Where the next run begins, as Spark will find it: a batch that reads nothing."""
        number = self.checkpoint.unfinished
        assert number is not None
        before = Progress.of_json(self.checkpoint.end(number - 1))
        after = Progress.of_json(self.checkpoint.end(number))
        assert Progress.ranges(before, after) == []
        return after.ends()


@pytest.fixture
def pipeline(bootstrap: str, unique: Callable[..., str], tmp_path: Path) -> Stopped:
    return Stopped(bootstrap, unique(), tmp_path)


def test_offsets_are_shown_beside_the_group_and_the_end(pipeline: Stopped) -> None:
    found = pipeline.json("offsets", "show", pipeline.topic)
    assert (found["finished"], found["unfinished"]) == (0, None)
    assert found["partitions"] == [
        {
            "topic": pipeline.topic,
            "partition": number,
            "checkpoint": 5,
            "group": 5,
            "end": 10,
            "lag": 5,
        }
        for number in (0, 1)
    ]
    shown = pipeline("offsets", "show", pipeline.topic).output
    assert "after batch 0" in shown
    assert "CHECKPOINT" in shown


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        (["reset", "NAME", "--to", "earliest"], 0, 0),
        (["reset", "NAME", "--to", "latest"], 10, 10),
        (["reset", "NAME", "--to", "3", "--topic", "NAME:1"], 5, 3),
        (["reset", "NAME", "--shift", "-2"], 3, 3),
        (["reset", "NAME", "--shift", "99"], 10, 10),
        (["reset", "NAME", "--to", "current"], 5, 5),
        (["reset", "NAME", "--back", "1h"], 0, 0),
        (["reset", "NAME", "--to", "2020-01-01T00:00:00Z"], 0, 0),
        (["set", "NAME", "NAME:0=7"], 7, 5),
    ],
)
def test_a_stopped_pipeline_is_moved_with_its_group(
    pipeline: Stopped, words: list[str], first: int, second: int
) -> None:
    given = [word.replace("NAME", pipeline.topic) for word in words]
    shown = pipeline.json("offsets", *given, "--dry-run")
    assert not shown["moved"]
    assert pipeline.checkpoint.unfinished is None, "nothing was changed"
    assert pipeline.committed() == {pipeline.first: 5, pipeline.second: 5}
    assert pipeline.json("offsets", *given)["offsets"] == shown["offsets"]
    wanted = {pipeline.first: first, pipeline.second: second}
    assert pipeline.goes_on_at() == wanted
    assert pipeline.committed() == wanted
    with Groups(pipeline.bootstrap) as groups:
        position = offsets.standing(pipeline.checkpoint).position
        committed = groups.offsets(pipeline.group)
    assert offsets.moved(position, pipeline.checkpoint.id, committed) == [], "the next start asks"
    rows = pipeline.json("offsets", "show", pipeline.topic)["partitions"]
    assert [row["checkpoint"] for row in rows] == [first, second]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["set", "NAME", "other:0=7"], "does not read other but NAME"),
        (["set", "NAME", "orders"], "expected TOPIC:PARTITION=OFFSET"),
        (["reset", "NAME"], "say where to: --to, --back, --shift or --from-file"),
        (["reset", "NAME", "--to", "latest", "--topic", "other"], "does not read other"),
        (["show", "NAMES"], "did you mean 'NAME'?"),
    ],
)
def test_what_cannot_be_moved_says_why(pipeline: Stopped, words: list[str], told: str) -> None:
    result = pipeline("offsets", *[word.replace("NAME", pipeline.topic) for word in words])
    assert result.exit_code != 0
    assert told.replace("NAME", pipeline.topic) in result.output


def test_a_source_that_is_no_topic_cannot_be_moved(pipeline: Stopped) -> None:
    known = pipeline.home.remembered()
    pipeline.home.remember(known | {"topics": [], "source": "files"})
    result = pipeline("offsets", "reset", pipeline.topic, "--to", "earliest")
    assert "does not read topics but files" in result.output


def test_a_reset_forgets_checkpoint_and_group(pipeline: Stopped) -> None:
    shown = pipeline("reset", pipeline.topic)
    assert "--yes does it" in shown.output
    assert pipeline.checkpoint.id == "run-1"
    gone = pipeline.json("reset", pipeline.topic, "--yes")
    assert gone["reset"]
    assert f"group {pipeline.group}" in gone["gone"]
    assert pipeline.checkpoint.id is None
    assert pipeline.committed() == {}
    assert pipeline("reset", pipeline.topic, "--yes").exit_code == 0, "a second time as well"


def test_a_pipeline_that_runs_is_seen_left_alone_and_stopped(pipeline: Stopped) -> None:
    command = [sys.executable, "-c", HOLD, str(pipeline.state), pipeline.topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"held\n"
        [now] = pipeline.json("status")
        assert (now["state"], now["process"], now["rows"]) == ("running", driver.pid, 12)
        [entry] = pipeline.json("list")
        assert (entry["state"], entry["sink"]) == ("running", "console")
        for words in (["offsets", "reset", "--to", "latest"], ["reset", "--yes"]):
            refused = pipeline(*words, pipeline.topic)
            assert refused.exit_code == 1
            assert f"is run by process {driver.pid} on this machine already" in refused.output
        assert pipeline.json("stop", pipeline.topic)["process"] == driver.pid
        assert driver.wait() == 0
    assert pipeline("stop", pipeline.topic).exit_code == 1
    assert pipeline.json("status", pipeline.topic)[0]["state"] == "stopped"


def test_a_pipeline_that_was_killed_is_said_to_be(pipeline: Stopped) -> None:
    command = [sys.executable, "-c", HOLD, str(pipeline.state), pipeline.topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"held\n"
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    [now] = pipeline.json("status")
    assert (now["state"], now["process"]) == ("killed", None)
    assert "killed" in pipeline("status").output


def test_a_pipeline_that_never_ran_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["pipeline", "status", "p", "--state-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert f"no pipeline 'p' has run with {tmp_path}" in result.output
    assert (
        CliRunner().invoke(cli, ["pipeline", "list", "--state-dir", str(tmp_path)]).exit_code == 0
    )


# -- runs that are over before Spark has started


class Runs:
    """`ottla pipeline run` of a file, in a process of its own."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder

    def __call__(self, source: str, *words: str, **environment: str) -> tuple[int, str]:
        file = self._folder / "p.yaml"
        lines = ["name: p", f"bootstrap: {self._bootstrap}", f"source: {source}", "sink: console"]
        file.write_text("\n".join(lines))
        done = subprocess.run(
            [sys.executable, "-m", "ottla", "pipeline", "run", str(file), *words],
            env={**os.environ, "OTTLA_PIPELINES": str(self._folder / "state"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr


@pytest.fixture
def run(bootstrap_no_auto_create: str, tmp_path: Path) -> Runs:
    return Runs(bootstrap_no_auto_create, tmp_path)


def test_a_wrong_java_is_a_clear_error(run: Runs, tmp_path: Path) -> None:
    code, said = run("{generator: {rows: 3}}", "--once", JAVA_HOME=str(tmp_path))
    assert code == 1
    assert f"Error: JAVA_HOME is {tmp_path}, where no Java runs: set it to a Java 17" in said
    assert "Traceback" not in said
    status = json.loads((tmp_path / "state" / "p" / "status.json").read_text())
    assert status["state"] == "failed"


def test_an_old_java_is_a_clear_error(run: Runs, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    code, said = run("{generator: {rows: 3}}", "--once", JAVA_HOME=str(tmp_path / "jdk"))
    assert code == 1
    assert "jdk, a Java 11, and Spark needs 17 or newer: set it to such a one, or unset" in said
    assert "Traceback" not in said


def test_a_topic_that_is_not_there_is_named(run: Runs) -> None:
    code, said = run("{topic: {name: nothing-of-this-name, format: string}}")
    assert code == 1
    assert "Error: pipeline p reads topic nothing-of-this-name, which 127.0.0.1:" in said
    assert "`ottla topic create nothing-of-this-name` makes it" in said


def test_a_cluster_is_not_given_a_folder_of_this_machine(run: Runs) -> None:
    code, said = run("{generator: {rows: 3}}", "--master", "spark://127.0.0.1:7077")
    assert code == 1
    assert "whose machines do not see" in said
    assert "--shared-path" in said


@pytest.mark.parametrize(
    ("source", "words", "refused"),
    [
        ("{http: {url: 'http://127.0.0.1:1/'}}", (), "do not see the rows that its source keeps"),
        ("{http: {url: 'http://127.0.0.1:1/'}}", ("--shared-path",), None),
        ("{sqlite: {path: a.db, table: t}}", ("--shared-path",), "with a local master only"),
        ("{generator: {rows: 3}}", ("--master", "127.0.0.1:7077"), "which is no master of Spark"),
    ],
)
def test_what_a_cluster_cannot_do_is_a_mistake_of_the_file(
    tmp_path: Path, source: str, words: tuple[str, ...], refused: str | None
) -> None:
    file = tmp_path / "p.yaml"
    lines = ["name: p", f"source: {source}", "sink: console", "checkpoint: hdfs://names/p"]
    file.write_text("\n".join(lines))
    remote = ("--offline", "--master", "spark://127.0.0.1:7077")
    result = CliRunner().invoke(cli, ["pipeline", "validate", str(file), *remote, *words])
    assert result.exit_code == (0 if refused is None else 1), result.output
    assert refused is None or refused in result.stderr


def test_a_master_that_does_not_answer_is_one_line(run: Runs) -> None:
    words = ("--master", "spark://127.0.0.1:1", "--shared-path")
    code, said = run("{generator: {rows: 3}}", *words)
    assert code == 1
    assert "is to run on spark://127.0.0.1:1, where no Spark master answers (Connection" in said
    assert "Traceback" not in said


def test_nobody_at_the_address_is_one_line(tmp_path: Path) -> None:
    code, said = Runs("127.0.0.1:1", tmp_path)("{topic: {name: t, format: string}}")
    assert code == 1
    assert "no broker answers" in said
    assert "Traceback" not in said


def test_the_broker_before_the_command_is_asked_where_the_file_names_none(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("name: p\nsource: generator\nsink: {topic: {name: t}}\n")
    words = ["-b", "127.0.0.1:1", "pipeline", "validate", str(file), "--json"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "127.0.0.1:1" in json.loads(result.stdout)["cluster"]


def test_every_mistake_of_the_file_is_told_with_its_line(run: Runs) -> None:
    code, said = run("{generator: {rows: many}}")
    assert code == 1
    assert "p.yaml:3:" in said
