"""Values of transactions are read as a consumer of Kafka reads them."""

from __future__ import annotations

import pytest

from ottla.records.control import ControlType, end_marker
from ottla.verify.txn_values import (
    KEYS,
    Aborted,
    Marker,
    Producer,
    Values,
    is_deleted,
    key_of,
    read_log,
    write_values,
)
from ottla.verify.values import ForeignRecord, Run


def data(
    producer_id: int, offset: int, first: int, count: int = 1, *, keyed: bool = False
) -> bytes:
    producer = Producer(producer_id, 0, 0, True)
    batch = bytearray(write_values([Values(1, first, count)], producer, now_ms=0, keyed=keyed))
    batch[:8] = offset.to_bytes(8)
    return bytes(batch)


def marker(producer_id: int, offset: int, *, commit: bool) -> bytes:
    return end_marker(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=1,
        coordinator_epoch=3,
        timestamp=0,
        base_offset=offset,
    )


LOG = memoryview(
    data(7, 0, 0, 2)
    + data(8, 2, 10)
    + marker(7, 3, commit=False)
    + data(7, 4, 2)
    + marker(8, 5, commit=True)
    + marker(7, 6, commit=True)
)


def test_who_reads_everything_gets_everything() -> None:
    content = read_log(LOG, 0, None)
    assert content.runs == [Run(0, 1, 0, 2), Run(2, 1, 10, 1), Run(4, 1, 2, 1)]
    assert content.markers == [
        Marker(3, 7, 1, False, 3),
        Marker(5, 8, 1, True, 3),
        Marker(6, 7, 1, True, 3),
    ]
    assert content.next_offset == 7


def test_what_was_aborted_is_left_out_up_to_its_marker() -> None:
    content = read_log(LOG, 0, [Aborted(7, 0)])
    assert content.runs == [Run(2, 1, 10, 1), Run(4, 1, 2, 1)]


def test_without_its_marker_an_aborted_transaction_hides_what_comes_after_it() -> None:
    log = memoryview(data(7, 0, 0) + data(7, 2, 1))
    assert read_log(log, 0, [Aborted(7, 0)]).runs == []


def test_who_begins_in_the_middle_of_a_batch_gets_the_rest_of_it() -> None:
    content = read_log(LOG, 1, [])
    assert content.runs[0] == Run(1, 1, 1, 1)
    assert read_log(LOG, 4, []).markers == read_log(LOG, 0, []).markers[1:]


def test_a_tombstone_is_known_by_its_header() -> None:
    log = memoryview(data(7, 0, 0, 2 * KEYS, keyed=True))
    assert read_log(log, 0, [], keyed=True).runs == [Run(0, 1, 0, 2 * KEYS)]
    assert any(is_deleted(number) for number in range(2 * KEYS))


def test_every_key_is_deleted_and_written_again() -> None:
    for key in range(KEYS):
        fates = [is_deleted(number) for number in range(8 * KEYS) if key_of(number) == key]
        assert set(fates) == {True, False}


def test_a_record_without_a_header_is_not_ours() -> None:
    with pytest.raises(ForeignRecord):
        read_log(memoryview(data(7, 0, 0)), 0, [], keyed=True)
