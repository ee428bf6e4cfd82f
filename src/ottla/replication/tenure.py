"""Whether the leader of a partition is the only one, and what it may tell: `lease.py` applied.

Whoever tells from memory, without an append, asks here before it does (a coordinator that is asked
for a committed offset), and so does whoever tells of what was written under an earlier leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.replication.lease import Past

if TYPE_CHECKING:
    from ottla.model.topic import PartitionState
    from ottla.replication.cluster_view import ClusterView
    from ottla.replication.partition import Partition


class Tenure:
    """A replica's time as leader, and what it knows of the times before. A partition that is in no
    cluster has had nobody else."""

    __slots__ = ("_cluster", "_partition", "past")

    def __init__(self, partition: Partition, cluster: ClusterView | None) -> None:
        self._partition = partition
        self._cluster = cluster
        self.past = Past(partition.high_watermark, 0.0 if cluster is None else cluster.now_ms())

    def remember(self, state: PartitionState) -> None:
        """Before it goes on under another state: note what a leader needs to know of the past."""
        if self._cluster is None:
            return
        partition, past, now = self._partition, self.past, self._cluster.now_ms()
        succeeded = partition.leading and self.has_succeeded
        if succeeded:
            past.settled(partition.high_watermark)
        elif partition.leading:
            past.moved(partition.high_watermark, now)
        unknown = state.leader_epoch > partition.leader_epoch + 1  # who has led meanwhile
        if unknown or not (succeeded or {*state.replicas}.issuperset(partition.state.replicas)):
            past.taken_away(now)

    @property
    def all_here(self) -> bool:
        """Whether whoever may have led before is among the replicas: see `lease.py`."""
        return self._cluster is None or self.past.all_here(self._cluster.now_ms())

    @property
    def certain(self) -> bool:
        """Whether no other leader can have acknowledged anything yet (`lease.py`): what is told
        from memory, without an append, is the newest."""
        cluster, partition = self._cluster, self._partition
        if cluster is None or not partition.leading:
            return partition.leading
        if partition.in_sync is None:
            return cluster.session_alive
        return partition.in_sync.certain(cluster.now_ms(), session_alive=cluster.session_alive)

    @property
    def unrivalled(self) -> bool:
        """As `certain`; but who has nobody that could be elected in its place has no rival, though
        its session with the store may have ended."""
        cluster, partition = self._cluster, self._partition
        in_sync = partition.in_sync
        if cluster is None or in_sync is None or not partition.leading or not in_sync.successors:
            return partition.leading
        return in_sync.certain(cluster.now_ms(), session_alive=cluster.session_alive)

    @property
    def has_succeeded(self) -> bool:
        """Whether nobody who led before can still be certain to: what is appended in this epoch
        may be told once it is committed."""
        cluster, in_sync = self._cluster, self._partition.in_sync
        if cluster is None or in_sync is None:
            return self._partition.leading and self.all_here
        return in_sync.has_succeeded(cluster.now_ms())

    @property
    def told_below(self) -> int:
        """Where the epoch ends of the last record that has been known for long to be committed
        before this broker led: whoever is certain to lead knows of all that. Who led between the
        two epochs may lack the rest of the first. Nobody has led before the first of all."""
        log, cluster = self._partition.log, self._cluster
        long_known = 0 if cluster is None else self.past.long_known(cluster.now_ms())
        known = min(long_known, log.log_end_offset)
        epoch = (log.epoch_for(known - 1) if known else None) or 0
        if self._partition.leader_epoch > epoch + 1:
            return known
        return max(0, log.epoch_end_offset(epoch)[1])
