"""`validate`, `schema`, `preview` and `test`, with sources and sinks of the test's own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.cli import pipeline_check
from ottla.cli.main import cli
from ottla.pipelines import Pipeline
from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.contract import HIDDEN, HIDDEN_TYPE
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.trial import Shown
from ottla.testing import Broker


class Counting:
    def __init__(self, topic: str | None) -> None:
        self._topic = topic

    def topics_read(self) -> list[str]:
        return [] if self._topic is None else [self._topic]

    def stream(self, spark: Any, place: Any) -> Any:
        raise NotImplementedError

    def sample(self, spark: Any, place: Any, count: int) -> Any:
        return spark.range(count + 2)

    def rows(self, batch: Any) -> Any:
        error = (
            "if(id = 3, named_struct('stage', 'decode', 'kind', 'Three', 'message', 'no'), null)"
        )
        hidden = (
            "cast(named_struct('position', cast(id as string), 'line', 0L, 'sequence', id, "
            "'timestamp', null, 'key', null, 'value', null, 'headers', null, 'error', "
            f"{error}) as {HIDDEN_TYPE})"
        )
        return batch.selectExpr("id", "concat('name ', id) as name", f"{hidden} as {HIDDEN}")


TOPIC = Option("topic", Kind.TEXT, "a topic that it needs")
COUNTING = Declaration("counting", "numbers", (TOPIC,), lambda given: Counting(given["topic"]))
SHOWN = Declaration("shown", "memory", (), lambda given: Shown())


@pytest.fixture(autouse=True)
def _catalog(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(catalog, "SOURCES", {"counting": ""})
    monkeypatch.setattr(catalog, "SINKS", {"shown": ""})
    monkeypatch.setattr(catalog, "source", lambda name: COUNTING)
    monkeypatch.setattr(catalog, "sink", lambda name: SHOWN)

    @contextlib.contextmanager
    def shared(spec: Any) -> Iterator[Any]:
        spark = request.getfixturevalue("spark")
        with pipeline_check._quiet():
            yield spark

    monkeypatch.setattr(pipeline_check, "_session", shared)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "numbers.yaml"


def said(file: Path, *more: str) -> None:
    file.write_text("\n".join(["name: numbers", "source: counting", "sink: shown", *more]))


def ran(*arguments: object) -> Result:
    """`ottla pipeline` from its root: click keeps the help option of the way that came first."""
    result = CliRunner().invoke(cli, ["pipeline", *(str(each) for each in arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_valid_file_is_told_with_the_rights_that_it_needs(file: Path, spark: Any) -> None:
    said(file, "transform: select id from source", "on_error: {dead_letter: dlq}")
    result = ran("validate", file, "--offline", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["valid"], found["cluster"], found["group"]) == (
        *(True, "not checked", "ottla-numbers"),
    )
    rights = {(acl["resource"], acl["name"], acl["operation"]) for acl in found["acls"]}
    assert rights == {
        ("Group", "ottla-numbers", "Read"),
        ("Topic", "dlq", "Write"),
        ("Topic", "dlq", "Read"),
        ("Topic", "dlq", "Describe"),
    }


def test_all_mistakes_of_a_file_are_printed_with_their_places(file: Path, spark: Any) -> None:
    sql = "select distinct id from source"
    file.write_text(f"nam: x\nsource: countin\nsink: shown\ntrigger: 3\ntransform: {sql}\n")
    result = ran("validate", file, "--offline")
    assert result.exit_code == 1
    for words in (
        f"{file}:1:1: nam: there is no part of a pipeline 'nam'; did you mean name?",
        f"{file}:1:1: name is missing",
        f"{file}:2:9: source: there is no source 'countin'; did you mean counting?",
        f"{file}:4:10: trigger: '3': a time has a unit",
        f"{file}:5:12: transform: it has distinct",
        "5 mistakes",
    ):
        assert words in result.stderr


def test_sql_that_is_not_row_by_row_is_refused_at_its_place(file: Path, spark: Any) -> None:
    said(file, "transform: select count(*) from source limit 3")
    result = ran("validate", file, "--offline")
    assert result.exit_code == 1
    assert f"{file}:4:19: transform: it aggregates (count)" in result.stderr
    assert f"{file}:4:40: transform: it has a limit" in result.stderr


def test_a_key_by_chance_is_refused_before_anything_is_written(
    file: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyed(Shown):
        def keys(self) -> list[str]:
            return ["k"]

    keyed = Declaration("shown", "memory", (), lambda given: Keyed())
    monkeypatch.setattr(catalog, "sink", lambda name: keyed)
    said(file, "transform: select id, uuid() as k from source")
    result = ran("validate", file, "--offline")
    assert result.exit_code == 1
    assert f"{file}:4:23: transform: it makes the key k by uuid()" in result.stderr
    result = ran("preview", file)  # as a run does, before its first batch
    assert result.exit_code == 1
    assert "it makes the key k by uuid()" in result.stderr
    said(file, f"transform: select id, sha2({HIDDEN}.position, 256) as k from source")
    assert ran("validate", file, "--offline").exit_code == 0


def test_the_mistakes_of_the_tests_beside_it_name_their_file(file: Path, spark: Any) -> None:
    said(file, "transform: select id frm source")
    beside = file.with_name("numbers.tests.yaml")
    beside.write_text("[{name: a, given: 3, expect: []}]")
    result = ran("validate", file, "--offline", "--json")
    found = json.loads(result.stdout)["problems"]
    assert [(each["file"], each["line"]) for each in found] == [(str(file), 4), (str(beside), 1)]


def test_topics_that_are_not_there_are_found_when_a_broker_answers(file: Path) -> None:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        broker.create_topic("orders", 1)
        lines = ["name: numbers", f"bootstrap: {broker.bootstrap}", "sink: shown"]
        file.write_text("\n".join([*lines, "source: {counting: order}"]))
        result = ran("validate", file)
        assert result.exit_code == 1
        assert "there is no topic order, which is read; did you mean orders?" in result.stderr
        file.write_text("\n".join([*lines, "source: {counting: orders}"]))
        assert ran("validate", file).exit_code == 0
        bootstrap = broker.bootstrap
    result = ran("validate", file)
    assert result.exit_code == 0
    assert "No broker was asked" in result.stderr
    assert bootstrap in result.stderr


def test_a_remote_master_needs_places_that_its_machines_see(file: Path) -> None:
    said(file)
    remote = ("--offline", "--master", "spark://127.0.0.1:7077")
    result = ran("validate", file, *remote)
    assert result.exit_code == 1
    assert "do not see the checkpoint" in result.stderr
    assert ran("validate", file, *remote, "--shared-path").exit_code == 0
    said(file, "checkpoint: hdfs://name/place")
    assert ran("validate", file, *remote).exit_code == 0


def test_the_schema_for_editors_has_every_part_of_a_file() -> None:
    found = json.loads(ran("schema").stdout)
    from ottla.pipelines.connectors.spec.check import TOP

    assert list(found["properties"]) == list(TOP)
    assert found["required"] == ["name", "source", "sink"]
    assert found["properties"]["trigger"]["default"] == "2s"
    [_, named] = found["properties"]["source"]["anyOf"]
    [options, _] = named["properties"]["counting"]["anyOf"]
    assert options["properties"]["topic"]["description"] == "a topic that it needs"
    assert options["additionalProperties"] is False


def test_a_preview_shows_rows_and_letters_and_touches_nothing(file: Path, spark: Any) -> None:
    said(file, "transform: select upper(name) as big from source where id > 1")
    lines = ran("preview", file, "--rows", "4", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"row": {"big": "NAME 2"}},
        {"row": {"big": "NAME 4"}},
        {"row": {"big": "NAME 5"}},
        {"letter": {"position": "3", "stage": "decode", "kind": "Three", "message": "no"}},
    ]
    table = ran("preview", file, "--rows", "2").stdout
    assert "2 rows of 4 read" not in table  # there are two letters fewer: 2 and not 3
    assert "NAME 2" in table


def test_a_transform_that_spark_refuses_is_told_in_one_line(file: Path, spark: Any) -> None:
    said(file, "transform: select nothing from source")
    result = ran("preview", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: numbers: ")
    assert "nothing" in result.stderr
    assert len(result.stderr.splitlines()) == 1


CASES = """\
tests:
  - name: names are upper case
    given: [{id: 1, name: a}, {id: 2, name: b}]
    expect: [{id: 2, big: B}, {id: 1, big: A}]
  - name: what is no number fails
    schema: id string, at timestamp
    given: [{id: x, at: "2026-01-02 03:04:05"}]
    expect: []
    fails: 1
  - name: this one is wrong
    given: [{id: 1, name: a}]
    expect: [{id: 1, big: B}]
"""


def test_tests_pass_and_fail_with_what_is_different(file: Path, spark: Any) -> None:
    said(file, "transform: select cast(id as int) as id, upper(name) as big from source", CASES)
    file.write_text(file.read_text().replace("at timestamp", "name string, at timestamp"))
    result = ran("test", file, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {"name": "names are upper case", "passed": True, "wrong": []},
        {"name": "what is no number fails", "passed": True, "wrong": []},
        {
            "name": "this one is wrong",
            "passed": False,
            "wrong": ['missing: {"big": "B", "id": 1}', 'unexpected: {"big": "A", "id": 1}'],
        },
    ]
    one = ran("test", file, "names are upper case")
    assert (one.exit_code, one.stdout) == (0, "passed  names are upper case\n")
    none = ran("test", file, "another")
    assert none.exit_code == 1
    assert "there are no tests to run" in none.stderr


def test_the_same_pipeline_is_said_in_python(spark: Any) -> None:
    pipeline = Pipeline(
        name="numbers",
        source="counting",
        transform=lambda rows: rows.selectExpr("id * 2 as twice"),
        sink="shown",
        on_error={"dead_letter": "dlq", "retry": {"attempts": 2}},
    )
    assert (pipeline.spec.on_error.dead_letter, pipeline.spec.on_error.attempts) == ("dlq", 2)
    assert pipeline.preview(spark, 3) == [{"twice": number} for number in (0, 2, 4)]
    with pytest.raises(ValueError, match="no sink 'nowhere'"):
        Pipeline(name="numbers", source="counting", sink="nowhere")
