"""Server-side assignors (KIP-848): who reads what, as a pure function of the members.

`uniform` evens out the number of partitions per member and moves as few as it can; `range` gives
each member consecutive partitions of each topic, the same ones of topics with equally many.
Both are asked through `ASSIGNORS`, by the name that clients and `group.consumer.assignors` use.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.coordinator.group.assignors.range import RangeAssignor
from ottla.coordinator.group.assignors.spec import (
    NO_PARTITIONS,
    AssignableTopic,
    Assignor,
    Partitions,
    Subscriber,
)
from ottla.coordinator.group.assignors.uniform import UniformAssignor

__all__ = [
    "ASSIGNORS",
    "NO_PARTITIONS",
    "AssignableTopic",
    "Assignor",
    "Partitions",
    "Subscriber",
]

ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor for assignor in (UniformAssignor(), RangeAssignor())
}
