"""Counters, gauges and histograms of one broker, and their text for Prometheus.

Counting must cost next to nothing on the request path, so a counter is an object with a public
`value` that the loop's thread adds to, and a histogram is one `bisect` into fixed bounds. The
registry only names them; it is read when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

# Seconds: a quarter of a millisecond apart at the bottom, where a local broker answers.
LATENCY_BOUNDS: tuple[float, ...] = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
    0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number that only grows. Add with `counter.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Gauge:
    """A number that is asked for when it is shown."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read


class Histogram:
    """How often a measured value fell below each bound; `counts[-1]` is everything above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def record(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


Instrument = Counter | Gauge | Histogram
AnyInstrument = TypeVar("AnyInstrument", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one metric name."""

    name: str
    help: str
    kind: str
    series: dict[Labels, Instrument]


class Metrics:
    """The names of everything that is counted."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(self, name: str, help_text: str, **labels: str) -> Counter:
        return self._series(name, help_text, "counter", labels, Counter())

    def histogram(
        self, name: str, help_text: str, bounds: Sequence[float] = LATENCY_BOUNDS, **labels: str
    ) -> Histogram:
        return self._series(name, help_text, "histogram", labels, Histogram(bounds))

    def gauge(self, name: str, help_text: str, read: Callable[[], float], **labels: str) -> Gauge:
        return self._series(name, help_text, "gauge", labels, Gauge(read))

    def counted(self, name: str, help_text: str, read: Callable[[], float], **labels: str) -> Gauge:
        """A number that only grows and is kept elsewhere: asked for when it is shown."""
        return self._series(name, help_text, "counter", labels, Gauge(read))

    def _series(
        self, name: str, help_text: str, kind: str, labels: Mapping[str, str], fresh: AnyInstrument
    ) -> AnyInstrument:
        """The series of this name and these labels: `fresh`, unless there is one already."""
        family = self._families.setdefault(name, Family(name, help_text, kind, {}))
        if family.kind != kind:
            raise ValueError(f"metric {name} is a {family.kind}, not a {kind}")
        found = family.series.setdefault(tuple(sorted(labels.items())), fresh)
        if not isinstance(found, type(fresh)):
            raise ValueError(f"metric {name} is counted in two ways")
        return found

    def families(self) -> Iterator[Family]:
        yield from self._families.values()

    def render(self) -> str:
        """Everything in Prometheus' text format."""
        lines: list[str] = []
        for family in self._families.values():
            lines.append(f"# HELP {family.name} {family.help}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            for labels, instrument in family.series.items():
                lines.extend(_render_series(family.name, labels, instrument))
        return "\n".join(lines) + "\n"


def _render_series(name: str, labels: Labels, instrument: Instrument) -> Iterator[str]:
    if isinstance(instrument, Histogram):
        running = 0
        for bound, count in zip((*instrument.bounds, "+Inf"), instrument.counts, strict=True):
            running += count
            yield f"{name}_bucket{_labels((*labels, ('le', str(bound))))} {running}"
        yield f"{name}_sum{_labels(labels)} {instrument.total:g}"
        yield f"{name}_count{_labels(labels)} {running}"
    elif isinstance(instrument, Gauge):
        yield f"{name}{_labels(labels)} {instrument.read():g}"
    else:
        yield f"{name}{_labels(labels)} {instrument.value}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = (
        (key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for key, value in labels
    )
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"
