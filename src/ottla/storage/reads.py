"""Looking things up in a log's segments: by offset, by timestamp, by latest timestamp.

The functions change nothing. They raise OSError as it comes, and KafkaError(CORRUPT_MESSAGE) when
a file does not hold what it should.

By offset one looks on the event loop, as long as everything is in the page cache: the tail of a log
is found in memory, the rest with a few small reads. When one of them would wait for the disk, it
raises ColdRead; `warm_up` then does the same reads in a thread, for nothing but the page cache, and
the look-up is repeated on the loop, which alone knows the log's present state.

By time one looks in a thread: batches have to be read, decompressed and walked, and a stranger
decides how long that takes. `TimeLookUp` takes along what cannot change under it, and is asked
afterwards whether what it looked at is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import APPEND_TIME_FLAG, COMPRESSION_MASK, InvalidBatch
from ottla.records.compression import MAX_DECOMPRESSED
from ottla.records.reader import payload
from ottla.records.walker import first_at_or_after
from ottla.storage.scan import corrupt, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.records.batch import BatchHeader
    from ottla.runtime.files import File
    from ottla.storage.segment import Segment, SegmentView
    from ottla.storage.segments import Segments

SHORT_BYTES = 4 << 20
"""A batch that is larger than this when decompressed is for the long look-ups, one at a time."""
SHORT_RECORDS = 1 << 16
"""So is a batch with more records than this."""
TURN_SEARCHES = 16
TURN_HEADERS = 1 << 15
"""After so many batches that were searched in vain (a long look-up: one), or of which the header
was read, some 50 ms, a look-up by time makes way for the others, and goes on in its next turn."""
ANY_TIME = -(1 << 63)


class TimestampOffset(NamedTuple):
    """A record found by time. `leader_epoch` is -1 when its batch has none."""

    offset: int
    timestamp: int
    leader_epoch: int


class NeedsLongLookUp(Exception):
    """A short look-up came across a batch that is too large for it: to be run as a long one."""


class LookUpGoesOn(Exception):
    """A look-up has had its turn and is not through: to be run again."""


# --- by offset --------------------------------------------------------------------------------


def locate(
    segments: Segments, offset: int, *, cached_only: bool = False
) -> tuple[Segment, tuple[int, int]] | None:
    """The batch that holds `offset`, or the next one if compaction or a lost file left a gap: its
    segment, and its position and size in it."""
    for segment in segments.from_slot(segments.slot_of(offset)):
        place = segment.locate(offset, cached_only=cached_only)
        if place is not None:
            return segment, place
    return None


def bytes_between(segments: Segments, offset: int, upper: int) -> int:
    """Bytes of the batches from `offset` up to `upper`."""
    first, last = segments.slot_of(offset), segments.slot_of(upper)
    start = _position(segments[first], offset)
    if first == last:
        return max(0, _position(segments[first], upper) - start)
    between = sum(segments[slot].size for slot in range(first + 1, last))
    return segments[first].size - start + between + _position(segments[last], upper)


def _position(segment: Segment, offset: int) -> int:
    place = segment.locate(offset)
    return segment.size if place is None else place[0]


def warm_up(segments: Segments, offset: int, upper: int, *, aborted: bool) -> Callable[[], None]:
    """What reads, in a thread, the bytes that a read from `offset` up to `upper` looks at."""
    from_here = segments.from_slot(segments.slot_of(offset))
    below = [_view(segment, offset) for segment in from_here]
    above = _view(segments[segments.slot_of(upper)], upper)
    indexes = [segment.txn_index for segment in from_here] if aborted else []

    def work() -> None:
        for view in below:
            place = view.locate(offset)
            if place is not None:
                if aborted:
                    view.read_index()
                break
        above.locate(upper)
        for index in indexes:
            try:
                index.read()
            except FileNotFoundError:
                continue

    return work


def _view(segment: Segment, offset: int) -> SegmentView:
    index = segment.offset_index
    return segment.view(index.lookup(offset) if index.in_memory else 0)


# --- by time ----------------------------------------------------------------------------------


class TimeLookUp:
    """A search by time: made on the event loop, run in a thread, believed on the loop.

    Looks for the first record, at or after the log's start, with this timestamp or a later one;
    without a timestamp for the first that has the latest timestamp of all. Segments are tried in
    order, those whose latest timestamp is too early being skipped; within a segment the indexes
    say where to begin.
    """

    __slots__ = (
        "_doubtful", "_generation", "_learned", "_log_start", "_position", "_segments", "_slot",
        "_timestamp", "_views",
    )  # fmt: skip

    def __init__(self, segments: Segments, timestamp_ms: int | None, log_start_offset: int) -> None:
        self._segments = segments
        self._generation = segments.generation
        self._timestamp = timestamp_ms
        self._log_start = log_start_offset
        self._views = [self._view(segment) for segment in segments]
        self._learned: list[tuple[SegmentView, tuple[int, int]]] = []
        self._doubtful: list[SegmentView] = []
        # how far it has come
        self._slot = 0
        self._position: int | None = None  # in that segment; None: where the indexes say

    def _view(self, segment: Segment) -> SegmentView:
        if not segment.offset_index.in_memory:
            return segment.view(0)
        if self._timestamp is None:
            indexed = segment.latest()[1]
        else:
            indexed = max(segment.time_index.lookup(self._timestamp)[1], self._log_start)
        return segment.view(segment.offset_index.lookup(indexed))

    @property
    def is_vain(self) -> bool:
        """Whether it is known without looking that there is no such record."""
        wanted = 0 if self._timestamp is None else self._timestamp
        return all(view.latest is not None and view.latest[0] < wanted for view in self._views)

    def run(self, *, short: bool) -> TimestampOffset | None:
        """Look. Blocks; raises OSError, KafkaError, LookUpGoesOn when its turn is over, and
        NeedsLongLookUp if it was to be `short`. After those two it goes on where it was."""
        if self._timestamp is not None:
            return self._first_at_or_after(self._timestamp, short)
        latest, found = NO_TIMESTAMP, None
        for view in self._views:
            timestamp, _ = self._latest(view)
            if timestamp > latest:
                latest, found = timestamp, view
        if found is None:
            return None
        return self._search(found, latest, 0, short)

    def _first_at_or_after(self, timestamp: int, short: bool) -> TimestampOffset | None:
        for view in self._views[self._slot :]:
            if self._latest(view)[0] >= timestamp:
                found = self._search(view, timestamp, self._log_start, short)
                if found is not None:
                    return found
            self._slot += 1
            self._position = None
        return None

    def _search(
        self, view: SegmentView, timestamp: int, min_offset: int, short: bool
    ) -> TimestampOffset | None:
        """The first record of a segment from the position on, at `min_offset` or after it, with
        this timestamp or a later one."""
        searches, headers = TURN_SEARCHES if short else 1, TURN_HEADERS
        file = view.open()
        try:
            if self._position is None:
                self._position = self._start(view, file)
            for position, header in walk(file, self._position, view.size):
                self._position = position
                headers -= 1
                if header.max_timestamp >= timestamp and header.last_offset >= min_offset:
                    found = _search_batch(file, position, header, timestamp, min_offset, short)
                    if found is not None:
                        return TimestampOffset(*found, header.leader_epoch)
                    searches -= 1
                self._position = position + header.size
                if not searches or not headers:
                    raise LookUpGoesOn
            return None
        finally:
            file.close()

    def _start(self, view: SegmentView, file: File) -> int:
        """Where the indexes say that the search begins in a segment, if the log agrees."""
        if self._timestamp is None:
            start, sound = view.start_for(file, self._latest(view)[1])
        else:
            start, sound = view.time_start_for(file, self._timestamp, self._log_start)
        if not sound:
            self._doubtful.append(view)
        return start

    def _latest(self, view: SegmentView) -> tuple[int, int]:
        if view.latest is not None:
            return view.latest
        for known, latest in self._learned:
            if known is view:
                return latest
        latest = view.time_index().last()
        self._learned.append((view, latest))
        return latest

    @property
    def is_current(self) -> bool:
        """Whether what was looked at is still the log: asked on the loop, after `run`.

        If so the segments remember what was learned about them; if not, what was found, or what
        went wrong, says nothing, and one has to look again.
        """
        segments = self._segments
        if segments.generation != self._generation:
            return False
        for view, latest in self._learned:
            segments[segments.slot_of(view.base_offset)].learn_latest(latest)
        for view in self._doubtful:
            segments[segments.slot_of(view.base_offset)].doubt_indexes()
        return True


def _search_batch(
    file: File, position: int, header: BatchHeader, timestamp: int, min_offset: int, short: bool
) -> tuple[int, int] | None:
    """Offset and timestamp of a batch's first record that is late enough in both.

    With append time all records have the batch's, and it is not decompressed to learn that.
    """
    append_time = bool(header.attributes & APPEND_TIME_FLAG)
    if append_time and header.record_count == header.last_offset_delta + 1:
        return max(header.base_offset, min_offset), header.max_timestamp
    if short and header.record_count > SHORT_RECORDS:
        raise NeedsLongLookUp
    batch = file.pread(header.size, position)
    try:
        data = payload(batch, header, max_decompressed=SHORT_BYTES if short else MAX_DECOMPRESSED)
        if not append_time:
            return first_at_or_after(
                data,
                header.record_count,
                header.base_offset,
                header.base_timestamp,
                timestamp,
                min_offset,
            )
        found = first_at_or_after(
            data, header.record_count, header.base_offset, 0, ANY_TIME, min_offset
        )
        return None if found is None else (found[0], header.max_timestamp)
    except InvalidBatch:
        if short and header.attributes & COMPRESSION_MASK:
            raise NeedsLongLookUp from None
        raise corrupt(file, position) from None
