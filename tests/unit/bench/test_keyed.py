"""Prepared batches of keyed records, read back by the project's own reader."""

from __future__ import annotations

import numpy as np
import pytest
from bench.load import keyed

from ottla.records.batch import checksum_ok, read_header


def test_template_puts_each_key_into_its_record() -> None:
    from ottla.records.reader import iter_records

    template = keyed.Template(200, b"v" * 50, 1_700_000_000_000)
    first, second = np.arange(200, dtype=np.uint64), np.arange(7, 207, dtype=np.uint64)
    for keys in (first, second):
        batch = template.batch(keys)
        header = read_header(batch, 0)
        assert header.record_count == 200
        assert header.length + 12 == len(batch) == len(template)
        assert checksum_ok(batch, 0, header)
        records = list(iter_records(batch, header))
        assert [int.from_bytes(each.key or b"", "big") for each in records] == keys.tolist()
        assert {bytes(each.value or b"") for each in records} == {b"v" * 50}


def test_every_key_comes_once_in_each_pass_in_another_order() -> None:
    batches = list(keyed.key_order(4_000, 2))
    first, second = np.concatenate(batches[:2]), np.concatenate(batches[2:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(4_000))
    assert first.tolist() != second.tolist()


def test_keys_fill_whole_batches() -> None:
    with pytest.raises(ValueError, match="no whole batches"):
        next(keyed.key_order(1_999, 1))
