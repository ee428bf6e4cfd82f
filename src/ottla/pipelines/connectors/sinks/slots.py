"""Which batch each task of a sink has written last: one row in a table beside the data.

A row of `ottla_slots` is a slot: (pipeline, sink, task), with the batch that was written last. It
is changed in the transaction that writes the rows, as its first statement, so whoever holds it
writes alone. It names

    sink    the sink and the checkpoint, "postgres@0b6f…": pipelines of one name, of two clusters or
            two folders, each count their batches from 0, as one does that was reset, and what
            another has left says nothing
    run     the checkpoint, once more
    batch   all batches up to this one are in the table, as far as this task is concerned
    tasks   over how many tasks this batch was spread. A batch that is run again is spread over as
            many, even if the machine has more cores by now: otherwise rows would be in another
            task, whose slot says nothing about them

The table has as many rows as there are tasks, however long a pipeline runs; those of a checkpoint
that is gone stay.

Slots were once those of the name alone, with the checkpoint in `run` only. A batch that such a slot
has is written; it is looked at and never changed, so a table of those days goes on as it is, also
where nobody may alter it.
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


def _owned(sink: str, run: str) -> str:
    return f"{sink}@{run}"


def take(session: Session, slot: Slot, task: int) -> bool:
    """Lock the task's slot, and say that this batch is written; False if it was before.

    The lock is there even if it was: `on conflict` waits for a transaction that holds the row and
    then decides by what that has left.
    """
    values: tuple[str | int, ...] = (
        slot.pipeline,
        _owned(slot.sink, slot.run),
        task,
        slot.run,
        slot.batch,
        slot.tasks,
    )
    taken = session.rows(
        f"insert into {TABLE} as s (pipeline, sink, task, run, batch, tasks) "
        f"select {', '.join(map(literal, values))} where not exists (select 1 from {TABLE} "
        f"where pipeline = {literal(slot.pipeline)} and sink = {literal(slot.sink)} "
        f"and task = {task} and run = {literal(slot.run)} and batch >= {slot.batch}) "
        "on conflict (pipeline, sink, task) do update "
        "set batch = excluded.batch, tasks = excluded.tasks "
        "where s.batch < excluded.batch returning task"
    )
    return bool(taken)


def tasks_of(session: Session, batch: Batch) -> int | None:
    """Over how many tasks this batch was spread, if some of them have written already."""
    [(count,)] = session.rows(
        f"select max(tasks) from {TABLE} where pipeline = {literal(batch.pipeline)} "
        f"and sink in ({literal(_owned(batch.sink, batch.run))}, {literal(batch.sink)}) "
        f"and run = {literal(batch.run)} and batch = {literal(batch.number)}"
    )
    return None if count is None else int(count)
