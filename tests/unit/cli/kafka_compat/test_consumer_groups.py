from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.kafka_compat import run
from ottla.cli.kafka_compat.consumer_groups import PARSER
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

GOLDEN = Path(__file__).parent / "golden/consumer-groups"
MARK = "-########"
FAILING = {
    "delete-offsets-absent",
    "delete-offsets-live",
    "delete-offsets-no-group",
    "delete-some",
    "describe-absent",
    "reset-absent-partition",
    "reset-live",
    "reset-no-such-file",
    "reset-two-export",
}

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(scene: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """`tool("--list")`: run kafka-consumer-groups, or another, over the scene."""

    def call(*arguments: str, name: str = "kafka-consumer-groups") -> tuple[int, str, str]:
        code = run(name, ["--bootstrap-server", "ADDRESS:1", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(
        "ottla.cli.kafka_compat.consumer_groups.Groups", lambda *_args, **_options: scene
    )
    monkeypatch.setattr("ottla.cli.kafka_compat.groups.Groups", lambda *_args, **_options: scene)
    return call


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_it_prints_what_apache_kafka_printed(path: Path, tool: Tool, tmp_path: Path) -> None:
    command, _, expected = path.read_text(encoding="utf-8").partition("\n")
    expected_out, _, expected_err = expected.removeprefix("--- stdout\n").partition("--- stderr\n")
    names = {name: name + MARK for name in
             ("orders", "empty", "idle", "live", "fresh", "none", "gone1", "gone2")}  # fmt: skip
    files = {name: str(tmp_path / name) for name in ("plan", "plans", "gone")}
    orders = names["orders"]
    (tmp_path / "plan").write_text(f"{orders},0,3\n{orders},1,500\n")
    (tmp_path / "plans").write_text(
        f'"{names["idle"]}",{orders},0,3\n{names["none"]},{orders},1,4\n'
    )
    words = shlex.split(command.removeprefix("$ "))
    name, arguments = words[0], [word.format_map(names | files) for word in words[3:]]
    code, out, err = tool(*arguments, name=name)
    for key, value in files.items():
        out = out.replace(value, f"{{{key}}}")
    assert _stable(path.stem, out) == expected_out
    assert re.sub(r"ADDRESS:\d+", "ADDRESS", err) == expected_err
    assert code == (1 if path.stem in FAILING else 0)


def _stable(case: str, text: str) -> str:
    text = re.sub(r"ADDRESS:0  \(1\) +", "ADDRESS:00000  (N) ", text)
    if case.startswith("groups"):
        lines = re.sub(" {2,}", "  ", text).splitlines(keepends=True)
        text = "".join(lines[:1] + sorted(x for x in lines[1:] if not x.startswith("gone")))
    elif case.startswith("reset"):
        text = re.sub(r"\n\nWarn", "\nWarn", text)
        lines = text.splitlines(keepends=True)
        places = [n for n, line in enumerate(lines) if re.match(r"(Warn: )|\w+-#{8}", line)]
        for place, line in zip(places, sorted(lines[n] for n in places), strict=True):
            lines[place] = line
        text = "".join(lines)
    return text


def test_list_gives_names_and_nothing_else(tool: Tool) -> None:
    code, out, err = tool("--list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [name + MARK for name in
                                ("idle", "live", "fresh", "gone1", "gone2")]  # fmt: skip


def test_list_with_state_and_type_filters_and_pads(tool: Tool) -> None:
    _, out, _ = tool("--list", "--type", "--state", "Stable")
    assert out == (
        "GROUP                     TYPE                 STATE               \n"
        "live-########             Classic              Stable              \n"
        "fresh-########            Consumer             Stable              \n"
    )


def test_execute_commits_what_was_shown(tool: Tool, scene: Any) -> None:
    code, _, _ = tool(
        "--reset-offsets", "--group", f"idle{MARK}", "--topic", f"orders{MARK}:0,1",
        "--to-latest", "--execute",
    )  # fmt: skip
    assert code == 0
    offsets = {TopicPartition(f"orders{MARK}", 0): 10, TopicPartition(f"orders{MARK}", 1): 20}
    assert scene.changes == [("set", f"idle{MARK}", offsets)]


def test_a_dry_run_commits_nothing(tool: Tool, scene: Any) -> None:
    tool("--reset-offsets", "--group", f"idle{MARK}", "--all-topics", "--to-earliest", "--dry-run")
    assert scene.changes == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--topic", "nowhere", "--to-latest"], "there is no topic 'nowhere'"),
        (["--topic", f"orders{MARK}:9", "--to-latest"], "do not exist"),
        (["--topic", f"orders{MARK}:x", "--to-latest"], "Invalid partition 'x'"),
        (["--topic", f"orders{MARK}", "--shift-by", "1"], "no current committed offset"),
        (["--topic", f"orders{MARK}", "--to-datetime", "soon"], "does not contain a 'T'"),
        (["--topic", f"orders{MARK}", "--by-duration", "1h"], "cannot be parsed to a Duration"),
        (["--from-file", "BAD"], "line 1: expected topic,partition,offset"),
        (["--to-latest"], "One of the reset scopes should be defined"),
        (["--topic", f"orders{MARK}"], "requires one of the following scenarios"),
        (["--all-topics", "--to-latest", "--to-earliest"], "can't be used with option"),
    ],
)
def test_a_reset_that_cannot_be_is_one_line_and_changes_nothing(
    tool: Tool, scene: Any, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("what is this\n")
    arguments = [str(bad) if word == "BAD" else word for word in arguments]
    code, out, err = tool("--reset-offsets", "--group", f"idle{MARK}", "--execute", *arguments)
    assert code == 1
    assert scene.changes == []
    assert complaint in out + err
    assert len((out + err).strip().splitlines()) == 1


def test_one_group_with_members_does_not_keep_the_others_from_a_reset(
    tool: Tool, scene: Any
) -> None:
    code, out, _ = tool(
        "--reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--execute"
    )
    assert code == 1
    assert "'live-########' is inactive, but the current state is Stable." in out
    assert [name for _, name, offsets in scene.changes if offsets] == [
        f"idle{MARK}", f"gone1{MARK}", f"gone2{MARK}",
    ]  # fmt: skip


def test_nothing_is_committed_when_the_plan_for_a_later_group_fails(tool: Tool, scene: Any) -> None:
    code, _, err = tool(
        "--reset-offsets", "--group", f"gone1{MARK}", "--group", f"idle{MARK}", "--topic",
        f"orders{MARK}:0", "--topic", f"orders{MARK}:2", "--shift-by", "1", "--execute",
    )  # fmt: skip
    assert code == 1
    assert "no current committed offset" in err
    assert scene.changes == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Command must include exactly one action: --list, --describe"),
        (["--describe"], "Option [describe] takes one of these options: [group], [all-groups]"),
        (["--describe", "--group", "a", "--state", "--members"], "takes at most one of these"),
        (["--describe", "--group", "a", "--state", "stable"], "does not take a value for [state]"),
        (["--list", "--group", "a"], 'Option "[group]" can\'t be used with option "[list]"'),
        (["--list", "--members"], "Option(s) [members] are unavailable"),
        (["--list", "--state", "bogus"], "Invalid state list 'bogus'. Valid states are: Stable"),
        (["--list", "--type", "bogus"], "Invalid types list 'bogus'. Valid types are: Consumer"),
        (["--delete"], "Option [delete] takes one of these options: [group], [all-groups]"),
        (["--delete", "--group", "a", "--topic", "t"], "does not support topic-specific"),
        (["--delete-offsets", "--group", "a"], "takes the following options: [topic], [group]"),
        (["--reset-offsets", "--group", "a", "--execute", "--dry-run"], "only accepts one of"),
    ],
)
def test_a_wrong_command_line_is_one_line_in_kafkas_words(
    tool: Tool, arguments: list[str], complaint: str
) -> None:
    code, out, err = tool(*arguments)
    assert (code, out) == (1, "")
    assert complaint in err.splitlines()[-1]


def test_an_unreachable_broker_is_one_line(tool: Tool, scene: Any) -> None:
    scene.failure = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "ADDRESS:1: Connection refused")
    code, out, _ = tool("--list")
    assert code == 1
    assert out == (
        "\nError: Executing consumer group command failed due to no broker answers at ADDRESS:1 "
        "(ADDRESS:1: Connection refused); check --bootstrap-server\n"
    )


def test_the_flags_are_kafkas() -> None:
    features = """--describe --offsets --members --state --verbose --all-groups --reset-offsets
        --to-earliest --to-latest --to-current --to-offset --to-datetime --by-duration --shift-by
        --from-file --dry-run --execute --export --delete --delete-offsets --timeout --list --group
        --topic --all-topics --type --validate-regex --bootstrap-server --command-config --help
        --version"""
    text = PARSER.help()
    for flag in features.split():
        assert re.search(rf"^{flag}\b", text, re.MULTILINE), flag


def test_kafka_groups_columns_are_as_wide_as_their_widest_cell(tool: Tool, scene: Any) -> None:
    scene.committed = {"a-group-with-a-rather-long-name": {}}
    _, out, _ = tool("--list", name="kafka-groups")
    width = len("a-group-with-a-rather-long-name")
    header, row = out.splitlines()
    assert header == f"{'GROUP':<{width}} {'TYPE':<{width}} {'PROTOCOL':<{width}}"
    assert row == f"{'a-group-with-a-rather-long-name'} {'Classic':<{width}} {'':<{width}} "


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Command must include exactly one action: --list."),
        (["--list", "--group-type", "x"], "--group-type must be a valid group type."),
        (["--list", "--share", "--streams"], 'Option "[share]" can\'t be used'),
    ],
)
def test_kafka_groups_refuses_in_kafkas_words(
    tool: Tool, arguments: list[str], complaint: str
) -> None:
    code, _, err = tool(*arguments, name="kafka-groups")
    assert code == 1
    assert complaint in err
