"""The arithmetic of the comparison: percentiles, medians, ratios, verdicts. No I/O."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Better(enum.Enum):
    """Which direction is good for a figure, and so which way its ratio has to lie."""

    HIGHER = ">="
    LOWER = "<="


class Sheet(enum.Enum):
    """What is recorded together, and replaced together: the value is the name of its files."""

    ONE_BROKER = "latest"
    CLUSTER = "cluster"
    TRANSACTIONS = "transactions"

    @property
    def place(self) -> str:
        """The name of its markers in docs/performance.md."""
        return "bench" if self is Sheet.ONE_BROKER else self.value


class Part(enum.Enum):
    """The tables of a report. Each part is measured with its own start of each broker."""

    BROKER = "The broker"
    RECORDS = "Records that the broker looks into"
    COMPACTION = "Compaction"
    GROWTH = "Growth"
    LARGE_GROWTH = "Growth, larger"
    GROUPS = "Groups"
    OFFSETS = "Groups after a restart"
    TRANSACTIONS = "Transactions"
    COMMANDS = "Commands"
    CLUSTER = "A replicated cluster"
    CLUSTER_TRANSACTIONS = "Transactions in a replicated cluster"
    PROCESSES = "Several processes on one machine"

    @property
    def on_demand(self) -> bool:
        """Whether a whole run has it only with `--large`."""
        return self is Part.LARGE_GROWTH

    @property
    def sheet(self) -> Sheet:
        """Where its table is recorded."""
        return _SHEETS.get(self, Sheet.ONE_BROKER)

    @property
    def rounds_at_most(self) -> int | None:
        """How often a whole run takes a part of which one turn alone is minutes."""
        return _ROUNDS_AT_MOST.get(self)


_SHEETS = {
    Part.CLUSTER: Sheet.CLUSTER,
    Part.PROCESSES: Sheet.CLUSTER,
    Part.TRANSACTIONS: Sheet.TRANSACTIONS,
    Part.CLUSTER_TRANSACTIONS: Sheet.TRANSACTIONS,
}
_ROUNDS_AT_MOST = {
    Part.COMPACTION: 2,
    Part.GROWTH: 2,
    Part.LARGE_GROWTH: 1,
    Part.OFFSETS: 2,
    Part.CLUSTER: 2,
    Part.CLUSTER_TRANSACTIONS: 2,
    Part.PROCESSES: 2,
}


def rounds_of(part: Part, rounds: int, *, demanded: bool) -> int:
    """In how many rounds a part is measured. A number that somebody has named is kept to,
    except in the part on demand, which takes a quarter of an hour."""
    most = part.rounds_at_most
    if most is None or (demanded and not part.on_demand):
        return rounds
    return min(rounds, most)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what is measured and the ratio (Ottla over Kafka) to reach."""

    key: str
    title: str
    unit: str
    better: Better
    target: float | None
    part: Part = Part.BROKER
    limit: float | None = None
    """Instead of a ratio: what Ottla's own figure stays below."""

    @property
    def to_reach(self) -> str:
        if self.limit is not None:
            return f"Ottla < {self.limit:g}"
        return "" if self.target is None else f"{self.better.value} {self.target:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the rounds gave for a row."""

    row: Row
    kafka: tuple[float, ...]
    ottla: tuple[float, ...]

    @property
    def measured(self) -> bool:
        return bool(self.kafka and self.ottla)

    @property
    def kafka_median(self) -> float:
        return median(self.kafka)

    @property
    def ottla_median(self) -> float:
        return median(self.ottla)

    @property
    def ratio(self) -> float:
        """Median over median; infinite when Kafka's is zero and ours is not."""
        if self.kafka_median == 0:
            return 1.0 if self.ottla_median == 0 else math.inf
        return self.ottla_median / self.kafka_median

    @property
    def reached(self) -> bool | None:
        """Whether the target is met; None for a row that is shown without one."""
        if self.row.target is None and self.row.limit is None:
            return None
        if not self.measured:
            return False
        if self.row.limit is not None:
            return self.ottla_median < self.row.limit
        assert self.row.target is not None
        # The ratio is judged as it is printed: two decimals.
        shown = round(self.ratio, 2)
        if self.row.better is Better.HIGHER:
            return shown >= self.row.target
        return shown <= self.row.target

    @property
    def advantage(self) -> float:
        """How many times better Ottla is: above 1 it leads, whichever way is good for the row."""
        if self.row.better is Better.HIGHER:
            return self.ratio
        return 1.0 / self.ratio if self.ratio else math.inf

    @property
    def verdict(self) -> str:
        return {True: "reached", False: "not reached", None: ""}[self.reached]


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests of a while, and the processor time that the broker took for them."""

    requests: float
    seconds: float
    cpu_seconds: float

    @property
    def a_second(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """Of one request."""
        return self.cpu_seconds / self.requests * 1e6


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of all samples do not exceed (nearest rank)."""
    if not ordered:
        raise ValueError("no samples")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"a share lies above 0 and up to 1, not at {share}")
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
