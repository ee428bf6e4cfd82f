"""A look at ZooKeeper as somebody new: what is found there must not be older than it looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cluster.zookeeper import second_look, store
from ottla.cluster.zookeeper.address import Access, parse_address
from ottla.cluster.zookeeper.connection import Stat
from ottla.cluster.zookeeper.follow import Follower
from ottla.cluster.zookeeper.mirror import Mirror
from ottla.cluster.zookeeper.second_look import Seen


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


async def test_a_look_that_takes_long_is_compared_with_what_was_known_when_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile the client was let in again, learned of more, and has lost the connection again."""
    client: Any = SimpleNamespace(
        session_seconds=0.0,
        _time_left=lambda: 0.0,
        _online=asyncio.Event(),
        _offline=asyncio.Event(),
        _address="zookeeper:2181",
        failed=[],
    )
    client._fail_replaced = client.failed.append
    connection: Any = None
    client.follower = Follower(connection, lambda *_: None)
    client.follower._identity = b"founder"
    client.follower.mirror = Mirror({}, 7)
    looks = 0

    async def look_anew(*_: object) -> Seen:
        nonlocal looks
        looks += 1
        found = Stat(1, 0, 8, 8, 0)  # with change 7 as the newest
        client.follower.mirror = Mirror({}, 9)
        return Seen((b"founder", found))

    monkeypatch.setattr(store, "look_anew", look_anew)
    await asyncio.wait_for(store.ZooKeeperStore._doubt(client, Access(), None), 60)
    assert looks == 2, "the second one is older than what was known when it began"
    assert len(client.failed) == 1
