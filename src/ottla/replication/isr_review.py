"""When the leader of a partition asks for another in-sync set.

Who is in sync is judged by `isr.py`, and a change is carried to the store by `isr_updates.py`. Here
is what lies between: the moments at which the judgement is asked for, and what is proposed then.
A follower that joins when its fetch shows that it may is the one proposal that is made elsewhere
(`Partition.fetched_by`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.replication.cluster_view import ClusterView
    from ottla.replication.partition import Partition


class IsrReview:
    """That of one partition; it asks for nothing unless it leads and has followers."""

    __slots__ = ("_cluster", "_partition")

    def __init__(self, partition: Partition, cluster: ClusterView | None) -> None:
        self._partition = partition
        self._cluster = cluster

    def waits_for(self, broker: int) -> bool:
        """Whether what is appended is not committed without this follower: it is in sync, or about
        to be."""
        partition, cluster = self._partition, self._cluster
        in_sync = partition.in_sync
        if in_sync is None or cluster is None:
            return broker in partition.state.isr
        return in_sync.waits_for(
            broker, partition.high_watermark, cluster.now_ms(), cluster.max_lag_ms, cluster.may_join
        )

    def shrink(self) -> None:
        """Ask for an in-sync set without those who lag behind, if there are any; and do not ask
        for one with them any more, if that is not done yet."""
        partition, cluster = self._partition, self._cluster
        in_sync = partition.in_sync
        if in_sync is None or cluster is None:
            return
        removed = in_sync.to_remove(
            partition.high_watermark,
            partition.log.log_end_offset,
            cluster.now_ms(),
            cluster.max_lag_ms,
        )
        if removed:
            lost = in_sync.lacking(partition.high_watermark)
            cluster.propose_isr(partition, in_sync.without(removed), lost)

    def review(self) -> None:
        """A change is in flight no more: ask for what had to wait for that."""
        self.shrink()
        self.expand()

    def leave_out_silent(self) -> None:
        """Ask for an in-sync set without those who do not fetch any more, if there are any, though
        nothing was appended that they lack: their word is needed, and does not come."""
        partition, cluster = self._partition, self._cluster
        in_sync = partition.in_sync
        if in_sync is None or cluster is None:
            return
        removed = in_sync.silent(cluster.now_ms(), cluster.max_lag_ms)
        if removed:
            lost = in_sync.lacking(partition.high_watermark)
            cluster.propose_isr(partition, in_sync.without(removed), lost)

    def expand(self) -> None:
        """Ask for an in-sync set with those who have caught up while another change was in flight,
        or for whom it was asked in vain, if there are any. They may not fetch for a while (a
        throttle), and the high watermark waits for them."""
        partition, cluster = self._partition, self._cluster
        in_sync = partition.in_sync
        if in_sync is None or cluster is None:
            return
        added = in_sync.to_add(
            partition.high_watermark, cluster.now_ms(), cluster.max_lag_ms, cluster.may_join
        )
        if added:
            cluster.propose_isr(partition, in_sync.with_(added))

    def review_eligible(self) -> None:
        """Ask for fewer eligible replicas: none where enough are in sync, by a minimum that may
        have become smaller, and nobody who lacks what it once had."""
        partition, cluster = self._partition, self._cluster
        in_sync = partition.in_sync
        if in_sync is None or cluster is None or not in_sync.state.elr or in_sync.in_flight:
            return
        lost = in_sync.lacking(partition.high_watermark)
        if in_sync.enough or lost:
            cluster.propose_isr(partition, in_sync.without(lost), lost)
