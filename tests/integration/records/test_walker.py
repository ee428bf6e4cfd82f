"""What a walk over records gives, natively and in Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.records import plain_cleaning, walker

NewMap = Callable[[int], Any]


@pytest.fixture(params=["native", "plain"], autouse=True)
def new_map(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewMap]:
    maps: list[Any] = []
    kind: Any = walker.KeyOffsets
    if request.param == "plain":
        monkeypatch.setattr(walker, "_native", None)
        kind = plain_cleaning.KeyOffsets

    def make(slots: int) -> Any:
        maps.append(kind(24 * slots, 1.0))
        return maps[-1]

    yield make
    for each in maps:
        each.close()


def test_python_takes_over_where_the_native_code_is_turned_off() -> None:
    code = "from ottla.records import walker; print(walker.NATIVE, walker.WHY_PLAIN)"
    environment = {"OTTLA_NATIVE": "0"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "False OTTLA_NATIVE=0 turns the native code off\n"
