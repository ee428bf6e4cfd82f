"""What a log says of a broker that is waited for."""

from __future__ import annotations

import logging

import pytest

from ottla.pipelines.outage import Outage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_trouble_that_passes_at_once_is_not_worth_a_line(clock, caplog):
    outage = Outage(logging.getLogger("test"), "A read", clock=clock)
    assert outage.note("refused") == 0
    clock.now += 0.5
    assert outage.note("refused") == 0.5
    outage.over()
    outage.over()
    assert caplog.messages == []
    assert outage.note("refused") == 0


def test_trouble_that_lasts_is_told_repeated_now_and_then_and_ends_with_a_line(clock, caplog):
    outage = Outage(logging.getLogger("test"), "A read", 120, clock=clock)
    for _ in range(45):
        outage.note("127.0.0.1:9092: Connection refused")
        clock.now += 1
    outage.over()
    waits = "A read waits for a broker, for 120 s at most: 127.0.0.1:9092: Connection refused"
    assert caplog.messages == [waits, waits, "A read goes on after 45.0 s."]
