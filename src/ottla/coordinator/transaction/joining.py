"""Before the first batch of a transaction: its coordinator is asked, and its answer is still true.

A partition gives out a guard, then the coordinator is asked, then the batch is appended with the
guard. The markers of the transaction before may be written in between. That makes the guard void,
and the answer may be about what has ended; so another guard is taken, and it is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ottla.coordinator.transaction.state import Identity
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.producers import Guard

ATTEMPTS = 5
"""So often it is asked, if transactions end meanwhile every time."""

Ask = Callable[[Identity, frozenset[TopicPartition]], Awaitable[dict[TopicPartition, ErrorCode]]]


async def join(
    ask: Ask, producer: Identity, sequences: Mapping[Partition, int], *, raises_epoch: bool = False
) -> dict[Partition, Guard | ErrorCode | None]:
    """What batches with these first sequence numbers are appended with: a guard, nothing where the
    transaction has begun meanwhile, or why they may not be.

    `raises_epoch` is transaction version 2, whose producers begin every transaction with 0."""
    outcome: dict[Partition, Guard | ErrorCode | None] = {}
    left = dict(sequences)
    for _ in range(ATTEMPTS):
        guards: dict[Partition, Guard] = {}
        for partition, sequence in left.items():
            guard = partition.log.begin_verification(*producer, sequence)
            if guard is None:
                outcome[partition] = None
            else:
                guard.raises_epoch = raises_epoch
                guards[partition] = guard
        if not guards:
            break
        found = await ask(producer, frozenset(each.id for each in guards))
        for partition, guard in guards.items():
            code = found[partition.id]
            now = partition.log.begin_verification(*producer, sequences[partition])
            if code is not ErrorCode.NONE:
                outcome[partition] = code
            elif now is None or now is guard:
                outcome[partition] = now
        left = {each: number for each, number in left.items() if each not in outcome}
    return {**dict.fromkeys(left, ErrorCode.CONCURRENT_TRANSACTIONS), **outcome}
