"""What a transaction is to its coordinator, and what can be asked of it.

    Empty → Ongoing → PrepareCommit → CompleteCommit → Ongoing → …
                    ↘ PrepareAbort  → CompleteAbort  ↗

From the moment a Prepare state is committed to the coordinator's log the outcome is decided: the
markers are written until every partition has its own, by this coordinator or by the next.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

TRANSACTIONS_TOPIC = "__transaction_state"
NO_TIME = -1
LAST_EPOCH = 2**15 - 2
"""An epoch that a producer may have; the one after it is left for fencing the producer."""
RAISES_EPOCH = 2
"""The transaction version (KIP-890) from which every end raises the producer's epoch."""


class State(enum.IntEnum):
    """The states that are written, by Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def shown(self) -> str:
        """As Kafka's tools name it: `PrepareCommit`."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Decided, and not yet known to all partitions."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is open."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id, its producer, and its last transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """What the producer is after this end, where its epochs are used up."""
    client_version: int = 0
    """The transaction version that its producer speaks."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer can have no further epoch."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def raises_epoch(self) -> bool:
        return self.client_version >= RAISES_EPOCH

    def leads_to(self, producer: Identity) -> bool:
        """Whether this end gives the producer that new id: it was told so when it was decided."""
        next_id = self.next_producer_id
        return self.state.is_prepared and next_id == producer.producer_id != NO_PRODUCER_ID


@dataclass(slots=True)
class Counts:
    """What has happened to the transactions of this broker since it was started."""

    timed_out: int = 0


class Identity(NamedTuple):
    """Who a producer is."""

    producer_id: int
    producer_epoch: int


class NeedsProducerId(NamedTuple):
    """A reply: the command is to be given again, with a new producer id."""


NEEDS_PRODUCER_ID = NeedsProducerId()


# --- commands -------------------------------------------------------------------------------------


class InitProducer(NamedTuple):
    """A producer begins: whoever had the transactional id before is fenced."""

    transactional_id: str
    timeout_ms: int
    expected: Identity | None = None
    """Who the producer was, if it goes on after an error."""
    new_producer_id: int | None = None


class AddPartitions(NamedTuple):
    """Partitions become part of the transaction, which begins with the first."""

    transactional_id: str
    producer: Identity
    partitions: frozenset[TopicPartition]
    client_version: int = 0


class VerifyPartitions(NamedTuple):
    """Whether partitions are part of the transaction."""

    transactional_id: str
    producer: Identity
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """Commit or abort, by the producer."""

    transactional_id: str
    producer: Identity
    commit: bool
    client_version: int = 0
    new_producer_id: int | None = None


class Complete(NamedTuple):
    """All partitions have the marker of a decision."""

    transactional_id: str
    producer: Identity
    decided_ms: int


class Resume(NamedTuple):
    """The coordinator was loaded with a transaction that is decided: go on with its markers."""

    transactional_id: str


class DescribeTransaction(NamedTuple):
    """The transaction as it is now."""

    transactional_id: str


class ListTransactions(NamedTuple):
    """All transactions of a shard."""


class Timer(enum.Enum):
    """What is looked at now and then."""

    ABORT_TIMED_OUT = "abort-timed-out"
    EXPIRE_IDS = "expire-ids"


# --- effects --------------------------------------------------------------------------------------


class WriteMarkers(NamedTuple):
    """To be done once the decision is committed: tell every partition, then give `Complete`."""

    transactional_id: str
    producer: Identity
    commit: bool
    partitions: frozenset[TopicPartition]
    version: int
    decided_ms: int
    """When it was decided: before transaction version 2 several transactions have one epoch."""
