"""Readings as text, with prometheus_client: the one door to that library.

Importing it takes longer than the rest of a broker's start, so only whoever makes a page imports
this module, in a thread. Brokers and the drivers of pipelines do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from ottla.runtime.metrics import Distribution, Reading

# CPU, memory, descriptors and the start of this process, read from /proc when a page is made.
_process = ProcessCollector(registry=None)


class _Everything:
    """What the library calls a registry: whatever can be collected."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        for reading in self._readings:
            yield _metric(reading)
        yield from _process.collect()


def text(readings: Iterable[Reading], wanted: str) -> tuple[bytes, str]:
    """All of it in the format that is wanted, where that is OpenMetrics', else in Prometheus'; and
    the name of the format."""
    encode, content_type = choose_encoder(f"{wanted}; version=1.0.0" if wanted else "")
    return encode(_Everything(readings)), content_type


def of_process() -> Iterator[Reading]:
    """What the library itself adds, without its values: for the documentation."""
    for metric in _process.collect():
        counts = metric.type == "counter"
        name = f"{metric.name}_total" if counts else metric.name
        yield Reading(name, metric.documentation, metric.type, (), ())


def _metric(reading: Reading) -> Metric:
    if reading.kind == "histogram":
        histogram = HistogramMetricFamily(reading.name, reading.help, labels=reading.names)
        for labels, value in reading.series:
            if isinstance(value, Distribution):
                histogram.add_metric(labels, list(_buckets(value)), value.total)
        return histogram
    kind = CounterMetricFamily if reading.kind == "counter" else GaugeMetricFamily
    family = kind(reading.name, reading.help, labels=reading.names)
    for labels, value in reading.series:
        if not isinstance(value, Distribution):
            # A label without a value is none: to a scraper the two are the same.
            pairs = zip(reading.names, labels, strict=True)
            family.add_sample(reading.name, {name: text for name, text in pairs if text}, value)
    return family


def _buckets(of: Distribution) -> Iterator[tuple[str, float]]:
    running = 0
    for bound, count in zip((*of.bounds, "+Inf"), of.counts, strict=True):
        running += count
        yield str(bound), running
