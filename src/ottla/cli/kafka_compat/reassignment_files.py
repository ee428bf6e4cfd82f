"""The files of kafka-reassign-partitions: which partitions go where, and which topics to move.

    {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2],
                                   "log_dirs": ["any", "/data/b"]}]}
    {"version": 1, "topics": [{"topic": "t"}]}

What is wrong with one is told in Kafka's words where Kafka has some, and else with the file's name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ottla.cli.kafka_compat.json_files import is_integer, is_list, is_name, load
from ottla.cli.kafka_compat.options import Failure
from ottla.model.ids import Replica, TopicPartition

ANY = "any"


class Moves(NamedTuple):
    """What a file asks for; `folders` where replicas are to lie in a certain one."""

    partitions: list[tuple[TopicPartition, list[int]]]
    folders: dict[Replica, str]


def read_moves(path: str) -> Moves:
    """The partitions of a file, twice where it names them twice."""
    document = _read(path)
    moves = Moves([], {})
    partitions = document.get("partitions", [])
    if not is_list(partitions):
        raise complaint(f"{path}: partitions has to be a list; correct the file")
    for fields in partitions:
        try:
            tp = TopicPartition(_text(fields["topic"]), _number(fields["partition"]))
            replicas = [_number(each) for each in fields["replicas"]]
            folders = [_text(each) for each in fields.get("log_dirs", [ANY] * len(replicas))]
        except (TypeError, KeyError, ValueError):
            raise complaint(
                f"{path}: every partition needs a topic (text), a partition (number) and replicas "
                "(numbers); correct the file"
            ) from None
        if len(replicas) != len(folders):
            raise complaint(
                f"Size of replicas list {_java(replicas)} is different from size of log dirs list "
                f"{_java(folders)} for partition {tp}"
            )
        moves.partitions.append((tp, replicas))
        for broker, folder in zip(replicas, folders, strict=True):
            if folder != ANY:
                # Brokers name their folders without a slash at the end.
                moves.folders[Replica(broker, tp)] = folder.rstrip("/") or folder
    return moves


def check_moves(moves: Moves) -> dict[TopicPartition, list[int]]:
    """The partitions of a file that can be carried out: each once, with different replicas."""
    if not moves.partitions:
        raise complaint("Partition reassignment list cannot be empty")
    if any(not replicas for _, replicas in moves.partitions):
        raise complaint("Partition replica list cannot be empty")
    twice = _twice(tp for tp, _ in moves.partitions)
    if twice:
        names = ",".join(map(str, twice))
        raise complaint(f"Partition reassignment contains duplicate topic partitions: {names}")
    repeated = [
        f"{tp} contains multiple entries for {','.join(map(str, _twice(replicas)))}"
        for tp, replicas in moves.partitions
        if _twice(replicas)
    ]
    if repeated:
        raise complaint(
            f"Partition replica lists may not contain duplicate entries: {'. '.join(repeated)}"
        )
    return dict(moves.partitions)


def read_topics(path: str) -> list[str]:
    """The topics that a file names."""
    document = _read(path)
    try:
        topics = [_text(each["topic"]) for each in document.get("topics", ())]
    except (TypeError, KeyError, ValueError):
        raise complaint(f"{path}: every topic needs a topic (text); correct the file") from None
    twice = _twice(topics)
    if twice:
        raise complaint(f"List of topics to reassign contains duplicate entries: {_java(twice)}")
    return topics


def read_brokers(text: str) -> list[int]:
    """`0,1,2` as numbers."""
    try:
        brokers = [int(each) for each in text.split(",")]
    except ValueError:
        raise complaint(
            f"--broker-list {text!r}: expected broker ids with commas, as 0,1"
        ) from None
    twice = _twice(brokers)
    if twice:
        raise complaint(f"Broker list contains duplicate entries: {_java(twice)}")
    return brokers


def as_json(
    partitions: Mapping[TopicPartition, Sequence[int]],
    folders: Mapping[Replica, str] = MappingProxyType({}),
) -> str:
    """Partitions as a file would have them, with the folders of their replicas."""
    return json.dumps(
        {
            "version": 1,
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "replicas": list(partitions[tp]),
                    "log_dirs": [folders.get(Replica(each, tp), ANY) for each in partitions[tp]],
                }
                for tp in sorted(partitions)
            ],
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )


def complaint(text: str) -> Failure:
    """A mistake as kafka-reassign-partitions tells it."""
    return Failure(f"Error: {text}", out=True)


def _read(path: str) -> dict[str, Any]:
    try:
        document = load(path)
    except OSError as error:
        raise complaint(f"{path}: {error.strerror}; check the path") from None
    except ValueError as error:
        raise complaint(f"{path} is not valid JSON: {error}; correct the file") from None
    if not isinstance(document, dict):
        raise complaint(f"{path} holds no JSON object; correct the file")
    version = document.get("version", 1)
    if version != 1:
        raise complaint(f"Not supported version field value {version}")
    return document


def _twice(values: Iterable[Any]) -> list[Any]:
    return sorted(each for each, number in Counter(values).items() if number > 1)


def _number(value: object) -> int:
    if not is_integer(value):
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if not is_name(value):
        raise ValueError(value)
    return value


def _java(values: Iterable[object]) -> str:
    return f"[{', '.join(map(str, values))}]"
