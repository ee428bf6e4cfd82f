"""Whoever reads everything in the end has as much time as it takes, while something comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.verify.clients.connections import Connections
from ottla.verify.clients.reader import PartitionReader
from ottla.verify.history import Recorder

SECONDS = 2.0


class Slow(PartitionReader):
    """Its leader gives one record with each answer, up to `end`, and then none."""

    MOST_BYTES = 1

    def __init__(self, recorder: Recorder, end: int) -> None:
        super().__init__("final", 0, Connections([], "t", "test"), recorder)
        self._end = end

    async def answered(self) -> bool:
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(SECONDS / 10, later.set)
        await later.wait()
        if self.position < self._end:
            self.position += 1
        return True


def test_reading_may_take_long_while_something_comes(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.gz", {}) as recorder:
        reader = Slow(recorder, end=15)
        asyncio.run(reader.read_to(15, SECONDS))
        assert reader.position == 15


def test_reading_ends_when_nothing_comes(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.gz", {}) as recorder:
        reader = Slow(recorder, end=2)
        with pytest.raises(TimeoutError):
            asyncio.run(reader.read_to(3, SECONDS))
        assert reader.position == 2
