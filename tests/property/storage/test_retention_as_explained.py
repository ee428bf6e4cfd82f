"""What retention says will happen is what happens.

For any log, settings, group positions and moment: the segments whose fate is due by then are
exactly those that a retention pass at that moment deletes, no more and no less, and the pass after
it deletes nothing. Between the moments that were named nothing happens.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicPartition
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

HOUR = 3_600_000


class Committed:
    """Where groups are, as a coordinator would say."""

    def __init__(self, offsets: Mapping[str, int | None]) -> None:
        self._offsets = offsets

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        return self._offsets.get(group)


settings = st.fixed_dictionaries(
    {
        "cleanup_policy": st.sampled_from(
            [frozenset(p) for p in (("delete",), ("compact", "delete"), ("compact",), ())]
        ),
        "retention_ms": st.sampled_from([-1, 0, 1, HOUR, 3 * HOUR, 20 * HOUR]),
        "retention_bytes": st.sampled_from([-1, 0, 100, 300, 1000]),
        "ottla_retention_hold_bytes": st.sampled_from([0, 150, 400, 10_000]),
        "ottla_retention_hold_groups": st.sampled_from([(), ("a",), ("a", "b")]),
    }
)
# Hours after the segment before, and the timestamp's distance from the clock.
batches = st.tuples(
    st.integers(0, 5), st.sampled_from([None, -30, -2, 0, 1, 2, 90_000]), st.booleans()
)
offsets = st.one_of(st.none(), st.integers(0, 12))


def build(written: list[tuple[int, int | None, bool]], config: dict[str, object]) -> LogBench:
    """A log of these batches, as it was written under settings that let any timestamp in."""
    bench = LogBench(TopicConfig(message_timestamp_after_max_ms=2**60))
    log = bench.open()
    for hours, ahead, roll in written:
        bench.clock.advance(hours * HOUR)
        if roll:
            log.roll()
        stamp = -1 if ahead is None else bench.clock.now_ms() + ahead * HOUR
        bench.append(log, b"x" * 20, timestamp=stamp)
    bench.close(log)
    bench.config = TopicConfig(**config)
    return bench


def reopened(bench: LogBench, start: int, watermark: int) -> Log:
    copy = bench.killed()
    log = copy.open(clean=True)
    log.high_watermark = min(watermark, log.log_end_offset)
    log.advance_start(min(start, log.high_watermark))
    return log


@given(
    written=st.lists(batches, max_size=8),
    config=settings,
    start=st.integers(0, 9),
    watermark=st.integers(0, 9),
    a=offsets,
    b=offsets,
    later=st.integers(0, 30 * HOUR),
)
def test_what_is_due_is_what_goes(
    written: list[tuple[int, int | None, bool]],
    config: dict[str, object],
    start: int,
    watermark: int,
    a: int | None,
    b: int | None,
    later: int,
) -> None:
    bench = build(written, config)
    positions = Committed({"a": a, "b": b})
    fates = reopened(bench, start, watermark).explain_retention(positions).segments
    now_ms = bench.clock.now_ms()
    named = [each.fate.due_ms for each in fates if each.fate.due_ms is not None]
    moments = {now_ms, now_ms + later, *named, *(due - 1 for due in named if due)}
    for moment in sorted(moments):
        log = reopened(bench, start, watermark)
        log.delete_old(moment, positions)
        left = [each.base_offset for each in log.explain_retention(positions).segments]
        stay = [
            each.base_offset
            for each in fates
            if each.fate.due_ms is None or each.fate.due_ms > moment
        ]
        assert left == (stay or [log.log_end_offset])
        assert log.delete_old(moment, positions) == []


@given(written=st.lists(batches, min_size=1, max_size=8), config=settings, a=offsets, b=offsets)
def test_a_hold_keeps_what_is_unread_and_never_more_than_its_bytes(
    written: list[tuple[int, int | None, bool]],
    config: dict[str, object],
    a: int | None,
    b: int | None,
) -> None:
    bench = build(written, config)
    positions = Committed({"a": a, "b": b})
    free, held = reopened(bench, 0, 99), reopened(bench, 0, 99)
    free.config = TopicConfig(**{**config, "ottla_retention_hold_groups": ()})
    now_ms = bench.clock.now_ms() + 10 * HOUR
    free.delete_old(now_ms, positions)
    held.delete_old(now_ms, positions)
    assert held.log_start_offset <= free.log_start_offset
    groups = held.config.ottla_retention_hold_groups
    needed = min((0 if each is None else each for each in (a, b)[: len(groups)]), default=99)
    if held.log_start_offset < free.log_start_offset:
        assert held.size <= held.config.ottla_retention_hold_bytes
        first_end = held.explain_retention(positions).segments[0].end_offset
        assert first_end > needed
    elif held.log_start_offset > needed and groups:
        before = reopened(bench, 0, 99).explain_retention(positions).segments
        sizes = [each.size for each in before if each.base_offset < held.log_start_offset]
        assert held.size + sizes[-1] > held.config.ottla_retention_hold_bytes
