"""Who is alone and who is in a crowd, as the listeners see it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ottla.net import listener
from ottla.net.listener import COUNT_SECONDS, CROWD, CROWD_SECONDS, Limits, Listeners
from ottla.runtime.clock import SystemClock


@pytest.fixture
async def listeners(clock: list[float]) -> AsyncIterator[Listeners]:
    it = Listeners(lambda connection, frame: None, Limits(), SystemClock())
    yield it
    it.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time is its last element."""
    times = [100.0]
    monkeypatch.setattr(listener, "perf_counter", lambda: times[-1])
    return times


def serve(listeners: Listeners, clock: list[float], clients: list[Any], pause: float) -> list[bool]:
    """Everybody is answered once; whether each was in a crowd."""
    crowded = []
    for it in clients:
        clock.append(clock[-1] + pause)
        crowded.append(listeners.crowded(it))
        listeners.busy(it)
    return crowded


SHORT = CROWD_SECONDS / 10


async def test_many_clients_at_the_same_time_are_a_crowd(
    listeners: Listeners, clock: list[float]
) -> None:
    clients = [object() for _ in range(2 * CROWD)]
    for _ in range(20):
        crowded = serve(listeners, clock, clients, SHORT)
    assert all(crowded)
    clock.append(clock[-1] + 2 * CROWD_SECONDS)
    assert not listeners.crowded(clients[0]), "nobody was answered just now"


async def test_a_few_clients_are_none(listeners: Listeners, clock: list[float]) -> None:
    clients = [object() for _ in range(CROWD - 1)]
    for _ in range(40):
        assert not any(serve(listeners, clock, clients, SHORT))


async def test_neither_are_many_that_take_their_time(
    listeners: Listeners, clock: list[float]
) -> None:
    clients = [object() for _ in range(2 * CROWD)]
    for _ in range(20):
        assert not any(serve(listeners, clock, clients, 1.5 * CROWD_SECONDS))


async def test_one_that_asks_again_and_again_is_alone(
    listeners: Listeners, clock: list[float]
) -> None:
    clients = [object() for _ in range(2 * CROWD)]
    for _ in range(20):
        serve(listeners, clock, clients, SHORT)
    assert serve(listeners, clock, [clients[-1]] * 3, SHORT) == [False] * 3


async def test_when_the_crowd_has_gone_those_who_stay_are_alone(
    listeners: Listeners, clock: list[float]
) -> None:
    clients = [object() for _ in range(2 * CROWD)]
    for _ in range(20):
        serve(listeners, clock, clients, SHORT)
    for _ in range(2 * round(COUNT_SECONDS / SHORT)):
        crowded = serve(listeners, clock, clients[:2], SHORT)
    assert crowded == [False, False]
