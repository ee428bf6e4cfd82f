"""A look at ZooKeeper as somebody new: what is found there must not be older than it looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ottla.cluster.zookeeper import second_look
from ottla.cluster.zookeeper.address import Access, parse_address
from ottla.cluster.zookeeper.connection import Stat


class LateServer:
    """A server that has not heard of the newest change, until it is asked to catch up."""

    def __init__(self) -> None:
        self.changes = 7

    async def sync(self, path: str) -> None:
        self.changes = 8

    async def get(self, path: str) -> tuple[bytes, Stat]:
        return b"founder", Stat(1, 0, self.changes, self.changes, 0)


async def test_a_server_that_lags_behind_is_not_taken_for_one_that_was_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[LateServer]:
        yield LateServer()

    monkeypatch.setattr(second_look, "connected", connected)
    seen = await second_look.look_anew(parse_address("zookeeper:2181"), Access(), None, 6.0)
    assert seen is not None
    assert seen.found is not None
    assert seen.found[1].children == 8
