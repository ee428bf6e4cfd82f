"""How the descriptors of a process are divided, and which signals end it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ottla.runtime.process import (
    OTHER_FILES,
    SAME_SECONDS,
    divide_descriptors,
    ending,
    file_limit,
)


@pytest.mark.parametrize("limit", [100, 256, 1024, 4096, 65_536, 1 << 30])
def test_files_and_connections_fit_into_the_limit(limit: int) -> None:
    divided = divide_descriptors(limit, 2048)
    assert divided.segments + divided.connections + OTHER_FILES <= limit
    assert 1 <= divided.segments <= 2048
    assert divided.connections >= limit // 5


def test_a_hopeless_limit_still_serves_somebody() -> None:
    divided = divide_descriptors(20, 2048)
    assert (divided.segments, divided.connections) == (2, 1)


def test_the_limit_of_this_process_is_known() -> None:
    assert file_limit() > 0


async def test_a_later_signal_is_in_a_hurry_and_one_right_behind_the_first_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    come: dict[int, Callable[[], None]] = {}
    now, hurries = 100.0, []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "add_signal_handler", come.__setitem__)
    # Whoever runs the tests may ignore some of them: `nohup` does. Asyncio asks, too, before it
    # puts its own handler away, and must get the truth.
    nothing_ignored = SimpleNamespace(**{**vars(signal), "getsignal": lambda _: signal.SIG_DFL})
    monkeypatch.setattr("ottla.runtime.process.signal", nothing_ignored)
    stop = ending(lambda: hurries.append(now), lambda: now)
    assert list(come) == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    assert not stop.is_set()
    come[signal.SIGTERM]()
    assert stop.is_set()
    now += SAME_SECONDS / 2
    for heard in come.values():
        heard()
    assert not hurries
    now += SAME_SECONDS
    come[signal.SIGINT]()
    assert hurries == [now]
