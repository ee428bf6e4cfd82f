"""What is there of the partitions that a fetch asks for, as it is found in one pass over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ottla.dispatch.context import Services
from ottla.dispatch.leaders import LeaderHints
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.fetch.plan import Item, Plan
from ottla.model.ids import NO_LEADER_EPOCH
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.replication.fetch_sessions import Wanted
from ottla.replication.partition import Partition
from ottla.replication.read_replica import nearest_replica
from ottla.replication.reader import Reader
from ottla.replication.rounds import Key
from ottla.replication.traffic import TopicTraffic
from ottla.runtime.files import ColdRead

# The client has to go to another broker, or to this one under another epoch.
LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


@dataclass(slots=True)
class Reading:
    """What one pass over the partitions found."""

    parts: list[tuple[Key, PartitionData]]
    size: int
    at_once: bool  # there is an error or a divergence: do not wait
    cold: list[Callable[[], None]]  # to be run in a thread before one can read on
    sent: list[tuple[TopicTraffic, int]]  # bytes of topics, to be counted once they are answered


def read(plan: Plan, services: Services, *, cached_only: bool, first: bool = False) -> Reading:
    """One pass over all partitions of a plan."""
    reading = Reading([], 0, False, [], [])
    read_some(plan, plan.items.items(), reading, services, cached_only=cached_only, first=first)
    return reading


def read_some(
    plan: Plan,
    items: Iterable[Item],
    reading: Reading,
    services: Services,
    *,
    cached_only: bool,
    first: bool,
) -> None:
    """Go on reading with these partitions; `first` is the first look of a request at them."""
    reader = plan.reader
    first = first and not plan.overtaken
    left = max(0, plan.max_bytes - reading.size)
    min_one = not reading.size
    for key, wanted in items:
        try:
            partition = reader.find(key, services.replicas)
            nearer = _nearer(partition, wanted, reader, services) if reader.rack else None
            whole = not reader.is_held_back(partition, services.replication)
            part = nearer or _read_partition(
                key[1],
                partition,
                wanted,
                reader,
                left if whole else 0,
                min_one and whole,
                cached_only,
                first,
            )
        except ColdRead:
            upper = reader.upper(partition)
            offset = min(wanted.offset, upper)
            reading.cold.append(partition.log.warm_up(offset, upper, aborted=reader.committed))
            continue
        except KafkaError as error:
            reading.at_once = True
            code = reader.refusal(error, key, wanted.leader_epoch, services.replicas)
            part = PartitionData(
                partition_index=key[1],
                error_code=code,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                records=b"",
            )
            if code in LED_ELSEWHERE and plan.listener is not None:
                if plan.hints is None:
                    plan.hints = LeaderHints(
                        services, plan.listener, LeaderIdAndEpoch, NodeEndpoint
                    )
                part.current_leader = plan.hints.find(*key)
        else:
            if part.diverging_epoch is not None or nearer is not None:
                reading.at_once = True
            size = size_of(part)
            if size:
                min_one = False
                left = max(0, left - size)
                reading.size += size
                reading.sent.append((partition.traffic, size))
            if plan.rounds is not None:
                plan.rounds.looked_at(key, partition, settled=_settled(partition, wanted, part))
        reading.parts.append((key, part))


def _nearer(
    partition: Partition, wanted: Wanted, reader: Reader, services: Services
) -> PartitionData | None:
    """The answer that sends a consumer to a replica in its rack, if there is one."""
    if partition.in_sync is None or reader.follows:
        return None
    partition.check_epoch(wanted.leader_epoch)
    replica = nearest_replica(
        partition.in_sync, wanted.offset, reader.rack, services.image.brokers, reader.listener
    )
    if replica is None:
        return None
    return PartitionData(
        partition_index=partition.id.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset(),
        log_start_offset=partition.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=b"",
    )


def _settled(partition: Partition, wanted: Wanted, part: PartitionData) -> bool:
    """Whether a follower has everything of a partition, and was told everything."""
    return (
        wanted.offset == partition.log.log_end_offset
        and wanted.high_watermark == part.high_watermark
        and wanted.log_start_offset == part.log_start_offset
        and part.diverging_epoch is None
    )


def size_of(part: PartitionData) -> int:
    """How many bytes of records it has."""
    return 0 if part.records is None else len(part.records)


def _read_partition(
    index: int,
    partition: Partition,
    wanted: Wanted,
    reader: Reader,
    left: int,
    min_one: bool,
    cached_only: bool,
    first: bool,
) -> PartitionData:
    if wanted.leader_epoch != NO_LEADER_EPOCH:
        partition.check_epoch(wanted.leader_epoch)
    high_watermark = partition.high_watermark
    stable = partition.last_stable_offset()
    part = PartitionData(
        partition_index=index,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=None,
        records=b"",
    )
    offset = wanted.offset
    if wanted.last_fetched_epoch >= 0:
        epoch, end = partition.epoch_end_offset(wanted.last_fetched_epoch)
        if end < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end < offset:
            part.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return part
    if first and reader.follows:
        partition.fetched_by(
            reader.broker, reader.epoch, offset, wanted.log_start, reader.asked_after_ms
        )
        part.high_watermark = partition.high_watermark
    upper = reader.upper(partition)
    result = partition.read(
        offset, min(wanted.max_bytes, left), upper, min_one, cached_only=cached_only
    )
    if result.region is not None:
        part.records = result.region
    if reader.committed:
        log = partition.log
        end = log.end_of(result, cached_only=cached_only)
        part.aborted_transactions = [
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
            for txn in log.aborted_transactions(offset, end, cached_only=cached_only)
        ]
    return part
