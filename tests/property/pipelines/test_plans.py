"""Laws of planning: nothing is left out, nothing is read twice, nobody waits for ever.

Progress and plan are what exactly-once rests upon, so they are held against random histories.
"""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.model.ids import TopicPartition
from ottla.pipelines.source.offsets import Mark, Progress
from ottla.pipelines.source.planner import bounds, limit, split
from ottla.pipelines.source.ranges import Range

IDS = [bytes([number]) * 16 for number in range(1, 4)]
PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(4)]

unhurried = settings(max_examples=60, deadline=None)

offsets = st.one_of(st.integers(0, 200), st.integers(0, 2**62))
cuts = st.one_of(st.none(), st.integers(1, 40))
sizes = st.one_of(st.none(), st.integers(1, 300))


def covered(ranges: list[Range]) -> dict[TopicPartition, list[tuple[int, int]]]:
    """The stretches of each partition, joined where they touch; they must not overlap."""
    joined: dict[TopicPartition, list[tuple[int, int]]] = {}
    for piece in sorted(ranges, key=lambda r: (r.topic_partition, r.start)):
        assert piece.size > 0, "no task is empty"
        found = joined.setdefault(piece.topic_partition, [])
        if found and found[-1][1] >= piece.start:
            assert found[-1][1] == piece.start, "no offset is read twice"
            found[-1] = (found[-1][0], piece.end)
        else:
            found.append((piece.start, piece.end))
    return joined


@st.composite
def whole_ranges(draw: st.DrawFn) -> list[Range]:
    chosen = draw(st.lists(st.sampled_from(PARTITIONS), unique=True, max_size=8))
    found = []
    for tp in chosen:
        start, size = draw(offsets), draw(st.integers(0, 400))
        found.append(Range(tp.topic, IDS[0], tp.partition, start, start + size, 1))
    return found


@unhurried
@given(whole_ranges(), cuts, sizes)
def test_splits_cover_every_range_exactly_once(
    ranges: list[Range], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split(ranges, min_partitions, max_records)
    full = [whole for whole in ranges if whole.size > 0]
    assert covered(pieces) == {whole.topic_partition: [(whole.start, whole.end)] for whole in full}
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    if min_partitions is not None:
        offsets_in_all = sum(whole.size for whole in full)
        # A hint, as with Spark: rounding costs each partition at most one task.
        assert len(pieces) >= min(min_partitions, offsets_in_all) - len(full)
    of_one: dict[TopicPartition, list[int]] = {}
    for piece in pieces:
        of_one.setdefault(piece.topic_partition, []).append(piece.size)
    assert all(max(found) - min(found) <= 1 for found in of_one.values()), "tasks are even"


@unhurried
@given(whole_ranges(), cuts, sizes, st.randoms())
def test_splits_depend_on_nothing_but_the_ranges(
    ranges: list[Range], min_partitions: int | None, max_records: int | None, rng: object
) -> None:
    shuffled = list(ranges)
    rng.shuffle(shuffled)
    pieces = split(ranges, min_partitions, max_records)
    assert split(list(ranges), min_partitions, max_records) == pieces
    assert set(split(shuffled, min_partitions, max_records)) == set(pieces)
    spans = {whole.topic_partition: (whole.start, whole.end) for whole in shuffled}
    inner = bounds(spans, min_partitions, max_records)
    starts = {tp: sorted(b for b in found) for tp, found in inner.items()}
    assert starts == {
        tp: found
        for tp in spans
        if (found := sorted(p.start for p in pieces if p.topic_partition == tp)[1:])
    }


lags = st.dictionaries(
    st.sampled_from(PARTITIONS),
    st.tuples(offsets, st.one_of(st.just(0), st.integers(1, 50), st.integers(1, 2**61))),
    min_size=1,
)


@unhurried
@given(lags, st.one_of(st.integers(1, 100), st.integers(1, 2**62)))
def test_a_limit_is_kept_used_up_and_in_proportion(
    places: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    begins = {tp: begin for tp, (begin, _) in places.items()}
    ends = {tp: begin + lag for tp, (begin, lag) in places.items()}
    found = limit(begins, ends, most)
    taken = {tp: found[tp] - begins[tp] for tp in places}
    behind = {tp: lag for tp, (_, lag) in places.items() if lag}
    assert found.keys() == ends.keys()
    assert all(0 <= taken[tp] <= places[tp][1] for tp in places)
    assert sum(taken.values()) == min(most, sum(behind.values()))
    if most >= len(behind):
        assert all(taken[tp] >= 1 for tp in behind), "nobody who is behind is left out"
        by_lag = sorted(behind, key=behind.__getitem__)
        for less, more in pairwise(by_lag):
            assert taken[less] <= taken[more] + (behind[less] == behind[more])
        large = [tp for tp in behind if taken[tp] > 1]
        total, shared = sum(behind[tp] for tp in large), sum(taken[tp] for tp in large)
        for tp in large:  # within one of the exact share, in whole numbers
            assert abs(taken[tp] * total - behind[tp] * shared) <= 2 * total


@unhurried
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=2, max_size=8),
    st.integers(1, 8),
)
def test_no_partition_waits_for_ever(waiting: list[tuple[int, int]], most: int) -> None:
    """However fast the others grow: who is behind moves within a round."""
    partitions = PARTITIONS[: len(waiting)]
    begins = dict.fromkeys(partitions, 0)
    ends = {tp: lag for tp, (lag, _) in zip(partitions, waiting, strict=True)}
    patience = -(-len(partitions) // most) + 1
    since = dict.fromkeys(partitions, 0)
    for _ in range(40):
        moved = limit(begins, ends, most)
        for tp in partitions:
            idle = ends[tp] > begins[tp] and moved[tp] == begins[tp]
            since[tp] = since[tp] + 1 if idle else 0
            assert since[tp] < patience, f"{tp} has waited for {since[tp]} batches"
        begins = moved
        ends = {tp: ends[tp] + grows for tp, (_, grows) in zip(partitions, waiting, strict=True)}


@st.composite
def histories(draw: st.DrawFn) -> list[Progress]:
    """A query's life: partitions come, records come and are lost, topics are made anew or go."""
    ids = {"a": IDS[0], "b": IDS[0]}
    first = draw(st.lists(st.sampled_from(PARTITIONS), unique=True, min_size=1))
    documents = [Progress.initial({tp: Mark(ids[tp.topic], draw(offsets), 0) for tp in first})]
    for _ in range(draw(st.integers(1, 5))):
        before = documents[-1]
        anew = draw(st.sets(st.sampled_from(["a", "b"]), max_size=1))
        for topic in anew:
            ids[topic] = IDS[(IDS.index(ids[topic]) + 1) % len(IDS)]
        ends: dict[TopicPartition, Mark] = {}
        begins: dict[TopicPartition, int] = {}
        for tp in draw(st.lists(st.sampled_from(PARTITIONS), unique=True)):
            known = before.marks().get(tp)
            if known is None or known.topic_id != ids[tp.topic] or draw(st.booleans()):
                begins[tp] = draw(offsets)
            start = begins.get(tp, 0 if known is None else known.offset)
            epoch = draw(st.integers(0, 5))
            ends[tp] = Mark(ids[tp.topic], start + draw(st.integers(0, 500)), epoch)
        gone = draw(st.sets(st.sampled_from(PARTITIONS))) - ends.keys()
        documents.append(
            before.advance(
                ends,
                begins=begins,
                gone=gone,
                min_partitions=draw(cuts),
                max_records=draw(sizes),
            )
        )
    return documents


@unhurried
@given(histories())
def test_documents_survive_the_round_trip(documents: list[Progress]) -> None:
    for progress in documents:
        text = json.dumps(progress.to_json())
        again = Progress.of_json(json.loads(text))
        assert again == progress
        assert json.dumps(again.to_json()) == text, "Spark compares texts"
        assert Progress.of_json(text) == progress


@unhurried
@given(histories(), cuts, sizes)
def test_a_replay_gives_the_same_tasks_whatever_the_options_are_now(
    documents: list[Progress], min_partitions: int | None, max_records: int | None
) -> None:
    for start, end in pairwise(documents):
        planned = Progress.ranges(start, end)
        texts = [json.dumps(progress.to_json()) for progress in (start, end)]
        replayed = Progress.ranges(*(Progress.of_json(text) for text in texts))
        assert replayed == planned
        # What the options are now shapes the next batch only.
        more = {tp: Mark(mark.topic_id, mark.offset + 100) for tp, mark in end.marks().items()}
        end.advance(more, min_partitions=min_partitions, max_records=max_records)
        assert Progress.ranges(*(Progress.of_json(text) for text in texts)) == planned


@unhurried
@given(histories())
def test_each_batch_reads_what_its_document_says_and_nothing_twice(
    documents: list[Progress],
) -> None:
    for start, end in pairwise(documents):
        if end is start:
            continue
        expected = {
            tp: [(place.begin, place.end)]
            for tp, _, place in end.places()
            if place.begin is not None and place.end > place.begin
        }
        assert covered(Progress.ranges(start, end)) == expected
        ids = {tp.topic: topic_id for tp, topic_id, _ in end.places()}
        assert all(r.topic_id == ids[r.topic] for r in Progress.ranges(start, end))


@unhurried
@given(
    st.lists(
        st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 300), min_size=1), min_size=1
    ),
    cuts,
    sizes,
)
def test_batches_without_a_loss_join_without_a_gap(
    growth: list[dict[TopicPartition, int]], min_partitions: int | None, max_records: int | None
) -> None:
    start = Progress.initial({tp: Mark(IDS[0], 10) for tp in PARTITIONS})
    read: list[Range] = []
    now = start
    for batch in growth:
        ends = {tp: Mark(IDS[0], now.ends()[tp] + more) for tp, more in batch.items()}
        after = now.advance(ends, min_partitions=min_partitions, max_records=max_records)
        read += Progress.ranges(now, after)
        now = after
    total = {tp: [(10, end)] for tp, end in now.ends().items() if end > 10}
    assert covered(read) == total
    assert covered(Progress.ranges(start, now)) == total, "also when the log was thinned out"
