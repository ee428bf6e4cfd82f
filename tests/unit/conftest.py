"""A unit test opens no connection and starts no process.

Python itself tells of both, whoever calls and in whichever thread that the test has started
(`sys.addaudithook`). To try to reach nobody counts, too: what is found at an address depends on the
machine. Pairs of connected sockets are allowed, since every event loop has one. A test that needs
more belongs to `tests/integration` or further out, see tests/README.md. That unit tests do not
sleep is read in their source, by `tests/architecture/test_waiting.py`.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
SOCKETS = frozenset({"socket.__new__", "socket.connect", "socket.bind", "socket.sendto"})
LIBRARIES = ("/site-packages/", "/lib/python3", __file__)


class Guard:
    """Notes what the test that runs has done and may not do."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.active = False
        self._strangers: frozenset[int | None] = frozenset()

    def begin(self) -> None:
        # Threads of tests long over, of Spark for one, may still connect to somebody.
        there = {thread.ident for thread in threading.enumerate()}
        self._strangers = frozenset(there - {threading.get_ident()})
        self.notes, self.active = [], True

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active or threading.get_ident() in self._strangers:
            return
        if event in PROCESSES:
            self._note(event)
        elif event in SOCKETS:
            family = arguments[1] if event == "socket.__new__" else arguments[0].family
            if family != socket.AF_UNIX:
                self._note(event)

    def _note(self, event: str) -> None:
        places = [
            f"{frame.filename}:{frame.lineno}"
            for frame in traceback.extract_stack()
            if not any(library in frame.filename for library in LIBRARIES)
        ]
        self.notes.append(f"{event}, called from {' > '.join(places[-3:])}")


GUARD = Guard()
sys.addaudithook(GUARD.hear)


@pytest.fixture(autouse=True)
def nothing_but_this_process() -> Iterator[None]:
    GUARD.begin()
    yield
    GUARD.active = False
    if GUARD.notes:
        pytest.fail("not in a unit test (see tests/README.md):\n" + "\n".join(GUARD.notes))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Spark, which another test of this worker may have started, has taken Ctrl-C for itself."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Who leaves another handler of Ctrl-C behind ends all tests with the next that types it."""
    yield
    left = signal.getsignal(signal.SIGINT)
    if left is not signal.default_int_handler:
        pytest.fail(f"SIGINT is left to {left}")


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`own_time("ottla.cli.live", sleep=…)` gives one module a `time` of its own: the functions of
    the real one are called by every thread of the worker, also by those of tests long over."""

    def give(module: str, **functions: Any) -> None:
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(**{**vars(time), **functions}))

    return give
