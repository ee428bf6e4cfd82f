"""A cluster's metadata from a backup, brought back into a shared store that has lost it.

A backup is older than what it replaces, and the brokers' records are not. So nothing is taken from
it that may have changed since:

    leaders and in-sync sets   nobody leads, and nobody is trusted with everything: the controller
                               waits for all replicas of a partition, and the one that has most of
                               it leads (`controller.election.recover`). A replica with the highest
                               last epoch, and among those the longest log, has every committed
                               record, whoever was in sync.
    counters                   leader epochs, broker epochs and producer ids must not be used
                               twice, and the same backup may be brought back again and again. They
                               go on from the time of the import: an epoch per second since 2020, a
                               broker epoch per millisecond, a million producer ids per second are
                               more than were given out meanwhile.
    brokers                    register anew

What came after the backup is not known here: topics, settings, and replicas that reassignments have
brought. The records of such topics and replicas are kept by their brokers, set aside
(`broker.loaded_logs`): a partition that was moved away from all who held it begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.cluster import layout
from ottla.cluster.store import Entry, covers
from ottla.model.topic import NO_LEADER, PartitionState

EPOCHS_SINCE_MS = 1_577_836_800_000
"""The year 2020: a leader epoch has 31 bits."""
PRODUCER_IDS_PER_MS = 1_000

_PASSING = (
    layout.CONTROLLER,
    layout.REGISTRATIONS,
    layout.BROKER_STATES,
    layout.HAND_OVER,
    layout.HAND_OVER_HOLDER,
    layout.HANDED_OVER,
)


def lasting(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """What is worth keeping of a store: everything but who is there now."""
    return {
        key: entry
        for key, entry in entries.items()
        if not any(covers(prefix, key) for prefix in _PASSING)
    }


def renewed(entries: Mapping[str, Entry], now_ms: int) -> dict[str, Entry]:
    """What to write into an empty store for a backup that holds `entries`."""
    epoch = (now_ms - EPOCHS_SINCE_MS) // 1000
    result = lasting(entries)
    for key, entry in result.items():
        if layout.parse_partitions_key(key) is not None:
            states = layout.decode_partitions(key, entry.value)
            value = layout.encode_partitions([_leaderless(state, epoch) for state in states])
            result[key] = Entry(value, 0)
    for key, floor in (
        (layout.BROKER_EPOCH, now_ms),
        (layout.PRODUCER_IDS, now_ms * PRODUCER_IDS_PER_MS),
    ):
        before = layout.decode_counter(key, result[key].value) if key in result else 0
        result[key] = Entry(layout.encode_counter(max(before, floor)), 0)
    return result


def _leaderless(state: PartitionState, epoch: int) -> PartitionState:
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=max(state.leader_epoch + 1, epoch),
        partition_epoch=state.partition_epoch + 1,
        isr=(),
        elr=(),
        last_known_elr=(),
    )
