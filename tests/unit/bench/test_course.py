"""A session that goes on after a row that failed, and stops where nothing would mean anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bench.course import Course
from bench.processes import BenchError
from bench.rows import FULL
from bench.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from bench.course import Step


class Broker:
    """A child process that is there, or gone."""

    name = "it"

    def __init__(self) -> None:
        self.process = self
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def tail(self) -> str:
        return "its last words"


class System:
    name = "it"

    def prepare(self, *_arguments: object) -> None: ...


class Trip(Course):
    """Two rows, and a place where it fails."""

    def __init__(self, folder: Path, fails: str, *, gone: bool = False) -> None:
        system: Any = System()
        self.done: list[str] = []
        self._fails, self._gone = fails, gone
        super().__init__(system, system, folder, FULL, Selection(frozenset("ab")), lambda *_: None)

    def _start(self, stack: ExitStack) -> None:
        broker: Any = Broker()
        self._broker = broker

    def _steps(self) -> Sequence[Step]:
        return ((lambda: self._do("a"), ("a",)), (lambda: self._do("b"), ("b",)))

    def _warm_up(self) -> None:
        self._do("warm")

    def _do(self, name: str) -> None:
        if name == self._fails:
            broker: Any = self._broker
            broker.code = 1 if self._gone else None
            raise BenchError(f"{name} failed")
        self.done.append(name)


def test_row_that_fails_leaves_the_others(tmp_path: Path) -> None:
    trip = Trip(tmp_path, fails="a")
    trip.run()
    assert trip.done == ["warm", "b"]
    assert trip.failures == ["it: a failed"]


def test_nothing_is_measured_after_a_warm_up_that_failed(tmp_path: Path) -> None:
    trip = Trip(tmp_path, fails="warm")
    trip.run()
    assert trip.done == []
    assert trip.failures == ["it: warm failed"]


def test_broker_that_is_gone_ends_the_session_with_its_last_words(tmp_path: Path) -> None:
    trip = Trip(tmp_path, fails="a", gone=True)
    with pytest.raises(BenchError, match="its last words"):
        trip.run()
    assert trip.done == ["warm"]
