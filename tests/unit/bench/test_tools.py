"""The comparison of Apache's tools with ours: the command files, and the verdicts."""

from __future__ import annotations

from datetime import date

import pytest
from bench.tools.compare import Answer, Verdict, compare
from bench.tools.report import markdown, terminal
from bench.tools.script import ScriptError, Step, read, read_file
from bench.tools.stage import command_files

from ottla.cli.kafka_compat import TOOLS

NAMES = {"BROKER": "127.0.0.1:9", "TMP": "/files"}


def answer(stdout: str = "", stderr: str = "", code: int = 0) -> Answer:
    return Answer(code, stdout, stderr)


def outcome(step: Step, apache: Answer, ours: Answer) -> str:
    return compare(step, apache, ours, NAMES).outcome


def test_script_is_commands_with_input_and_modifiers() -> None:
    first, second = read(
        "# a word\n> figures\n~ exit a reason\n$ kafka-topics --topic t-SIDE\n< one\n\n: leave\n"
    )
    assert (first.tool, first.stdin, first.action) == ("kafka-topics", ["one\n"], False)
    assert (first.modes, first.differs) == ({"figures"}, {"exit": "a reason"})
    assert first.arguments({"SIDE": "x"}) == ["--topic", "t-x"]
    assert (second.words, second.action, second.modes, second.shared) == (
        "leave",
        True,
        set(),
        True,
    )


@pytest.mark.parametrize(
    "text",
    ["kafka-topics\n", "> sideways\n$ a\n", "~ exit\n$ a\n", "~ colour why\n$ a\n", "> figures\n"],
)
def test_line_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        read(text)


def test_every_command_file_names_tools_that_are_there() -> None:
    steps = [step for path in command_files() for step in read_file(path)]
    typed = {step.tool for step in steps if not step.action}
    assert typed <= set(TOOLS)
    not_compared = {
        *("kafka-list-topic", "kafka-run-class", "kafka-server-start", "kafka-server-stop"),
        *("zookeeper-server-start", "zookeeper-server-stop", "zookeeper-shell"),
    }
    assert set(TOOLS) - typed == not_compared


def test_names_of_both_sides_are_one_name() -> None:
    step = Step("kafka-topics --describe --topic t-SIDE")
    apache = answer("t-apa7 TopicId: AAAAAAAAAAAAAAAAAAAAAA at 127.0.0.1:9\n")
    ours = answer("t-ott7 TopicId: BBBBBBBBBBBBBBBBBBBBBB at 127.0.0.1:9\n")
    assert outcome(step, apache, ours) == "equal"


def test_what_both_look_at_has_to_be_equal_to_the_last_digit() -> None:
    step = Step("kafka-dump-log --files x")
    apache, ours = answer("CreateTime: 1700000000000\n"), answer("CreateTime: 1700000000001\n")
    assert outcome(step, apache, ours) == "different"
    assert outcome(step, apache, apache) == "equal"


def test_how_long_a_transaction_hangs_depends_on_when_it_is_asked() -> None:
    step = Step("kafka-transactions find-hanging")
    row = "lost\t0 \t900001\t0 \t-1 \t0 \t1700000000000\t%s\t\n"
    assert outcome(step, answer(row % "1583604 "), answer(row % "1583605 ")) == "equal"
    assert outcome(step, answer(row % "1583604 "), answer(row % "soon ")) == "different"


def test_exit_codes_are_compared() -> None:
    assert outcome(Step("kafka-topics"), answer(), answer(code=1)) == "different"


def test_only_the_first_line_of_a_complaint_counts() -> None:
    step = Step("kafka-topics --bogus")
    apache = answer(stderr="bogus is not a recognized option\nOption  Description\n", code=1)
    ours = answer(stderr="bogus is not a recognized option (see kafka-topics --help)\n", code=1)
    assert outcome(step, apache, ours) == "equal"
    other = answer(stderr="what is bogus? (see kafka-topics --help)\n", code=1)
    assert outcome(step, apache, other) == "different"


@pytest.mark.parametrize(
    "said",
    [
        'Exception in thread "main" java.lang.Error: no\n\tat x\n',
        "java.util.concurrent.ExecutionException: org.apache.kafka.SomeException: no\n\tat x\n",
    ],
)
def test_name_of_a_java_exception_is_not_compared(said: str) -> None:
    step = Step("kafka-topics")
    assert outcome(step, answer(stderr=said), answer(stderr="no\n")) == "equal"
    assert outcome(step, answer(stderr=said), answer(stderr="yes\n")) == "different"


def test_stack_trace_need_not_be_answered_but_a_sentence_must() -> None:
    step = Step("kafka-topics")
    trace = answer("Error: no\n", "java.lang.RuntimeException: no\n\tat x\n")
    assert outcome(step, trace, answer("Error: no\n")) == "equal"
    assert outcome(step, answer("", "no\n"), answer("")) == "different"


def test_order_counts_unless_it_is_that_of_a_hash_table() -> None:
    apache, ours = answer("b\na\n"), answer("a\nb\n")
    assert outcome(Step("kafka-topics"), apache, ours) == "different"
    assert outcome(Step("kafka-topics", modes={"unordered"}), apache, ours) == "equal"


def test_folders_and_partitions_inside_json_may_come_in_any_order() -> None:
    folder = '{"partitions":[{"partition":"%s"},{"partition":"%s"}],"logDir":"%s"}'
    line = f'{{"brokers":[{{"logDirs":[{folder},{folder}]}}]}}\n'
    step = Step("kafka-log-dirs", modes={"unordered folders"})
    apache = answer(line % ("a", "b", "one", "c", "d", "two"))
    assert outcome(step, apache, answer(line % ("d", "c", "two", "b", "a", "one"))) == "equal"
    assert outcome(step, apache, answer(line % ("b", "a", "two", "c", "d", "one"))) == "different"


def test_words_of_a_set_may_come_in_any_order() -> None:
    step = Step("kafka-topics", modes={"unordered words"})
    apache, ours = answer(stderr="one of: [a], [b]\n"), answer(stderr="one of: [b], [a]\n")
    assert outcome(step, apache, ours) == "equal"
    assert outcome(step, apache, answer(stderr="one of: [b], [c]\n")) == "different"


def test_figures_are_compared_by_their_place_only() -> None:
    step = Step("kafka-producer-perf-test", modes={"figures"})
    apache = answer("50 records sent, 1.5 ms avg, 3 ms 99th\n")
    assert outcome(step, apache, answer("50 records sent, 22.0 ms avg, 4 ms 99th\n")) == "equal"
    assert outcome(step, apache, answer("50 records sent, 22.0 ms avg, 4 ms 95th\n")) == "different"


def test_known_difference_excuses_only_the_part_it_names() -> None:
    step = Step("kafka-consumer-groups", differs={"exit": "a refusal is a failure"})
    assert outcome(step, answer("no\n"), answer("no\n", code=1)) == "known"
    assert outcome(step, answer("no\n"), answer("yes\n", code=1)) == "different"


def test_known_difference_that_is_gone_is_a_failure() -> None:
    verdict = compare(Step("kafka-topics", differs={"all": "why"}), answer(), answer(), NAMES)
    assert (verdict.outcome, verdict.good) == ("stale", False)


def test_report_counts_by_tool_and_names_each_known_difference() -> None:
    equal = Verdict(Step("kafka-topics --list"), "equal")
    known = Verdict(Step("kafka-groups --list a|b"), "known", "exit: why")
    bad = Verdict(Step("kafka-groups --list"), "different", "--- stdout\n-a\n+b\n")
    text = markdown([equal, known, bad], date(2025, 1, 2))
    assert "3 commands, 1 equal, 1 with a known difference, 1 failed" in text
    assert "| `kafka-groups` | 2 | 0 | 1 | 1 |" in text
    assert "| `kafka-groups --list a\\|b` | exit: why |" in text
    assert terminal(bad).splitlines()[0].split() == ["DIFFERS", "kafka-groups", "--list"]
    assert terminal(bad).splitlines()[-1].strip() == "+b"
