"""Counts everything in the end: what is missing, what is there twice, what nobody has sent.

A topic (`map`, `letters`) must have every good record at least once, as the page of guarantees
says; how many it has more than once is told, and is no failure. A dead-letter topic must have every
poison record exactly once, with its bytes and its place. The table must have been written exactly
once for every good record, must hold the last one of every key, and nothing of a poison record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, Message, TopicPartition

from kills.pipelines import PARTITIONS, TABLE, Shape, place

_SHOWN: Final = 3
_POSITION: Final = "ottla.errors.position"
_BATCH: Final = "ottla.errors.batch"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with one pipeline, in sentences, and what was found besides."""

    pipeline: str
    wrong: tuple[str, ...]
    found: str


def judge(shape: Shape, bootstrap: str, rows: Callable[[str], list[list[str]]]) -> Verdict:
    """Look at everything that a pipeline has left. `rows` asks the database."""
    wrong: list[str] = []
    for partition in range(PARTITIONS):
        end = _end(bootstrap, shape.source, partition)
        if end != len(range(partition, shape.count, PARTITIONS)):
            raise AssertionError(f"{shape.source}-{partition} ends at {end}: the input is wrong")
    if shape.name == "upsert":
        found = _judge_table(shape, rows, wrong)
    else:
        found = _judge_topic(shape, bootstrap, wrong)
    if shape.every:
        found += ", " + _judge_letters(shape, bootstrap, wrong)
    return Verdict(shape.name, tuple(wrong), found)


def _judge_topic(shape: Shape, bootstrap: str, wrong: list[str]) -> str:
    seen = np.zeros(shape.count, np.int32)
    strange: list[str] = []
    for record in _records(bootstrap, shape.target):
        try:
            seen[shape.result(record.value() or b"")] += 1
        except (ValueError, KeyError, IndexError) as error:
            strange.append(str(error))
    good = _good(shape)
    wrong += _told(shape, f"missing in {shape.target}", np.flatnonzero(good & (seen == 0)))
    if strange:
        wrong.append(f"{len(strange)} records of {shape.target} are nobody's: {strange[0]}")
    again = int((seen - 1).clip(0).sum())
    return f"{int((seen > 0).sum()):,} rows in its topic, {again:,} of them again"


def _judge_letters(shape: Shape, bootstrap: str, wrong: list[str]) -> str:
    seen = np.zeros(shape.count, np.int32)
    batches: dict[int, list[str]] = {}
    strange: list[str] = []
    for record in _records(bootstrap, shape.letters):
        headers = {name: (value or b"").decode() for name, value in record.headers() or ()}
        try:
            number = shape.number(record.value() or b"")
            seen[number] += 1
        except (ValueError, KeyError, IndexError) as error:
            strange.append(str(error))
            continue
        batches.setdefault(number, []).append(headers[_BATCH])
        wanted = (
            f'{{"topic":"{shape.source}","partition":{number % PARTITIONS},'
            f'"offset":{number // PARTITIONS}}}'
        )
        if headers[_POSITION].replace(" ", "") != wanted:
            strange.append(f"the letter of record {number} says that it is {headers[_POSITION]}")
    poison = ~_good(shape)
    wrong += _told(shape, "missing among the letters", np.flatnonzero(poison & (seen == 0)))
    wrong += _told(shape, "no poison, and letters", np.flatnonzero(~poison & (seen > 0)))
    twice = np.flatnonzero(seen > 1)
    if len(twice):
        batch = ", ".join(batches[int(twice[0])])
        wrong += _told(shape, f"letters more than once (the first: batch {batch})", twice)
    if strange:
        wrong.append(f"{len(strange)} letters of {shape.name} are wrong: {strange[0]}")
    return f"{int(seen.sum()):,} letters"


def _judge_table(shape: Shape, rows: Callable[[str], list[list[str]]], wrong: list[str]) -> str:
    numbers = np.arange(shape.count)[_good(shape)]
    keys = numbers % shape.keys
    wanted = np.bincount(keys, minlength=shape.keys)
    last = np.full(shape.keys, -1, np.int64)
    np.maximum.at(last, keys, numbers)
    writes, ids = np.zeros(shape.keys, np.int64), np.full(shape.keys, -1, np.int64)
    for line in rows(f"select k, id, writes, amount from {TABLE}"):
        key, number, count, amount = map(int, line)
        writes[key], ids[key] = count, number
        if amount != number % 1000 or shape.is_poison(number):
            wrong.append(f"the table holds what nobody has sent: {line}")
    less, more = np.flatnonzero(writes < wanted), np.flatnonzero(writes > wanted)
    for which, words in ((less, "less often"), (more, "more often")):
        if len(which):
            key = int(which[0])
            wrong.append(
                f"{len(which)} keys were written {words} than there are records; the first is "
                f"{key}: {writes[key]} times, not {wanted[key]} (record {key}: {place(key)})"
            )
    old = np.flatnonzero((ids != last) & (writes == wanted))
    if len(old):
        key = int(old[0])
        wrong.append(
            f"{len(old)} keys have not their last record; the first is {key}: {ids[key]}, not "
            f"{last[key]}"
        )
    return f"{int(writes.sum()):,} writes of {int((writes > 0).sum()):,} rows in its table"


def _good(shape: Shape) -> Any:
    if not shape.every:
        return np.ones(shape.count, bool)
    return np.arange(shape.count) % shape.every != shape.every // 2


def _told(shape: Shape, what: str, numbers: Any) -> list[str]:
    if not len(numbers):
        return []
    shown = "; ".join(f"{int(n)} ({place(int(n))})" for n in numbers[:_SHOWN])
    return [f"{len(numbers)} records of {shape.source} are {what}: {shown}"]


def _end(bootstrap: str, topic: str, partition: int) -> int:
    consumer = _consumer(bootstrap)
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 30.0)[1])
    finally:
        consumer.close()


def _records(bootstrap: str, topic: str) -> Iterator[Message]:
    """All records of a topic, partition by partition."""
    consumer = _consumer(bootstrap)
    try:
        for partition in range(PARTITIONS):
            each = TopicPartition(topic, partition, 0)
            left = int(consumer.get_watermark_offsets(each, 30.0)[1])
            consumer.assign([each])
            while left:
                for record in consumer.consume(min(left, 10_000), 5.0):
                    if record.error() is not None:
                        raise AssertionError(f"{topic}-{partition}: {record.error()}")
                    left -= 1
                    yield record
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False}
    )
