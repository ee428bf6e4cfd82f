"""Feature levels (KIP-584): what this version can do, and what a cluster has agreed to do.

The names and levels are those of Kafka 4.2, of what is there: clients and tools read from them what
to expect. The controller finalizes the newest level of each in a cluster that has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SUPPORTED: Mapping[str, range] = MappingProxyType(
    {
        "metadata.version": range(7, 30),  # 3.3-IV3 to 4.2-IV1
        "group.version": range(2),  # KIP-848
        "transaction.version": range(3),  # KIP-890
        "eligible.leader.replicas.version": range(2),  # KIP-966
    }
)
"""The levels of each feature."""


def missing(levels: Mapping[str, int]) -> dict[str, int]:
    """The features that a cluster with these levels has not heard of, at their newest level."""
    return {name: known[-1] for name, known in SUPPORTED.items() if name not in levels}
