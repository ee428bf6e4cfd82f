"""Where the replicas of new partitions go.

Kafka's striped placement. Racks take turns, and within a rack its brokers do, so that the replicas
of a partition lie in as many racks as possible, leaders are spread over all brokers, and so are the
followers of each broker's partitions. With racks A, B, C of three brokers each, and without chance:

    partition 0:  A0 B0 C0
    partition 1:  B1 C1 A1
    partition 2:  C2 A2 B2

Brokers without a rack are one rack of their own: where no racks are known this is round robin.
After as many partitions as there are brokers everything is shuffled, or else few sets of brokers
would share all partitions of a large topic, and the loss of one set would stop all of them.

Only brokers that are registered take part. Kafka can also place followers on registered brokers
that are fenced; here a fenced broker is one whose registration is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker


class Random(Protocol):
    """What of `random.Random` placement needs."""

    def randrange(self, start: int, /) -> int: ...

    def shuffle(self, x: list[Any], /) -> None: ...


def place(
    brokers: Iterable[Broker], partitions: int, replication_factor: int, rng: Random
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first.

    INVALID_REPLICATION_FACTOR when there are not enough brokers.
    """
    stripes = _Stripes(brokers, rng)
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Invalid replication factor {replication_factor}: "
            "the replication factor must be positive.",
        )
    if stripes.brokers == 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
    if replication_factor > stripes.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {stripes.brokers} broker(s) are registered.",
        )
    return [stripes.next(replication_factor) for _ in range(partitions)]


class _Rack:
    """The brokers of one rack, taken in turn; each partition begins one further."""

    __slots__ = ("brokers", "partition", "start", "taken")

    def __init__(self, brokers: list[int], rng: Random) -> None:
        self.brokers = sorted(brokers)
        self.start = rng.randrange(len(brokers))
        self.partition = 0
        self.taken = 0

    def take(self, partition: int) -> int | None:
        """The next broker for this partition; None when it has all of them."""
        if partition != self.partition:
            self.partition = partition
            self.start += 1
            self.taken = 0
        if self.taken == len(self.brokers):
            return None
        broker = self.brokers[(self.start + self.taken) % len(self.brokers)]
        self.taken += 1
        return broker


class _Stripes:
    """All racks, and how far the rotation has come."""

    __slots__ = ("_partition", "_racks", "_rng", "_start", "_until_shuffle", "brokers")

    def __init__(self, brokers: Iterable[Broker], rng: Random) -> None:
        racks: dict[str, list[int]] = {}
        for broker in brokers:
            racks.setdefault(broker.rack or "", []).append(broker.id)
        self._rng = rng
        self._racks = [_Rack(racks[name], rng) for name in sorted(racks)]
        self._start = rng.randrange(len(self._racks)) if racks else 0
        self._partition = 0
        self.brokers = sum(map(len, racks.values()))
        self._until_shuffle = self.brokers

    def next(self, replication_factor: int) -> tuple[int, ...]:
        if self._until_shuffle == 0 and self.brokers > 1:
            self._rng.shuffle(self._racks)
            for rack in self._racks:
                self._rng.shuffle(rack.brokers)
            self._until_shuffle = self.brokers
        replicas: list[int] = []
        turn = self._start
        while len(replicas) < replication_factor:
            broker = self._racks[turn % len(self._racks)].take(self._partition)
            if broker is not None:
                replicas.append(broker)
            turn += 1
        self._start += 1
        self._partition += 1
        self._until_shuffle -= 1
        return tuple(replicas)
