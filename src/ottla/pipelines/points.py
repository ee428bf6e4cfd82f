"""The places at which a kill can do harm, by name, so that a test can kill exactly there.

    reach(Point.BEFORE_COMMIT)

does nothing, unless the environment variable `OTTLA_PIPELINE_POINTS` names a function of one
argument ("package.module:function"), which is called with the point: in the driver, in the process
that plans its batches, and in the Python processes of its tasks. A guarantee is tested by killing a
process in that function, or while it is held there, and counting the rows after the next run.

A micro-batch reaches them in this order; a sink has those that its way of writing has:

BEFORE_OFFSET_LOG   it is decided where the batch ends, and Spark has not noted it
AFTER_OFFSET_LOG    it is noted, and nothing of the batch was written
TASK_BEGUN          a task that writes has begun
BEFORE_WRITE        the sink is about to give rows away
AFTER_WRITE         all rows are given away; whether they count depends on what follows
BEFORE_COMMIT       the one step that makes them count comes next
AFTER_COMMIT        it is done, and nobody has been told
BEFORE_LETTERS      rows that failed are about to be sent to the dead-letter topic
AFTER_LETTERS       they are there; of those that a sink refused, before the others are written
BEFORE_COMMIT_LOG   every row is where it belongs, and Spark has not noted that
AFTER_COMMIT_LOG    it is noted, and the group does not know
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Final

VARIABLE: Final = "OTTLA_PIPELINE_POINTS"


class Point(Enum):
    """Their names, as tests and their reports have them."""

    BEFORE_OFFSET_LOG = "before-offset-log"
    AFTER_OFFSET_LOG = "after-offset-log"
    TASK_BEGUN = "task-begun"
    BEFORE_WRITE = "before-write"
    AFTER_WRITE = "after-write"
    BEFORE_COMMIT = "before-commit"
    AFTER_COMMIT = "after-commit"
    BEFORE_LETTERS = "before-letters"
    AFTER_LETTERS = "after-letters"
    BEFORE_COMMIT_LOG = "before-commit-log"
    AFTER_COMMIT_LOG = "after-commit-log"


def reach(point: Point) -> None:
    """Say that this process is there."""
    watcher = _watcher(os.environ.get(VARIABLE, ""))
    if watcher is not None:
        watcher(point)


@cache
def _watcher(target: str) -> Callable[[Point], None] | None:
    if not target:
        return None
    module, _, name = target.partition(":")
    found: Callable[[Point], None] = getattr(importlib.import_module(module), name)
    return found
