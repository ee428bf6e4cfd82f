"""Counters, gauges and histograms, and the text they are shown as."""

from __future__ import annotations

import pytest

from ottla.runtime.metrics import Metrics


def test_the_same_name_and_labels_are_the_same_series():
    metrics = Metrics()
    metrics.counter("requests", "Requests.", api="Fetch").value += 2
    metrics.counter("requests", "Requests.", api="Fetch").value += 3
    metrics.counter("requests", "Requests.", api="Produce").value += 1
    assert 'requests{api="Fetch"} 5' in metrics.render()
    assert 'requests{api="Produce"} 1' in metrics.render()


def test_a_name_keeps_its_kind():
    metrics = Metrics()
    metrics.counter("x", "X.")
    with pytest.raises(ValueError, match="counter"):
        metrics.histogram("x", "X.")


def test_a_number_kept_elsewhere_is_not_also_counted_here():
    metrics = Metrics()
    metrics.counted("x", "X.", lambda: 1)
    with pytest.raises(ValueError, match="two ways"):
        metrics.counter("x", "X.")


def test_a_gauge_is_read_when_it_is_shown():
    metrics = Metrics()
    values = iter([1, 2])
    metrics.gauge("level", "Level.", lambda: next(values))
    assert "level 1" in metrics.render()
    assert "level 2" in metrics.render()


def test_histogram_buckets_are_cumulative_when_shown():
    metrics = Metrics()
    histogram = metrics.histogram("seconds", "Seconds.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.record(value)
    text = metrics.render()
    assert 'seconds_bucket{le="0.1"} 2' in text
    assert 'seconds_bucket{le="1.0"} 3' in text
    assert 'seconds_bucket{le="+Inf"} 4' in text
    assert "seconds_count 4" in text
    assert "seconds_sum 7.65" in text


def test_label_values_are_escaped():
    metrics = Metrics()
    metrics.counter("c", "C.", topic='a"b\\c').value = 1
    assert r'c{topic="a\"b\\c"} 1' in metrics.render()
