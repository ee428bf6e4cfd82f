"""The parser of Kafka's command lines, and the table of tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.cli.kafka_compat import TOOLS, load, main, run, tool_name
from ottla.cli.kafka_compat import options as options_module
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    Failure,
    HelpShown,
    Option,
    Options,
    Parser,
    UsageError,
    check_excluded,
    check_required,
    connection_settings,
    guarded,
    key_values,
    read_properties,
)
from ottla.cli.kafka_compat.run_class import CLASSES

FLAGS = Path(__file__).parent / "golden" / "flags"
DOCS = Path(__file__).parents[4] / "docs" / "tools.md"

PARSER = Parser(
    "tool",
    "Does things.",
    [
        Option("topic", "A topic.", "topic"),
        Option("count", "A number.", "number", int, default="7"),
        Option("codec", "Perhaps a codec.", "codec", optional=True),
        Option("list", "List."),
        Option("old", "", hidden=True),
    ],
)


def parse(*words: str) -> Options:
    return PARSER.parse(words)


@pytest.mark.parametrize(
    "words", [("--topic", "x"), ("--topic=x",), ("-topic", "x"), ("--topic=", "x")]
)
def test_all_ways_of_giving_an_argument_mean_the_same(words: Sequence[str]) -> None:
    assert parse(*words).value("topic") == "x"


def test_a_required_argument_may_look_like_an_option() -> None:
    options = parse("--topic", "--list")
    assert options.value("topic") == "--list"
    assert not options.has("list")


def test_an_optional_argument_is_not_taken_from_the_next_option() -> None:
    options = parse("--codec", "--list")
    assert options.has("codec")
    assert options.has("list")
    assert parse("--codec", "zstd").values("codec") == ["zstd"]


def test_abbreviations_are_not_understood_but_guessed() -> None:
    with pytest.raises(UsageError, match="top is not a recognized option; did you mean --topic"):
        parse("--top", "x")


def test_a_repeated_option_has_values_but_no_value() -> None:
    options = parse("--topic", "a", "--topic", "b")
    assert options.values("topic") == ["a", "b"]
    with pytest.raises(UsageError, match="Found multiple arguments for option topic"):
        options.value("topic")


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="Option topic requires an argument"):
        parse("--topic")


def test_a_number_is_checked_when_it_is_used() -> None:
    options = parse("--count", "x")
    with pytest.raises(UsageError, match="Cannot parse argument 'x' of option count"):
        options.integer("count")
    assert parse().integer("count") == 7


def test_words_after_two_dashes_are_no_options() -> None:
    assert parse("a", "--", "--list").rest == ["a", "--list"]


def test_required_and_excluded_options_are_named_as_kafka_names_them() -> None:
    options = parse("--topic", "x", "--list")
    with pytest.raises(UsageError, match=r'Missing required argument "\[count\]"'):
        check_required(options, "topic", "count")
    with pytest.raises(UsageError, match=r'"\[topic\]" can\'t be used with option "\[list\]"'):
        check_excluded(options, "topic", "list")


def test_zookeeper_is_for_tools_that_ask_a_broker() -> None:
    with pytest.raises(UsageError, match="zookeeper is not a recognized option"):
        parse("--zookeeper", "localhost:2181", "--list")


def test_zookeeper_stands_for_the_brokers_registered_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def registered(address: str) -> str:
        asked.append(address)
        return "one:9092,two:9092"

    monkeypatch.setattr(options_module, "registered_brokers", registered)
    parser = Parser("tool", "", [BOOTSTRAP])
    options = parser.parse(["--zookeeper", "zk:2181/chroot"])
    assert options.value("bootstrap-server") == "one:9092,two:9092"
    assert asked == ["zk:2181/chroot"]
    with pytest.raises(UsageError, match="Only one of --bootstrap-server or --zookeeper"):
        parser.parse(["--bootstrap-server", "one:9092", "--zookeeper", "zk:2181"])


@pytest.mark.parametrize("dash", ["\N{EM DASH}", "\N{EN DASH}", "-"])
def test_a_dash_that_a_word_processor_made_counts_as_two(dash: str) -> None:
    options = parse(f"{dash}list", f"{dash}topic=x")
    assert options.has("list")
    assert options.value("topic") == "x"


def test_help_names_every_option_but_the_old_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown) as shown:
        parse("--help")
    text = capsys.readouterr().err
    assert shown.value.code == 1
    assert "--codec [String: codec]" in text
    assert "(default: 7)" in text
    assert "--old" not in text
    assert "--zookeeper" not in text


def test_version_is_that_of_the_kafka_we_follow(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown) as shown:
        parse("--version")
    assert (shown.value.code, capsys.readouterr().out) == (0, "4.2.0\n")


def test_a_mistake_is_one_line_with_a_pointer_to_help(capsys: pytest.CaptureFixture[str]) -> None:
    def tool(_arguments: Sequence[str]) -> int:
        raise UsageError("that is wrong")

    assert guarded("kafka-x", tool, []) == 1
    assert capsys.readouterr().err == "that is wrong (see kafka-x --help)\n"


def test_a_file_of_properties_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file or directory; check the path"):
        read_properties(str(tmp_path / "absent"))


def test_a_malformed_file_of_properties_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.properties"
    path.write_text("a=1\nb=\\u12\n")
    with pytest.raises(Failure, match=r"line 2.*correct the file"):
        read_properties(str(path))


def test_key_values_may_hold_equals_signs() -> None:
    assert key_values(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(UsageError):
        key_values(["=b"])


def test_connection_settings_refuse_what_they_cannot_do() -> None:
    assert connection_settings({"request.timeout.ms": "1500", "client.id": "me"}) == {
        "timeout": 1.5,
        "client_id": "me",
    }
    with pytest.raises(Failure, match=r"security\.protocol=SSL is not supported"):
        connection_settings({"security.protocol": "SSL"})


# -- the table


@pytest.mark.parametrize(
    ("program", "name"),
    [("/usr/bin/kafka-topics.sh", "kafka-topics"), ("kafka-configs", "kafka-configs")],
)
def test_a_program_is_its_tool_with_or_without_sh(program: str, name: str) -> None:
    assert tool_name(program) == name


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_of_the_table_can_be_loaded(name: str) -> None:
    assert callable(load(name))


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_of_the_table_is_documented(name: str) -> None:
    assert f"`{name}`" in DOCS.read_text()


def test_the_entry_point_goes_by_the_name_it_was_called_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/kafka-get-offsets.sh", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().out) == (0, "4.2.0\n")


def test_an_unknown_tool_gets_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kafka-topic", []) == 1
    assert "did you mean kafka-topics?" in capsys.readouterr().err


def test_run_class_knows_the_tools_by_their_java_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kafka-run-class", ["-loggc", "kafka.admin.TopicCommand", "--version"]) == 0
    assert capsys.readouterr().out == "4.2.0\n"
    assert run("kafka-run-class", ["kafka.Nope"]) == 1
    assert "Could not find or load main class kafka.Nope" in capsys.readouterr().err
    assert run("kafka-run-class", []) == 1
    assert {CLASSES["kafka.Kafka"], CLASSES["kafka.tools.StorageTool"]} <= TOOLS.keys()


@pytest.mark.parametrize("path", sorted(FLAGS.iterdir()), ids=lambda path: path.name)
def test_help_has_every_flag_that_kafka_has(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorded flags are those of Apache Kafka 4.2's own --help."""
    tool, *command = path.name.split("_")
    if tool in ("kafka-features", "kafka-transactions") and command:
        command = ["--bootstrap-server", "x:1", *command]
    # Kafka's tools exit with 1 after their help, all but one.
    assert run(tool, [*command, "--help"]) == (0 if tool == "kafka-storage" else 1)
    captured = capsys.readouterr()
    shown = {word.strip(",[]()") for word in (captured.out + captured.err).split()}
    assert set(path.read_text().split()) - shown == set()
