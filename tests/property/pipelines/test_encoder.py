"""Whatever Arrow holds, the batches hold the same, whoever made them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.partitioners import murmur2_partition
from ottla.pipelines.sink.columns import blobs_of, columns_of, integers_of
from ottla.pipelines.sink.encoder import Encoder, Format, split
from ottla.pipelines.sink.failures import RowFailed
from ottla.pipelines.sink.partitioner import Partitioner
from ottla.records.batch import checksum_ok, read_header
from ottla.records.compression import Compression
from ottla.records.reader import iter_records

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

maybe = st.none() | st.binary(max_size=200)
header = st.fixed_dictionaries({"key": st.text(max_size=5), "value": maybe})
row = st.fixed_dictionaries(
    {
        "key": maybe,
        "value": maybe,
        "headers": st.none() | st.lists(header, max_size=3),
        "timestamp": st.none() | st.integers(0, 2**52),
        "partition": st.none() | st.integers(0, 2),
    }
)


def arrow(rows: list[dict[str, Any]], *, large: bool, cut: tuple[int, int]) -> pa.RecordBatch:
    """The rows as a slice out of the middle of a larger Arrow batch."""
    before, after = cut
    spare = {
        "key": b"spare",
        "value": b"spare",
        "headers": [{"key": "spare", "value": b"spare"}],
        "timestamp": 1,
        "partition": 0,
    }
    padded = [spare] * before + rows + [spare] * after
    kind = pa.large_binary() if large else pa.binary()
    columns = {
        "key": pa.array([each["key"] for each in padded], kind),
        "value": pa.array([each["value"] for each in padded], kind),
        "headers": pa.array([each["headers"] for each in padded], HEADERS),
        "timestamp": pa.array([each["timestamp"] for each in padded], pa.timestamp("us", tz="UTC")),
        "partition": pa.array([each["partition"] for each in padded], pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns).slice(before, len(rows))


def record(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    moment = NOW if row["timestamp"] is None else row["timestamp"] // 1000
    return moment, row["key"], row["value"], headers


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@settings(deadline=None, max_examples=60)
@given(
    chunks=st.lists(st.lists(row, min_size=1, max_size=20), min_size=1, max_size=4),
    batch_bytes=st.integers(0, 2000),
    codec=st.sampled_from(Compression),
    large=st.booleans(),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 3)),
    producer_id=st.sampled_from([-1, 7]),
)
def test_batches_hold_the_rows_in_order(
    native: bool,
    chunks: list[list[dict[str, Any]]],
    batch_bytes: int,
    codec: Compression,
    large: bool,
    cut: tuple[int, int],
    producer_id: int,
):
    form = Format(codec, None, batch_bytes, 1 << 20, producer_id, producer_id)
    encoder = Encoder(form, native=native)
    partitioner = Partitioner(chunk_bytes=100, ignore_keys=False, native=native)
    partitioner.add_topic("t", 3, [0, 2])
    batches = []
    done = 0
    for rows in chunks:
        given = arrow(rows, large=large, cut=cut)
        columns = columns_of(given, timestamps=True, now_ms=NOW)
        topics = np.zeros(len(rows), np.int64)
        chosen = integers_of(given.column(4))
        lanes = partitioner.route(topics, columns.keys, columns.sizes(), chosen)
        starts, order = partitioner.sort(lanes)
        for lane, place in enumerate(partitioner.lanes):
            first, last = int(starts[lane]), int(starts[lane + 1])
            batches += encoder.add(place, columns, order, first, last, done)
        done += len(rows)
    batches += encoder.finish()

    everything = [each for rows in chunks for each in rows]
    seen: set[int] = set()
    for partition in range(3):
        sequence = 0
        last = -1
        for batch in batches:
            if batch.partition != partition:
                continue
            header = read_header(batch.data)
            assert checksum_ok(batch.data, 0, header)
            assert header.record_count == len(batch)
            assert header.producer_id == producer_id
            assert header.base_sequence == (-1 if producer_id < 0 else sequence)
            sequence += len(batch)
            found = [tuple(each)[1:] for each in iter_records(batch.data)]
            assert found == [record(everything[at]) for at in batch.rows]
            assert [each.offset for each in iter_records(batch.data)] == list(range(len(batch)))
            assert header.max_timestamp == max(each[0] for each in found)
            for at in batch.rows.tolist():
                assert at > last, "rows of a partition lost their order"
                last = at
                seen.add(at)
                wanted, key = everything[at]["partition"], everything[at]["key"]
                if wanted is not None:
                    assert partition == wanted
                elif key is not None:
                    assert partition == murmur2_partition(key, 3)
                else:
                    assert partition in (0, 2)
    assert seen == set(range(len(everything)))


@settings(deadline=None, max_examples=60)
@given(st.lists(row, min_size=2, max_size=30), st.sampled_from([-1, 0, 5, 2**31 - 4]))
def test_halves_of_a_batch_hold_its_records_and_sequence_numbers(
    rows: list[dict[str, Any]], sequence: int
):
    form = Format(batch_bytes=1 << 20, producer_id=min(sequence, 3), producer_epoch=0)
    encoder = Encoder(form)
    encoder._sequences["t", 0] = sequence
    columns = columns_of(arrow(rows, large=False, cut=(0, 0)), timestamps=True, now_ms=NOW)
    order = np.arange(len(rows), dtype=np.int64)
    assert list(encoder.add(("t", 0), columns, order, 0, len(rows), 0)) == []
    [whole] = encoder.finish()
    first, second = split(whole, form)
    assert [*first.rows, *second.rows] == list(range(len(rows)))
    found = [*iter_records(first.data), *iter_records(second.data)]
    assert [tuple(each)[1:] for each in found] == [record(each) for each in rows]
    assert read_header(first.data).base_sequence == sequence
    later = -1 if sequence < 0 else (sequence + len(first)) % 2**31
    assert read_header(second.data).base_sequence == later


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=50), st.integers(1, 100))
def test_keys_go_where_java_puts_them(keys: list[bytes], partitions: int):
    column = blobs_of(pa.array(keys))
    for native in (True, False):
        partitioner = Partitioner(chunk_bytes=1, ignore_keys=False, native=native)
        partitioner.add_topic("t", partitions, [])
        lanes = partitioner.route(np.zeros(len(keys), np.int64), column, column.sizes())
        assert lanes.tolist() == [murmur2_partition(key, partitions) for key in keys]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), max_size=60))
def test_rows_are_sorted_by_lane_and_keep_their_order(lanes: list[int]):
    column = np.asarray(lanes, np.int64)
    for native in (True, False):
        partitioner = Partitioner(chunk_bytes=1, ignore_keys=False, native=native)
        partitioner.add_topic("t", 6, [])
        starts, order = partitioner.sort(column)
        assert order.tolist() == sorted(range(len(lanes)), key=lanes.__getitem__)
        assert starts.size == 7
        for lane in range(6):
            assert starts[lane + 1] - starts[lane] == lanes.count(lane)


@settings(deadline=None, max_examples=60)
@given(st.integers(-(2**52), -1000))
def test_a_moment_before_1970_is_refused_with_its_row(moment: int):
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", b"b"]),
            "timestamp": pa.array([0, moment], pa.timestamp("us", tz="UTC")),
        }
    )
    with pytest.raises(RowFailed) as raised:
        columns_of(rows, timestamps=True)
    assert raised.value.row == 1
