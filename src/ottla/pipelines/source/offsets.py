"""How far a stream has come: the JSON that Spark keeps in the checkpoint, version 1.

    {"v": 1,
     "topics": {"orders": {"id": "hQf0…", "partitions": {"0": [120, 250, 3], "1": [80, 80, 3]}}},
     "splits": {"orders": {"0": [163, 206]}},
     "plan": {"minPartitions": 4}}

Per partition: where this batch begins, where it ends (the next offset to read), and the leader
epoch that was seen. A fourth number is there when the batch does not begin where the one before
it ended (records were lost, or the topic was made anew): where that one ended. `splits` holds the
inner bounds where a partition is cut into several tasks. `plan` says which options led to them.

The plan of a batch follows from the two documents at its ends and from nothing else: not from the
options, not from the brokers. A query that is started again with another `minPartitions` replays
its last batch with the same rows in the same tasks, which is what per-task exactly-once rests upon.

A checkpoint of Spark's own connector, `{"orders": {"0": 123}}`, is read as well: then ids and
epochs are not known and a batch begins where the one before it ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ottla.model.ids import (
    NO_LEADER_EPOCH,
    ZERO_TOPIC_ID,
    TopicPartition,
    parse_topic_id,
    topic_id_text,
)
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.planner import bounds, cut
from ottla.pipelines.source.ranges import Range

VERSION = 1
CHECKPOINT = "checkpointLocation"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a partition: which topic of that name, which offset, seen under which epoch."""

    topic_id: bytes
    offset: int
    epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class Place:
    """One partition in one document. `begin` is None where Spark's own connector wrote it."""

    begin: int | None
    end: int
    epoch: int = NO_LEADER_EPOCH
    jumped_from: int | None = None
    """Where the batch before ended, when that is not where this one begins."""


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """A topic's partitions by number; `topic_id` is ZERO_TOPIC_ID where it is not known."""

    topic_id: bytes
    partitions: Mapping[int, Place]


@dataclass(frozen=True, slots=True)
class Progress:
    """One offset of the stream, in Spark's sense of the word."""

    topics: Mapping[str, TopicProgress]
    splits: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    min_partitions: int | None = None
    max_records: int | None = None

    @classmethod
    def initial(cls, marks: Mapping[TopicPartition, Mark]) -> Progress:
        """Before the first batch: every partition stands at its mark."""
        return cls(_grouped({tp: (mark.topic_id, _standing(mark)) for tp, mark in marks.items()}))

    @classmethod
    def of_json(cls, document: str | Mapping[str, Any]) -> Progress:
        """Read the JSON of a checkpoint, as text or as Spark hands it over, already parsed."""
        if isinstance(document, str):
            try:
                document = json.loads(document)
            except ValueError as error:
                raise _broken("the document", f"is not JSON ({error})") from None
        if not isinstance(document, Mapping):
            raise _broken("the document", "is not a JSON object")
        if "v" not in document or isinstance(document["v"], Mapping):
            # A topic may well be called "v"; then a map of partitions stands here.
            return cls(dict(_sparks_topics(document)))
        if document["v"] != VERSION or isinstance(document["v"], bool):
            raise OptionError(
                CHECKPOINT,
                f"The checkpoint is of format version {document['v']!r} and this Ottla reads "
                f"version {VERSION}: use the version that wrote it, or another {CHECKPOINT}.",
            )
        unknown = sorted(document.keys() - {"v", "topics", "splits", "plan"})
        if unknown:
            raise _broken(unknown[0], "is nothing that version 1 knows")
        topics = dict(_topics(_object(document.get("topics"), "topics")))
        plan = _object(document.get("plan", {}), "plan")
        return cls(
            topics,
            dict(_splits(_object(document.get("splits", {}), "splits"), topics)),
            _planned(plan, "minPartitions"),
            _planned(plan, "maxRecordsPerPartition"),
        )

    def to_json(self) -> dict[str, Any]:
        """What Spark is to keep. Equal progress gives equal text: Spark compares the texts."""
        document: dict[str, Any] = {
            "v": VERSION,
            "topics": {
                name: {
                    "id": None
                    if topic.topic_id == ZERO_TOPIC_ID
                    else topic_id_text(topic.topic_id),
                    "partitions": {
                        str(number): _place_json(place)
                        for number, place in sorted(topic.partitions.items())
                    },
                }
                for name, topic in sorted(self.topics.items())
            },
        }
        splits: dict[str, dict[str, list[int]]] = {}
        for tp, inner in sorted(self.splits.items()):
            splits.setdefault(tp.topic, {})[str(tp.partition)] = list(inner)
        plan = {
            name: value
            for name, value in (
                ("minPartitions", self.min_partitions),
                ("maxRecordsPerPartition", self.max_records),
            )
            if value is not None
        }
        return document | ({"splits": splits} if splits else {}) | ({"plan": plan} if plan else {})

    def places(self) -> Iterator[tuple[TopicPartition, bytes, Place]]:
        """Every partition with the id of its topic, in order."""
        for name, topic in sorted(self.topics.items()):
            for number, place in sorted(topic.partitions.items()):
                yield TopicPartition(name, number), topic.topic_id, place

    def ends(self) -> dict[TopicPartition, int]:
        """The next offset of every partition."""
        return {tp: place.end for tp, _, place in self.places()}

    def marks(self) -> dict[TopicPartition, Mark]:
        """The next offset of every partition, with the id and the epoch that belong to it."""
        return {tp: Mark(known, place.end, place.epoch) for tp, known, place in self.places()}

    def advance(
        self,
        ends: Mapping[TopicPartition, Mark],
        *,
        begins: Mapping[TopicPartition, int] | None = None,
        gone: Collection[TopicPartition] = (),
        min_partitions: int | None = None,
        max_records: int | None = None,
    ) -> Progress:
        """The document after a batch that reads on to `ends`; this very one when there is no batch.

        `begins` says where a partition begins that is new, or whose place is lost; one that is
        known begins where it stands. An end before its begin is taken for a stale answer: nothing
        moves back. A partition that is not in `ends` keeps its place; those of `gone` are left
        out from now on.
        """
        begins = begins or {}
        standing = self.marks()
        ids = {tp.topic: mark.topic_id for tp, mark in ends.items()}
        moved = {
            tp: (mark.topic_id, _standing(mark))
            for tp, mark in standing.items()
            if tp not in gone and same_topic(mark.topic_id, ids.get(tp.topic, ZERO_TOPIC_ID))
        }
        for tp, mark in ends.items():
            begin = begins.get(tp)
            if begin is None:
                if tp not in moved:
                    raise ValueError(f"{tp} is new and `begins` does not say where it begins")
                begin = standing[tp].offset
            jumped = (
                standing[tp].offset if tp in standing and standing[tp].offset != begin else None
            )
            moved[tp] = (mark.topic_id, Place(begin, max(begin, mark.offset), mark.epoch, jumped))
        topics = _grouped(moved)
        if not self._worth_a_batch(topics):
            return self
        spans = {tp: (place.begin or 0, place.end) for tp, (_, place) in moved.items()}
        splits = bounds(spans, min_partitions, max_records)
        return Progress(topics, splits, min_partitions, max_records)

    def _worth_a_batch(self, topics: Mapping[str, TopicProgress]) -> bool:
        """Whether anything is to be read or noted. An epoch, or an id learnt, alone is not."""
        if topics.keys() != self.topics.keys():
            return True
        return any(
            not same_topic(topic.topic_id, self.topics[name].topic_id)
            or topic.partitions.keys() != self.topics[name].partitions.keys()
            or any(
                place.end != place.begin or place.jumped_from is not None
                for place in topic.partitions.values()
            )
            for name, topic in topics.items()
        )

    @staticmethod
    def ranges(start: Progress, end: Progress) -> list[Range]:
        """The tasks of the batch between two documents, in order of topic, partition and offset.

        What lies between the documents is never left out, even if they are not neighbours (Spark
        may thin out its log of offsets), except where `end` says that it jumped.
        """
        before = {tp: (topic_id, place) for tp, topic_id, place in start.places()}
        found: list[Range] = []
        for tp, topic_id, place in end.places():
            old_id, old = before.get(tp, (topic_id, None))
            if not same_topic(old_id, topic_id):
                old = None
            if old == place:
                continue
            for first, last in _stretches(None if old is None else old.end, place):
                whole = Range(tp.topic, topic_id, tp.partition, first, last, place.epoch)
                found.extend(cut(whole, end.splits.get(tp, ())))
        return found


def same_topic(one: bytes, other: bytes) -> bool:
    """Whether two ids may be of one topic; an id that is not known may be any."""
    return one == other or ZERO_TOPIC_ID in (one, other)


def _stretches(stood: int | None, place: Place) -> list[tuple[int, int]]:
    """What is read of a partition that stood at `stood`, or was not there before."""
    if place.begin is None:
        return [(stood or 0, place.end)]
    reached = place.begin if place.jumped_from is None else place.jumped_from
    earlier = [(stood, reached)] if stood is not None and stood < reached else []
    if earlier and place.jumped_from is None:
        return [(earlier[0][0], place.end)]
    return [*earlier, (place.begin, place.end)]


def _standing(mark: Mark) -> Place:
    return Place(mark.offset, mark.offset, mark.epoch)


def _grouped(places: Mapping[TopicPartition, tuple[bytes, Place]]) -> dict[str, TopicProgress]:
    ids: dict[str, bytes] = {}
    partitions: dict[str, dict[int, Place]] = {}
    for tp, (topic_id, place) in sorted(places.items()):
        if ids.setdefault(tp.topic, topic_id) == ZERO_TOPIC_ID:
            ids[tp.topic] = topic_id
        partitions.setdefault(tp.topic, {})[tp.partition] = place
    return {name: TopicProgress(ids[name], found) for name, found in partitions.items()}


def _place_json(place: Place) -> list[int | None]:
    entry: list[int | None] = [place.begin, place.end, place.epoch]
    return entry if place.jumped_from is None else [*entry, place.jumped_from]


def _broken(where: str, what: str) -> OptionError:
    return OptionError(
        CHECKPOINT,
        f"The offsets in the checkpoint are malformed, {where} {what}: restore the checkpoint, or "
        f"use another {CHECKPOINT}.",
    )


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _broken(where, "is not a JSON object")
    return value


def _number(value: Any, where: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _broken(where, f"is {value!r} and not a whole number")
    if value < least:
        raise _broken(where, f"is {value} and may not be below {least}")
    return value


def _partition(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _broken(where, "is not the number of a partition")
    return int(text)


def _sparks_topics(document: Mapping[str, Any]) -> Iterator[tuple[str, TopicProgress]]:
    for name, offsets in document.items():
        yield (
            name,
            TopicProgress(
                ZERO_TOPIC_ID,
                {
                    _partition(number, f"{name}.{number}"): Place(
                        None, _number(offset, f"{name}.{number}")
                    )
                    for number, offset in _object(offsets, name).items()
                },
            ),
        )


def _topics(document: Mapping[str, Any]) -> Iterator[tuple[str, TopicProgress]]:
    for name, topic in document.items():
        where = f"topics.{name}"
        entry = _object(topic, where)
        if entry.keys() != {"id", "partitions"}:
            raise _broken(where, "does not hold id and partitions")
        partitions = _object(entry["partitions"], f"{where}.partitions")
        yield (
            name,
            TopicProgress(
                _topic_id(entry["id"], f"{where}.id"),
                {
                    _partition(number, f"{where}.partitions.{number}"): _place(
                        place, f"{where}.partitions.{number}"
                    )
                    for number, place in partitions.items()
                },
            ),
        )


def _topic_id(value: Any, where: str) -> bytes:
    if value is None:
        return ZERO_TOPIC_ID
    try:
        return parse_topic_id(value)
    except (TypeError, ValueError):
        raise _broken(where, f"is {value!r} and not the id of a topic") from None


def _place(value: Any, where: str) -> Place:
    if not isinstance(value, list) or len(value) not in (3, 4):
        raise _broken(where, "is not [from, to, epoch]")
    begin = None if value[0] is None else _number(value[0], f"{where}[0]")
    end = _number(value[1], f"{where}[1]", least=begin or 0)
    epoch = _number(value[2], f"{where}[2]", least=NO_LEADER_EPOCH)
    jumped = _number(value[3], f"{where}[3]") if len(value) == 4 else None
    return Place(begin, end, epoch, jumped)


def _splits(
    document: Mapping[str, Any], topics: Mapping[str, TopicProgress]
) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
    for name, partitions in document.items():
        for number, inner in _object(partitions, f"splits.{name}").items():
            where = f"splits.{name}.{number}"
            tp = TopicPartition(name, _partition(number, where))
            if name not in topics or tp.partition not in topics[name].partitions:
                raise _broken(where, "is of a partition that topics does not hold")
            if not isinstance(inner, list) or not inner:
                raise _broken(where, "is not a list of offsets")
            found = tuple(_number(bound, f"{where}[{i}]") for i, bound in enumerate(inner))
            if any(a >= b for a, b in pairwise(found)):
                raise _broken(where, "is not in rising order")
            yield tp, found


def _planned(plan: Mapping[str, Any], name: str) -> int | None:
    return None if plan.get(name) is None else _number(plan[name], f"plan.{name}", least=1)
