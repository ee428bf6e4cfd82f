"""Counters, gauges and histograms of one broker, and what they say at a moment.

Counting must cost next to nothing on the request path, so a counter is an object with a public
`value` that the loop's thread adds to, and a histogram is one `bisect` into fixed bounds. The
registry only names them. What is counted elsewhere, in the parts' own plain integers, is asked for
by a collector when somebody reads.

`read` gives everything as `Reading`s, values that no later count changes, so that a thread may make
a page of them. It gives None now and then, where it has worked for a while: whoever reads on the
event loop lets others have a turn there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

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


class Distribution(NamedTuple):
    """A histogram as it was."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Reading:
    """All series of one metric name, as they were. Every series has the labels `names`."""

    name: str
    help: str
    kind: str
    names: tuple[str, ...]
    series: tuple[tuple[tuple[str, ...], float | Distribution], ...]


Collector = Callable[[], Iterable[Reading | None]]
"""Called for each reading of the whole: gives numbers that are kept elsewhere."""

Instrument = Counter | Histogram
AnyInstrument = TypeVar("AnyInstrument", Counter, Histogram)


@dataclass(frozen=True, slots=True)
class Family:
    """All instruments of one metric name."""

    name: str
    help: str
    kind: str
    series: dict[Labels, Instrument]


class Metrics:
    """The names of everything that is counted."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._collectors: list[Collector] = []

    def counter(self, name: str, help_text: str, **labels: str) -> Counter:
        return self._series(name, help_text, "counter", labels, Counter())

    def histogram(
        self, name: str, help_text: str, bounds: Sequence[float] = LATENCY_BOUNDS, **labels: str
    ) -> Histogram:
        return self._series(name, help_text, "histogram", labels, Histogram(bounds))

    def collect(self, collector: Collector) -> None:
        """Have the numbers of a collector read with the others."""
        self._collectors.append(collector)

    def _series(
        self, name: str, help_text: str, kind: str, labels: Mapping[str, str], fresh: AnyInstrument
    ) -> AnyInstrument:
        """The series of this name and these labels: `fresh`, unless there is one already."""
        family = self._families.setdefault(name, Family(name, help_text, kind, {}))
        found = family.series.setdefault(tuple(sorted(labels.items())), fresh)
        if not isinstance(found, type(fresh)):
            raise ValueError(f"metric {name} is a {family.kind}, not a {kind}")
        return found

    def read(self) -> Iterator[Reading | None]:
        """Everything, at this moment. On the thread that counts."""
        for family in list(self._families.values()):
            yield _read(family)
        for collector in self._collectors:
            yield from collector()

    def values(self) -> dict[str, float]:
        """Every single number by its name in Prometheus' form, for tests and for people:
        `requests_total{request="Produce"}`; of a histogram its `_sum` and `_count`."""
        found: dict[str, float] = {}
        for reading in self.read():
            if reading is None:
                continue
            for labels, value in reading.series:
                shown = ",".join(
                    f'{name}="{text}"' for name, text in zip(reading.names, labels, strict=True)
                )
                suffix = f"{{{shown}}}" if shown else ""
                if isinstance(value, Distribution):
                    found[f"{reading.name}_sum{suffix}"] = value.total
                    found[f"{reading.name}_count{suffix}"] = sum(value.counts)
                else:
                    found[f"{reading.name}{suffix}"] = value
        return found


def _read(family: Family) -> Reading:
    series = []
    names: tuple[str, ...] = ()
    for labels, instrument in family.series.items():
        names = tuple(name for name, _ in labels)
        value = (
            instrument.value
            if isinstance(instrument, Counter)
            else Distribution(instrument.bounds, tuple(instrument.counts), instrument.total)
        )
        series.append((tuple(text for _, text in labels), value))
    return Reading(family.name, family.help, family.kind, names, tuple(series))
