"""A broker with a mistake in it: `python planted_broker.py MISTAKE server start …`.

Mistakes are planted here, in the process of a test; the product has no switch for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any


def acknowledge_before_replication() -> None:
    """Nobody waits for followers before an answer."""
    from ottla.replication.partition import Partition
    from ottla.runtime.waiters import Deferred

    def wait_for_nobody(*_arguments: object) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        done.resolve(None)
        return done

    Partition.wait_committed = wait_for_nobody


def count_proposed_only() -> None:
    """Who is to leave the in-sync replicas does not count before the store has agreed."""
    from ottla.replication.isr import InSyncReplicas

    high_watermark = InSyncReplicas.high_watermark

    def by_proposed(self: InSyncReplicas, *arguments: Any) -> int:
        confirmed, proposed = self.state, self._proposed
        if proposed is None:
            return high_watermark(self, *arguments)
        self.state = replace(confirmed, isr=proposed)
        try:
            return high_watermark(self, *arguments)
        finally:
            self.state = confirmed

    InSyncReplicas.high_watermark = by_proposed


def skip_epoch_truncation() -> None:
    """A follower does not say how its log ends, and goes on from there under any leader."""
    from ottla.replication import follower

    wanted = follower._wanted

    def without_epoch(partition: Any) -> follower.Wanted:
        return wanted(partition)._replace(last_epoch=-1)

    follower._wanted = without_epoch


def lead_from_outside() -> None:
    """The preferred replica leads as soon as it is live, whether it is in sync or not."""
    from ottla.controller import machine
    from ottla.model.topic import PartitionState

    def prefer(state: PartitionState, live: Collection[int]) -> PartitionState:
        preferred = state.replicas[0]
        if preferred == state.leader or preferred not in live:
            return state
        return replace(
            state,
            leader=preferred,
            leader_epoch=state.leader_epoch + 1,
            partition_epoch=state.partition_epoch + 1,
            isr=tuple(sorted({*state.isr, preferred})),
        )

    machine.prefer = prefer


def keep_wiped_replica() -> None:
    """A broker whose disk was empty is trusted with what it had."""
    from ottla.cluster import membership

    membership._may_have_lost = lambda _before, _about: False


def give_producer_ids_twice() -> None:
    """Every broker begins with the same id."""
    from ottla.cluster.producer_ids import ProducerIds

    given = iter(range(1_000, 1_000_000))

    async def next_id(_self: ProducerIds) -> int:
        return next(given)

    ProducerIds.next = next_id


def answer_before_commit() -> None:
    """A coordinator does not wait for the replicas of what it has written."""
    from ottla.coordinator.replies import settle
    from ottla.coordinator.uncommitted import UncommittedAnswers

    def answer_now(_self: object, _offset: int, deferred: Any, value: Any) -> None:
        settle(deferred, value)

    UncommittedAnswers.hold = answer_now


def mark_before_commit() -> None:
    """A coordinator sends the markers of a decision before its log is replicated."""
    from ottla.coordinator.host import Slot

    def pass_on(self: Slot, effect: Any, _command: object) -> None:
        self._host.on_effect(self, effect)

    Slot._await_effect = pass_on


MISTAKES: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        acknowledge_before_replication,
        count_proposed_only,
        skip_epoch_truncation,
        lead_from_outside,
        keep_wiped_replica,
        give_producer_ids_twice,
        answer_before_commit,
        mark_before_commit,
    )
}

if __name__ == "__main__":
    MISTAKES[sys.argv.pop(1)]()
    from ottla.cli.main import main

    main()
