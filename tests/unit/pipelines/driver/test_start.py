"""What is refused before Spark starts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.client.groups import CommittedOffset
from ottla.client.topology import Leader
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Topic
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.sinks.http import SINK as HTTP_SINK
from ottla.pipelines.connectors.sinks.sqlite import SINK as SQLITE_SINK
from ottla.pipelines.connectors.sources.http import SOURCE as HTTP
from ottla.pipelines.connectors.sources.postgres import SOURCE as POSTGRES
from ottla.pipelines.connectors.sources.sqlite import SOURCE as SQLITE_SOURCE
from ottla.pipelines.connectors.sources.topic import SOURCE
from ottla.pipelines.connectors.spec.values import Connector, ErrorPolicy, PipelineSpec
from ottla.pipelines.driver.checkpoint import Checkpoint, LocalFiles
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.offsets import progress_of
from ottla.pipelines.driver.start import (
    Choices,
    Follow,
    check_group,
    check_places,
    check_query,
    check_topics,
    member_of,
)
from ottla.testing.connectors import made


class Local:
    def local_paths(self) -> list[Path]:
        return [Path("/data/in")]


def connector(name: str, made: object = None) -> Connector:
    return Connector(name, {}, Declaration(name, "", (), lambda _options: made or object()))


SPEC = PipelineSpec("p", "127.0.0.1:9092", connector("topic"), connector("console"))
READ = '{"v":1,"topics":{"orders":{"id":null,"partitions":{"0":[0,5,-1]}}}}'
REMOTE = "spark://host:7077"
REFUSE, ACCEPT = Choices(), Choices(accept_changes=True)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path, "p")
    made.make()
    return made


def begun(home: Home, *, finished: bool = True, document: str = READ) -> Checkpoint:
    folder = home.folder / "checkpoint"
    for kind in ("offsets", *(("commits",) if finished else ())):
        (folder / kind).mkdir(parents=True)
        (folder / kind / "0").write_text(f"v1\n{{}}\n{document}")
    return Checkpoint("p", LocalFiles(folder))


def checked(home: Home, spec: PipelineSpec, choices: Choices = REFUSE) -> dict[str, Any]:
    checkpoint = Checkpoint("p", LocalFiles(home.folder / "checkpoint"))
    return check_query(spec, home, checkpoint, ["orders"], choices)


def test_a_remote_master_does_not_see_a_folder_of_this_machine(home):
    with pytest.raises(Refused, match=r"whose machines do not see .*/p/checkpoint of this one"):
        check_places(SPEC, home, REMOTE, Choices())
    check_places(SPEC, home, REMOTE, Choices(shared_path=True))
    check_places(SPEC, home, "local[2]", Choices())
    elsewhere = replace(SPEC, checkpoint="hdfs://names/p")
    check_places(elsewhere, home, REMOTE, Choices())
    with pytest.raises(Refused, match="do not see /data/in of this one"):
        check_places(
            replace(elsewhere, source=connector("files", Local())), home, REMOTE, Choices()
        )


def test_rows_that_are_staged_here_are_refused_with_a_checkpoint_elsewhere_too(home):
    spec = replace(
        SPEC, checkpoint="hdfs://names/p", source=connector("http", made(HTTP, url="http://x"))
    )
    with pytest.raises(Refused, match=r"do not see .*/p/staging of this one"):
        check_places(spec, home, REMOTE, Choices())
    check_places(spec, home, REMOTE, Choices(shared_path=True))
    check_places(spec, home, "local[2]", Choices())


@pytest.mark.parametrize("role", ["source", "sink"])
def test_sqlite_is_for_a_local_master_whatever_is_mounted(home, role):
    kinds = {
        "source": made(SQLITE_SOURCE, path="shop.db", table="orders"),
        "sink": made(SQLITE_SINK, path="shop.db", table="orders"),
    }
    spec = replace(SPEC, checkpoint="hdfs://names/p", **{role: connector("sqlite", kinds[role])})
    with pytest.raises(Refused, match=rf"the {role} sqlite works with a local master only"):
        check_places(spec, home, REMOTE, Choices(shared_path=True))
    check_places(spec, home, "local[2]", Choices())


@pytest.mark.parametrize("master", ["host:7077", "sc://host", "spark://host", "local[x]"])
def test_what_is_no_master_is_refused_by_name(home, master):
    with pytest.raises(Refused, match=r"which is no master of Spark: those are local\[\*\]"):
        check_places(SPEC, home, master, Choices(shared_path=True))


class Cluster:
    """Topics and nothing else."""

    NAMES = ("orders-eu", "orders-us", "other")

    def topics(self, names):
        return {name: name for name in names if name in self.NAMES}

    def matching(self, pattern):
        return {name: name for name in self.NAMES if re.fullmatch(pattern, name)}

    def starts(self, partitions):
        return dict.fromkeys(partitions, 0)


def test_the_topics_of_a_pattern_are_known_before_the_start():
    values = {option.name: option.default for option in SOURCE.options}
    found = check_topics(SPEC, SOURCE.make(values | {"pattern": "orders-.*"}), Cluster())
    assert sorted(found) == ["orders-eu", "orders-us"]
    with pytest.raises(Refused, match=r"reads topic order-eu, which .* did you mean orders-eu"):
        check_topics(SPEC, SOURCE.make(values | {"name": ["order-eu"]}), Cluster())


def test_a_dead_letter_topic_that_is_not_there_is_refused_before_the_start():
    """It would be missed at the first row that fails only, or made by the brokers themselves."""
    values = {option.name: option.default for option in SOURCE.options}
    source = SOURCE.make(values | {"pattern": "orders-.*"})
    spec = replace(SPEC, on_error=ErrorPolicy(dead_letter="othre"))
    with pytest.raises(Refused) as refused:
        check_topics(spec, source, Cluster())
    assert str(refused.value) == (
        "pipeline p writes dead letters to topic othre, which 127.0.0.1:9092 does not have; "
        "did you mean other? Otherwise `ottla topic create othre` makes it"
    )
    spec = replace(SPEC, on_error=ErrorPolicy(dead_letter="other"))
    assert sorted(check_topics(spec, source, Cluster())) == ["orders-eu", "orders-us"]


class NoCommits:
    def offsets(self, _group):
        return {}


TWO = json.dumps(
    {"v": 1, "topics": {name: {"id": None, "partitions": {"0": [0, 5, 2]}} for name in "ab"}}
)


@pytest.mark.parametrize("choice", [{"name": ["a"]}, {"name": ["a", "c"]}, {"pattern": "[ac]"}])
def test_a_topic_that_is_not_read_any_more_is_left_behind_if_that_is_meant(home, choice):
    checkpoint = begun(home, document=TWO)
    read = ("a",) if len(choice.get("name", "")) == 1 else ("a", "c")
    topics = {name: Topic(name, b"", {}) for name in read}
    spec = replace(SPEC, source=connector("topic", made(SOURCE, **choice)))

    def check(choices):
        return check_group(spec, checkpoint, NoCommits(), Cluster(), topics, choices)

    with pytest.raises(Refused, match=r"does not have any more \(b\): --accept-changes leaves"):
        check(REFUSE)
    assert checkpoint.planned == 0
    position = check(ACCEPT)
    assert [(tp.topic, place.end, place.epoch) for tp, _, place in position.places()] == [
        ("a", 5, 2)
    ]
    assert checkpoint.unfinished == 1, "the batch that leaves it behind, and reads nothing"
    assert check(REFUSE) == position


def test_a_start_that_is_refused_leaves_no_topic_behind(home):
    """The former file would read it from its beginning again."""

    class Moved:
        def offsets(self, _group):
            return {TopicPartition("a", 0): CommittedOffset(3, None, "")}

    checkpoint = begun(home, document=TWO)
    topics = {"a": Topic("a", b"", {0: Leader(1, 0)})}
    spec = replace(SPEC, source=connector("topic", made(SOURCE, name=["a"])))

    def check(choices):
        return check_group(spec, checkpoint, Moved(), Cluster(), topics, choices)

    with pytest.raises(Refused, match="Say --from-group"):
        check(ACCEPT)
    assert checkpoint.planned == 0
    position = check(replace(ACCEPT, follow=Follow.GROUP))
    assert [(tp.topic, place.end) for tp, _, place in position.places()] == [("a", 3)]
    assert progress_of(checkpoint.end(1)) == position


def test_none_of_the_topics_of_a_checkpoint_is_another_pipeline(home):
    spec = replace(SPEC, source=connector("topic", made(SOURCE, name=["c"])))
    with pytest.raises(Refused, match=r"none of the topics .* \(a, b\): give it another name"):
        check_group(spec, begun(home, document=TWO), NoCommits(), Cluster(), {}, ACCEPT)


def test_a_first_run_is_remembered_with_a_member_id_that_stays(home):
    first = member_of(home)
    home.remember(checked(home, SPEC) | {"member": first})
    assert member_of(home) == first
    assert home.remembered()["topics"] == ["orders"]


def test_the_folder_of_another_machine_gets_a_member_id_of_its_own(home):
    home.remember(checked(home, SPEC) | {"member": "elsewhere-" + "0" * 36})
    assert not member_of(home).startswith("elsewhere-")


def test_a_changed_query_over_an_old_checkpoint_is_refused_by_name(home):
    home.remember(checked(home, SPEC))
    begun(home)
    checked(home, SPEC)
    other = replace(SPEC, transform="select 1")
    with pytest.raises(Refused, match=r"pipeline p has changed .*\(transform\).*--accept-changes"):
        checked(home, other)
    checked(home, other, ACCEPT)


def test_another_source_is_refused_whatever_is_accepted(home):
    home.remember(checked(home, SPEC))
    begun(home)
    with pytest.raises(Refused, match=r"has another source now.*ottla pipeline reset p"):
        checked(home, replace(SPEC, source=connector("files")), ACCEPT)


def test_a_change_waits_for_a_batch_that_is_under_way(home):
    home.remember(checked(home, SPEC))
    begun(home, finished=False)
    with pytest.raises(Refused, match=r"while batch 0 is unfinished.*--once") as refused:
        checked(home, replace(SPEC, transform="select 1"), ACCEPT)
    # It may never be: the sink does not take a column, which only the transform could leave out.
    assert "If that cannot be, `ottla pipeline offsets reset p --to current`" in str(refused.value)


def test_a_table_begins_anew_where_a_batch_cannot_be_finished(home):
    table = replace(SPEC, source=connector("sqlite"))
    home.remember(checked(home, table))
    begun(home, finished=False)
    with pytest.raises(Refused, match=r"If that cannot be, `ottla pipeline reset p` lets"):
        checked(home, replace(table, transform="select 1"), ACCEPT)


def test_a_checkpoint_of_somebody_else_is_not_taken_over(home):
    begun(home)
    with pytest.raises(Refused, match="that no pipeline of this folder has made"):
        checked(home, SPEC)
    checked(home, SPEC, ACCEPT)


def test_the_checkpoint_of_another_pipeline_is_not_taken_over_by_naming_it(home, tmp_path):
    home.remember(checked(home, SPEC))
    begun(home)
    other = tmp_path / "q"
    (home.folder / "checkpoint").rename(other)
    checkpoint = Checkpoint("p", LocalFiles(other))
    spec = replace(SPEC, checkpoint=str(other))
    with pytest.raises(Refused, match="that no pipeline of this folder has made"):
        check_query(spec, home, checkpoint, ["orders"], REFUSE)
    check_query(spec, home, checkpoint, ["orders"], ACCEPT)


def test_before_its_first_batch_a_pipeline_may_change(home):
    home.remember(checked(home, SPEC))
    checked(home, replace(SPEC, source=connector("files"), transform="select 1"))


def reading(dsn: str) -> PipelineSpec:
    return replace(SPEC, source=Connector("postgres", {"dsn": dsn, "table": "orders"}, POSTGRES))


@pytest.mark.parametrize("finished", [True, False])
def test_another_database_behind_the_same_option_is_refused_by_its_place(home, finished):
    """Its rows up to the cursor of the first would never be read."""
    home.remember(checked(home, reading("postgresql://ada:one@first:5432/shop")))
    begun(home, finished=finished)
    checked(home, reading("postgresql://bob:two@first:5432/shop"))
    other = reading("postgresql://ada:one@second:5432/shop")
    with pytest.raises(
        Refused,
        match=r"source.postgres.dsn: first:5432/shop before, second:5432/shop now\)\. If the same",
    ) as refused:
        checked(home, other)
    assert "one" not in str(refused.value)
    home.remember(checked(home, other, ACCEPT))
    checked(home, other)


def sending(url: str) -> PipelineSpec:
    return replace(SPEC, sink=Connector("http", {"url": url, "method": "POST"}, HTTP_SINK))


def test_another_token_in_a_url_is_no_change_while_a_batch_waits_for_it(home):
    """The batch is unfinished since the old one is not valid any more."""
    home.remember(checked(home, sending("https://ada:one@shop/rows?token=old")))
    begun(home, finished=False)
    checked(home, sending("https://ada:two@shop/rows?token=new"))
    with pytest.raises(Refused, match=r"sink.http.url: https://shop/rows before, https://else"):
        checked(home, sending("https://elsewhere/rows?token=old"))


def test_an_option_that_was_no_secret_once_is_no_change(home):
    known = checked(home, sending("https://shop/rows?token=old"))
    known["query"]["sink.http.url"] = "0123456789abcdef"
    known["places"] = {}
    home.remember(known)
    begun(home, finished=False)
    checked(home, sending("https://shop/rows?token=old"))


def test_a_folder_of_an_earlier_version_remembers_no_place(home):
    spec = reading("postgresql://ada:one@first:5432/shop")
    known = checked(home, spec)
    del known["places"]
    home.remember(known)
    begun(home)
    assert checked(home, spec)["places"] == {"source.postgres.dsn": "first:5432/shop"}
