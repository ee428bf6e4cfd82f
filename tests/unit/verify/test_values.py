"""Values that are written one by one are read as the runs that they are."""

from __future__ import annotations

import pytest

from ottla.records.errors import InvalidBatch
from ottla.verify.values import (
    ForeignRecord,
    Run,
    read_batches,
    runs_of,
    write_batch,
    write_value,
)


def test_neighbours_of_one_writer_are_one_run() -> None:
    values = [(7, write_value(1, 0)), (8, write_value(1, 1)), (9, write_value(2, 5))]
    assert runs_of(values) == [Run(7, 1, 0, 2), Run(9, 2, 5, 1)]
    assert runs_of([(7, write_value(1, 0)), (9, write_value(1, 1))]) == [
        Run(7, 1, 0, 1),
        Run(9, 1, 1, 1),
    ]


@pytest.mark.parametrize("value", [b"", b"hello", b"OTHR" + bytes(12)])
def test_a_record_of_somebody_else_is_noticed(value: bytes) -> None:
    with pytest.raises(ForeignRecord, match="offset 7"):
        runs_of([(7, value)])


def test_a_batch_is_read_as_it_was_written_or_not_at_all() -> None:
    batch = bytearray(write_batch(1, 0, 3, now_ms=0, size=100))
    assert read_batches(memoryview(batch), 0).runs == [Run(0, 1, 0, 3)]
    batch[-10] ^= 1  # of the last value, behind what tells whose it is
    with pytest.raises(InvalidBatch, match="offset 0 has a wrong checksum"):
        read_batches(memoryview(batch), 0)
