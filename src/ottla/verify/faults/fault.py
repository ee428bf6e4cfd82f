"""What a fault is."""

from __future__ import annotations

import random
from typing import ClassVar

from ottla.verify.cluster import ClusterUnderTest


class Fault:
    """One thing that goes wrong and is put right again. `await start()`, later `await heal()`."""

    name: ClassVar[str]
    about: ClassVar[str]
    """What happens, as a sentence."""
    seconds: ClassVar[tuple[float, float]] = (0.5, 5.0)
    """How long it lasts, at least and at most."""
    alone: ClassVar[bool] = False
    """It destroys data, so nothing else may happen between two moments of full replication."""
    zookeeper: ClassVar[bool] = False
    """It needs a ZooKeeper, and the proxies in front of it."""

    def __init__(self, cluster: ClusterUnderTest, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance

    async def start(self) -> str:
        """Break something; returns what, for the history."""
        raise NotImplementedError

    async def heal(self) -> None:
        """Put it right again. May be called when others have done so."""
        raise NotImplementedError

    def any_broker(self) -> int:
        """A broker by chance."""
        return self.chance.choice(sorted(self.cluster.brokers))

    def two_brokers(self) -> tuple[int, int]:
        first, second = self.chance.sample(sorted(self.cluster.brokers), 2)
        return first, second
