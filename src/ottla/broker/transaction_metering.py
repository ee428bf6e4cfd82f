"""What is measured of transactions: those that are coordinated here, and those that partitions wait
for.

A transaction that has been open in a partition for longer than any may be, that is for
`transaction.max.timeout.ms` and five minutes more, is called late, as in Kafka: its coordinator
should have ended it by then, so it probably hangs (`ottla txn find-hanging`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.coordinator.transaction.state import State, Transaction
from ottla.dispatch.context import Services
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER
from ottla.replication.partition import Partition

TURN = 256
LATE_MS = 300_000


class TransactionNumbers:
    """What one look at all transactions and partitions came to."""

    def __init__(self) -> None:
        self.by_state = dict.fromkeys(State, 0)
        self.markers_pending = 0
        self.markers_without_leader = 0
        self.late_partitions = 0

    def count(self, services: Services) -> Iterator[None]:
        """Look at everything, with turns for others in between."""
        image = services.image
        for number, found in enumerate(services.transactions.held()):
            self.by_state[found.state] += 1
            if found.state.is_prepared:
                self.markers_pending += len(found.partitions)
                self.markers_without_leader += _without_leader(found, image)
            if number % TURN == TURN - 1:
                yield
        now_ms = services.clock.now_ms()
        longest_ms = services.config.transaction_max_timeout_ms + LATE_MS
        for number, partition in enumerate(list(services.replicas.led())):
            self.late_partitions += is_late(partition, now_ms - longest_ms)
            if number % TURN == TURN - 1:
                yield


def _without_leader(found: Transaction, image: ClusterImage) -> int:
    count = 0
    for tp in found.partitions:
        topic = image.topics.get(tp.topic)
        if topic is not None and tp.partition < len(topic.partitions):
            count += topic.partitions[tp.partition].leader == NO_LEADER
    return count


def is_late(partition: Partition, before_ms: int) -> bool:
    """Whether the oldest open transaction was last written to before a moment."""
    stable = partition.last_stable_offset()
    if stable >= partition.high_watermark:
        return False  # nothing is open: the producers need not be looked at
    return any(
        each.txn_start_offset == stable and each.last_timestamp < before_ms
        for each in partition.log.producers()
    )
