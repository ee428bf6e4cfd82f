"""What kafka-replica-verification makes of the answers of replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import pytest

from ottla.cli.kafka_compat import replica_verification
from ottla.cli.kafka_compat.replica_verification import Mismatch, Verification, compare
from ottla.client import replica_reads
from ottla.client.descriptions import OffsetInfo, PartitionDescription, TopicDescription
from ottla.client.direct import DirectAdmin
from ottla.client.replica_reads import Answer, read_replicas
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.protocol.compiler import codec
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.records.batch import BatchHeader

TP = TopicPartition("t", 0)
MEGABYTE = 1 << 20


def batch(first: int, last: int, crc: int = 1) -> BatchHeader:
    return BatchHeader(first, 0, 0, 2, crc, 0, last - first, 0, 0, -1, -1, -1, 1)


def untold(text: str) -> None:
    raise AssertionError(text)


def test_what_all_have_is_passed() -> None:
    two = batch(0, 4), batch(5, 5)
    assert compare(TP, 0, {1: Answer(6, two), 2: Answer(6, two)}, untold) == 6
    assert compare(TP, 0, {1: Answer(6, two), 2: Answer(6, two[:1])}, untold) == 5
    assert compare(TP, 3, {1: Answer(6, two), 2: Answer(6, ())}, untold) == 3


def test_what_is_above_a_high_watermark_is_not_compared() -> None:
    here = Answer(9, (batch(0, 4), batch(5, 8)))
    behind = Answer(5, (batch(0, 4), batch(5, 6, crc=7)))
    assert compare(TP, 0, {1: here, 2: behind}, untold) == 5


def test_other_checksums_are_told() -> None:
    told: list[str] = []
    answers = {1: Answer(9, (batch(0, 4),)), 3: Answer(9, (batch(0, 4, crc=8),))}
    assert compare(TP, 0, answers, told.append) == 5
    assert told == [
        "partition t-0 has unmatched checksum at offset 4; replica 1's checksum 1; "
        "replica 3's checksum 8"
    ]


def test_batches_that_end_elsewhere_end_it() -> None:
    answers = {1: Answer(9, (batch(0, 4),)), 3: Answer(9, (batch(0, 5),))}
    with pytest.raises(Mismatch, match="replica 1's offset 4 doesn't match replica 3's offset 5"):
        compare(TP, 0, answers, untold)


class Brokers:
    """All that the tool asks of a cluster; fetches are answered with nothing."""

    def __init__(self, refusal: KafkaError | None = None) -> None:
        self.router = self
        self.refusal = refusal
        self.asked: list[FetchRequest] = []

    def node(self, number: int) -> Brokers:
        return self

    def ask(self, request: FetchRequest) -> FetchResponse:
        if self.refusal is not None:
            raise self.refusal
        codec(FetchRequest, 12).encode(request, [])
        self.asked.append(request)
        return FetchResponse(responses=[])

    def list_offsets(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetInfo]:
        return {tp: OffsetInfo(0, -1, None) for tp in wanted}


def test_a_request_has_room_for_very_many_partitions() -> None:
    brokers = Brokers()
    wanted = {TopicPartition("t", index): 0 for index in range(5_000)}
    ids = {"t": TopicId(bytes(16))}
    for size, most in ((MEGABYTE, 50 * MEGABYTE), (1, 5_000), (60 * MEGABYTE, 60 * MEGABYTE)):
        admin = cast("DirectAdmin", brokers)
        assert not list(read_replicas(admin, 1, wanted, ids, most_bytes=size, max_wait_ms=10))
        request = brokers.asked.pop()
        assert sum(len(topic.partitions) for topic in request.topics) == 5_000
        assert request.max_bytes == most


def made_of(partitions: int, replicas: tuple[int, ...], brokers: Brokers) -> Verification:
    parts = tuple(PartitionDescription(each, 1, replicas, replicas) for each in range(partitions))
    topic = TopicDescription("t", "AAAAAAAAAAAAAAAAAAAAAQ", False, parts)
    admin = cast("DirectAdmin", brokers)
    return Verification(admin, [topic], start=-2, fetch_size=MEGABYTE, max_wait_ms=10)


def test_who_waits_for_a_dead_replica_does_not_keep_the_others_from_being_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer has room for two partitions, and three wait for broker 3."""
    verification = made_of(6, (1, 2), Brokers())
    for index in range(3):
        verification._replicas[TopicPartition("t", index)] = (1, 2, 3)

    def read(
        admin: object, broker: int, offsets: Mapping[TopicPartition, int], *rest: Any, **how: Any
    ) -> Iterator[tuple[TopicPartition, Answer]]:
        if broker == 3:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        room = 2
        for tp, offset in offsets.items():
            there = offset < 5 and room > 0
            room -= there
            yield tp, Answer(5, (batch(0, 4),) if there else ())

    monkeypatch.setattr(replica_reads, "read_replicas", read)
    monkeypatch.setattr(replica_verification, "PAUSE", 0)
    for _ in range(4):
        verification.round(untold)
    assert [verification.offsets[TopicPartition("t", each)] for each in range(6)] == [
        *(0, 0, 0),
        *(5, 5, 5),
    ]
    assert verification.report().startswith("max lag is 5 for partition t-0")


def test_what_can_never_be_asked_ends_it() -> None:
    """It went on for ever, and compared nothing."""
    refusal = KafkaError(ErrorCode.INVALID_REQUEST, "this does not fit into a request")
    with pytest.raises(KafkaError, match="does not fit"):
        made_of(1, (1, 2), Brokers(refusal)).round(untold)
