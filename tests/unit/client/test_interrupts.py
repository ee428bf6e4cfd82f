from __future__ import annotations

import signal
import threading

import pytest

from ottla.client.interrupts import Interrupts


def test_ctrl_c_is_noted_and_raised_only_where_that_is_asked_for() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.raising = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_would_not_raise_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert before is not signal.default_int_handler
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_notes_nothing() -> None:
    seen: list[object] = []

    def look() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
