"""Feature levels (KIP-584): what this version can do, and what a cluster has agreed to do.

The names and levels are those of Kafka 4.2, of what is there: clients and tools read from them what
to expect. The controller finalizes the newest level of each in a cluster that has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CHANGEABLE = frozenset({"transaction.version"})
"""The features whose level an administrator may change: the others' rules are always in force."""

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


def objection(levels: Mapping[str, int], name: str, wanted: int, *, downgrade: bool) -> str | None:
    """Why a feature cannot have this level in a cluster with these, in Kafka's words if possible.

    `downgrade` says that a lower level than the present one is meant, and no mistake.
    """
    known, present = SUPPORTED.get(name), levels.get(name, 0)
    reason = None
    if known is None:
        reason = f"Could not find the feature: this broker knows {', '.join(SUPPORTED)}."
    elif wanted == present:
        return None
    elif wanted not in known:
        reason = f"Brokers support versions {known[0]}-{known[-1]} of it."
    elif name not in CHANGEABLE:
        reason = f"It is always at {present} here; only {', '.join(CHANGEABLE)} can change."
    elif wanted < present and not downgrade:
        reason = (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    elif wanted > present and downgrade:
        reason = "Can't downgrade to a newer version."
    return (
        None if reason is None else f"Invalid update version {wanted} for feature {name}. {reason}"
    )
