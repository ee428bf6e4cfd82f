"""The compiled loops of the writer, and what they and Python say to one another.

The loops themselves are in `kernels`, which needs numba; this does not (see `compiled`).
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Final, NamedTuple

from ottla.pipelines.compiled import Library
from ottla.pipelines.loop import BYTES, LONG, LONGS, WRITTEN_BYTES, WRITTEN_LONGS, Loop

# What a batch in the making knows of itself, by its place in `state`.
POSITION: Final = 0
COUNT: Final = 1
BASE_TIME: Final = 2
MAX_TIME: Final = 3
NEEDED: Final = 4
STATE_SIZE: Final = 5

# Arguments of `encode`, by their number.
ORDER: Final = 0
FIRST: Final = 1  # and `last`
COLUMNS: Final = 3  # `times` to `headers`
OUT: Final = 16  # to `state`


class Loops(NamedTuple):
    """The functions of `kernels`, compiled."""

    route: Loop
    sort_by_lane: Loop
    encode: Loop


_COLUMN: Final = (BYTES, LONGS, BYTES)  # nulls, offsets, data
LIBRARY: Final = Library(
    "ottla.pipelines.sink.kernels",
    {
        "route": (
            *(LONGS, LONGS, BYTES, LONGS, BYTES, LONGS),
            *(LONGS, LONGS, LONGS, LONGS, WRITTEN_LONGS, WRITTEN_LONGS, LONG),
            WRITTEN_LONGS,
        ),
        "sort_by_lane": (LONGS, WRITTEN_LONGS, WRITTEN_LONGS),
        "encode": (
            *(LONGS, LONG, LONG),
            *(LONGS, *_COLUMN, *_COLUMN, LONGS, LONGS, BYTES, *_COLUMN),
            *(WRITTEN_BYTES, WRITTEN_LONGS, LONG, WRITTEN_LONGS),
        ),
    },
    imported=(__name__,),
)

_loading: Final = threading.Lock()


def load() -> Loops | None:
    """The compiled loops, or None where there is no numba; the first one to ask is told."""
    with _loading:
        return _load()


@functools.cache
def _load() -> Loops | None:
    try:
        return Loops(**LIBRARY.load())
    except Exception as error:
        # Spark keeps it with its executor's logs.
        sys.stderr.write(
            f"ottla: record batches are made in plain Python, some forty times slower: {error}\n"
        )
        return None
