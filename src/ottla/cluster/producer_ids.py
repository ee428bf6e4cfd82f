"""ProducerIds: identities for idempotent producers, none of which is ever given out twice.

A block is committed to the store before its first id is used, so whatever happens afterwards, the
next broker to start begins behind it. The price is a gap in the numbers; a repeated id would
cost records, because a log would take a new producer's batches for duplicates of the old one's.

A broker that shares its store with others has a block in reserve, so that producers can begin while
the store is away.
"""

from __future__ import annotations

import asyncio

from ottla.cluster.registry import Registry
from ottla.cluster.store import StoreClosed, StoreError

PAUSE = 1.0


class ProducerIds:
    """Hands out one id after the other."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._left = iter(range(0))
        self._refilling = asyncio.Lock()
        self._reserve: range | None = None
        self._used_up = asyncio.Event()
        self._used_up.set()

    async def next(self) -> int:
        while True:
            for producer_id in self._left:
                return producer_id
            async with self._refilling:
                # Whoever waited for the lock may find that the block has come meanwhile.
                for producer_id in self._left:
                    return producer_id
                self._left = iter(self._take_reserve() or await self._take_block())

    async def keep_reserve(self) -> None:
        """Have a block in reserve, and a new one whenever that is used; until cancelled."""
        while True:
            await self._used_up.wait()
            try:
                self._reserve = await self._take_block()
                self._used_up.clear()
            except StoreClosed:
                return
            except StoreError:
                await asyncio.sleep(PAUSE)

    def _take_reserve(self) -> range | None:
        reserve, self._reserve = self._reserve, None
        self._used_up.set()
        return reserve

    async def _take_block(self) -> range:
        return await self._registry.allocate_producer_ids()
