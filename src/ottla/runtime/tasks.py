"""Background tasks that are watched: none of them dies unnoticed.

A task that nobody awaits takes its exception with it, and what it kept current stands still while
everything around it goes on answering. `Tasks` makes every such end known, once, to whoever can
decide what follows: `on_death` is told what the task was for and why it ended. A broker ends with
that reason. Being cancelled is not a death; that is how tasks are stopped.

What `on_death` is given is the error itself, so that a failure of the surroundings (the metadata
store) can be reported in other words than a bug.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial

logger = logging.getLogger(__name__)

OnDeath = Callable[[str, BaseException | None], None]
"""Called with what a task was for and its error; None when it ended although it should not have."""


def log_death(what: str, error: BaseException | None) -> None:
    """The `on_death` of those who have nobody to tell."""
    logger.error("%s has ended", what, exc_info=error)


class Tasks:
    """Starts tasks, and watches them."""

    def __init__(self, on_death: OnDeath = log_death) -> None:
        self._on_death = on_death

    def start(
        self, what: str, work: Coroutine[None, None, None], *, endless: bool = False
    ) -> asyncio.Task[None]:
        """Run `work`, which must not fail and, if `endless`, must not end. `what` completes the
        sentence "… has ended"; stopping the task stays with the caller."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._ended, what, endless))
        return task

    def died(self, what: str, error: BaseException) -> None:
        """For what is not a task but must not fail either, such as the callback of a timer."""
        self._on_death(what, error)

    def _ended(self, what: str, endless: bool, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None or endless:
            self._on_death(what, error)
