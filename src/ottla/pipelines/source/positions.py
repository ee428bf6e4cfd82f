"""Where a query begins and where a batch ends, as the options say it.

An option is not yet an offset: `earliest`, a timestamp, or -2 in a document have to be looked
up at the brokers. These are the values that the lookup starts from, and the checks that need no
broker, or only the list of partitions that there really are.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import OptionError
from ottla.pipelines.options import MAX_LONG, Options, shown
from ottla.pipelines.source.json_options import (
    EARLIEST,
    LATEST,
    parse_offsets,
    parse_timestamps,
)
from ottla.pipelines.source.strategy import Pattern, Strategy, unknown_partition


class Edge(enum.IntEnum):
    """One end of every partition, with the number it has in ListOffsets."""

    EARLIEST = EARLIEST
    LATEST = LATEST


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every partition, or -2 (earliest) or -1 (latest)."""

    option: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """A timestamp in milliseconds for every partition."""

    option: str
    timestamps: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """One timestamp in milliseconds for all partitions."""

    option: str
    timestamp: int


Position: TypeAlias = Edge | AtOffsets | AtTimestamps | AtTimestamp


def starting(options: Options, default: Edge) -> Position:
    """The preference is Spark's: startingTimestamp, startingOffsetsByTimestamp, startingOffsets."""
    return _position(options, "starting", default)


def ending(options: Options) -> Position:
    """The preference is Spark's: endingTimestamp, endingOffsetsByTimestamp, endingOffsets."""
    return _position(options, "ending", Edge.LATEST)


def _position(options: Options, which: str, default: Edge) -> Position:
    one, many, plain = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    text = options.text(one)
    if text is not None:
        if not (text.isascii() and text.isdigit() and int(text) <= MAX_LONG):
            raise OptionError(
                one,
                f"{one}={shown(text)} is not right: give milliseconds since 1970, such as "
                "1767225600000.",
            )
        return AtTimestamp(one, int(text))
    text = options.text(many)
    if text is not None:
        return AtTimestamps(many, parse_timestamps(many, text))
    text = options.text(plain)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return Edge[text.upper()]
    if not text.startswith("{"):
        raise OptionError(
            plain,
            f"{plain}={shown(text)} is not right: give earliest, latest, or offsets such as "
            '{"orders":{"0":23,"1":-2}}.',
        )
    return AtOffsets(plain, parse_offsets(plain, text))


def check_batch(begin: Position, end: Position) -> None:
    """What only a batch cannot have: no beginning, no end, an end before its beginning."""
    if begin is Edge.LATEST:
        raise OptionError(
            "startingOffsets",
            "startingOffsets=latest leaves nothing to a batch read: give earliest, offsets, or "
            "startingTimestamp.",
        )
    if end is Edge.EARLIEST:
        raise OptionError(
            "endingOffsets",
            "endingOffsets=earliest leaves nothing to a batch read: give latest, offsets, or "
            "endingTimestamp.",
        )
    for position, edge, word in ((begin, LATEST, "latest"), (end, EARLIEST, "earliest")):
        if isinstance(position, AtOffsets):
            for tp, offset in position.offsets.items():
                if offset == edge:
                    raise OptionError(
                        position.option,
                        f"{position.option} has {edge} ({word}) for partition {tp.partition} of "
                        f"topic {tp.topic}, which a batch read cannot have: give an offset or "
                        f"{EARLIEST + LATEST - edge}.",
                    )
    match begin, end:
        case AtOffsets(), AtOffsets():
            _check_order(begin.option, begin.offsets, end.option, end.offsets)
        case AtTimestamps(), AtTimestamps():
            _check_order(begin.option, begin.timestamps, end.option, end.timestamps)
        case AtTimestamp(), AtTimestamp() if begin.timestamp > end.timestamp:
            raise OptionError(
                begin.option,
                f"{begin.option}={begin.timestamp} is after {end.option}={end.timestamp}: give a "
                "beginning that is not after the end.",
            )
        case _:
            pass


def _check_order(
    first: str,
    begins: Mapping[TopicPartition, int],
    second: str,
    ends: Mapping[TopicPartition, int],
) -> None:
    for tp in sorted(begins.keys() ^ ends.keys()):
        there, missing = (first, second) if tp in begins else (second, first)
        raise OptionError(
            missing,
            f"{there} names partition {tp.partition} of topic {tp.topic} and {missing} does not: "
            "name the same partitions in both.",
        )
    for tp, begin in sorted(begins.items()):
        if 0 <= ends[tp] < begin:
            raise OptionError(
                first,
                f"{first} has {begin} for partition {tp.partition} of topic {tp.topic} and "
                f"{second} has {ends[tp]}: give a beginning that is not after the end.",
            )


def check_topics(position: Position, strategy: Strategy) -> None:
    """Refuse offsets of topics that are not read, and topics without offsets, as far as known."""
    named = _named(position)
    if named is None:
        return
    option, partitions = named
    topics = {tp.topic for tp in partitions}
    for topic in sorted(topics):
        if not strategy.covers(topic):
            raise OptionError(
                option,
                f"{option} has topic {topic} and {strategy.option} says {strategy}: name the same "
                "topics in both.",
            )
    if isinstance(strategy, Pattern):
        return
    for topic in strategy.topics:
        if topic not in topics:
            raise OptionError(
                option,
                f"{strategy.option} says {strategy} and {option} has nothing for topic {topic}: "
                "name every partition of it.",
            )


def check_partitions(position: Position, real: Collection[TopicPartition]) -> None:
    """Refuse a document that does not name exactly the partitions that are read, as Spark does.

    `real` holds the partitions that the strategy comes to.
    """
    named = _named(position)
    if named is None:
        return
    option, partitions = named
    for tp in sorted(partitions):
        if tp not in real:
            raise OptionError(option, f"{option} names {unknown_partition(tp, real)}.")
    offsets = isinstance(position, AtOffsets)
    hint = " (-2 is the earliest offset, -1 the latest)" if offsets else ""
    for tp in sorted(real):
        if tp not in partitions:
            raise OptionError(
                option,
                f"{option} says nothing about partition {tp.partition} of topic {tp.topic}: name "
                f"every partition{hint}.",
            )


def _named(position: Position) -> tuple[str, Collection[TopicPartition]] | None:
    match position:
        case AtOffsets(option, offsets):
            return option, offsets.keys()
        case AtTimestamps(option, timestamps):
            return option, timestamps.keys()
        case _:
            return None


def nothing_so_late(option: str, tp: TopicPartition, timestamp: int) -> OptionError:
    """For a partition that has no record at or after the timestamp that is to begin with."""
    return OptionError(
        option,
        f"{option} says {timestamp} and partition {tp.partition} of topic {tp.topic} has no record "
        "so late: give an earlier time, or set startingOffsetsByTimestampStrategy to latest.",
    )
