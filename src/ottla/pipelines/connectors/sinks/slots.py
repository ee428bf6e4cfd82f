"""Which batch each task of a sink has written last: one row in a table beside the data.

A row of `ottla_slots` is a slot: (pipeline, sink, task), with the batch that was written last. It
is changed in the transaction that writes the rows, as its first statement, so whoever holds it
writes alone. It names

    run     the checkpoint: a pipeline that was reset counts its batches from 0 again, and what an
            earlier run has left says nothing
    batch   all batches up to this one are in the table, as far as this task is concerned
    tasks   over how many tasks this batch was spread. A batch that is run again is spread over as
            many, even if the machine has more cores by now: otherwise rows would be in another
            task, whose slot says nothing about them

The table has as many rows as there are tasks, however long a pipeline runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.pipelines.connectors.contract import Batch
from ottla.pipelines.connectors.databases import literal

if TYPE_CHECKING:
    from ottla.pipelines.connectors.sinks.transaction import Session

TABLE: Final = "ottla_slots"

CREATE: Final = f"""create table if not exists {TABLE} (
    pipeline varchar(200) not null, sink varchar(200) not null, task integer not null,
    run varchar(200) not null, batch bigint not null, tasks integer not null,
    primary key (pipeline, sink, task))"""


@dataclass(frozen=True, slots=True)
class Slot:
    """What the slots of all tasks of a batch have in common."""

    pipeline: str
    sink: str
    run: str
    batch: int
    tasks: int

    @classmethod
    def of(cls, batch: Batch, tasks: int) -> Slot:
        return cls(batch.pipeline, batch.sink, batch.run, batch.number, tasks)


def take(session: Session, slot: Slot, task: int) -> bool:
    """Lock the task's slot, and say that this batch is written; False if it was before.

    The lock is there even if it was: `on conflict` waits for a transaction that holds the row and
    then decides by what that has left.
    """
    values: tuple[str | int, ...] = (
        slot.pipeline,
        slot.sink,
        task,
        slot.run,
        slot.batch,
        slot.tasks,
    )
    taken = session.rows(
        f"insert into {TABLE} as s (pipeline, sink, task, run, batch, tasks) "
        f"values ({', '.join(map(literal, values))}) "
        "on conflict (pipeline, sink, task) do update "
        "set run = excluded.run, batch = excluded.batch, tasks = excluded.tasks "
        "where s.run <> excluded.run or s.batch < excluded.batch returning task"
    )
    return bool(taken)


def tasks_of(session: Session, batch: Batch) -> int | None:
    """Over how many tasks this batch was spread, if some of them have written already."""
    [(count,)] = session.rows(
        f"select max(tasks) from {TABLE} where pipeline = {literal(batch.pipeline)} "
        f"and sink = {literal(batch.sink)} and run = {literal(batch.run)} "
        f"and batch = {literal(batch.number)}"
    )
    return None if count is None else int(count)
