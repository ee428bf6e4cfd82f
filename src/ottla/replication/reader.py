"""Reader: who sends a Fetch, what it may read of a partition, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH
from ottla.replication.lease import LONG_AGO
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.replication.rounds import Key, Rounds
from ottla.replication.service import Replication
from ottla.runtime.waiters import Signal


class Seen(NamedTuple):
    """What the last look at a partition found, and up to where it was read."""

    high_watermark: int
    last_stable_offset: int
    offset: int


class Reader(NamedTuple):
    """Who reads: a consumer, or a follower under the epoch of its registration."""

    broker: int
    epoch: int
    committed: bool
    any_replica: bool
    # Of a consumer that would rather read from a replica near to it, where that is wanted.
    rack: str = ""
    listener: str = ""
    # Of a follower: it has sent this fetch after that moment, for it had got an answer then; and
    # whether that is too long ago for it to be kept waiting.
    asked_after_ms: float = LONG_AGO
    hurried: bool = False

    @property
    def follows(self) -> bool:
        return self.broker >= 0

    def rounds(self, keys: Iterable[Key], now_ms: float) -> Rounds | None:
        """What a new session of a follower needs."""
        if not self.follows:
            return None
        return Rounds(self.broker, self.epoch, keys, now_ms, self.asked_after_ms)

    def find(self, key: Key, replicas: Replicas) -> Partition:
        """The partition, led here; or, for who can do with that, followed here."""
        name, index = key
        try:
            if isinstance(name, str):
                return replicas.by_name(name, index)
            return replicas.by_id(name, index)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or not self.any_replica:
                raise
        if isinstance(name, str):
            return replicas.replica_by_name(name, index)
        return replicas.replica_by_id(name, index)

    def refusal(self, error: KafkaError, key: Key, epoch: int, replicas: Replicas) -> ErrorCode:
        """What to answer: a follower too can tell that the client knows another leader's epoch."""
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and epoch != NO_LEADER_EPOCH:
            name, index = key
            try:
                if isinstance(name, str):
                    replicas.replica_by_name(name, index).check_epoch(epoch)
                else:
                    replicas.replica_by_id(name, index).check_epoch(epoch)
            except KafkaError as judged:
                return judged.code
        return error.code

    def upper(self, partition: Partition) -> int:
        """Up to where it may read."""
        if self.follows:
            return partition.log.log_end_offset
        return partition.last_stable_offset() if self.committed else partition.high_watermark

    def is_held_back(self, partition: Partition, replication: Replication) -> bool:
        """Whether it gets no records for now: those of a replica that catches up are limited."""
        return self.follows and replication.holds_back(partition, self.broker)

    def signal(self, partition: Partition) -> Signal:
        """What tells it of more."""
        if self.follows:
            return partition.appended
        return partition.stable_signal() if self.committed else partition.readable

    def has_more(self, partition: Partition, seen: Seen) -> bool:
        """Whether something has happened since the partition was looked at."""
        if self.follows:
            return (
                partition.high_watermark != seen.high_watermark
                or partition.log.log_end_offset > seen.offset
            )
        if self.committed:
            return partition.last_stable_offset() != seen.last_stable_offset
        return partition.high_watermark != seen.high_watermark
