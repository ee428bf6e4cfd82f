"""Figures of a pipeline, and the same for Prometheus."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from ottla.pipelines.connectors.process import Event, Note, Outcome
from ottla.pipelines.driver.metrics import METRICS, readings
from ottla.pipelines.driver.progress import Board, Figures, State


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def board() -> tuple[Board, Clock]:
    clock = Clock()
    made = Board(Figures("orders"), clock=clock, monotonic=clock)
    made.state(State.RUNNING)
    return made, clock


@pytest.mark.parametrize("call", [lambda made: made.figures(), lambda made: made.error("away")])
def test_a_signal_stops_a_driver_also_in_the_middle_of_telling_how_it_is(call):
    """Python runs a handler in the main thread wherever that is: here while it holds the board."""

    class Signalled(Clock):
        def __call__(self) -> float:
            if armed:
                armed.pop()
                made.state(State.STOPPING)
            return super().__call__()

    armed: list[bool] = []
    made = Board(Figures("orders"), clock=Signalled(), monotonic=Clock())
    made.state(State.RUNNING)
    armed.append(True)
    thread = threading.Thread(target=call, args=(made,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the handler waits for a lock that its own thread holds"
    assert made.figures().state is State.STOPPING


def test_rows_add_up_and_rows_a_second_are_those_of_the_last_seconds():
    made, clock = board()
    clock.now += 100
    made.batch(4, Outcome(rows=500, written=490, letters=10), 1.5)
    made.batch(5, Outcome(rows=500, written=500), 0.5)
    found = made.figures()
    assert (found.batch, found.batch_seconds) == (5, 0.5)
    assert (found.rows, found.written, found.letters) == (1000, 990, 10)
    assert found.rows_per_second == 100
    clock.now += 11
    assert made.figures().rows_per_second == 0
    assert made.so_far == Outcome(1000, 990, 10)


def test_an_outage_is_waited_for_and_over_when_the_batch_is_through():
    made, _ = board()
    made.note(Note(Event.OUTAGE, "PostgreSQL is away"))
    found = made.figures()
    assert (found.state, found.waiting) == (State.WAITING, "PostgreSQL is away")
    assert found.error == "PostgreSQL is away"
    made.note(Note(Event.RECOVERED, "it is back"))
    found = made.figures()
    assert (found.state, found.waiting) == (State.RUNNING, None)
    assert found.error == "PostgreSQL is away", "the last error stays to be seen"


def test_waiting_for_two_things_is_over_when_both_are_there():
    made, _ = board()
    made.waits("group", "no broker")
    made.waits("batch", "no database")
    assert made.figures().waiting == "no broker; no database"
    made.waits("group", None)
    assert made.figures().state is State.WAITING
    made.waits("batch", None)
    assert made.figures().state is State.RUNNING


def test_nothing_begins_after_the_end():
    made, _ = board()
    made.state(State.FAILED)
    made.state(State.STOPPED)
    assert made.figures().state is State.FAILED


def test_a_driver_that_was_told_to_stop_while_it_started_does_not_run_after_all():
    made, _ = board()
    made.state(State.STOPPING)
    made.state(State.RUNNING)
    assert made.figures().state is State.STOPPING
    made.state(State.STOPPED)
    assert made.figures().state is State.STOPPED


def test_figures_are_json():
    made, _ = board()
    assert json.loads(json.dumps(made.figures().document()))["state"] == "running"


def test_every_metric_has_a_series_once_it_is_known():
    made, _ = board()
    unknown = {each.name for each in readings(made.figures()) if not each.series}
    assert unknown == {
        "ottla_pipeline_batch",
        "ottla_pipeline_batch_seconds",
        "ottla_pipeline_lag_records",
        "ottla_pipeline_lag_seconds",
        "ottla_pipeline_last_error_time_seconds",
    }
    made.batch(0, Outcome(1, 1), 0.1)
    made.learn(lag=5, lag_seconds=1.5)
    made.error("something")
    found = {each.name: each.series for each in readings(made.figures())}
    assert found.keys() == {each.name for each in METRICS}
    assert found["ottla_pipeline_lag_records"] == ((("orders",), 5.0),)
    assert found["ottla_pipeline_up"] == ((("orders",), 1.0),)


def test_the_page_has_every_metric():
    page = (Path(__file__).parents[4] / "docs" / "pipelines" / "run.md").read_text()
    listed = re.findall(r"^\| `(ottla_pipeline_\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert listed == [(each.name, each.kind) for each in METRICS]
