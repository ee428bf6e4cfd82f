"""Who is killed where: drawn from a seed, one kill after the other for each pipeline.

A kill is the same whenever it is drawn, so a run that was stopped goes on with the next one. The
first five of each pipeline have fixed victims, in any order: fifteen kills have all of them, and
few drivers, which take longest to come back. The later ones are drawn freely.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kills.pipelines import Shape
from ottla.pipelines.points import Point

_LOGS: Final = (
    Point.BEFORE_OFFSET_LOG,
    Point.AFTER_OFFSET_LOG,
    Point.BEFORE_COMMIT_LOG,
    Point.AFTER_COMMIT_LOG,
)
_PRODUCE: Final = (Point.BEFORE_WRITE, Point.AFTER_WRITE)
_TRANSACTION: Final = (*_PRODUCE, Point.BEFORE_COMMIT, Point.AFTER_COMMIT)
_LETTERS: Final = (Point.BEFORE_LETTERS, Point.AFTER_LETTERS)


class Victim(Enum):
    """What is killed, with kill -9."""

    TASK = "task"
    """The Python process of a task, or of its copy."""
    EXECUTOR = "executor"
    DRIVER = "driver"
    """`ottla pipeline run` and its Java."""
    BROKER = "broker"
    DATABASE = "database"


_FIRST: Final = {
    "map": (Victim.TASK, Victim.TASK, Victim.EXECUTOR, Victim.EXECUTOR, Victim.BROKER),
    "letters": (Victim.TASK, Victim.TASK, Victim.EXECUTOR, Victim.BROKER, Victim.DRIVER),
    "upsert": (Victim.TASK, Victim.EXECUTOR, Victim.DATABASE, Victim.BROKER, Victim.DRIVER),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One of them.

    partition   of a point in a task: which task is waited for
    copy        wait until Spark runs a second copy of that task
    other       kill the copy's process in the place of the one at the point
    zombie      kill Java alone: the Python of its tasks goes on for as long as it can
    away        seconds before a broker or database is started again
    """

    pipeline: str
    victim: Victim
    point: Point
    partition: int | None = None
    copy: bool = False
    other: bool = False
    zombie: bool = False
    away: float = 0.0

    def __str__(self) -> str:
        words = f"{self.victim.value} of {self.pipeline} at {self.point.value}"
        if self.victim in (Victim.BROKER, Victim.DATABASE):
            words = f"{self.victim.value} while {self.pipeline} is at {self.point.value}"
            words += f", away for {self.away:.1f} s"
        if self.partition is not None:
            words += f" of task {self.partition}"
        if self.copy:
            words += ", with a copy" + (" (which is killed)" if self.other else "")
        return words + (", its Python left alive" if self.zombie else "")


def in_task(point: Point) -> bool:
    return point in _TRANSACTION


def draw(seed: int, shape: Shape, number: int) -> Kill:
    """The kill with this number of a pipeline."""
    rng = random.Random(f"{seed}/{shape.name}/{number}")
    victims = [Victim.TASK, Victim.EXECUTOR, Victim.DRIVER, Victim.BROKER]
    if shape.name == "upsert":
        victims.append(Victim.DATABASE)
    first = random.Random(f"{seed}/{shape.name}").sample(_FIRST[shape.name], 5)
    victim = first[number] if number < len(first) else rng.choice(victims)
    task = _TRANSACTION if shape.name == "upsert" else _PRODUCE
    points = (*task, *task, *_LOGS, *(_LETTERS if shape.every else ()))
    point = rng.choice(task if victim is Victim.TASK else points)
    partition = rng.randrange(2) if in_task(point) else None
    copy = in_task(point) and rng.random() < 0.4
    return Kill(
        shape.name,
        victim,
        point,
        partition,
        copy=copy,
        other=copy and victim is Victim.TASK and rng.random() < 0.5,
        zombie=victim is Victim.EXECUTOR and rng.random() < 0.5,
        away=round(rng.choice((0.0, 0.5, 3.0)), 1),
    )


def parse(text: str) -> Kill:
    """`pipeline:victim:point`, a kill that was chosen and not drawn; `:copy` waits for a copy."""
    pipeline, victim, point, *copy = text.split(":")
    chosen = Point(point)
    place = 0 if in_task(chosen) else None
    return Kill(pipeline, Victim(victim), chosen, place, copy=copy == ["copy"])
