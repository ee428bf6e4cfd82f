"""Produce: who has timed out is answered, and waits nowhere any longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.errors import ErrorCode
from ottla.handlers.produce import _when_committed
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from ottla.runtime.waiters import Deferred


async def test_a_time_out_leaves_nobody_waiting() -> None:
    abandoned: list[str] = []
    commits: list[Deferred[None]] = [Deferred(), Deferred()]
    for name, commit in zip("ab", commits, strict=True):
        commit.on_abandon = lambda name=name: abandoned.append(name)
    answers = [PartitionProduceResponse(index=index, base_offset=7) for index in range(2)]
    waiting = list(zip(answers, commits, strict=True))
    request: Any = SimpleNamespace(api_version=9, body=SimpleNamespace(timeout_ms=0, acks=-1))
    services: Any = None
    result = _when_committed(ProduceResponse(responses=[]), waiting, request, services, None)
    commits[0].resolve(None)
    await result
    assert [each.error_code for each in answers] == [0, ErrorCode.REQUEST_TIMED_OUT]
    assert abandoned == ["b"]
