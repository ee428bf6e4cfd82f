"""A pipeline that would read what it writes is refused before it runs."""

from __future__ import annotations

import pytest

from ottla.pipelines.connectors.spec.check import read_text
from ottla.pipelines.connectors.spec.tree import Mistakes


def pipeline(source: str, sink: str, letters: str | None = None) -> str:
    lines = ["name: p", "bootstrap: 127.0.0.1:9092", f"source: {source}", f"sink: {sink}"]
    if letters is not None:
        lines += ["on_error:", f"  dead_letter: {letters}"]
    return "\n".join(lines)


ORDERS = "{topic: {name: orders, format: json}}"
PATTERN = "{topic: {pattern: 'orders.*', format: json}}"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (
            pipeline(ORDERS, "console", "orders"),
            6,
            "topic orders is written, and read as well: dead letters would go round",
        ),
        (
            pipeline(PATTERN, "console", "orders.dlq"),
            6,
            "pattern orders.* of the source matches it: dead letters would go round",
        ),
        (
            pipeline(ORDERS, "{topic: {name: orders}}"),
            4,
            "topic orders is written, and read as well: rows would go round",
        ),
    ],
)
def test_a_topic_that_is_read_and_written_is_named_with_its_place(text, line, sentence):
    with pytest.raises(Mistakes) as raised:
        read_text(text, {})
    [problem] = raised.value.problems
    assert problem.line == line
    assert sentence in problem.sentence


@pytest.mark.parametrize("other", ["start: yesterday", "fromat: json", "max_records: 0"])
def test_it_is_told_beside_another_mistake(other):
    source = f"{{topic: {{name: orders, {other}}}}}"
    with pytest.raises(Mistakes) as raised:
        read_text(pipeline(source, "console", "orders"), {})
    places = [problem.path for problem in raised.value.problems]
    assert places == [f"source.topic.{other.partition(':')[0]}", "on_error.dead_letter"]


@pytest.mark.parametrize(
    "text",
    [
        pipeline(ORDERS, "{topic: {name: orders-eu}}", "orders.dlq"),
        pipeline(PATTERN, "{topic: {name: all-orders}}", "failed"),
        pipeline("generator", "{topic: {name: orders}}", "orders.dlq"),
    ],
)
def test_other_topics_are_fine(text):
    read_text(text, {})
