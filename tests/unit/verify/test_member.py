"""What a coordinator leaves out of an answer is not taken for told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.verify.checks import judge
from ottla.verify.clients.connections import Connections
from ottla.verify.clients.member import Member, Refused
from ottla.verify.history import History, Recorder


def answer(*partitions: Any) -> Any:
    topics = [SimpleNamespace(partitions=[*partitions])] if partitions else []
    return SimpleNamespace(error_code=0, topics=topics)


def told(number: int) -> Any:
    return SimpleNamespace(partition_index=number, committed_offset=5, error_code=0)


def member(recorder: Recorder, answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> Member:
    async def ask(_self: Member, *_: Any, **__: Any) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(Member, "_ask", ask)
    found = Member(0, "g", Connections([], "t", "test"), recorder, seed=1)
    found.owned = 0, 1
    return found


def in_history(path: Path, play: Callable[[Recorder], Any]) -> list[str]:
    with Recorder(path, {}) as recorder:
        asyncio.run(play(recorder))
    return [anomaly.text for anomaly in judge(History(path)).anomalies]


@pytest.mark.parametrize("partitions", [(told(0),), ()], ids=["one", "topic"])
def test_an_offset_that_is_not_told_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: tuple[Any, ...]
) -> None:
    async def play(recorder: Recorder) -> None:
        both = answer(told(0), told(1))
        one = member(recorder, [both, answer(*partitions)], monkeypatch)
        await one._commit({0: 5, 1: 5})
        assert (await one._positions())[1] == 0

    texts = in_history(tmp_path / "history.gz", play)
    assert texts[-1] == "g had committed 5 of partition 1, and later finds nothing"


@pytest.mark.parametrize("partitions", [(told(0),), ()], ids=["one", "topic"])
def test_a_commit_that_is_not_told_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: tuple[Any, ...]
) -> None:
    path = tmp_path / "history.gz"

    async def play(recorder: Recorder) -> None:
        one = member(recorder, [answer(*partitions)], monkeypatch)
        with pytest.raises(Refused):
            await one._commit({0: 5, 1: 5})

    assert in_history(path, play) == []
    assert [event.phase for event in History(path)] == ["invoke", "unknown"]
