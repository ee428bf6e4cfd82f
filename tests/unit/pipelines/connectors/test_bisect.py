"""The search for rows to blame: it finds them all, asks little, and blames nobody wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ottla.pipelines.connectors.errors.bisect import Ending, Search, Span


def run(search: Search, passes: Callable[[Span], bool]) -> Search:
    while (span := search.next()) is not None:
        search.answer(passes(span))
    return search


def without(bad: set[int]) -> Callable[[Span], bool]:
    return lambda span: not any(span.start <= row < span.end for row in bad)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_one_bad_row_is_found_wherever_it_is(count: int) -> None:
    for bad in {0, count // 3, count - 1}:
        search = run(Search(count), without({bad}))
        assert (search.ending, search.guilty) == (Ending.FOUND, [bad])


def test_one_bad_row_of_a_million_takes_less_than_64_probes() -> None:
    search = run(Search(1_000_000), without({987_654}))
    assert search.guilty == [987_654]
    assert search.probes <= 30


def test_several_bad_rows_are_all_found() -> None:
    dice = random.Random(15)
    for _ in range(50):
        count = dice.randrange(4, 200)
        bad = set(dice.sample(range(count), dice.randrange(1, 4)))
        search = run(Search(count, most=1000), without(bad))
        assert (search.ending, set(search.guilty)) == (Ending.FOUND, bad)


def test_probes_end_at_the_limit_and_the_rest_is_in_doubt() -> None:
    search = run(Search(1000), without(set(range(0, 1000, 7))))
    assert (search.ending, search.probes) == (Ending.USED_UP, 64)
    assert all(row % 7 == 0 for row in search.guilty)
    assert search.unknown


@pytest.mark.parametrize("count", [2, 3, 4, 5, 100])
def test_when_every_row_fails_none_is_blamed(count: int) -> None:
    search = run(Search(count), lambda span: span.size == 0)
    assert (search.ending, search.guilty) == (Ending.NOBODY, [])
    assert search.probes < 12


def test_a_row_that_fails_only_once_is_innocent() -> None:
    answers = iter([False, True])  # the half, which is one row; then its neighbour passes
    search = run(Search(2), lambda span: next(answers, True))
    assert (search.ending, search.guilty) == (Ending.GONE, [])


def test_a_failure_that_is_over_blames_nobody() -> None:
    assert run(Search(50), lambda span: True).ending is Ending.GONE


def test_a_row_alone_in_its_batch_has_the_empty_range_as_its_neighbour() -> None:
    asked = []

    def passes(span: Span) -> bool:
        asked.append(span)
        return span.size == 0

    search = run(Search(1), passes)
    assert search.guilty == [0]
    assert asked == [Span(0, 1), Span(0, 0), Span(0, 1)]


def test_the_neighbour_passes_between_the_two_failures() -> None:
    asked: list[tuple[Span, bool]] = []

    def passes(span: Span) -> bool:
        asked.append((span, without({5})(span)))
        return asked[-1][1]

    run(Search(8), passes)
    alone = [number for number, (span, _) in enumerate(asked) if span == Span(5, 6)]
    assert len(alone) >= 2
    between = asked[alone[-2] + 1 : alone[-1]]
    assert [(span.size, passed) for span, passed in between] == [(1, True)]


def test_a_guilty_row_is_no_neighbour() -> None:
    search = run(Search(3), without({0, 1}))
    assert (search.ending, sorted(search.guilty)) == (Ending.FOUND, [0, 1])


def test_an_answer_without_a_question_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was asked"):
        Search(3).answer(True)


def test_the_same_range_is_asked_until_it_is_answered() -> None:
    search = Search(8)
    assert search.next() == search.next() == Span(0, 4)
    assert search.probes == 1
