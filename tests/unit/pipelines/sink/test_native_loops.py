"""The native loops take no array on trust; `tests/property/pipelines` says what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ottla.pipelines.sink import loops
from ottla.pipelines.sink.columns import columns_of

BAD = "do not fit one another"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS = columns_of(
    pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"a", None, b"ccc"]),
            "value": pa.array([b"x", b"yy", None]),
            "headers": pa.array([[{"key": "h", "value": b"1"}], [], None], HEADERS),
        }
    ),
    now_ms=1,
)
TIMES, KEY_NULLS, KEY_OFFSETS, LISTS, NAME_OFFSETS, NAMES, HEADER_NULLS = 0, 1, 2, 7, 8, 9, 10


def native() -> loops.Loops:
    """The loops; where they were not built, ones that refuse everything as Python would."""

    def refuse(*_: Any) -> int:
        raise ValueError(BAD)

    return loops.load() or loops.Loops(refuse, refuse, refuse)


def encode(
    changes: dict[int, Any],
    order: Any = (0, 1, 2),
    first: int = 0,
    last: int = 3,
    state: Any = (0, 0, 0, 0, 0),
    rows: int = 3,
    out: int = 200,
) -> int:
    arrays = [changes.get(index, each) for index, each in enumerate(ROWS.arrays())]
    return native().encode(
        *arrays,
        np.asarray(order, np.int64),
        first,
        last,
        np.zeros(out, np.uint8),
        np.zeros(rows, np.int64),
        0,
        np.asarray(state, np.int64),
    )


def longs(*values: int) -> Any:
    return np.asarray(values, np.int64)


@pytest.mark.parametrize(
    "changes",
    [
        {TIMES: longs(1, 1)},
        {TIMES: np.zeros(25, np.uint8)[1:]},
        {KEY_NULLS: np.zeros(2, np.uint8)},
        {KEY_OFFSETS: longs(0, 1, 1)},
        {KEY_OFFSETS: longs(-1, 1, 1, 4)},
        {KEY_OFFSETS: longs(2, 1, 1, 4)},
        {KEY_OFFSETS: longs(0, 1, 1, 5)},
        {KEY_OFFSETS: np.zeros(31, np.uint8)},
        {LISTS: longs(0, 2, 2, 2)},
        {LISTS: longs(-1, 1, 1, 1)},
        {LISTS: longs(1, 0, 1, 1)},
        {LISTS: longs(0, 1, 1)},
        {NAME_OFFSETS: longs(0, 9)},
        {NAME_OFFSETS: longs(0)},
        {NAMES: np.zeros(0, np.uint8)},
        {HEADER_NULLS: np.zeros(2, np.uint8)},
    ],
)
def test_columns_that_point_outside_are_refused(changes: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match=BAD):
        encode(changes)


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": (0, 1, 3)},
        {"order": (-1, 1, 2)},
        {"last": 4},
        {"first": -1},
        {"first": 3, "last": 2},
        {"state": (0, 0, 0, 0)},
        {"state": (201, 0, 0, 0, 0)},
        {"state": (-1, 0, 0, 0, 0)},
        {"state": (0, 4, 0, 0, 0)},
        {"state": (0, -1, 0, 0, 0)},
    ],
)
def test_a_place_outside_of_the_rows_or_the_batch_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=BAD):
        encode({}, **arguments)


def test_sound_arrays_are_taken_and_what_does_not_fit_is_said() -> None:
    found = loops.load()
    if found is None:
        return
    assert encode({}) == 3
    assert encode({}, rows=2) == 2
    state = np.zeros(loops.STATE_SIZE, np.int64)
    order, rows = longs(0, 1, 2), np.zeros(3, np.int64)
    size = 0
    out = np.zeros(0, np.uint8)
    while found.encode(*ROWS.arrays(), order, 0, 1, out, rows, 0, state) == 0:
        assert state[loops.NEEDED] > size
        size = int(state[loops.NEEDED])
        out = np.zeros(size, np.uint8)
    assert state[loops.POSITION] == size
    assert state[loops.COUNT] == 1


@pytest.mark.parametrize(
    ("lanes", "starts", "order"), [((0, 3), 4, 2), ((-1, 0), 4, 2), ((0, 1), 4, 1), ((), 0, 0)]
)
def test_lanes_that_are_not_there_are_refused(lanes: Any, starts: int, order: int) -> None:
    with pytest.raises(ValueError, match=BAD):
        native().sort_by_lane(longs(*lanes), np.zeros(starts, np.int64), np.zeros(order, np.int64))


ROUTE: dict[str, Any] = {
    "topics": longs(0, 0),
    "chosen": longs(-1, -1),
    "unkeyed": np.asarray([0, 1], np.uint8),
    "key_offsets": longs(0, 1, 1),
    "keys": np.frombuffer(b"k", np.uint8),
    "sizes": longs(9, 9),
    "counts": longs(2),
    "bases": longs(0),
    "available": longs(1),
    "available_at": longs(0, 1),
    "turn": longs(0),
    "room": longs(100),
    "chunk": 100,
    "lanes": longs(0, 0),
}


@pytest.mark.parametrize(
    "changes",
    [
        {"topics": longs(0, 1)},
        {"topics": longs(0, -1)},
        {"topics": longs(0)},
        {"chosen": longs(0)},
        {"key_offsets": longs(0, 2, 2)},
        {"counts": longs(0)},
        {"counts": longs(2, 2)},
        {"available_at": longs(0, 2)},
        {"available_at": longs(1, 1)},
        {"available_at": longs(-1, 1)},
        {"available": longs(-1)},
        {"turn": longs(-1)},
        {"room": longs()},
        {"sizes": longs(1)},
        {"lanes": longs(0)},
    ],
)
def test_topics_that_are_not_there_are_refused(changes: dict[str, Any]) -> None:
    given = {**ROUTE, **changes}
    with pytest.raises(ValueError, match=BAD):
        native().route(
            *(each.copy() if isinstance(each, np.ndarray) else each for each in given.values())
        )
