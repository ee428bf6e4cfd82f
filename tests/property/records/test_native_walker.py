"""The native walker gives what the Python one gives, on sound, mutated and truncated bytes.

Where the extension is not built both sides are the same Python; the tests then hold it against
itself, and `tests/unit/records/test_walker.py` says what it must give.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import plain_cleaning, plain_walker, walker
from ottla.records.batch import (
    APPEND_TIME_FLAG,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    read_header,
)
from ottla.records.builder import BatchBuilder, assemble
from ottla.records.compression import Compression
from ottla.records.errors import InvalidBatch

MAX_LONG = 2**63 - 1

LONGS = st.one_of(
    st.integers(-70, 70), st.integers(-(2**14), 2**14), st.integers(-(2**63), MAX_LONG)
)
KEYS = st.one_of(st.none(), st.binary(max_size=3), st.binary(max_size=40))
VALUES = st.one_of(st.none(), st.binary(max_size=80), st.just(b"v" * 9000))
HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=70))), max_size=3
)
TIMES = st.integers(0, 2**42)
RECORDS = st.lists(st.tuples(TIMES, KEYS, VALUES, HEADERS), min_size=1, max_size=50)
DAMAGE = st.lists(st.tuples(st.floats(0, 0.999999), st.integers(0, 255)), max_size=4)


def damaged(data: bytes, damage: list[tuple[float, int]]) -> bytes:
    changed = bytearray(data)
    for place, value in damage:
        if changed:
            changed[int(place * len(changed))] = value
    return bytes(changed)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InvalidBatch:
        return InvalidBatch


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch as a log may have it: with gaps, flags, and sometimes an odd header."""
    builder = BatchBuilder(
        base_offset=draw(st.integers(0, 1000)),
        producer_id=draw(st.sampled_from([-1, 7])),
        compression=draw(st.sampled_from([Compression.NONE] * 9 + [Compression.GZIP])),
    )
    offset = builder.base_offset
    for timestamp, key, value, headers in draw(RECORDS):
        builder.append(timestamp, key, value, headers, offset=offset)
        offset += draw(st.integers(1, 3))
    batch = builder.build()
    header = read_header(batch)
    fields = header._asdict()
    for computed in ("length", "magic", "crc"):
        del fields[computed]
    fields["attributes"] |= draw(
        st.sampled_from(
            [0] * 6
            + [APPEND_TIME_FLAG, DELETE_HORIZON_FLAG, APPEND_TIME_FLAG | DELETE_HORIZON_FLAG]
            + [TRANSACTIONAL_FLAG, CONTROL_FLAG]
        )
    )
    fields["last_offset_delta"] += draw(st.sampled_from([0, 0, 0, 2, -1]))
    if draw(st.sampled_from([False] * 5 + [True])):
        fields["base_timestamp"] = draw(LONGS)
    # Bytes that are changed before the checksum is made are what a hostile producer sends.
    body = damaged(batch[HEADER_SIZE:], draw(st.one_of(st.just([]), DAMAGE)))
    return assemble(body, **fields)


@contextmanager
def both_maps(memory: int, load_factor: float = 0.9) -> Iterator[tuple[Any, Any]]:
    native, plain = (
        walker.KeyOffsets(memory, load_factor),
        plain_cleaning.KeyOffsets(memory, load_factor),
    )
    try:
        yield native, plain
    finally:
        native.close()
        plain.close()


BODIES = st.one_of(
    st.binary(max_size=60),
    st.builds(damaged, batches().map(lambda batch: batch[HEADER_SIZE:]), DAMAGE),
)


@given(BODIES, st.integers(-1, 60), st.floats(0, 1))
@settings(max_examples=400, deadline=None)
def test_a_summary_and_new_numbers_are_the_same(body: bytes, count: int, cut: float) -> None:
    for data in (body, body[: int(len(body) * cut)]):
        expected = outcome(lambda data=data: plain_walker.summarize(data, count))
        assert outcome(lambda data=data: walker.summarize(data, count)) == expected
        for same in (False, True):
            expected = outcome(lambda data=data, s=same: plain_walker.renumber(data, count, s))
            found = outcome(lambda data=data, s=same: walker.renumber(data, count, same_time=s))
            assert found == expected


@given(BODIES, st.integers(0, 60), st.booleans(), LONGS, LONGS, st.one_of(st.none(), LONGS))
@settings(max_examples=300, deadline=None)
def test_offenders_are_the_same(
    body: bytes, count: int, keyed: bool, oldest: int, newest: int, exempt: int | None
) -> None:
    for rules in (
        walker.Rules(keyed, oldest, newest, exempt),
        walker.Rules(keyed, oldest - 2**63, newest + 2**63, exempt),
        walker.Rules(keyed, oldest + 2**64, newest, exempt and exempt * 2**64),
    ):
        expected = outcome(lambda r=rules: plain_walker.find_offenders(body, count, r, 5))
        assert outcome(lambda r=rules: walker.find_offenders(body, count, r, 5)) == expected


@given(BODIES, st.integers(0, 60), LONGS, LONGS, LONGS, LONGS)
@settings(max_examples=300, deadline=None)
def test_the_first_record_by_time_is_the_same(
    body: bytes, count: int, base_offset: int, base_timestamp: int, timestamp: int, at_least: int
) -> None:
    wanted = (count, base_offset, base_timestamp, timestamp, at_least)
    expected = outcome(lambda: plain_walker.first_at_or_after(body, *wanted))
    assert outcome(lambda: walker.first_at_or_after(body, *wanted)) == expected


@given(
    st.lists(batches(), min_size=1, max_size=5).map(b"".join),
    DAMAGE,
    st.floats(0, 1),
    st.integers(1, 60),
    st.integers(0, 1100),
    st.integers(0, 1200),
    st.tuples(st.integers(0, 2**42), st.one_of(st.integers(0, 2**42), LONGS)),
    st.lists(st.integers(0, 1100), max_size=60).map(sorted),
    st.integers(0, 40_000),
)
@settings(max_examples=500, deadline=None)
def test_cleaning_a_chunk_is_the_same(
    chunk: bytes,
    damage: list[tuple[float, int]],
    cut: float,
    slots: int,
    first: int,
    stop: int,
    times: tuple[int, int],
    stay: list[int],
    room: int,
) -> None:
    now_ms, horizon_ms = times
    chunk = damaged(chunk, damage)
    for data in (chunk, chunk[: int(len(chunk) * cut)]):
        with both_maps(24 * slots) as (native, plain):
            expected = plain_cleaning.index_chunk(plain, data, 0, first, stop)
            assert walker.index_chunk(native, data, 0, first, stop) == expected
            assert len(native) == len(plain)
            assert native.capacity == plain.capacity
            assert native.latest_offset == plain.latest_offset
            outs = bytearray(room), bytearray(room)
            rules: dict[str, Any] = {
                "now_ms": now_ms,
                "horizon_ms": horizon_ms,
                "must_stay": array("q", stay),
            }
            kept = plain_cleaning.filter_chunk(plain, data, 0, outs[1], 0, **rules)
            assert walker.filter_chunk(native, data, 0, outs[0], 0, **rules) == kept
            assert outs[0][: kept.filled] == outs[1][: kept.filled]


@given(batches(), DAMAGE, st.integers(1, 60), st.integers(0, 1100), st.tuples(LONGS, LONGS))
@settings(max_examples=400, deadline=None)
def test_cleaning_the_records_of_a_batch_is_the_same(
    batch: bytes,
    damage: list[tuple[float, int]],
    slots: int,
    first: int,
    times: tuple[int, int],
) -> None:
    header = read_header(batch)
    body = damaged(batch[HEADER_SIZE:], damage)
    if header.last_offset_delta < 0:
        return
    with both_maps(24 * slots) as (native, plain):
        stop = header.last_offset
        expected = outcome(lambda: plain_cleaning.index_records(plain, header, body, first, stop))
        got = outcome(lambda: walker.index_records(native, header, body, first, stop))
        assert got == expected
        assert (len(native), native.latest_offset) == (len(plain), plain.latest_offset)
        rules = {"now_ms": times[0], "horizon_ms": times[1]}
        kept = outcome(lambda: plain_cleaning.filter_records(plain, header, body, **rules))
        assert outcome(lambda: walker.filter_records(native, header, body, **rules)) == kept


@given(st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 99)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_a_map_keeps_the_last_offset_of_each_key_until_it_is_full(
    puts: list[tuple[bytes, int]],
) -> None:
    with both_maps(24 * 40, 0.5) as maps:
        for keys in maps:
            model: dict[bytes, int] = {}
            for key, offset in puts:
                taken = len(model) < 20
                assert keys.put(key, offset) is taken
                if taken:
                    model[key] = offset
            assert len(keys) == len(model)
            assert {key: keys.get(key) for key, _ in puts} == {
                key: model.get(key) for key, _ in puts
            }
