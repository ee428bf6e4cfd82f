"""What filters on a batch read leave to be read: topics, partitions, and where to begin and end.

Only what follows with certainty is narrowed. Offsets rise, so both bounds hold. Timestamps are the
producers' and need not rise: the first record that is not older than a moment bounds the
beginning, but nothing bounds the end. Whatever is not understood narrows nothing. Spark
checks all filters once more on the rows, so to read too much is slow and never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ottla.model.ids import TopicPartition

_NO_END = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What rows can pass the filters. `since` is in milliseconds; None is no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int = _NO_END
    since: int | None = None

    def covers(self, tp: TopicPartition) -> bool:
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )


def narrowed(filters: Iterable[Filter]) -> Wanted:
    """What is left by all of these together."""
    wanted = Wanted()
    for each in filters:
        wanted = _narrow(wanted, each)
    return wanted


def _narrow(wanted: Wanted, by: Filter) -> Wanted:  # noqa: PLR0911 - one branch for each kind of filter
    match by:
        case EqualTo((column,), value) | EqualNullSafe((column,), value):
            return _among(wanted, column, (value,))
        case In((column,), values):
            return _among(wanted, column, tuple(values))
        case GreaterThan((column,), value):
            return _from(wanted, column, value, 1)
        case GreaterThanOrEqual((column,), value):
            return _from(wanted, column, value, 0)
        case LessThan(("offset",), value) if _whole(value):
            return replace(wanted, end=min(wanted.end, value))
        case LessThanOrEqual(("offset",), value) if _whole(value):
            return replace(wanted, end=min(wanted.end, value + 1))
    return wanted


def _among(wanted: Wanted, column: str, values: tuple[Any, ...]) -> Wanted:
    if column == "topic" and all(isinstance(value, str) for value in values):
        named = frozenset(values)
        return replace(wanted, topics=named if wanted.topics is None else wanted.topics & named)
    if column == "partition" and all(map(_whole, values)):
        numbers = frozenset(values)
        both = numbers if wanted.partitions is None else wanted.partitions & numbers
        return replace(wanted, partitions=both)
    if column == "offset" and values and all(map(_whole, values)):
        return replace(
            wanted,
            first=max(wanted.first, min(values)),
            end=min(wanted.end, max(values) + 1),
        )
    if column == "timestamp" and values and all(map(_moment, values)):
        return _from(wanted, column, min(values), 0)
    return wanted


def _from(wanted: Wanted, column: str, value: Any, step: int) -> Wanted:
    if column == "offset" and _whole(value):
        return replace(wanted, first=max(wanted.first, value + step))
    if column == "timestamp" and _moment(value):
        since = -((_EPOCH - value) // _MILLISECOND)
        return replace(wanted, since=max(since, wanted.since or 0, 0))
    return wanted


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _moment(value: Any) -> bool:
    """A time whose zone is known; Spark's timestamps are moments."""
    return isinstance(value, datetime) and value.tzinfo is not None
