"""The hand-made request frames, read back by the project's own decoder."""

from __future__ import annotations

import struct

import pytest
from bench.load import frames


def test_frame_length_counts_everything_after_it() -> None:
    for frame in (frames.api_versions(), frames.produce("topic", 3, frames.batch(b"value"))):
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4


def test_batch_is_one_that_the_records_package_accepts() -> None:
    from ottla.records.batch import checksum_ok, read_header

    batch = frames.batch(b"x" * 100)
    header = read_header(batch, 0)
    assert header.record_count == 1
    assert header.length + 12 == len(batch)
    assert checksum_ok(batch, 0, header)


def test_partition_error_in_an_answer_is_raised() -> None:
    def answer(error: int) -> bytes:
        head = struct.pack(">iih", 1, 1, 1) + b"t" + struct.pack(">i", 1)
        return head + struct.pack(">ihqqq", 0, error, 0, -1, 0) + struct.pack(">i", 0)

    frames.check_produce_response(answer(0))
    with pytest.raises(RuntimeError, match="error 6"):
        frames.check_produce_response(answer(6))
