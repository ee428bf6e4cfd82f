"""Feature levels (KIP-584): what this version can do, and what a cluster has agreed to do.

The names and levels are those of Kafka 4.2, of what is there: clients and tools read from them what
to expect. `ottla.metadata.version` is our own: the formats in which brokers write what other
brokers read. A new cluster begins with the newest level of each.

A cluster of an older version keeps its levels while its brokers are replaced one after the other,
so that old ones can read everything and each can go back; a feature that it has not heard of is
off. When all brokers know a level an administrator finalizes it, and from then on older brokers do
not start in this cluster any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FORMATS = "ottla.metadata.version"
REASSIGNMENT = 1
"""The level of FORMATS from which on partitions can be reassigned (`cluster.layout`)."""
TRANSACTIONS = "transaction.version"

CHANGEABLE = frozenset({TRANSACTIONS, FORMATS})
"""The features whose level an administrator may change: the others' rules are always in force."""

SUPPORTED: Mapping[str, range] = MappingProxyType(
    {
        "metadata.version": range(7, 30),  # 3.3-IV3 to 4.2-IV1
        "group.version": range(2),  # KIP-848
        TRANSACTIONS: range(3),  # KIP-890
        "eligible.leader.replicas.version": range(2),  # KIP-966
        FORMATS: range(2),  # 1: KIP-455
    }
)
"""The levels of each feature."""

Ranges = Mapping[str, tuple[int, int]]
"""The lowest and the highest level of each feature that a broker supports."""


def supported() -> Ranges:
    return {name: (known[0], known[-1]) for name, known in SUPPORTED.items()}


def initial(levels: Mapping[str, int]) -> dict[str, int]:
    """The levels that a cluster with none begins with, the newest ones; nothing for another."""
    return {} if levels else {name: known[-1] for name, known in SUPPORTED.items()}


def allows(levels: Mapping[str, int], name: str, level: int) -> bool:
    """Whether a cluster with these levels has agreed to this one of a feature."""
    return levels.get(name, -1) >= level if levels else True


def newest(levels: Mapping[str, int]) -> dict[str, int]:
    """What a cluster with these levels can still finalize."""
    return {
        name: SUPPORTED[name][-1]
        for name in sorted(CHANGEABLE)
        if levels.get(name, -1) < SUPPORTED[name][-1]
    }


def unreadable(levels: Mapping[str, int]) -> str | None:
    """Why this version cannot be part of a cluster with these levels; None when it can."""
    for name, level in sorted(levels.items()):
        known = SUPPORTED.get(name)
        if known is None:
            return f"the cluster has finalized {name} at {level}, which this version does not know"
        if level not in known:
            return (
                f"the cluster has finalized {name} at {level}, and this version knows "
                f"{known[0]} to {known[-1]}"
            )
    return None


def shut_out(levels: Mapping[str, int], ranges: Ranges) -> str | None:
    """Why a broker that supports these ranges has no part in a cluster with these levels; None when
    it has. What is not CHANGEABLE says nothing: brokers of the first version told no ranges."""
    for name in sorted(CHANGEABLE):
        level = levels.get(name, 0)
        if level and not ranges.get(name, (0, 0))[1] >= level:
            return f"the cluster has finalized {name} at {level}, which it does not support"
    return None


def objection(
    levels: Mapping[str, int],
    name: str,
    wanted: int,
    *,
    downgrade: bool,
    brokers: Mapping[int, Ranges] = MappingProxyType({}),
    reassigning: bool = False,
) -> str | None:
    """Why a feature cannot have this level in a cluster with these, in Kafka's words if possible.

    `downgrade` says that a lower level than the present one is meant, and no mistake. `brokers` are
    those of the cluster, which all have to support the level; `reassigning` tells whether there are
    partitions that only FORMATS at REASSIGNMENT can be written with.
    """
    known, present = SUPPORTED.get(name), levels.get(name, 0)
    reason = None
    if known is None:
        reason = f"Could not find the feature: this broker knows {', '.join(SUPPORTED)}."
    elif wanted == present and name in levels:
        return None
    elif wanted not in known:
        reason = f"Brokers support versions {known[0]}-{known[-1]} of it."
    elif name not in CHANGEABLE:
        reason = f"It is always at {present} here; only {', '.join(sorted(CHANGEABLE))} can change."
    elif wanted < present and not downgrade:
        reason = (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    elif wanted > present and downgrade:
        reason = "Can't downgrade to a newer version."
    elif name == FORMATS and wanted < REASSIGNMENT and reassigning:
        reason = "Partitions are being reassigned: wait for them, or cancel that."
    else:
        reason = _unsupported(brokers, name, wanted)
    return (
        None if reason is None else f"Invalid update version {wanted} for feature {name}. {reason}"
    )


def _unsupported(brokers: Mapping[int, Ranges], name: str, wanted: int) -> str | None:
    for broker, ranges in sorted(brokers.items()):
        if name not in ranges:
            return f"Broker {broker} does not support this feature."
        lowest, highest = ranges[name]
        if not lowest <= wanted <= highest:
            return f"Broker {broker} only supports versions {lowest}-{highest}"
    return None
