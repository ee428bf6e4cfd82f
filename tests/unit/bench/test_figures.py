"""Percentiles, medians, ratios and verdicts of the bench."""

from __future__ import annotations

import math

import pytest
from bench.figures import Better, Outcome, Part, Rate, Row, percentile, rounds_of

FASTER = Row("rate", "a rate", "MB/s", Better.HIGHER, 1.1)
SHORTER = Row("delay", "a delay", "ms", Better.LOWER, 0.7)


def test_percentile_is_the_sample_at_the_nearest_rank() -> None:
    ordered = [float(number) for number in range(1, 1001)]
    assert percentile(ordered, 0.5) == 500
    assert percentile(ordered, 0.99) == 990
    assert percentile(ordered, 0.999) == 999
    assert percentile(ordered, 1.0) == 1000


def test_percentile_of_one_sample_is_that_sample() -> None:
    assert percentile([7.0], 0.999) == 7.0


def test_percentile_of_few_samples_is_never_below_the_share_asked_for() -> None:
    assert percentile([1.0, 2.0, 3.0], 0.99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 0.01) == 1.0


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_percentile_refuses_a_share_outside_its_range(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


def test_percentile_refuses_no_samples() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_ratio_is_median_over_median_and_one_outlier_does_not_move_it() -> None:
    outcome = Outcome(FASTER, kafka=(100.0, 1.0, 100.0), ottla=(120.0, 120.0, 9000.0))
    assert outcome.ratio == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("ottla", "reached"), [(111.0, True), (110.0, True), (109.0, False), (109.6, True)]
)
def test_rate_is_reached_at_its_target_as_printed_with_two_decimals(
    ottla: float, reached: bool
) -> None:
    assert Outcome(FASTER, (100.0,), (ottla,)).reached is reached


@pytest.mark.parametrize(("ottla", "reached"), [(69.0, True), (70.0, True), (71.0, False)])
def test_delay_is_reached_below_its_target(ottla: float, reached: bool) -> None:
    assert Outcome(SHORTER, (100.0,), (ottla,)).reached is reached


def test_row_without_a_target_has_no_verdict() -> None:
    outcome = Outcome(Row("x", "x", "s", Better.LOWER, None), (1.0,), (2.0,))
    assert outcome.reached is None
    assert outcome.verdict == ""


@pytest.mark.parametrize(("ottla", "reached"), [(0.09, True), (0.1, False)])
def test_limit_binds_the_own_figure_whatever_the_ratio(ottla: float, reached: bool) -> None:
    row = Row("x", "x", "cores", Better.LOWER, None, limit=0.1)
    assert Outcome(row, (0.01,), (ottla,)).reached is reached
    assert row.to_reach == "Ottla < 0.1"


def test_row_that_one_side_could_not_finish_is_not_reached() -> None:
    outcome = Outcome(FASTER, (100.0,), ())
    assert not outcome.measured
    assert outcome.verdict == "not reached"


def test_advantage_points_the_same_way_for_rates_and_delays() -> None:
    assert Outcome(FASTER, (100.0,), (200.0,)).advantage == pytest.approx(2.0)
    assert Outcome(SHORTER, (100.0,), (50.0,)).advantage == pytest.approx(2.0)


def test_nothing_over_nothing_is_a_tie_and_something_over_nothing_is_infinite() -> None:
    assert Outcome(FASTER, (0.0,), (0.0,)).ratio == 1.0
    assert math.isinf(Outcome(FASTER, (0.0,), (1.0,)).ratio)


def test_rate_tells_requests_a_second_and_the_brokers_microseconds_for_one() -> None:
    rate = Rate(requests=150_000, seconds=3.0, cpu_seconds=3.75)
    assert rate.a_second == 50_000
    assert rate.cpu_microseconds == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("part", "rounds", "demanded", "taken"),
    [
        (Part.BROKER, 3, False, 3),
        (Part.COMPACTION, 3, False, 2),
        (Part.COMPACTION, 5, True, 5),
        (Part.GROWTH, 1, False, 1),
        (Part.LARGE_GROWTH, 3, False, 1),
        (Part.LARGE_GROWTH, 3, True, 1),
    ],
)
def test_long_parts_have_fewer_rounds_unless_a_number_is_named(
    part: Part, rounds: int, demanded: bool, taken: int
) -> None:
    assert rounds_of(part, rounds, demanded=demanded) == taken
