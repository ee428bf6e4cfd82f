"""The options that are JSON documents: `assign`, and offsets or timestamps per partition.

Spark's connector answers any mistake in them with an example. These are typed by hand, often
long, and wrong in one place: the error says in which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import OptionError

EARLIEST = -2
LATEST = -1
MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1

_OFFSETS = '{"orders":{"0":23,"1":-2}}'
_TIMESTAMPS = '{"orders":{"0":1767225600000}}'
_ASSIGN = '{"orders":[0,1]}'


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """Offsets per partition; -2 is the earliest and -1 the latest."""
    return {
        tp: _whole(option, value, _place(tp), EARLIEST, _OFFSETS, "an offset, -2 or -1")
        for tp, value in _per_partition(option, text, _OFFSETS)
    }


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """Timestamps per partition, in milliseconds since 1970."""
    return {
        tp: _whole(option, value, _place(tp), 0, _TIMESTAMPS, "milliseconds since 1970")
        for tp, value in _per_partition(option, text, _TIMESTAMPS)
    }


def parse_assign(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Partitions by topic, in order."""
    found: set[TopicPartition] = set()
    for topic, numbers in _document(option, text, _ASSIGN).items():
        if not isinstance(numbers, list):
            raise _wrong(option, f"{topic!r} does not hold a list of partitions", _ASSIGN)
        if not numbers:
            raise _wrong(option, f"{topic!r} holds no partition", _ASSIGN)
        for index, number in enumerate(numbers):
            place = f"at {topic!r}[{index}]"
            whole = _whole(option, number, place, 0, _ASSIGN, "the number of a partition", MAX_INT)
            found.add(TopicPartition(topic, whole))
    if not found:
        raise _wrong(option, "it names no partition", _ASSIGN)
    return tuple(sorted(found))


def _wrong(option: str, what: str, example: str) -> OptionError:
    return OptionError(option, f"{option} is malformed, {what}: give something like {example}.")


def _place(tp: TopicPartition) -> str:
    return f"at {tp.topic!r}, partition {tp.partition}"


def _document(option: str, text: str, example: str) -> Mapping[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise _wrong(option, f"{name!r} stands there twice", example)
            found[name] = value
        return found

    try:
        document = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        what = f"it is no JSON from character {error.pos + 1} on ({error.msg})"
        raise _wrong(option, what, example) from None
    except RecursionError:
        raise _wrong(option, "it is nested too deeply", example) from None
    if not isinstance(document, dict):
        raise _wrong(option, "it is no JSON object", example)
    return document


def _per_partition(option: str, text: str, example: str) -> list[tuple[TopicPartition, Any]]:
    found: dict[TopicPartition, Any] = {}
    for topic, partitions in _document(option, text, example).items():
        if not isinstance(partitions, dict):
            raise _wrong(option, f"{topic!r} does not hold an object of partitions", example)
        for number, value in partitions.items():
            if not (number.isascii() and number.isdigit() and int(number) <= MAX_INT):
                what = f"{number!r} under {topic!r} is not the number of a partition"
                raise _wrong(option, what, example)
            tp = TopicPartition(topic, int(number))
            if tp in found:  # "1" and "01" are the same partition
                what = f"partition {tp.partition} of {tp.topic!r} stands there twice"
                raise _wrong(option, what, example)
            found[tp] = value
    if not found:
        raise _wrong(option, "it names no partition", example)
    return sorted(found.items())


def _whole(
    option: str,
    value: Any,
    place: str,
    least: int,
    example: str,
    right: str,
    most: int = MAX_LONG,
) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        shown = json.dumps(value)
        raise _wrong(option, f"{place} it has {shown}, which is not {right}", example)
    return value
