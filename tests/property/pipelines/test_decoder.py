"""Whatever lies in a log comes out of the decoder as `ottla.records.reader` reads it.

Logs are made with every codec, with headers, nulls, gaps as compaction leaves them, both kinds of
timestamps, and transactions that are committed and aborted; they are cut at any offset and read in
batches of any size, by the native decoder and by the one in Python. Then bytes are changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipelines.source import decoder, kernel
from ottla.pipelines.source.column_choice import ALL as EVERY
from ottla.pipelines.source.column_choice import USUAL
from ottla.pipelines.source.columns import SCHEMA_WITH_HEADERS, Repeated, Room, Sizes
from ottla.pipelines.source.loss import LossPolicy
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.task import FetchSettings
from ottla.records.batch import TimestampType, batches
from ottla.records.builder import BatchBuilder
from ottla.records.compression import Compression
from ottla.records.control import ControlType, end_marker
from ottla.records.errors import InvalidBatch
from ottla.records.reader import iter_records

SETTINGS = FetchSettings(loss=LossPolicy(), bootstrap="")
ID = bytes(range(16))
PRODUCERS = (7, 8)
cuts = st.tuples(st.integers(0, 40), st.integers(0, 120))


@dataclass(frozen=True)
class Log:
    """Batches, the aborted transactions among them, and the rows that a reader is to see."""

    data: bytes
    aborted: tuple[tuple[int, int], ...]
    rows: tuple[dict[str, Any], ...]
    start: int
    end: int


content = st.none() | st.binary(max_size=40)
record = st.tuples(
    st.integers(-(2**40), 2**42),
    content,
    content,
    st.lists(st.tuples(st.text(max_size=6), content), max_size=3),
    st.integers(0, 3),  # offsets left out before it
)
step = st.tuples(
    st.sampled_from(["plain", "plain", "txn", "commit", "abort"]),
    st.sampled_from(PRODUCERS),
    st.lists(record, min_size=1, max_size=12),
    st.sampled_from(list(Compression)),
    st.sampled_from(list(TimestampType)),
    st.integers(0, 5),  # offsets left out after it
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    steps = draw(st.lists(step, max_size=6))
    steps += [
        ("commit", producer, [], Compression.NONE, TimestampType(0), 0) for producer in PRODUCERS
    ]
    start = offset = draw(st.integers(0, 2**40))
    parts: list[bytes] = []
    open_since: dict[int, int] = {}
    first_batch: dict[int, list[int]] = {}
    aborted: list[tuple[int, int]] = []
    gone: set[int] = set()
    for kind, producer, records, codec, stamp, gap in steps:
        if kind in ("commit", "abort"):
            if producer not in open_since:
                continue
            if kind == "abort":
                aborted.append((producer, open_since[producer]))
                gone |= set(first_batch[producer])
            del open_since[producer]
            parts.append(
                end_marker(
                    ControlType.ABORT if kind == "abort" else ControlType.COMMIT,
                    producer_id=producer,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp=5,
                    base_offset=offset,
                )
            )
            gone.add(len(parts) - 1)
            offset += 1
            continue
        builder = BatchBuilder(
            base_offset=offset,
            compression=codec,
            timestamp_type=stamp,
            transactional=kind == "txn",
            producer_id=producer if kind == "txn" else -1,
        )
        if kind == "txn":
            if producer not in open_since:
                open_since[producer] = offset
                first_batch[producer] = []
            first_batch[producer].append(len(parts))
        for timestamp, key, value, headers, skipped in records:
            offset += skipped
            builder.append(timestamp, key, value, headers, offset=offset)
            offset += 1
        parts.append(builder.build())
        offset += gap
    rows: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        if number in gone:
            continue
        [(_, header)] = batches(part)
        rows += [
            {
                "key": each.key,
                "value": each.value,
                "offset": each.offset,
                "timestamp": each.timestamp * 1000,
                "timestampType": int(header.timestamp_type),
                "headers": [{"key": name, "value": value} for name, value in each.headers],
            }
            for each in iter_records(part)
        ]
    return Log(b"".join(parts), tuple(aborted), tuple(rows), start, offset)


def decoded(log: Log, part: Range, how: FetchSettings, *, native: bool) -> list[Any]:
    def pieces() -> Iterator[decoder.Piece]:
        table = decoder.outline(log.data, part, part.start)
        yield from decoder.unpack(log.data, table, log.aborted, part, how)

    if native:
        return list(decoder.decode(pieces(), part, how))
    with mock.patch.object(kernel, "load", return_value=None):
        return list(decoder.decode(pieces(), part, how))


def rows_of(found: list[Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in found:
        batch.validate(full=True)
        plain = batch
        if "timestamp" in names:
            at = batch.schema.get_field_index("timestamp")
            plain = batch.set_column(at, "timestamp", batch.column(at).cast("int64"))
        rows += plain.select(names).to_pylist()
    return rows


PLAIN = ("key", "value", "offset", "timestamp", "timestampType")
ALL = (*PLAIN, "headers")
choices = (
    st.just(USUAL)
    | st.just(EVERY)
    | st.lists(st.sampled_from(EVERY), min_size=1, unique=True).map(tuple)
)


@pytest.mark.parametrize("native", [True, False], ids=["native", "plain"])
@settings(max_examples=80, deadline=None)
@given(log=logs(), cut=cuts, most=st.integers(1, 30), columns=choices)
def test_any_part_of_any_log_is_decoded_as_the_reader_reads_it(
    native: bool, log: Log, cut: tuple[int, int], most: int, columns: tuple[str, ...]
) -> None:
    start = log.start + cut[0]
    part = Range("orders", ID, 3, start, start + cut[1])
    how = replace(SETTINGS, rows_per_batch=most, columns=columns)

    found = decoded(log, part, how, native=native)

    names = tuple(name for name in columns if name in ALL)
    wanted = [
        {name: row[name] for name in names}
        for row in log.rows
        if part.start <= row["offset"] < part.end
    ]
    assert rows_of(found, names) == wanted
    for batch in found:
        assert 0 < batch.num_rows <= most
        assert batch.schema.names == list(columns)
        assert all(batch.field(name) == SCHEMA_WITH_HEADERS.field(name) for name in columns)
        for name, content in (("topic", "orders"), ("partition", 3)):
            assert name not in columns or set(batch.column(name).to_pylist()) == {content}


@settings(max_examples=40, deadline=None)
@given(log=logs(), torn=st.integers(1, 80))
def test_a_batch_that_is_cut_off_at_the_end_is_left_for_the_next_fetch(log: Log, torn: int) -> None:
    part = Range("orders", ID, 3, log.start, log.end)
    whole = list(batches(log.data[:-torn]))
    if not whole and log.data[:-torn][16:17] not in (b"", b"\2"):
        return
    table = decoder.outline(log.data[:-torn], part, part.start)
    assert [int(base) for base in table[:, kernel.BASE]] == [each.base_offset for _, each in whole]


# ---------------------------------------------------------------------- damage


class Checked:
    """An array that refuses every index outside of it, also the negative ones that Python takes."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        assert 0 <= index < len(self.items)
        return int(self.items[index])

    def __setitem__(self, index: int, value: int) -> None:
        assert 0 <= index < len(self.items)
        self.items[index] = value


changes = st.lists(
    st.tuples(st.integers(0, 2**16), st.sampled_from([0, 1, 2, 0x7E, 0x7F, 0x80, 0xFE, 0xFF])),
    min_size=1,
    max_size=8,
)


def plain_records(data: bytes) -> bytes:
    """Batches without compression, whose damage is not found by a codec first."""
    parts = []
    for position, header in batches(data):
        builder = BatchBuilder(base_offset=header.base_offset)
        for each in iter_records(data[position : position + header.size]):
            builder.append(each.timestamp, each.key, each.value, each.headers, offset=each.offset)
        parts.append(builder.build())
    return b"".join(parts)


@settings(max_examples=150, deadline=None)
@given(
    log=logs(), changes=changes, rows=st.integers(1, 20), room=st.sampled_from([0, 10, 300, 4096])
)
def test_damage_makes_an_error_or_rows_but_never_a_step_out_of_bounds(
    log: Log, changes: list[tuple[int, int]], rows: int, room: int
) -> None:
    loops = kernel.load() or kernel.Loops(kernel.outline, kernel.walk)
    data = bytearray(plain_records(log.data))
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    frozen = bytes(data)

    tables = []
    for walk, source in ((kernel.outline, Checked(bytes(data))), (loops.outline, frozen)):
        table = np.zeros((50, kernel.WIDTH), np.int64)
        found = np.zeros(2, np.int64)
        tables.append((walk(source, table, found), found.tolist(), table.tolist()))
    assert tables[0] == tables[1]

    table = np.array(tables[1][2][: tables[1][1][0]], np.int64).reshape(-1, kernel.WIDTH)
    results = []
    for walk, source in ((kernel.walk, Checked(bytes(data))), (loops.walk, frozen)):
        sizes = Sizes(rows, 0)
        sizes.keys = sizes.values = sizes.header_keys = sizes.header_values = room
        sizes.headers = min(room, 5)
        space = Room(sizes, EVERY)
        columns = space.columns
        if walk is kernel.walk:
            columns = tuple(Checked(column) for column in columns)
        status = int(walk(source, table, space.cursor, 0, 2**62, True, *columns))
        results.append((status, space.cursor.tolist(), space))
    assert results[0][:2] == results[1][:2]
    if results[0][2].rows:
        repeated = Repeated("orders", 3, rows)
        assert results[0][2].batch(repeated).equals(results[1][2].batch(repeated))


@settings(max_examples=80, deadline=None)
@given(log=logs(), changes=changes)
def test_damage_is_found_by_the_checksum(log: Log, changes: list[tuple[int, int]]) -> None:
    data = bytearray(log.data)
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    part = Range("orders", ID, 3, 0, 2**62)
    spoilt = replace(log, data=bytes(data))
    how = replace(SETTINGS, max_decompressed=1 << 20)
    try:
        found = rows_of(decoded(spoilt, part, how, native=True), PLAIN)
    except InvalidBatch as error:
        assert "partition 3 of topic orders, the batch at offset" in str(error)  # noqa: PT017 - it need not be raised
        return
    # The checksum begins behind offset and length: those may differ, what is in records may not.
    written = {
        (each.key, each.value)
        for position, header in batches(log.data)
        for each in iter_records(log.data[position : position + header.size])
    }
    assert {(row["key"], row["value"]) for row in found} <= written
