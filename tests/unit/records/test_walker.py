"""What a walk over records gives, natively and in Python."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.records import plain_cleaning, walker
from ottla.records.batch import DELETE_HORIZON_FLAG, HEADER_SIZE, read_header
from ottla.records.builder import BatchBuilder, build_batch
from ottla.records.compression import Compression
from ottla.records.errors import InvalidBatch
from ottla.records.reader import iter_records, payload
from ottla.records.walker import End, Rules, Summary

NewMap = Callable[[int], Any]


@pytest.fixture(params=["native", "plain"], autouse=True)
def new_map(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewMap]:
    maps: list[Any] = []
    kind: Any = walker.KeyOffsets
    if request.param == "plain":
        monkeypatch.setattr(walker, "_native", None)
        kind = plain_cleaning.KeyOffsets

    def make(slots: int) -> Any:
        maps.append(kind(24 * slots, 1.0))
        return maps[-1]

    yield make
    for each in maps:
        each.close()


def body(*records: tuple[int, bytes | None, bytes | None]) -> bytes:
    return payload(build_batch([(time, key, value, ()) for time, key, value in records]))


class TestWithoutCleaning:
    def test_a_summary_tells_times_order_and_missing_keys(self) -> None:
        data = body((50, b"a", b""), (20, None, b""), (90, None, None), (50, b"d", b""))
        assert walker.summarize(data, 4) == Summary(-30, 40, True, 2)
        assert walker.summarize(b"", 0) == Summary(0, 0, True, 0)

    def test_gaps_are_not_in_order(self) -> None:
        builder = BatchBuilder()
        builder.append(1, None, None)
        builder.append(1, None, None, offset=2)
        assert not walker.summarize(payload(builder.build()), 2).in_order

    @pytest.mark.parametrize("cut", [0, 1, 5, -1])
    def test_what_is_cut_off_is_invalid(self, cut: int) -> None:
        data = body((50, b"a", b"v" * 200))
        with pytest.raises(InvalidBatch):
            walker.summarize(data[:cut], 1)

    def test_bytes_after_the_last_record_are_invalid(self) -> None:
        with pytest.raises(InvalidBatch, match="3 bytes after the last of 1 records"):
            walker.summarize(body((50, b"a", b"")) + b"abc", 1)

    def test_all_offenders_are_counted_and_the_first_are_named(self) -> None:
        data = body(
            (50, b"a", b""), (10, b"b", b""), (50, None, b""), (99, b"d", b""), (49, b"", b"")
        )
        total, late, found = walker.find_offenders(data, 5, Rules(True, 0, 10, -1), 2)
        assert (total, late) == (3, 2)
        assert found == [(1, 1, -40, True), (2, 2, 0, False)]

    def test_renumbered_records_have_consecutive_offsets(self) -> None:
        builder = BatchBuilder()
        for offset in (0, 5, 700):
            builder.append(50 + offset, b"k", b"v" * 58, (("h", None),), offset=offset)
        batch = builder.build()
        new = walker.renumber(payload(batch), 3)
        assert walker.summarize(new, 3) == Summary(0, 700, True, 0)
        expected = BatchBuilder()
        for offset in (0, 5, 700):
            expected.append(50 + offset, b"k", b"v" * 58, (("h", None),))
        assert new == payload(expected.build())

    def test_renumbered_records_may_have_one_time(self) -> None:
        data = body((50, b"a", b"x"), (5000, None, b""), (10, b"c", None))
        new = walker.renumber(data, 3, same_time=True)
        assert new == body((7, b"a", b"x"), (7, None, b""), (7, b"c", None))

    def test_times_wrap_around_as_in_java(self) -> None:
        data = body((50, b"a", b""), (51, b"b", b""))
        largest = walker.MAX_LONG
        assert walker.first_at_or_after(data, 2, 7, largest, largest, 0) == (7, largest)
        assert walker.first_at_or_after(data, 2, 7, largest, -largest - 1, 8) == (8, -largest - 1)
        with pytest.raises(InvalidBatch):
            walker.first_at_or_after(data, 2, largest, 0, 100, 0)

    def test_the_first_record_by_time_and_offset(self) -> None:
        data = body((50, b"a", b""), (70, b"b", b""), (60, None, b""))
        assert walker.first_at_or_after(data, 3, 100, 50, 55, 0) == (101, 70)
        assert walker.first_at_or_after(data, 3, 100, 50, 55, 102) == (102, 60)
        assert walker.first_at_or_after(data, 3, 100, 50, 71, 0) is None


class TestKeyOffsets:
    def test_it_has_the_latest_offset_of_a_key(self, new_map: NewMap) -> None:
        keys = new_map(10)
        assert keys.put(b"a", 3)
        assert keys.put(b"b", 4)
        assert keys.put(b"a", 5)
        assert (keys.get(b"a"), keys.get(b"b"), keys.get(b"c")) == (5, 4, None)
        assert (len(keys), keys.capacity, keys.latest_offset) == (2, 10, 5)
        keys.cover(9)
        assert keys.latest_offset == 9

    def test_a_full_map_takes_no_more(self, new_map: NewMap) -> None:
        keys = new_map(2)
        assert keys.put(b"a", 1)
        assert keys.put(b"b", 2)
        assert not keys.put(b"c", 3)
        assert not keys.put(b"a", 3)
        assert keys.get(b"c") is None
        assert keys.get(b"a") == 1

    def test_it_is_empty_after_clear_and_gone_after_close(self, new_map: NewMap) -> None:
        keys = new_map(10)
        keys.put(b"a", 3)
        keys.clear()
        assert (len(keys), keys.latest_offset, keys.get(b"a")) == (0, -1, None)
        keys.close()
        keys.close()
        with pytest.raises(ValueError, match="closed"):
            keys.get(b"a")

    @pytest.mark.parametrize("offset", [-1, 2**63 - 1])
    def test_an_impossible_offset_is_refused(self, new_map: NewMap, offset: int) -> None:
        with pytest.raises(ValueError, match="offset"):
            new_map(2).put(b"a", offset)

    @pytest.mark.parametrize(("memory", "load"), [(23, 0.9), (240, 0.0), (240, 1.1)])
    def test_an_impossible_size_is_refused(self, new_map: NewMap, memory: int, load: float) -> None:
        with pytest.raises(ValueError, match="load factor"):
            type(new_map(1))(memory, load)


def keyed(base_offset: int, *keys: bytes | None, **fields: Any) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, **fields)
    for index, key in enumerate(keys):
        builder.append(1000 + base_offset + index, key, b"v")
    return builder.build()


def cleaned(keys: Any, chunk: bytes, *, stay: tuple[int, ...] = (), room: int = 10_000) -> Any:
    out = bytearray(room)
    result = walker.filter_chunk(
        keys, chunk, 0, out, 0, now_ms=5000, horizon_ms=9000, must_stay=array("q", stay)
    )
    return result, bytes(out[: result.filled])


class TestIndexing:
    def test_keys_of_the_wanted_offsets_are_noted(self, new_map: NewMap) -> None:
        keys = new_map(10)
        chunk = keyed(0, b"a", b"b") + keyed(2, b"a", None, b"c") + keyed(5, b"d")
        result = walker.index_chunk(keys, chunk + chunk[:40], 0, 1, 5)
        assert result == (len(chunk) - len(keyed(5, b"d")), End.STOP_OFFSET, 5)
        assert [keys.get(key) for key in (b"a", b"b", b"c", b"d")] == [2, 1, 4, None]
        assert keys.latest_offset == 4
        assert walker.index_chunk(keys, chunk + chunk[:40], 0, 1, 6).end is End.CHUNK

    @pytest.mark.parametrize(
        "fields", [{"compression": Compression.ZSTD}, {"transactional": True}, {"control": True}]
    )
    def test_it_stops_at_batches_that_are_the_callers(
        self, new_map: NewMap, fields: dict[str, Any]
    ) -> None:
        keys = new_map(10)
        plain = keyed(0, b"a")
        result = walker.index_chunk(keys, plain + keyed(1, b"b", **fields), 0, 0, 9)
        assert result == (len(plain), End.SPECIAL, 1)
        assert keys.latest_offset == 0

    def test_it_stops_where_the_map_is_full(self, new_map: NewMap) -> None:
        keys = new_map(2)
        first = keyed(0, b"a")
        result = walker.index_chunk(keys, first + keyed(1, b"a", b"b", b"c"), 0, 0, 9)
        assert result == (len(first), End.FULL, 1)
        assert keys.latest_offset == 2  # up to here everything is noted

    @pytest.mark.parametrize("place", [8, 16, 20, 30, -1])
    def test_it_stops_at_damage(self, new_map: NewMap, place: int) -> None:
        first, second = keyed(0, b"a"), bytearray(keyed(1, b"b"))
        second[place] ^= 0x80
        result = walker.index_chunk(new_map(9), first + second, 0, 0, 9)
        assert (result.position, result.end) == (len(first), End.DAMAGED)

    def test_the_records_of_a_compressed_batch(self, new_map: NewMap) -> None:
        keys = new_map(10)
        batch = keyed(7, b"a", b"b", b"a", compression=Compression.ZSTD)
        assert not walker.index_records(keys, read_header(batch), payload(batch), 8, 99)
        assert (keys.get(b"a"), keys.get(b"b"), keys.latest_offset) == (9, 8, 9)
        assert walker.index_records(new_map(1), read_header(batch), payload(batch), 0, 99)


class TestFiltering:
    def test_only_the_latest_record_of_a_key_stays_with_its_offset(self, new_map: NewMap) -> None:
        keys = new_map(10)
        whole, mixed = keyed(4, b"x", b"y"), keyed(0, b"a", b"b", b"a", None, producer_id=5)
        walker.index_chunk(keys, mixed + whole, 0, 0, 99)
        result, out = cleaned(keys, mixed + whole)
        rest = out[: -len(whole)]
        assert out.endswith(whole)
        assert [(r.offset, r.timestamp, r.key) for r in iter_records(rest)] == [
            (1, 1001, b"b"),
            (2, 1002, b"a"),
        ]
        header, before = read_header(rest), read_header(mixed)
        assert header.last_offset == before.last_offset
        assert header.producer_id == 5
        assert header.max_timestamp == 1002
        assert header.record_count == 2
        assert (result.end, result.records_read, result.records_kept) == (End.CHUNK, 6, 4)
        assert list(walker.ROW.iter_unpack(result.rows)) == [
            (0, len(rest), 0, 3, 1002),
            (len(rest), len(whole), 4, 5, 1005),
        ]

    def test_what_comes_after_the_map_stays_even_without_a_key(self, new_map: NewMap) -> None:
        keys = new_map(10)
        walker.index_chunk(keys, keyed(0, b"a", b"b"), 0, 0, 99)
        later = keyed(2, b"a", None)
        assert cleaned(keys, later)[1] == later

    def test_an_emptied_batch_goes_or_stays_empty(self, new_map: NewMap) -> None:
        keys = new_map(10)
        old, new = keyed(0, b"a", producer_id=5, leader_epoch=3), keyed(1, b"a")
        walker.index_chunk(keys, old + new, 0, 0, 99)
        assert cleaned(keys, old + new)[1] == new
        result, out = cleaned(keys, old + new, stay=(0,))
        header = read_header(out)
        assert out[HEADER_SIZE:] == new
        assert (header.record_count, header.base_offset, header.last_offset) == (0, 0, 0)
        assert (header.producer_id, header.leader_epoch) == (5, 3)
        assert (header.base_timestamp, header.max_timestamp) == (-1, 1000)
        assert result.records_kept == 1
        again, out_again = cleaned(keys, out, stay=(0,))
        assert out_again == out
        assert cleaned(keys, out)[1] == new
        assert again.records_read == 1

    def test_a_tombstone_gets_a_horizon_and_goes_when_it_has_come(self, new_map: NewMap) -> None:
        keys = new_map(10)
        builder = BatchBuilder()
        builder.append(1000, b"a", b"v", (("h", b"x"),))
        builder.append(1007, b"b", None)
        batch = builder.build()
        walker.index_chunk(keys, batch, 0, 0, 99)
        _, marked = cleaned(keys, batch)
        header = read_header(marked)
        assert header.delete_horizon_ms == 9000
        assert header.max_timestamp == 1007
        assert list(iter_records(marked)) == list(iter_records(batch))
        assert cleaned(keys, marked)[1] == marked
        out = bytearray(1000)
        result = walker.filter_chunk(
            keys, marked, 0, out, 0, now_ms=9000, horizon_ms=99_000, must_stay=array("q")
        )
        left = bytes(out[: result.filled])
        assert list(iter_records(left)) == list(iter_records(batch))[:1]
        assert read_header(left).attributes & DELETE_HORIZON_FLAG
        assert read_header(left).base_timestamp == 9000

    def test_a_batch_that_does_not_fit_is_left_for_the_next_call(self, new_map: NewMap) -> None:
        keys = new_map(10)
        first, second = keyed(0, b"a"), keyed(1, b"b")
        walker.index_chunk(keys, first + second, 0, 0, 99)
        result, out = cleaned(keys, first + second, room=len(first) + len(second) - 1)
        assert (result.position, result.end, out) == (len(first), End.FULL, first)

    @pytest.mark.parametrize(
        "fields", [{"compression": Compression.ZSTD}, {"transactional": True}, {"control": True}]
    )
    def test_it_stops_at_batches_that_are_the_callers(
        self, new_map: NewMap, fields: dict[str, Any]
    ) -> None:
        result, out = cleaned(new_map(9), keyed(0, b"a") + keyed(1, b"b", **fields))
        assert (result.end, out) == (End.SPECIAL, keyed(0, b"a"))

    def test_it_stops_at_damage(self, new_map: NewMap) -> None:
        second = bytearray(keyed(1, b"b"))
        second[-1] ^= 1
        result, out = cleaned(new_map(9), keyed(0, b"a") + second)
        assert (result.end, out) == (End.DAMAGED, keyed(0, b"a"))

    def test_the_records_of_a_compressed_batch(self, new_map: NewMap) -> None:
        keys = new_map(10)
        batch = keyed(7, b"a", b"b", b"a", compression=Compression.GZIP)
        header = read_header(batch)
        walker.index_records(keys, header, payload(batch), 0, 99)
        kept = walker.filter_records(keys, header, payload(batch), now_ms=1, horizon_ms=2)
        assert (kept.record_count, kept.changed, kept.max_timestamp) == (2, True, 1009)
        rebuilt = walker.rebuilt_batch(header._replace(attributes=0), kept, kept.body)
        assert [(r.offset, r.key) for r in iter_records(rebuilt)] == [(8, b"b"), (9, b"a")]
