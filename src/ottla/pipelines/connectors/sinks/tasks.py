"""Writing in Spark's tasks, with an answer from each: what it wrote, or which rows are in the way.

An exception in a task reaches the driver as the text of a Java exception, if at all. So a task that
knows what is wrong does not raise: `in_tasks` runs a function on the Arrow batches of every task,
brings back what it returns, and raises on the driver what it raised in the task, `RowsRefused` and
`Outage`. Anything else fails the task, which Spark may try again.

The rows that a task gets are the same in a replayed batch only if nothing moves them. `spread` says
in which task a row is: by the hash of some of its columns and the number of tasks, nothing else. A
number that is given is kept by adaptive execution, which otherwise joins small partitions together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import Outage, RefusedRow, RowsRefused
from ottla.pipelines.points import Point, reach

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ANSWER: Final = "answer string"


@dataclass(frozen=True, slots=True)
class Written:
    """What a task has done with its rows.

    rows     how many it had; of a task that was skipped, 0
    skipped  an earlier attempt had written them
    found    what a task was to look for, if that was its work
    """

    rows: int
    skipped: bool = False
    found: str | None = None


Work = Callable[[int, Iterator[Any]], Written]
"""Given the number of the task and its `pyarrow.RecordBatch`es, in a process of the task's own."""


def spread(rows: DataFrame, tasks: int, by: Sequence[Column | str]) -> DataFrame:
    """The same rows, each in a task that depends on nothing but `by` and `tasks`."""
    return rows.repartition(tasks, *by)


def in_tasks(rows: DataFrame, work: Work) -> list[Written]:
    """Run `work` in the task of every partition of `rows`; one answer for each."""
    answers = rows.mapInArrow(_Answering(work), _ANSWER).collect()
    return _settled(json.loads(row.answer) for row in answers)


@dataclass(frozen=True, slots=True)
class _Answering:
    """`work` as Spark calls it: from Arrow batches to one with the answer."""

    work: Work

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        answer: dict[str, Any]
        reach(Point.TASK_BEGUN)
        try:
            written = self.work(0 if context is None else context.partitionId(), batches)
            answer = {"rows": written.rows, "skipped": written.skipped, "found": written.found}
        except RowsRefused as refused:
            answer = {"refused": [[row.position, row.kind, row.message] for row in refused.rows]}
        except Outage as outage:
            answer = {"outage": [outage.what, str(outage)]}
        for _ in batches:  # a task that stops reading early is no failure
            pass
        yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})


def _settled(answers: Iterable[dict[str, Any]]) -> list[Written]:
    """What the tasks have written; raises what some of them could not.

    Rows that are refused come before an outage: they will be refused when it is over, too.
    """
    written: list[Written] = []
    refused: list[RefusedRow] = []
    outages: list[Outage] = []
    for answer in answers:
        if "refused" in answer:
            refused += [RefusedRow(*row) for row in answer["refused"]]
        elif "outage" in answer:
            outages.append(Outage(*answer["outage"]))
        else:
            written.append(Written(answer["rows"], answer["skipped"], answer["found"]))
    if refused:
        raise RowsRefused(refused)
    if outages:
        raise outages[0]
    return written
