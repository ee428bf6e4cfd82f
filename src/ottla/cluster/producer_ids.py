"""ProducerIds: identities for idempotent producers, none of which is ever given out twice.

A block is committed to the store before its first id is used, so whatever happens afterwards, the
next broker to start begins behind it. The price is a gap in the numbers; a repeated id would
cost records, because a log would take a new producer's batches for duplicates of the old one's.
"""

from __future__ import annotations

import asyncio

from ottla.cluster.registry import Registry


class ProducerIds:
    """Hands out one id after the other."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._left = iter(range(0))
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        while True:
            for producer_id in self._left:
                return producer_id
            async with self._refilling:
                # Whoever waited for the lock may find that the block has come meanwhile.
                for producer_id in self._left:
                    return producer_id
                self._left = iter(await self._registry.allocate_producer_ids())
