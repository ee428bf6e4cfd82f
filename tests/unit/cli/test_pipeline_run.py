"""What a run shows of itself: lines, JSON, a picture."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import click
import pytest
from rich.console import Console

from ottla.cli.pipeline_run import Display, JsonDisplay, _address, line, picture
from ottla.pipelines.connectors.process import Event, Note
from ottla.pipelines.driver.progress import Figures, State

RUNNING = Figures(
    "orders", state=State.RUNNING, rows=12_345, rows_per_second=678.9, lag=1204, lag_seconds=63.0,
    batch=7, batch_seconds=0.25, letters=2, metrics="http://127.0.0.1:9404/metrics",
)  # fmt: skip


def test_a_line_has_all_that_is_worth_a_look():
    assert line(RUNNING).partition(" ")[2] == (
        "orders running  rows/s 679  rows 12,345  lag 1,204 (1 min 3 s)  batch 7  took 250 ms  "
        "dead letters 2"
    )
    waiting = replace(RUNNING, state=State.WAITING, waiting="PostgreSQL is away")
    assert line(waiting).endswith("PostgreSQL is away")


def test_a_terminal_shows_what_is_waited_for_and_else_the_last_error():
    def drawn(figures: Figures) -> str:
        console = Console(file=StringIO(), width=120)
        console.print(picture(figures))
        return console.file.getvalue()

    away = replace(RUNNING, state=State.WAITING, waiting="no\x1b[2J broker", error="earlier")
    assert "waits: no" in drawn(away)
    assert "\x1b[2J" not in drawn(away), "what others say does not reach the terminal as it is"
    assert "earlier" not in drawn(away)
    assert "last error" in drawn(replace(RUNNING, error="earlier", error_at=0.0))
    assert "http://127.0.0.1:9404/metrics" in drawn(RUNNING)


def test_in_a_pipe_a_line_is_printed_when_the_state_changes(capsys: pytest.CaptureFixture[str]):
    display = Display("orders")
    for state in (State.STARTING, State.RUNNING, State.RUNNING, State.STOPPED):
        display.show(replace(RUNNING, state=state))
    lines = capsys.readouterr().err.splitlines()
    assert [text.split()[2] for text in lines] == ["starting", "running", "stopped"]


def test_what_is_not_as_usual_is_told_with_the_name_of_the_pipeline(
    capsys: pytest.CaptureFixture[str],
):
    Display("orders").tell(Note(Event.OUTAGE, "no\x1b[2J broker answers; waiting"))
    said = capsys.readouterr().err
    assert " orders: no" in said
    assert said.endswith(" broker answers; waiting\n")
    assert "\x1b" not in said


def test_json_has_a_line_whenever_something_but_the_time_is_new(
    capsys: pytest.CaptureFixture[str],
):
    display = JsonDisplay("orders")
    for figures in (RUNNING, replace(RUNNING, updated=5.0), replace(RUNNING, batch=8)):
        display.show(figures)
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [each["batch"] for each in lines] == [7, 8]


@pytest.mark.parametrize("text", ["9404", ":9404", "host:", "host:70000", "host:x"])
def test_an_address_of_metrics_is_a_host_and_a_port(text: str):
    assert _address("127.0.0.1:9404") == ("127.0.0.1", 9404)
    assert _address("[::1]:0") == ("::1", 0)
    with pytest.raises(click.UsageError, match="expected HOST:PORT"):
        _address(text)
