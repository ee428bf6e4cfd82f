"""Counters and histograms, collectors, and what they say when they are read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.runtime.metrics import Distribution, Metrics, Reading


def test_the_same_name_and_labels_are_the_same_series() -> None:
    metrics = Metrics()
    metrics.counter("requests", "Requests.", api="Fetch").value += 2
    metrics.counter("requests", "Requests.", api="Fetch").value += 3
    metrics.counter("requests", "Requests.", api="Produce").value += 1
    assert metrics.values() == {'requests{api="Fetch"}': 5, 'requests{api="Produce"}': 1}


def test_a_name_keeps_its_kind() -> None:
    metrics = Metrics()
    metrics.counter("x", "X.")
    with pytest.raises(ValueError, match="counter"):
        metrics.histogram("x", "X.")


def test_a_collector_is_asked_at_each_reading() -> None:
    metrics = Metrics()
    numbers = iter([1.0, 2.0])

    def collect() -> Iterator[Reading | None]:
        yield None
        yield Reading("level", "Level.", "gauge", (), (((), next(numbers)),))

    metrics.collect(collect)
    assert metrics.values() == {"level": 1}
    assert metrics.values() == {"level": 2}


def test_a_reading_is_not_changed_by_what_is_counted_later() -> None:
    metrics = Metrics()
    counter = metrics.counter("c", "C.")
    histogram = metrics.histogram("h", "H.", bounds=(1.0,))
    readings = list(metrics.read())
    counter.value += 1
    histogram.record(0.5)
    assert readings == [
        Reading("c", "C.", "counter", (), (((), 0),)),
        Reading("h", "H.", "histogram", (), (((), Distribution((1.0,), (0, 0), 0.0)),)),
    ]


def test_a_histogram_counts_by_bounds() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("seconds", "Seconds.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.record(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.count == 4
    assert metrics.values() == {"seconds_sum": pytest.approx(7.65), "seconds_count": 4}
