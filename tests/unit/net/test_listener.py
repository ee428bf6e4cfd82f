"""Who is alone and who is in a crowd, as the listeners see it."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.net import listener
from ottla.net.listener import CROWD_SECONDS, Limits, Listeners
from ottla.runtime.clock import SystemClock


async def test_a_crowd_is_another_client_that_was_answered_just_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(listener, "perf_counter", lambda: now)
    listeners = Listeners(lambda connection, frame: None, Limits(), SystemClock())
    one: Any = object()
    other: Any = object()
    try:
        assert not listeners.crowded(one), "nobody was answered yet"
        listeners.busy(one)
        assert listeners.crowded(other)
        assert not listeners.crowded(one), "a client that asks one by one is alone"
        now += 2 * CROWD_SECONDS
        assert not listeners.crowded(other), "that was long ago"
    finally:
        listeners.close()
