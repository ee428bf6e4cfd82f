"""What goes in and what comes out: headers, deliveries and records.

Named tuples rather than dataclasses: one is made for every record, and a tuple is made four
times as fast as a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Generic, Literal, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Headers = Mapping[str, "bytes | str | None"] | Iterable[tuple[str, "bytes | str | None"]]
"""Header names and values as they are given to `send`; a name may appear more than once."""

TimestampType = Literal["create", "append", "none"]


class Delivery(NamedTuple):
    """Where a record was stored. With acks=0 no broker says, and offset is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since the epoch; -1 when unknown


class Record(NamedTuple, Generic[K, V]):
    """One record as it was read. A null key or value is None."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since the epoch; -1 when the record has none
    timestamp_type: TimestampType  # set by the producer, by the broker, or absent
    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = -1

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp // 1000, UTC).replace(
            microsecond=self.timestamp % 1000 * 1000
        )

    def header(self, name: str) -> bytes | None:
        """The last header of that name, as Kafka's `lastHeader`; None when there is none."""
        for candidate, value in reversed(self.headers):
            if candidate == name:
                return value
        return None


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Bytes of what somebody sent, without what a log adds to it."""
    size = len(key or b"") + len(value or b"")
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, content in pairs or ():
        size += len(name.encode()) + len(content or b"")
    return size


def header_list(headers: Headers | None) -> list[tuple[str, str | bytes | None]] | None:
    """Check headers and bring them into the one form librdkafka is given."""
    if headers is None:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    result: list[tuple[str, str | bytes | None]] = []
    for pair in pairs:
        if isinstance(pair, str | bytes) or len(pair) != 2:
            raise TypeError(
                f"headers are a mapping or (name, value) pairs, {pair!r} is not such a pair"
            )
        name, value = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, {name!r} is {type(name).__name__}")
        if "\0" in name:
            raise ValueError(f"the name of a header ends at its first null character: {name!r}")
        if value is not None and not isinstance(value, bytes | str):
            raise TypeError(
                f"header {name!r} has a {type(value).__name__}; give bytes, str or None"
            )
        result.append((name, value.encode() if isinstance(value, str) else value))
    return result
