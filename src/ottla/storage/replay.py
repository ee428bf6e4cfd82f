"""Bringing the producer states of a log up to date from its files.

The newest snapshot holds the last batch of every producer; the batches behind it are replayed from
their headers. Kafka stops there, and so forgets four of the five batches by which it recognises
duplicates: a producer that had five requests in flight when the broker died is then told that its
retries are out of order, which is fatal to it. So the batches just before the snapshot are looked
at too, and fill the windows again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ottla.records.control import read_end_marker
from ottla.storage.scan import walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.storage.producers import ProducerStates
    from ottla.storage.segment import Segment
    from ottla.storage.snapshots import ProducerSnapshots

_LOOK_BACK = 1024 * 1024
"""Bytes before a snapshot in which the batches of still unanswered requests are looked for."""


def reload_producers(
    states: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: Iterable[Segment],
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
    expiration_ms: int,
) -> list[str]:
    """Make `states` reflect the log up to `log_end_offset`; returns which snapshots were bad."""
    problems = snapshots.reload(
        states,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        now_ms=now_ms,
        expiration_ms=expiration_ms,
    )
    refill_windows(states, segments)
    replay(states, segments, log_end_offset)
    states.end_offset = log_end_offset
    return problems


def replay(states: ProducerStates, segments: Iterable[Segment], log_end_offset: int) -> None:
    """Apply the batches from the states' end up to `log_end_offset`."""
    start = states.end_offset
    if start >= log_end_offset:
        return
    listed = list(segments)
    bases = [segment.base_offset for segment in listed]
    for segment in listed[max(0, bisect_right(bases, start) - 1) :]:
        if segment.base_offset >= log_end_offset:
            return
        place = segment.locate(start)
        if place is None:
            continue
        for position, header in walk(segment.file, place[0], segment.size):
            if header.base_offset >= log_end_offset:
                return
            marker = None
            if header.is_control:
                marker = read_end_marker(segment.file.pread(header.size, position), header)
            states.update(header, header.base_offset, marker)


def refill_windows(states: ProducerStates, segments: Iterable[Segment]) -> None:
    """Let the known producers remember their batches of the last megabyte before the states' end.

    Sequence and epoch of each are afterwards what they were in the snapshot.
    """
    end = states.end_offset
    if not len(states):
        return
    stretches: list[tuple[Segment, int, int]] = []
    budget = _LOOK_BACK
    for segment in reversed([each for each in segments if each.base_offset < end and each.size]):
        place = segment.locate(end)
        stop = segment.size if place is None else place[0]
        start = _boundary(segment, stop, budget)
        stretches.append((segment, start, stop))
        budget -= stop - start
        if budget <= 0:
            break
    for segment, start, stop in reversed(stretches):
        for _, header in walk(segment.file, start, stop):
            if not header.is_control:
                states.recall(header)


def forget_compacted(
    states: ProducerStates, segments: Iterable[Segment], log_start_offset: int
) -> None:
    """Forget transactions that an old snapshot calls open and whose end was compacted away since.

    To be called when the whole log has been replayed. Nothing of an open transaction is ever
    compacted, and its marker stays as long as one of its batches does. So without a marker and
    without its first batch, both are gone, and no marker will ever come.
    """
    listed = list(segments)
    bases = [segment.base_offset for segment in listed]
    for first_offset, producer_id in states.open_transactions():
        slot = bisect_right(bases, first_offset) - 1
        if slot < 0 or first_offset < log_start_offset:
            continue  # deleted, not compacted: the marker may still come
        segment = listed[slot]
        place = segment.locate(first_offset)
        if place is not None:
            _, header = next(walk(segment.file, place[0], segment.size))
            if (header.base_offset, header.producer_id) == (first_offset, producer_id):
                continue
        states.forget_transaction(first_offset)


def _boundary(segment: Segment, stop: int, budget: int) -> int:
    """A position where a batch begins, about `budget` bytes before `stop`."""
    if stop <= budget:
        return 0
    index = segment.offset_index
    found = index.lookup_position(stop - budget)
    position = index.last_position() if found is None else found[1]
    return position if position < stop else 0
