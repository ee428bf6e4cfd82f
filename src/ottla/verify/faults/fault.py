"""What a fault is."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Protocol

from ottla.verify.cluster import ClusterUnderTest, StoreKind
from ottla.verify.history import Phase

ON_ZOOKEEPER: tuple[StoreKind, ...] = ("zookeeper", "ensemble")


class Record(Protocol):
    """Notes something in the history, as told by this fault."""

    def __call__(self, action: str, phase: Phase, **data: Any) -> object: ...


class Fault:
    """One thing that goes wrong and is put right again. `await start()`, later `await heal()`."""

    name: ClassVar[str]
    about: ClassVar[str]
    """What happens, as a sentence."""
    seconds: ClassVar[tuple[float, float]] = (0.5, 5.0)
    """How long it lasts, at least and at most."""
    alone: ClassVar[bool] = False
    """It destroys data, so nothing else may happen between two moments of full replication."""
    asked_for: ClassVar[bool] = False
    """It comes only where it is named."""
    brokers: ClassVar[int] = 3
    """As many there must be."""
    every: ClassVar[int] = 1
    """It comes in one of so many turns: what takes long is rare."""
    stores: ClassVar[tuple[StoreKind, ...]] = ("zookeeper", "ensemble", "lent")
    """Where the metadata must be for it."""

    def __init__(self, cluster: ClusterUnderTest, chance: random.Random, record: Record) -> None:
        self.cluster = cluster
        self.chance = chance
        self.record = record

    def lasts(self) -> float:
        """For how many seconds this one stays broken."""
        return self.chance.uniform(*self.seconds)

    async def start(self) -> str:
        """Break something; returns what, for the history."""
        raise NotImplementedError

    async def heal(self) -> None:
        """Put it right again. May be called when others have done so."""
        raise NotImplementedError

    def happened(self) -> bool:
        """Whether it has met anything, to be asked when it is healed: a broker that was dead
        already is not killed, and a link over which nothing goes is not cut."""
        return True

    def any_broker(self) -> int:
        """A broker by chance."""
        return self.chance.choice(sorted(self.cluster.brokers))

    def two_brokers(self) -> tuple[int, int]:
        first, second = self.chance.sample(sorted(self.cluster.brokers), 2)
        return first, second
