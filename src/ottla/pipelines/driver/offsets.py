"""The checkpoint beside the group, and moving both.

The checkpoint is the truth and the group `ottla-<pipeline>` is what Kafka's tools see of it. The
driver commits with a word of its own (`stamp`), so that a start can tell a commit that is merely
old, since a driver was killed before its next, from offsets that somebody has moved meanwhile.
Those it names, and asks which of the two is to be followed.

All of it is about sources that are topics. Other sources have a group as well, without offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.groups import CommittedOffset
from ottla.client.resets import ShiftBy, Target, ToCurrent
from ottla.model.ids import ZERO_TOPIC_ID, TopicPartition
from ottla.pipelines.cluster import Topic
from ottla.pipelines.driver.checkpoint import Checkpoint
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.offsets import Mark, Place, Progress, TopicProgress, same_topic

_WORD: Final = "ottla pipeline"


@dataclass(frozen=True, slots=True)
class Difference:
    """A partition whose committed offset somebody else has set."""

    partition: TopicPartition
    checkpoint: int | None
    group: int


def stamp(run: str, batch: int | None) -> str:
    """What the driver's commits say: whose they are, and after which batch."""
    return f"{_WORD} {run} batch {'-' if batch is None else batch}"


def progress_of(document: Mapping[str, Any] | None) -> Progress | None:
    """The progress that the end of a batch holds; None when its source is no topic."""
    if document is None or not ({"topics"} & document.keys()):
        return None
    try:
        return Progress.of_json(document)
    except OptionError:
        return None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a query goes on.

    position  the next offset of every partition, of a first batch that was not finished where it
              begins; None for a new query, and where no topic is read
    reached   the end of the last finished batch: another one after a jump that Spark has not made
    repeats   the batch that is run again first, since it was not finished
    """

    position: Progress | None
    reached: Progress | None
    repeats: int | None


def standing(checkpoint: Checkpoint) -> Standing:
    """Where the query of a checkpoint goes on."""
    reached = progress_of(checkpoint.position())
    unfinished = checkpoint.unfinished
    if unfinished is None:
        return Standing(reached, reached, None)
    end = progress_of(checkpoint.end(unfinished))
    if end is not None and not Progress.ranges(reached or Progress({}), end):
        return Standing(end, reached, None)
    if reached is None and end is not None:
        return Standing(_beginning(end), None, unfinished)
    return Standing(reached, reached, unfinished)


def _beginning(first: Progress) -> Progress:
    """Where the first batch begins: nothing else in a checkpoint tells it."""
    return Progress.initial(
        {
            tp: Mark(topic_id, place.begin or 0, place.epoch)
            for tp, topic_id, place in first.places()
        }
    )


def moved(
    position: Progress | None, run: str | None, committed: Mapping[TopicPartition, CommittedOffset]
) -> list[Difference]:
    """Where the group stands elsewhere than the checkpoint, and not by a commit of our own."""
    ends = {} if position is None else position.ends()
    ours = None if run is None else f"{_WORD} {run} "
    return [
        Difference(tp, ends.get(tp), each.offset)
        for tp, each in sorted(committed.items())
        if each.offset != ends.get(tp) and not (ours and each.metadata.startswith(ours))
    ]


def told(differences: Sequence[Difference], most: int = 5) -> str:
    """The differences in a sentence's part: `orders-0 at 10 (checkpoint: 250), …`."""
    shown = [
        f"{each.partition} at {each.group} (checkpoint: "
        f"{'nothing' if each.checkpoint is None else each.checkpoint})"
        for each in differences[:most]
    ]
    more = len(differences) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def commits(
    position: Progress, run: str, batch: int | None
) -> dict[TopicPartition, CommittedOffset]:
    """A position as commits of the driver."""
    word = stamp(run, batch)
    return {
        tp: CommittedOffset(mark.offset, mark.epoch if mark.epoch >= 0 else None, word)
        for tp, mark in position.marks().items()
    }


def jump(
    stands: Standing,
    wanted: Mapping[TopicPartition, int],
    topics: Mapping[str, Topic],
    starts: Mapping[TopicPartition, int],
) -> Progress:
    """The end of a batch that reads nothing and leaves the query at `wanted`.

    wanted  the new place of each partition that moves; the others stay where they are
    topics  all topics of the source, as they are now
    starts  where a partition begins that is in neither, or is that of a topic made anew

    A topic that was made anew stays the one that it was unless it moves, and is still found out:
    the old offset under its new id would leave out records without a word.
    """
    known = {} if stands.position is None else stands.position.marks()
    anew = made_anew(stands.position, topics)
    stay = {name for name in anew if not any(tp in wanted for tp in topics[name].partitions)}
    before = {} if stands.reached is None else stands.reached.ends()
    found: dict[str, TopicProgress] = {}
    if stands.position is not None and stay:
        found |= narrowed(stands, stands.position, stay).topics
    for name, topic in sorted(topics.items()):
        if name in stay:
            continue
        places: dict[int, Place] = {}
        for tp in topic.partitions:
            mark = known.get(tp) if name not in anew else None
            stays = mark.offset if mark is not None else starts.get(tp, 0)
            offset = wanted.get(tp, stays)
            epoch = mark.epoch if mark is not None and offset == mark.offset else -1
            stood = before.get(tp)
            jumped = stood if stood is not None and stood != offset else None
            places[tp.partition] = Place(offset, offset, epoch, jumped)
        found[name] = TopicProgress(topic.id or ZERO_TOPIC_ID, places)
    return Progress(found)


def made_anew(position: Progress | None, topics: Mapping[str, Topic]) -> set[str]:
    """The topics that are others now than those whose offsets a position holds."""
    return {
        name
        for name, progress in ({} if position is None else position.topics).items()
        if name in topics and not same_topic(progress.topic_id, topics[name].id or ZERO_TOPIC_ID)
    }


def narrowed(stands: Standing, position: Progress, kept: Collection[str]) -> Progress:
    """The end of a batch that reads nothing and leaves all topics but `kept` behind.

    Those stay the topics that they were: one that was made anew meanwhile is still found out.
    """
    before = {} if stands.reached is None else stands.reached.ends()
    found: dict[str, TopicProgress] = {}
    for name in sorted(kept):
        topic, places = position.topics[name], {}
        for number, place in topic.partitions.items():
            stood = before.get(TopicPartition(name, number))
            jumped = stood if stood is not None and stood != place.end else None
            places[number] = Place(place.end, place.end, place.epoch, jumped)
        found[name] = TopicProgress(topic.topic_id, places)
    return Progress(found)


def current(position: Progress | None, target: Target) -> dict[TopicPartition, int] | None:
    """The new places for targets that depend on where the query stands; None for the others."""
    ends = {} if position is None else position.ends()
    match target:
        case ToCurrent():
            return ends
        case ShiftBy(records):
            return {tp: max(0, end + records) for tp, end in ends.items()}
    return None
