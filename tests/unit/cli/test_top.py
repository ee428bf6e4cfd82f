from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from ottla.cli.top import in_bytes
from ottla.client.overview import Look, TopicFigures, growth

Run = Callable[..., Result]


def seen(moment: float, written: int, size: int | None = 1000) -> Look:
    busy = TopicFigures("busy", 2, 0, 1, written, written, size)
    quiet = TopicFigures("quiet", 1, 1, 0, 5, 5, size)
    return Look(moment, "cluster-id", 3, {"busy": busy, "quiet": quiet})


@pytest.fixture
def looks(over_the_scene: None, scene: Any, monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    scene.committed = {}
    found = [seen(10.0, 100), seen(12.0, 300, 5000)]
    monkeypatch.setattr("ottla.cli.top.time.sleep", lambda _seconds: None)
    monkeypatch.setattr("ottla.client.overview.look", lambda *_args, **_options: found.pop(0))
    return found


def test_once_shows_what_happened_in_an_interval(ottla: Run, looks: list[Look]) -> None:
    assert ottla("top", "--once").output == (
        "cluster cluster-id  3 brokers  2 topics  3 partitions  100 records/s  4.0 kB/s  1 offline"
        "  1 under replicated\n"
        "TOPIC  PARTITIONS  RECORDS    SIZE  RECORDS/S  BYTES/S\n"
        "busy            2      300  5.0 kB      100.0   2.0 kB\n"
        "quiet           1        5  5.0 kB        0.0   2.0 kB\n"
        "\n"
        "GROUP  STATE  MEMBERS  PARTITIONS  LAG  BEHIND  READ/S\n"
    )


def test_once_as_json(ottla: Run, looks: list[Look]) -> None:
    found = json.loads(ottla("top", "--once", "--json").output)
    assert (found["brokers"], found["records_per_second"], found["offline"]) == (3, 100.0, 1)
    assert found["topics"][0]["topic"] == "busy"
    assert found["groups"] == []


def test_only_so_many_topics_are_shown(ottla: Run, looks: list[Look]) -> None:
    output = ottla("top", "--once", "--topics", "1").output
    assert "the busiest 1" in output
    assert "\nquiet" not in output


def test_a_topic_that_shrinks_or_is_new_does_not_grow() -> None:
    shrunk = growth(seen(1, 300, 5000), seen(2, 300, 10), "busy")
    assert shrunk is not None
    assert (shrunk.records, shrunk.bytes) == (0.0, 0.0)
    assert growth(Look(1, "", 1, {}), seen(2, 5), "busy") is None
    unknown = growth(seen(1, 1, None), seen(2, 2, None), "busy")
    assert unknown is not None
    assert unknown.bytes is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123_456, "123 kB"), (2.5e9, "2.5 GB")],
)
def test_sizes(size: float, text: str) -> None:
    assert in_bytes(size) == text
