"""A stop that waits for the batch."""

from __future__ import annotations

import threading

import pytest

from ottla.pipelines.driver.gate import Closed, Gate


def test_a_batch_that_is_inside_goes_on_and_the_next_is_turned_away():
    gate = Gate()
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with gate.batch(3):
            entered.set()
            go_on.wait(30)

    worker = threading.Thread(target=work)
    worker.start()
    assert entered.wait(30)
    gate.close()
    assert gate.inside == 3
    assert not gate.wait_empty(0)
    assert gate.finished is None
    go_on.set()
    assert gate.wait_empty(30)
    worker.join()
    assert gate.finished == 3
    with pytest.raises(Closed, match="batch 4 has not begun"), gate.batch(4):
        raise AssertionError("it has begun")
    assert gate.finished == 3


def test_a_batch_that_fails_is_not_finished():
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate.batch(1):
        raise ZeroDivisionError
    assert (gate.inside, gate.finished) == (None, None)


def test_nobody_waits_behind_a_closed_gate():
    gate = Gate()
    assert gate.pause(0) is True
    gate.close()
    assert gate.pause(3600) is False
