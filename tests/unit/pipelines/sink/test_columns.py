"""Arrow columns as arrays: what is unusual in them, and what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ottla.pipelines.sink.columns import blobs_of, columns_of, integers_of
from ottla.pipelines.sink.failures import RowFailed

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def items(column: pa.Array) -> list[bytes | None]:
    blobs = blobs_of(column)
    return [blobs.item(row) for row in range(len(column))]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str
)
def test_strings_and_bytes_look_the_same(kind: pa.DataType):
    column = pa.array(["spare", "é", None, "", "x"], kind)
    assert items(column.slice(1)) == ["é".encode(), None, b"", b"x"]
    assert items(column.slice(2, 1)) == [None]
    assert items(column.slice(5)) == []


@pytest.mark.parametrize("kind", [pa.string_view(), pa.int32()], ids=str)
def test_another_layout_is_refused(kind: pa.DataType):
    with pytest.raises(TypeError, match="where strings or bytes belong"):
        blobs_of(pa.array([None], kind))


@pytest.mark.parametrize("offsets", [[0, 99, 3], [0, 3, 1]], ids=["outside", "back"])
def test_offsets_that_lead_astray_are_refused(offsets: list[int]):
    # Arrow itself looks at the first and the last one only.
    column = pa.Array.from_buffers(
        pa.binary(),
        2,
        [None, pa.py_buffer(np.asarray(offsets, np.int32).tobytes()), pa.py_buffer(b"abc")],
    )
    with pytest.raises(ValueError, match="offsets that fall"):
        blobs_of(column)


def test_integers_of_a_slice_with_nulls():
    values, nulls = integers_of(pa.array([9, 1, None, 3], pa.int32()).slice(1))
    assert [None if null else value for value, null in zip(values, nulls, strict=True)] == [
        1,
        None,
        3,
    ]


def test_columns_that_are_not_there_are_null_and_the_time_is_now():
    columns = columns_of(pa.RecordBatch.from_pydict({"value": [b"v"]}), now_ms=5)
    assert (columns.keys.item(0), columns.values.item(0)) == (None, b"v")
    assert (columns.times.tolist(), columns.headers(0)) == ([5], [])


@pytest.mark.parametrize("large", [False, True])
def test_a_header_key_that_is_not_utf_8_is_written_as_java_would(large: bool):
    raw = pa.array([b"before", b"\xff\xfe", None, "é".encode()])
    raw = raw.cast(pa.large_binary()) if large else raw
    kind = pa.large_string() if large else pa.string()
    names = pa.Array.from_buffers(kind, 4, raw.buffers())
    pairs = pa.StructArray.from_arrays([names, pa.array([b"v"] * 4)], names=["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([1, 2, 2], pa.int32()), pairs)
    columns = columns_of(
        pa.RecordBatch.from_arrays([pa.array([b"x", b"y"]), lists], names=["value", "headers"])
    )
    assert [columns.headers(0), columns.headers(1)] == [[("\ufffd\ufffd", b"v")], []]


def test_headers_behind_a_null_list_do_not_appear():
    pairs = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": None}], HEADERS.value_type)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pairs, mask=pa.array([True, False]))
    assert lists.to_pylist()[0] is None
    columns = columns_of(pa.RecordBatch.from_pydict({"value": [b"x", b"y"], "headers": lists}))
    assert [columns.headers(0), columns.headers(1)] == [[], [("b", None)]]


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}], ids=["null", "no key"])
def test_a_header_needs_a_key(header: dict[str, bytes | None] | None):
    lists = pa.array([[], [{"key": "a", "value": b""}, header]], HEADERS)
    with pytest.raises(RowFailed) as caught:
        columns_of(pa.RecordBatch.from_pydict({"value": [b"x", b"y"], "headers": lists}))
    assert caught.value.row == 1
