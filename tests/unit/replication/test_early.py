"""What came before its partition was here."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader, read_header
from ottla.records.builder import build_batch
from ottla.replication.early import MOST_EARLY, EarlyBatches
from ottla.storage.producers import ProducerStates
from ottla.storage.refused import MOST


def batch(sequence: int, producer: int = 7) -> BatchHeader:
    records = [(0, None, b"v", ())]
    return read_header(
        build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    )


def test_what_comes_again_over_closed_connections_drives_out_nothing() -> None:
    """The client has closed two connections, since nobody answered. They are read beside the third:
    of the first one but a batch, before the partition is there."""
    early, states = EarlyBatches(), ProducerStates(TopicPartition("t", 0))
    for sequence in (0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4):
        early.note("t", 0, batch(sequence))
    for header in early.take(("t",), 0):
        states.note_refused(header)
    for sequence in range(1, 5):  # the rest of the first connection
        with pytest.raises(KafkaError) as refused:
            states.check(batch(sequence))
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    for sequence in range(5):
        assert states.check(batch(sequence)) is None
        states.update(batch(sequence), sequence)


def test_what_is_remembered_is_bounded() -> None:
    early = EarlyBatches()
    for producer in range(MOST_EARLY + 1):
        early.note("t", 0, batch(0, producer))
    for sequence in range(1, 2 * MOST):
        early.note("t", 0, batch(sequence, MOST_EARLY))
    taken = early.take(("t",), 0)
    last = [header.base_sequence for header in taken if header.producer_id == MOST_EARLY]
    assert last == [*range(MOST, 2 * MOST)]
    assert [header.producer_id for header in taken[:-MOST]] == [*range(1, MOST_EARLY)]
    assert early.take(("t",), 0) == []
