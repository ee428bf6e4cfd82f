"""How much a batch takes, and how it is cut into tasks. Arithmetic only.

`bounds` follows Spark's connector: `maxRecordsPerPartition` cuts first, then `minPartitions` cuts
the large pieces further, in proportion, so that about that many tasks result. The pieces of a
partition differ by at most one offset.

`limit` shares out `maxOffsetsPerTrigger` in proportion to what each partition has waiting. It
departs from Spark's connector twice. The shares add up to the limit and never to more; Spark gives
every small partition one record on top. And no partition waits for ever: when there are more
partitions behind than records allowed, they take turns.

Offsets are 64-bit numbers, so nothing here goes through floating point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.ranges import Range

MOST_TASKS = 100_000
"""A batch of more tasks than this is a slip of the pen; Spark's scheduler would choke on it."""


def split(
    ranges: Sequence[Range], min_partitions: int | None = None, max_records: int | None = None
) -> list[Range]:
    """The same offsets, cut into tasks; empty ranges are left out. The order is kept."""
    full = [whole for whole in ranges if whole.size > 0]
    counts = _pieces([whole.size for whole in full], min_partitions, max_records)
    return [
        piece
        for whole, parts in zip(full, counts, strict=True)
        for piece in cut(whole, _inner(whole.start, whole.end, parts))
    ]


def bounds(
    spans: Mapping[TopicPartition, tuple[int, int]],
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Where to cut each (begin, end): the inner bounds, of those partitions that are cut at all."""
    full = {tp: spans[tp] for tp in sorted(spans) if spans[tp][1] > spans[tp][0]}
    sizes = [end - begin for begin, end in full.values()]
    counts = _pieces(sizes, min_partitions, max_records)
    return {
        tp: _inner(begin, end, parts)
        for (tp, (begin, end)), parts in zip(full.items(), counts, strict=True)
        if parts > 1
    }


def cut(whole: Range, inner: Sequence[int]) -> list[Range]:
    """A range cut at those of the bounds that lie inside it; nothing for an empty range."""
    edges = [whole.start, *sorted({b for b in inner if whole.start < b < whole.end}), whole.end]
    return [
        Range(whole.topic, whole.topic_id, whole.partition, begin, end, whole.epoch)
        for begin, end in pairwise(edges)
        if end > begin
    ]


def _inner(begin: int, end: int, parts: int) -> tuple[int, ...]:
    return tuple(begin + (end - begin) * part // parts for part in range(1, parts))


def _pieces(sizes: Sequence[int], min_partitions: int | None, max_records: int | None) -> list[int]:
    """Into how many pieces each of these is cut, never into more than it has offsets."""
    counts = [1 if max_records is None else -(-size // max_records) for size in sizes]
    _check_tasks(counts, "maxRecordsPerPartition", max_records)
    if min_partitions is None or sum(counts) >= min_partitions:
        return counts
    total = sum(sizes)
    # What is too small to be cut drops out of the proportion, else the large ones would be cut
    # into fewer pieces than were asked for.
    large = [
        _share(size, total, min_partitions) > count
        for size, count in zip(sizes, counts, strict=True)
    ]
    wanted = min_partitions - sum(c for c, big in zip(counts, large, strict=True) if not big)
    large_total = sum(size for size, big in zip(sizes, large, strict=True) if big)
    counts = [
        min(size, max(count, _share(size, large_total, wanted))) if big else count
        for size, count, big in zip(sizes, counts, large, strict=True)
    ]
    _check_tasks(counts, "minPartitions", min_partitions)
    return counts


def _check_tasks(counts: Sequence[int], option: str, value: int | None) -> None:
    if value is not None and sum(counts) > MOST_TASKS:
        larger = "larger" if option == "maxRecordsPerPartition" else "smaller"
        raise OptionError(
            option,
            f"{option}={value} would cut one batch into {sum(counts):,} tasks, and {MOST_TASKS:,} "
            f"is the most: give a {larger} number, or for a stream set maxOffsetsPerTrigger.",
        )


def _share(size: int, total: int, parts: int) -> int:
    """`size / total * parts`, rounded half up."""
    return (2 * size * parts + total) // (2 * total)


def limit(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """Where a batch of at most `most` offsets ends, for every partition of `ends`.

    A partition that is not in `begins` begins at 0. With `most` at least the number of partitions
    that are behind, each of them moves by one or more; with less, by turns.
    """
    behind = {
        tp: end - begins.get(tp, 0) for tp, end in sorted(ends.items()) if end > begins.get(tp, 0)
    }
    if sum(behind.values()) <= most:
        return dict(ends)
    if most < len(behind):
        taken = dict.fromkeys(_turn(begins, ends, behind, most), 1)
    else:
        taken = _proportional(behind, most)
    return {tp: begins.get(tp, 0) + taken.get(tp, 0) if tp in behind else ends[tp] for tp in ends}


def _turn(
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    behind: Mapping[TopicPartition, int],
    most: int,
) -> list[TopicPartition]:
    """The `most` partitions whose turn it is.

    The partitions stand in a ring, and the sum of all positions says where to begin. Such a batch
    moves that sum by exactly `most`, so the next one begins where this one's window ended:
    everybody is reached within (partitions / most) batches, and nothing has to be remembered
    between them.
    """
    ring = sorted(ends)
    first = sum(begins.get(tp, 0) for tp in ring) % len(ring)
    return [tp for tp in ring[first:] + ring[:first] if tp in behind][:most]


def _proportional(behind: Mapping[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """Shares of at least one each that add up to `most`, by largest remainder."""
    shares: dict[TopicPartition, int] = {}
    rest, left = dict(behind), most
    while True:
        total = sum(rest.values())
        small = [tp for tp, size in rest.items() if size * left < total]
        if not small:
            break
        for tp in small:
            shares[tp] = 1
            del rest[tp]
        left -= len(small)
    shares.update({tp: size * left // total for tp, size in rest.items()})
    over = left - sum(shares[tp] for tp in rest)
    by_remainder = sorted(rest, key=lambda tp: (-(rest[tp] * left % total), tp))
    for tp in by_remainder[:over]:
        shares[tp] += 1
    return shares


def due(
    available: int,
    *,
    now: float,
    last_trigger: float | None,
    min_offsets: int | None,
    max_delay: float,
) -> bool:
    """Whether there is a batch to run: enough has come, or what has come has waited long enough.

    `last_trigger` is when the batch before this one was let through, None before the first, which
    does not wait. Times are seconds of one clock.
    """
    if available <= 0:
        return False
    if min_offsets is None or available >= min_offsets or last_trigger is None:
        return True
    return now - last_trigger >= max_delay
