"""How long ZooKeeper was away decides whether others may have lost their sessions with it."""

from __future__ import annotations

import asyncio

import pytest

from ottla.cluster.store import returned_at
from ottla.cluster.zookeeper.address import Access, parse_address
from ottla.cluster.zookeeper.connection import State
from ottla.cluster.zookeeper.store import ZooKeeperStore

NEVER = float("-inf")


async def test_a_connection_that_flickers_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    store = ZooKeeperStore(parse_address("127.0.0.1:1"), Access(), None, 6.0, 1_000)
    store._note_state(State.CONNECTED)
    store.follower.full_loads = 1
    for _ in range(10):
        store._note_state(State.SUSPENDED)
        now += 1.0
        store._note_state(State.CONNECTED)
        now += 1.0
    assert returned_at(store) == NEVER
    store._note_state(State.SUSPENDED)
    now += 3.0
    store._note_state(State.CONNECTED)
    assert returned_at(store) == now
