"""Whether a query is the one that a checkpoint was made by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec
from ottla.pipelines.driver.changes import differences, query_of


def connector(name: str, /, **options: Any) -> Connector:
    declared = tuple(
        Option(option, Kind.TEXT, "", secret=option == "password") for option in options
    )
    return Connector(name, options, Declaration(name, "", declared, dict))


SPEC = PipelineSpec(
    "p",
    "127.0.0.1:9092",
    connector("topic", name="orders"),
    connector("postgres", table="orders", password="one"),
    "select * from source",
)


def changed(**other: Any) -> list[str]:
    return differences(query_of(SPEC), query_of(replace(SPEC, **other)))


def test_the_same_query_has_not_changed():
    assert changed() == []
    assert changed(trigger=30.0, bootstrap="127.0.0.1:9093", spark={"a": "b"}) == []


def test_a_password_changes_no_row_and_is_not_written_down():
    assert changed(sink=connector("postgres", table="orders", password="two")) == []
    assert not any("password" in part for part in query_of(SPEC))


def test_what_has_changed_is_named():
    assert changed(transform="select 1") == ["transform"]
    assert changed(source=connector("topic", name="others")) == ["source.topic.name"]
    other = connector("postgres", table="other", password="one")
    assert changed(transform=None, sink=other) == ["sink.postgres.table", "transform"]


def test_another_sink_is_named_without_its_options():
    assert changed(sink=connector("console", rows="5")) == ["sink"]


def test_a_function_is_known_by_its_text():
    def one(frame: Any) -> Any:
        return frame

    def two(frame: Any) -> Any:
        return frame.limit(1)

    before = query_of(replace(SPEC, transform=one))
    assert differences(before, query_of(replace(SPEC, transform=one))) == []
    assert differences(before, query_of(replace(SPEC, transform=two))) == ["transform"]
