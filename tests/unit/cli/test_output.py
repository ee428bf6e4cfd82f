from __future__ import annotations

import io
import re
import sys

import click
import pytest

from ottla.cli import output
from ottla.cli.output import Column, aligned, broker_errors, count, explain, show_table
from ottla.client.errors import ClientError, PartialFailureError
from ottla.errors import ErrorCode, KafkaError

COLUMNS = [Column("NAME"), Column("SIZE", numeric=True)]


def test_a_plain_table_is_aligned_and_never_cut() -> None:
    name = "n" * 300
    assert list(aligned(COLUMNS, [["a", "1"], [name, "2000"]])) == [
        "NAME" + " " * 296 + "  SIZE",
        "a" + " " * 299 + "     1",
        name + "  2000",
    ]


def test_in_a_pipe_there_is_no_colour_and_none_is_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_table(COLUMNS, [("a", None)], title="title")
    assert capsys.readouterr().out == "title\nNAME  SIZE\na        -\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return terminal


def test_on_a_terminal_rich_draws_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, 80)
    show_table(COLUMNS, [("[red]a", 1000)], title="[blue]title")
    text = terminal.getvalue()
    assert "[blue]title" in text
    assert "\x1b[" in text
    assert "─" in text
    assert "1,000" in text
    assert "[red]a" in text  # data is never taken for markup


@pytest.mark.parametrize("width", [1, 8, 40, 80])
def test_a_table_wider_than_the_terminal_is_not_folded(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    terminal = on_a_terminal(monkeypatch, width)
    member = "[red]" + "m" * 90
    show_table(COLUMNS, [(member, 1), ("a", 1000)], title="title " * 20)
    title, *lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert title == "title " * 20
    assert lines == list(aligned(COLUMNS, [[member, "1"], ["a", "1,000"]]))


def test_thousands_are_separated_where_a_number_counts_and_not_where_it_is_a_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = [Column("PARTITION", True, is_name=True), Column("LATEST", True), Column("VALUE")]
    show_table(columns, [(1000, 1234567, "604800000")])
    assert capsys.readouterr().out == (
        "PARTITION     LATEST  VALUE\n     1000  1,234,567  604800000\n"
    )


def test_nothing_there_is_still_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, [])
    assert capsys.readouterr().out == "NAME  SIZE\n"


@pytest.mark.parametrize(
    "error",
    [
        ClientError(ErrorCode.NETWORK_EXCEPTION, local="_TRANSPORT"),
        ClientError(ErrorCode.NETWORK_EXCEPTION, local="_RESOLVE"),
    ],
)
def test_an_unreachable_broker_is_explained_with_what_to_do(error: KafkaError) -> None:
    assert explain(error, "h:1") == (
        "no broker answers at h:1; start one with `ottla server start`, "
        "or name another with --bootstrap"
    )


def test_what_is_at_the_address_instead_of_a_broker_is_said() -> None:
    error = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "h:1 is an HTTP server")
    assert explain(error, "h:1") == (
        "no broker answers: h:1 is an HTTP server; start one with `ottla server start`, "
        "or name another with --bootstrap"
    )


def test_a_silent_broker_is_explained() -> None:
    error = ClientError(ErrorCode.REQUEST_TIMED_OUT, "Timed out", local="_TIMED_OUT")
    assert explain(error, "h:1").startswith("the broker at h:1 did not answer in time")


def test_what_a_broker_says_is_passed_on() -> None:
    assert explain(KafkaError(ErrorCode.INVALID_CONFIG, "Bad value."), "h:1") == "Bad value"
    assert explain(KafkaError(ErrorCode.INVALID_CONFIG), "h:1") == "invalid config"


def test_a_misspelt_setting_is_answered_with_the_one_that_was_meant() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "Unknown topic config name: retenton.ms")
    assert explain(error, "h:1").endswith("retenton.ms; did you mean retention.ms?")
    error = KafkaError(ErrorCode.INVALID_CONFIG, "Unknown topic config name: zzz; nothing")
    assert explain(error, "h:1") == "Unknown topic config name: zzz; nothing"


def test_errors_leave_as_one_line_each_with_exit_code_1() -> None:
    with pytest.raises(click.ClickException) as caught, broker_errors("h:1"):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "Bad value")
    assert caught.value.exit_code == 1
    assert caught.value.message == "Bad value"
    failures = {
        "a": KafkaError(ErrorCode.INVALID_CONFIG, "x"),
        "b": KafkaError(ErrorCode.NONE, "y"),
    }
    with pytest.raises(click.ClickException) as caught, broker_errors("h:1"):
        raise PartialFailureError(failures)
    assert caught.value.format_message().splitlines() == ["a: x", "Error: b: y"]


def test_numbers_agree_with_their_nouns() -> None:
    assert (count(1, "record"), count(0, "record")) == ("1 record", "0 records")
    assert count(12_000, "record") == "12,000 records"


def test_what_is_said_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("hello")
    assert capsys.readouterr() == ("", "hello\n")
