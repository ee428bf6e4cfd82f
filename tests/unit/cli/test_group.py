from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ottla.cli.group import Watcher
from ottla.cli.group_changes import duration
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

Run = Callable[..., Result]
MARK = "-########"


@pytest.fixture
def group(over_the_scene: None, ottla: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`group("list")`: `ottla group list` over the scene; every next record is an hour old."""

    def ages(_groups: Any, rows: Any, _now: int) -> dict[TopicPartition, float]:
        return {row.partition: 3600.0 if row.lag else 0.0 for row in rows if row.lag is not None}

    monkeypatch.setattr("ottla.client.ages.lag_seconds", ages)
    return lambda *arguments, **options: ottla("group", *arguments, **options)


def test_list_is_a_table_by_name(group: Run) -> None:
    assert group("list").output == (
        "GROUP           TYPE      STATE   PROTOCOL\n"
        "fresh-########  consumer  Stable  consumer\n"
        "gone1-########  classic   Empty   -\n"
        "gone2-########  classic   Empty   -\n"
        "idle-########   classic   Empty   -\n"
        "live-########   classic   Stable  consumer\n"
    )


def test_list_filters(group: Run) -> None:
    found = json.loads(group("list", "--state", "STABLE", "--type", "classic", "--json").output)
    assert found == [
        {"group": f"live{MARK}", "type": "classic", "state": "Stable", "protocol": "consumer"}
    ]


def test_describe_shows_lag_in_records_and_in_time(group: Run) -> None:
    assert group("describe", f"idle{MARK}").output == (
        "idle-########  Empty  classic  0 members  lag 18  behind 1 h  coordinator ADDRESS:0 (1)\n"
        "TOPIC            PARTITION  COMMITTED  END  LAG  BEHIND  CLIENT  HOST  MEMBER\n"
        "empty-########           0          0    0    0     0 s  -       -     -\n"
        "orders-########          0          5   10    5     1 h  -       -     -\n"
        "orders-########          1          7   20   13     1 h  -       -     -\n"
    )


def test_describe_separates_thousands(
    group: Run, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = TopicPartition(f"orders{MARK}", 0)
    scene.committed[f"idle{MARK}"] = {orders: 1500}
    monkeypatch.setattr(scene.topics, "ends", lambda _: {orders: 1_234_567})
    shown = group("describe", f"idle{MARK}").output
    assert "lag 1,233,067" in shown
    assert "1,500  1,234,567  1,233,067" in shown
    [found] = json.loads(group("describe", f"idle{MARK}", "--json").output)
    assert found["lag"] == 1_233_067


def test_describe_as_json(group: Run) -> None:
    [found] = json.loads(group("describe", f"fresh{MARK}", "--json").output)
    assert (found["group"], found["type"], found["epoch"], found["lag"]) == (
        f"fresh{MARK}", "consumer", 1, 0,
    )  # fmt: skip
    assert found["members"][0]["instance"] == "one"
    assert found["members"][0]["partitions"][2] == {"topic": f"orders{MARK}", "partition": 2}
    assert found["partitions"][0]["member"] == "#" * 22
    assert found["partitions"][0]["lag_seconds"] == 0.0


def test_describe_members(group: Run) -> None:
    lines = group("describe", f"live{MARK}", "--members").output.splitlines()
    assert lines[0] == "live-########  Stable  classic"
    assert lines[1].split() == [
        "MEMBER", "INSTANCE", "CLIENT", "HOST", "EPOCH", "PARTITIONS", "ASSIGNMENT",
    ]  # fmt: skip
    assert "127.0.0.1" in lines[2]
    assert "/127" not in lines[2]


def test_describe_of_no_such_group_says_what_to_do(group: Run) -> None:
    result = group("describe", "nope")
    assert result.exit_code == 1
    assert result.output == (
        "Error: there is no group 'nope'; `ottla group list` shows those there are\n"
    )


def test_watch_once_shows_the_one_most_behind_first(group: Run) -> None:
    lines = group("watch", "--once").output.splitlines()
    assert lines[0].split() == [
        "GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "BEHIND", "READ/S",
    ]  # fmt: skip
    assert lines[1].split() == [f"idle{MARK}", "Empty", "0", "3", "18", "1", "h", "-"]


def test_a_second_look_knows_how_fast_the_group_reads(
    group: Run, scene: Any, own_time: Callable[..., None]
) -> None:
    times = iter([10.0, 12.0])
    own_time("ottla.cli.group", monotonic=lambda: next(times))
    watcher = Watcher(scene, (f"idle{MARK}",))
    assert watcher.rows()[0]["rate"] is None
    scene.committed[f"idle{MARK}"][TopicPartition(f"orders{MARK}", 0)] += 4
    assert watcher.rows()[0]["rate"] == 2.0


def test_a_group_that_vanishes_while_all_are_watched_is_left_out(
    group: Run, scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = scene.list_groups()
    del scene.committed[f"gone1{MARK}"]
    monkeypatch.setattr(scene, "list_groups", lambda: listed)
    assert f"gone1{MARK}" not in group("watch", "--once").output


def test_reset_only_shows_unless_told_to_do_it(group: Run, scene: Any) -> None:
    result = group("reset", f"idle{MARK}", "--topic", f"orders{MARK}:0", "--to", "latest")
    assert result.output == (
        "idle-########  1 partition would be reset; --execute does it\n"
        "TOPIC            PARTITION  BEFORE  AFTER  END\n"
        "orders-########          0       5     10   10\n"
    )
    assert scene.changes == []


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--to", "earliest"], [0, 0, 0]),
        (["--to", "latest"], [10, 20, 30]),
        (["--to", "current"], [5, 7, 30]),
        (["--to", "15"], [10, 15, 15]),
        (["--to", "1,000"], [10, 20, 30]),
        (["--to", "2023-11-14T22:13:25Z"], [5, 5, 5]),
        (["--back", "1d"], [10, 20, 30]),
        (["--back", "999999999999d"], [0, 0, 0]),
    ],
)
def test_reset_goes_where_it_is_told(
    group: Run, scene: Any, arguments: list[str], offsets: list[int]
) -> None:
    result = group("reset", f"idle{MARK}", "--topic", f"orders{MARK}", "--execute", *arguments)
    assert result.exit_code == 0, result.output
    wanted = {TopicPartition(f"orders{MARK}", n): offset for n, offset in enumerate(offsets)}
    assert scene.changes == [("set", f"idle{MARK}", wanted)]


def test_reset_by_a_shift_of_everything_committed(group: Run, scene: Any) -> None:
    found = json.loads(
        group("reset", f"idle{MARK}", "--all-topics", "--shift", "-2", "--execute", "--json").output
    )
    assert found["executed"] is True
    assert [(row["before"], row["after"]) for row in found["offsets"]] == [(0, 0), (5, 3), (7, 5)]


def test_reset_from_a_file(group: Run, scene: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(f"orders{MARK},1,3\n")
    assert group("reset", f"idle{MARK}", "--from-file", str(plan), "--execute").exit_code == 0
    assert scene.changes == [("set", f"idle{MARK}", {TopicPartition(f"orders{MARK}", 1): 3})]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["live" + MARK, "--all-topics", "--to", "latest"], 1, "has 1 member; stop it first"),
        (["idle" + MARK, "--topic", "nowhere", "--to", "latest"], 1, "no topic 'nowhere'"),
        (["idle" + MARK, "--topic", "orders" + MARK, "--shift", "1"], 2, "Cannot shift offset"),
        (["idle" + MARK, "--all-topics"], 2, "say where to"),
        (["idle" + MARK, "--to", "latest"], 2, "say what to reset"),
        (["idle" + MARK, "--all-topics", "--to", "soon"], 2, "--to 'soon': expected earliest"),
        (["idle" + MARK, "--all-topics", "--back", "soon"], 2, "--back 'soon': expected"),
        (["idle" + MARK, "--from-file", "BAD"], 1, "line 1: expected topic,partition,offset"),
        (["new", "--all-topics", "--to", "latest", "--create"], 1, "has committed nothing"),
        (["idle" + MARK, "--to-earliest"], 2, "--to-earliest is --to earliest here"),
        (
            ["idel" + MARK, "--topic", "orders" + MARK, "--to", "latest"],
            1,
            f"there is no group 'idel{MARK}'; did you mean 'idle{MARK}'? Otherwise --create makes "
            f"it with these offsets; nothing was changed",
        ),
        (
            ["quite-another", "--topic", "orders" + MARK, "--to", "latest"],
            1,
            "there is no group 'quite-another'; --create makes it with these offsets",
        ),
    ],
)
def test_a_reset_that_cannot_be_changes_nothing(
    group: Run, scene: Any, tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("what is this\n")
    result = group("reset", "--execute", *(str(bad) if a == "BAD" else a for a in arguments))
    assert result.exit_code == code
    assert complaint in result.output
    assert scene.changes == []


def test_a_group_that_does_not_exist_is_made_by_a_reset_only_on_demand(
    group: Run, scene: Any
) -> None:
    arguments = ["reset", "new", "--topic", f"orders{MARK}:0", "--to", "earliest", "--execute"]
    assert group(*arguments).exit_code == 1
    assert scene.changes == []
    assert group(*arguments, "--create").exit_code == 0
    assert scene.changes == [("set", "new", {TopicPartition(f"orders{MARK}", 0): 0})]


def test_delete(group: Run, scene: Any) -> None:
    result = group("delete", f"gone1{MARK}", "nope", "--if-exists")
    assert result.output == "deleted group gone1-########\nno group nope\n"
    assert scene.changes == [("delete", f"gone1{MARK}")]


def test_delete_says_which_failed_and_why(group: Run) -> None:
    result = group("delete", f"live{MARK}", "nope")
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "Error: live-########: it has members; stop them first (`ottla group describe "
        "live-########`)",
        "Error: nope: there is no such group; with --if-exists that is no error",
    ]
    result = group("delete", f"gone3{MARK}")
    assert result.output == (
        f"Error: gone3{MARK}: there is no such group; did you mean 'gone2{MARK}'?\n"
    )


def test_delete_of_the_offsets_of_a_topic(group: Run, scene: Any) -> None:
    result = group("delete", f"idle{MARK}", "--topic", f"empty{MARK}")
    assert result.output == "deleted offsets of group idle-########\n"
    assert scene.changes == [("delete offsets", f"idle{MARK}", [TopicPartition(f"empty{MARK}", 0)])]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("1d12h", 129600), ("1.5s", 1.5), ("PT15M", 900)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_what_the_broker_refuses_is_said(group: Run, scene: Any) -> None:
    scene.failure = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    result = group("list")
    assert result.exit_code == 1
    assert result.output == "Error: group authorization failed\n"
