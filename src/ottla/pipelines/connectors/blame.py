"""Finding the rows that make a batch fail, when the sink does not name them.

Rows are put into an order by a hash of their position, which the driver holds as plain numbers; a
range of that order is a filter. `errors/bisect.py` says which range to probe, and what follows.

A probe keeps nothing: the transform alone, into Spark's sink that drops everything; if that goes
well for the whole batch, it is the sink that fails, and its `probe` is asked. An outage during a
probe says nothing about its rows: it is waited for, and the probe repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.pipelines.connectors.contract import HIDDEN, Batch, RowsRefused
from ottla.pipelines.connectors.errors.bisect import MOST_PROBES, Ending, Search, Span
from ottla.pipelines.connectors.errors.letters import Failure
from ottla.pipelines.connectors.errors.outages import Verdict, judge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ottla.pipelines.connectors.process import Way


class Unfinished(Exception):
    """All probes are used up.

    found   the rows that are guilty, so far
    rows    how many are in doubt
    """

    def __init__(self, found: dict[str, Failure], rows: int, probes: int) -> None:
        super().__init__(f"{rows} rows are in doubt")
        self.found = found
        self.rows = rows
        self.probes = probes


class NoRow(Exception):
    """Every row that was tried alone fails: it is not the rows."""


class Blame:
    """One search among `rows`, all of which are sound as far as is known.

    used   probes that this batch has cost already
    wait   waits for an outage, or raises because the pipeline is to stop
    """

    def __init__(
        self,
        rows: DataFrame,
        way: Way,
        batch: Batch,
        used: int,
        wait: Callable[[str], None],
    ) -> None:
        self._rows = rows
        self._way = way
        self._batch = batch
        self._wait = wait
        self.probes = used
        self._stage = "transform"
        self._failures: dict[int, Failure] = {}

    def find(self) -> dict[str, Failure]:
        """The guilty rows by position, with their failures; none if everything passes now."""
        order = self._order()
        if not len(order):
            return {}
        self._stage = "transform"
        self.probes += 1
        if self._passes(self._rows, None):
            self._stage = "sink"
        search = Search(len(order), most=max(MOST_PROBES - self.probes, 0))
        while (span := search.next()) is not None:
            search.answer(self._passes(self._rows.where(_within(order, span)), span))
        self.probes += search.probes
        found = self._positions(order, search.guilty)
        if search.ending is Ending.NOBODY:
            failure = next(iter(self._failures.values()), None)
            why = "" if failure is None else f": {failure.kind}: {failure.message}"
            raise NoRow(f"single rows fail in the {self._stage}, and so do all others{why}")
        if search.ending is Ending.USED_UP:
            raise Unfinished(found, sum(span.size for span in search.unknown), self.probes)
        return found

    def _order(self) -> Any:
        """The hashes of all rows, in order, as an array of numbers."""
        import numpy as np

        table = self._rows.select(_hash().alias("hash")).toArrow()
        return np.unique(table.column("hash").to_numpy())

    def _passes(self, rows: DataFrame, span: Span | None) -> bool:
        while True:
            try:
                out = self._way.transform(rows)
                if self._stage == "transform":
                    out.write.format("noop").mode("overwrite").save()
                else:
                    self._way.sink.probe(out, self._batch)
                return True
            except RowsRefused as refused:
                first = refused.rows[0]
                self._remember(span, Failure("sink", first.kind, first.message))
                return False
            except Exception as error:  # a probe is there to fail
                verdict = judge(error)
                if verdict.verdict is Verdict.OUTAGE:
                    self._wait(verdict.sentence)
                    continue
                if verdict.verdict is Verdict.MISTAKE:
                    raise
                self._remember(span, Failure(self._stage, verdict.kind, verdict.sentence))
                return False

    def _remember(self, span: Span | None, failure: Failure) -> None:
        if span is not None and span.size == 1:
            self._failures[span.start] = failure

    def _positions(self, order: Any, guilty: list[int]) -> dict[str, Failure]:
        if not guilty:
            return {}
        by_hash = {int(order[row]): self._failures[row] for row in guilty}
        position = f"{HIDDEN}.position"
        chosen = self._rows.where(_hash().isin(*by_hash))
        return {
            found: by_hash[hashed] for hashed, found in chosen.select(_hash(), position).collect()
        }


def _hash() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.xxhash64(F.col(f"{HIDDEN}.position"))


def _within(order: Any, span: Span) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not span.size:
        return F.lit(False)
    return _hash().between(int(order[span.start]), int(order[span.end - 1]))
