from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from ottla.cli.live import in_bytes
from ottla.cli.top_figures import Monitor, compared
from ottla.client.overview import GroupFigures, Look, TopicFigures, growth, reading
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

Run = Callable[..., Result]


def seen(moment: float, written: int, size: int | None = 1000) -> Look:
    busy = TopicFigures("busy", 2, 0, 1, written, written, size)
    quiet = TopicFigures("quiet", 1, 1, 0, 5, 5, size)
    return Look(moment, "cluster-id", 3, {"busy": busy, "quiet": quiet})


@pytest.fixture
def looks(
    over_the_scene: None, own_time: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> list[Look]:
    found = [seen(10.0, 100), seen(12.0, 300, 5000)]
    own_time("ottla.cli.top", sleep=lambda _seconds: None)
    monkeypatch.setattr("ottla.client.overview.look", lambda *_args, **_options: found.pop(0))
    monkeypatch.setattr("ottla.client.overview.look_at_groups", lambda *_arguments: {})
    return found


def test_once_shows_what_happened_in_an_interval(ottla: Run, looks: list[Look]) -> None:
    assert ottla("top", "--once").output == (
        "cluster cluster-id  3 brokers  2 topics  3 partitions  100 records/s  4.0 kB/s  1 offline"
        "  1 under replicated\n"
        "TOPIC  PARTITIONS  RECORDS    SIZE  RECORDS/S  BYTES/S  READ/S  LAG\n"
        "busy            2      300  5.0 kB      100.0   2.0 kB       -    -\n"
        "quiet           1        5  5.0 kB        0.0   2.0 kB       -    -\n"
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


def test_in_a_pipe_it_prints_one_interval_and_ends(ottla: Run, looks: list[Look]) -> None:
    assert ottla("top").output.startswith("cluster cluster-id  3 brokers")
    assert not looks


def test_json_is_one_document(ottla: Run, looks: list[Look]) -> None:
    assert json.loads(ottla("top", "--json").output)["lag"] == 0


def test_repeated_json_is_a_line_per_interval(ottla: Run, looks: list[Look]) -> None:
    looks.append(seen(13.0, 350, 5000))
    lines = ottla("top", "--json", "--repeat", "2").output.splitlines()
    assert [json.loads(line)["records_per_second"] for line in lines] == [100.0, 50.0]


def figures(
    moment: float, name: str, committed: dict[str, int], *, lag: int = 0, late: float = 0.0
) -> GroupFigures:
    places = {TopicPartition(topic, 0): offset for topic, offset in committed.items()}
    return GroupFigures(
        moment, name, "Stable", 1, len(places), places,
        dict.fromkeys(places, lag), dict.fromkeys(places, late),
    )  # fmt: skip


def test_a_topic_shows_what_its_groups_do() -> None:
    before = {"one": figures(1, "one", {"busy": 10}), "two": figures(1, "two", {"busy": 0})}
    after = {
        "one": figures(3, "one", {"busy": 30}, lag=2, late=5.0),
        "two": figures(3, "two", {"busy": 4, "quiet": 5}, lag=90, late=2.0),
        "new": figures(3, "new", {"busy": 1}, lag=1),
    }
    shown = compared((seen(1, 300), before), seen(3, 300), after)
    busy, quiet = shown.topics
    assert (busy.read, busy.lag, busy.late) == (12.0, 90, 5.0)
    assert (quiet.read, quiet.lag) == (0.0, 90)
    assert [(row.name, row.read, row.lag) for row in shown.groups] == [
        ("one", 10.0, 2),
        ("two", 2.0, 180),
        ("new", None, 1),
    ]
    assert (shown.read, shown.lag) == (12.0, 183)


def test_the_first_look_has_no_rates() -> None:
    shown = compared(None, seen(1, 300), {"one": figures(1, "one", {"busy": 10}, lag=7)})
    assert shown.first
    assert {row.written for row in shown.topics} == {None}
    assert (shown.written, shown.grown, shown.read, shown.lag) == (None, None, None, 7)


def test_a_group_that_is_reset_has_read_nothing() -> None:
    assert reading(figures(1, "g", {"t": 10}), figures(2, "g", {"t": 3})) == {"t": 0.0}


def test_after_a_failure_the_next_look_connects_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [seen(1, 100), KafkaError(ErrorCode.NETWORK_EXCEPTION), seen(3, 300)]
    connected: list[Any] = []

    def look(connection: Any, **_options: Any) -> Look:
        assert connection is connected[-1]
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Look)
        return answer

    class Connection:
        closed = False

        def close(self) -> None:
            self.closed = True

    def connect() -> Any:
        connected.append(Connection())
        return connected[-1]

    monkeypatch.setattr("ottla.client.overview.look", look)
    monkeypatch.setattr("ottla.client.overview.look_at_groups", lambda *_arguments: {})
    monitor = Monitor(connect, internal=False)
    assert monitor.look().first
    with pytest.raises(KafkaError):
        monitor.look()
    assert monitor.look().written == 100.0, "over the whole time"
    assert [each.closed for each in connected] == [True, False]


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
