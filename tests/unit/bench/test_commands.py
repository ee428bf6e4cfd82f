"""The commands whose wall time is measured."""

from __future__ import annotations

from bench.commands import COMMANDS, Command

from ottla.cli.kafka_compat import TOOLS

# Those that start a server, end it, or only call another.
NOT_MEASURED = {
    *("kafka-server-start", "kafka-server-stop", "kafka-run-class", "kafka-list-topic"),
    *("zookeeper-server-start", "zookeeper-server-stop", "zookeeper-shell"),
    # These need several brokers; the last one ends when it is stopped.
    *("kafka-leader-election", "kafka-reassign-partitions", "kafka-replica-verification"),
}


def test_every_tool_that_does_something_by_itself_is_measured() -> None:
    assert {each.typed.split()[0] for each in COMMANDS} == TOOLS.keys() - NOT_MEASURED


def test_names_are_filled_in_and_nothing_else_is() -> None:
    command = Command("k", "kafka-topics --bootstrap-server BROKER --topic BROKERS", "")
    words = command.words({"BROKER": "127.0.0.1:9"})
    assert words == ["kafka-topics", "--bootstrap-server", "127.0.0.1:9", "--topic", "BROKERS"]


def test_title_is_the_program_and_its_verb() -> None:
    titles = [
        Command("k", typed, "").title for typed in ("a --bootstrap-server BROKER --list", "b --x 1")
    ]
    assert titles == ["`a --list`", "`b`"]


def test_titles_tell_the_commands_apart() -> None:
    assert len({each.title for each in COMMANDS}) == len(COMMANDS)
