"""When a cluster without executors is worth a word."""

from __future__ import annotations

from ottla.pipelines.driver.executors import GRACE, Absence
from ottla.pipelines.driver.progress import Board, Figures, State


def test_nobody_is_missed_until_jobs_have_waited_for_a_while():
    now = [100.0]
    absence = Absence(lambda: now[0])
    assert absence.seconds(executors=0, jobs=1) is None
    now[0] += GRACE
    assert absence.seconds(executors=0, jobs=1) == GRACE
    assert absence.seconds(executors=1, jobs=1) is None, "one has come"
    assert absence.seconds(executors=0, jobs=1) is None, "and has just gone"
    now[0] += GRACE
    assert absence.seconds(executors=0, jobs=0) is None, "they may go when nothing is to be done"
    assert absence.seconds(executors=0, jobs=1) is None


def test_what_is_waited_for_at_the_start_is_shown_as_well():
    board = Board(Figures("p"))
    board.waits("executors", "executors: none")
    assert (board.figures().state, board.figures().waiting) == (State.WAITING, "executors: none")
    board.waits("executors", None)
    assert board.figures().state is State.STARTING
