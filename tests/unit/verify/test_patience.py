"""What is waited for has the time that it was given, whatever the machine does meanwhile."""

from __future__ import annotations

from ottla.verify.patience import MOST_OF_A_LOOK, Patience


def test_patience_ends_with_its_time() -> None:
    now = 0.0
    patience = Patience(10.0, clock=lambda: now)
    now = 4.0
    assert not patience.over()
    now = 8.0
    assert not patience.over()
    now = 10.0
    assert patience.over()


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    now = 0.0
    patience = Patience(10.0, clock=lambda: now)
    now = 3600.0
    assert not patience.over()
    now += 10.0 - MOST_OF_A_LOOK - 1.0
    assert not patience.over()
    now += 1.0
    assert patience.over()
