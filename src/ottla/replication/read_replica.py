"""Which replica a consumer should read from (KIP-392). No I/O.

With `replica.selector.class` set to Kafka's RackAwareReplicaSelector the leader sends a consumer
that names its rack to an in-sync replica in that rack, and serves it itself where it is in that
rack too, or nobody is.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.model.broker import Broker
from ottla.replication.isr import InSyncReplicas

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def nearest_replica(
    in_sync: InSyncReplicas,
    offset: int,
    rack: str,
    brokers: Mapping[int, Broker],
    listener: str,
) -> int | None:
    """The follower to read from at `offset`; None for the leader.

    Only those in sync count, as others may stay behind for good, and only those that have the
    offset. Of several the one that has most.
    """
    state = in_sync.state
    leader = brokers.get(state.leader)
    if leader is not None and leader.rack == rack:
        return None
    near = [
        (follower.end, follower.caught_up_ms, -number)
        for number, follower in in_sync.followers.items()
        if number in state.isr
        and (broker := brokers.get(number)) is not None
        and broker.rack == rack
        and listener in broker.endpoints
        and 0 <= follower.start <= offset <= follower.end
    ]
    return -max(near)[2] if near else None
