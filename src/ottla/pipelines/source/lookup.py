"""From what the options say to offsets: topics, partitions, where to begin and where to end.

The only step between options and plan that asks brokers. What cannot be found is an OptionError
with the name of the option that asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ottla.client.descriptions import OffsetInfo
from ottla.model.ids import NO_LEADER_EPOCH, TopicPartition
from ottla.pipelines.cluster import Cluster, Topic, partitions_of
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.json_options import EARLIEST, LATEST
from ottla.pipelines.source.offsets import Mark
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    Position,
    check_partitions,
    nothing_so_late,
)
from ottla.pipelines.source.strategy import Assign, Pattern, Strategy, Subscribe


def find_topics(cluster: Cluster, strategy: Strategy) -> Mapping[str, Topic]:
    """The topics that there are of those to be read."""
    if isinstance(strategy, Pattern):
        return cluster.matching(strategy.pattern)
    return cluster.topics(strategy.topics)


def wanted(strategy: Strategy) -> Callable[[TopicPartition], bool]:
    """Whether a partition of the topics found is to be read."""
    if isinstance(strategy, Assign):
        return frozenset(strategy.partitions).__contains__
    return lambda _: True


def starting_marks(
    cluster: Cluster, topics: Mapping[str, Topic], options: ReadOptions
) -> dict[TopicPartition, Mark]:
    """Where a query begins that has not begun yet."""
    partitions = real_partitions(topics, options.strategy)
    check_partitions(options.starting, partitions)
    found = _offsets(cluster, partitions, options.starting)
    late = [tp for tp, info in found.items() if info.offset < 0]
    if late and not options.latest_if_too_late:
        raise _too_late(options.starting, late[0])
    found |= cluster.ends(late)
    return _marks(found, topics)


def ending_marks(
    cluster: Cluster, topics: Mapping[str, Topic], options: ReadOptions
) -> dict[TopicPartition, Mark]:
    """Where a batch read ends; at the end of the log where no record is as young as asked for."""
    partitions = real_partitions(topics, options.strategy)
    check_partitions(options.ending, partitions)
    found = _offsets(cluster, partitions, options.ending)
    found |= cluster.ends([tp for tp, info in found.items() if info.offset < 0])
    return _marks(found, topics)


def real_partitions(topics: Mapping[str, Topic], strategy: Strategy) -> list[TopicPartition]:
    """The partitions that the strategy comes to; what it names must be there."""
    there = partitions_of(topics.values())
    match strategy:
        case Subscribe(names):
            missing = [name for name in names if name not in topics]
            if missing:
                raise OptionError(
                    "subscribe",
                    f"subscribe names topic {missing[0]}, and there is no such topic: create it, "
                    "or correct the name.",
                )
        case Assign(partitions):
            strategy.check(there)
            return list(partitions)
    return there


def _offsets(
    cluster: Cluster, partitions: Collection[TopicPartition], position: Position
) -> dict[TopicPartition, OffsetInfo]:
    """The offset of each; -1 where no record is as young as asked for."""
    match position:
        case AtTimestamp(_, timestamp):
            return cluster.offsets(dict.fromkeys(partitions, timestamp))
        case AtTimestamps(_, timestamps):
            return cluster.offsets(timestamps)
        case AtOffsets(option, offsets):
            return _given(cluster, option, offsets)
        case Edge():
            return cluster.offsets(dict.fromkeys(partitions, int(position)))


def _given(
    cluster: Cluster, option: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetInfo]:
    edges = {tp: edge for tp, edge in offsets.items() if edge in (EARLIEST, LATEST)}
    exact = {tp: offset for tp, offset in offsets.items() if tp not in edges}
    for tp, end in cluster.ends(exact).items():
        if exact[tp] > end.offset:
            raise OptionError(
                option,
                f"{option} has {exact[tp]} for partition {tp.partition} of topic {tp.topic}, "
                f"whose log ends at {end.offset}: give an offset up to that.",
            )
    return {tp: OffsetInfo(offset) for tp, offset in exact.items()} | cluster.offsets(edges)


def _marks(
    found: Mapping[TopicPartition, OffsetInfo], topics: Mapping[str, Topic]
) -> dict[TopicPartition, Mark]:
    return {
        tp: Mark(
            topics[tp.topic].id,
            info.offset,
            NO_LEADER_EPOCH if info.leader_epoch is None else info.leader_epoch,
        )
        for tp, info in found.items()
    }


def _too_late(position: Position, tp: TopicPartition) -> OptionError:
    match position:
        case AtTimestamps(option, timestamps):
            return nothing_so_late(option, tp, timestamps[tp])
        case AtTimestamp(option, timestamp):
            return nothing_so_late(option, tp, timestamp)
    raise AssertionError(f"{position} has an offset in every log")
