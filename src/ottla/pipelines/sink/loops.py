"""The native loops of the writer, and what they and Python say to one another.

They are in C (`ottla.records.native`, built with Ottla; see `ottla.records.walker`) and check every
index before it is used. Where they were not built, `encoder` and `partitioner` do the same in
Python, a row at a time. A task says so on stderr, which Spark keeps with its executor's logs, and
to the driver: see `writer.Written`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.pipelines.native import how_to_mend
from ottla.records import walker

LOGGER = logging.getLogger("ottla.pipelines")

# What a batch in the making knows of itself, by its place in `state`.
POSITION: Final = 0
COUNT: Final = 1
BASE_TIME: Final = 2
MAX_TIME: Final = 3
NEEDED: Final = 4
STATE_SIZE: Final = 5


class Loops(NamedTuple):
    """What there is in C. A ValueError for arrays that do not fit one another.

    route         `partitioner._route`
    sort_by_lane  lanes, starts, order: a counting sort that keeps rows of one lane in their order.
                  Afterwards lane n has the rows `order[starts[n]:starts[n + 1]]`
    encode        columns.arrays(), order, first, last, out, rows, first_row, state: append the
                  rows `order[first:last]` to a batch until it is full. Returns how far it came.
                  When that is not `last`, NEEDED says how large `out` would have to be for the
                  next one, or `rows`, which notes which row each record was, is full
    """

    route: Callable[..., int]
    sort_by_lane: Callable[..., int]
    encode: Callable[..., int]


_loading: Final = threading.Lock()


def load() -> Loops | None:
    """The native loops, or None where they were not built; the first one to ask is told."""
    with _loading:
        return _load()


@functools.cache
def _load() -> Loops | None:
    if walker.ROW_LOOPS is None:
        LOGGER.warning(
            "Record batches are made in plain Python, some forty times slower: %s.", how_to_mend()
        )
        return None
    return Loops(*walker.ROW_LOOPS)
