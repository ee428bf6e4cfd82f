"""Which partitions a query reads: `subscribe`, `subscribePattern` or `assign`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.model.ids import TopicPartition
from ottla.model.names import topic_name_problem
from ottla.model.topic import INTERNAL_TOPICS
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.json_options import parse_assign
from ottla.pipelines.source.loss import Action, LossPolicy
from ottla.pipelines.source.offsets import CHECKPOINT, Progress

OPTIONS = ("subscribe", "subscribePattern", "assign")
_SHOWN: Final = 10  # partitions that one sentence names


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]

    option = "subscribe"

    @classmethod
    def parse(cls, text: str) -> Subscribe:
        topics = tuple(sorted({name for name in map(str.strip, text.split(",")) if name}))
        if not topics:
            raise OptionError(
                "subscribe", f"subscribe={text!r} names no topic: give orders,clicks."
            )
        check_names("subscribe", topics)
        return cls(topics)

    def covers(self, topic: str) -> bool:
        return topic in self.topics

    def reads(self, tp: TopicPartition) -> bool:
        return self.covers(tp.topic)

    def __str__(self) -> str:
        return ",".join(self.topics)


@dataclass(frozen=True, slots=True)
class Pattern:
    """All partitions of the topics whose whole name matches, now and later; internal ones never."""

    pattern: str

    option = "subscribePattern"

    @classmethod
    def parse(cls, text: str) -> Pattern:
        pattern = text.strip()
        if not pattern:
            raise OptionError(
                "subscribePattern", "subscribePattern is empty: give a pattern such as orders-.*"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                "subscribePattern",
                f"subscribePattern={pattern!r} is no regular expression of Python's ({error}): "
                "give one such as orders-.*",
            ) from None
        return cls(pattern)

    def covers(self, topic: str) -> bool:
        return topic not in INTERNAL_TOPICS and re.fullmatch(self.pattern, topic) is not None

    def reads(self, tp: TopicPartition) -> bool:
        return self.covers(tp.topic)

    def __str__(self) -> str:
        return self.pattern


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions and no others."""

    partitions: tuple[TopicPartition, ...]

    option = "assign"

    @classmethod
    def parse(cls, text: str) -> Assign:
        partitions = parse_assign("assign", text)
        check_names("assign", {tp.topic for tp in partitions})
        return cls(partitions)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({tp.topic for tp in self.partitions}))

    def covers(self, topic: str) -> bool:
        return topic in self.topics

    def reads(self, tp: TopicPartition) -> bool:
        return tp in self.partitions

    def check(self, real: Collection[TopicPartition]) -> None:
        """Refuse a partition that does not exist; `real` holds all of the topics named."""
        for tp in self.partitions:
            if tp not in real:
                raise OptionError("assign", f"assign names {unknown_partition(tp, real)}.")

    def __str__(self) -> str:
        return ",".join(map(str, self.partitions))


Strategy: TypeAlias = Subscribe | Pattern | Assign


def check_names(option: str, topics: Collection[str]) -> None:
    """Refuse what cannot be the name of a topic."""
    for topic in sorted(topics):
        problem = topic_name_problem(topic)
        if problem:
            raise OptionError(
                option, f"{option} names a topic that cannot exist, {problem}: correct the name."
            )


def unknown_partition(tp: TopicPartition, real: Collection[TopicPartition]) -> str:
    """`partition 9 of topic orders, which has the partitions 0 to 3`."""
    there = sorted(other.partition for other in real if other.topic == tp.topic)
    where = f"partition {tp.partition} of topic {tp.topic}"
    if not there:
        return f"{where}, and there is no such topic: create it, or correct the name"
    if len(there) == 1:
        return f"{where}, which has only partition {there[0]}: name that one"
    return f"{where}, which has the partitions {there[0]} to {there[-1]}: name one of these"


def left_out(progress: Progress, strategy: Strategy) -> dict[TopicPartition, int]:
    """The partitions of a checkpoint that are not to be read any more, and where they stand."""
    return {tp: end for tp, end in progress.ends().items() if not strategy.reads(tp)}


def check_checkpoint(progress: Progress, strategy: Strategy, loss: LossPolicy) -> None:
    """Refuse a checkpoint of other topics or partitions than those that are to be read now.

    More than before are fine, they begin at their beginning. Fewer are a loss like that of a
    deleted topic (Spark's connector says that they "are gone"), and `failOnDataLoss` decides. No
    topic in common is a mistake in any case.
    """
    missed = left_out(progress, strategy)
    if not missed:
        return
    there = sorted(progress.topics)
    related = any(strategy.covers(topic) for topic in there)
    if related and loss.deleted is not Action.FAIL:
        return
    plural = "s" if len(there) > 1 else ""
    allow = ", or set failOnDataLoss to deleted=skip to leave them unread" if related else ""
    raise OptionError(
        CHECKPOINT,
        f"The checkpoint is of topic{plural} {', '.join(there)} and {strategy.option} says "
        f"{strategy}, which leaves out {named(missed)}: use another {CHECKPOINT}, let "
        f"{strategy.option} have them as well{allow}.",
    )


def named(places: Mapping[TopicPartition, int]) -> str:
    """`orders-1 from offset 80 on, orders-2 from offset 90 on`; many are cut short."""
    shown = [f"{tp} from offset {end} on" for tp, end in sorted(places.items())]
    more = len(shown) - _SHOWN
    return ", ".join(shown if more <= 0 else [*shown[:_SHOWN], f"and {more} more"])
