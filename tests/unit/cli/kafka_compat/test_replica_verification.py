"""What kafka-replica-verification makes of the answers of replicas."""

from __future__ import annotations

import pytest

from ottla.cli.kafka_compat.replica_verification import Mismatch, compare
from ottla.client.replica_reads import Answer
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader

TP = TopicPartition("t", 0)


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
