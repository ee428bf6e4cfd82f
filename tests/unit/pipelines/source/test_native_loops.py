"""The native loops take no array on trust; `tests/property/pipelines` says what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ottla.pipelines.source import kernel
from ottla.pipelines.source.column_choice import ALL
from ottla.pipelines.source.columns import Room, Sizes
from ottla.records.builder import build_batch

BATCH = build_batch([(1, b"key", b"value", (("h", b"x"),))] * 3)


def walk(changes: dict[str, int], columns: Any = None) -> int:
    """The status of a walk whose cursor was changed; where there is no native code, of none."""
    loops = kernel.load()
    if loops is None:
        raise ValueError("the arrays are checked by Python, index by index")
    table = np.zeros((1, kernel.WIDTH), np.int64)
    assert loops.outline(BATCH, table, np.zeros(2, np.int64)) == kernel.DONE
    room = Room(Sizes(4, 0), ALL)
    for name, value in changes.items():
        room.cursor[getattr(kernel, name)] = value
    return loops.walk(BATCH, table, room.cursor, 0, 99, True, *(columns or room.columns))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ROWS", 5), ("ROWS", -1), ("KEYS", 5000), ("VALUES", -1), ("HEADERS", 5000)),
        *(("BATCH", -1), ("POSITION", -2), ("POSITION", 10_000), ("HEADER_KEYS", 5000)),
        ("HEADER_VALUES", -5),
    ],
)
def test_a_cursor_outside_of_the_columns_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match="the arrays are"):
        walk({name: value})


@pytest.mark.parametrize("index", [0, 1, 2, 3, 6, 9, 10, 12])
def test_an_array_that_is_not_made_of_whole_numbers_is_refused(index: int) -> None:
    columns = list(Room(Sizes(4, 0), ALL).columns)
    columns[index] = np.zeros(7, np.uint8)
    with pytest.raises(ValueError, match="the arrays are"):
        walk({}, columns)
