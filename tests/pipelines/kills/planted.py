"""Mistakes planted into the product, each of a kind that only a kill brings to light.

finished-first   a batch is in the commit log before its rows are on their way to the sink
slot-apart       a task's slot is written after its rows, in a transaction of its own
letters-twice    a batch that is run again does not look which of its letters are there
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

After = Callable[[Any], None]
"""What is done at a point, once the harness has let the process go on."""


def _nothing(_point: Any) -> None:
    pass


def _finished_first() -> After:
    from ottla.pipelines.connectors.sinks.topic import TopicSink
    from ottla.pipelines.points import Point

    write = TopicSink.write
    waiting: list[Callable[[], None]] = []

    def later(self: Any, rows: Any, batch: Any) -> None:
        self.probe(rows, batch)
        waiting.append(lambda: write(self, rows, batch))

    def after(point: Any) -> None:
        while point is Point.AFTER_COMMIT_LOG and waiting:
            waiting.pop(0)()

    TopicSink.write = later
    return after


def _slot_apart() -> After:
    from ottla.pipelines.connectors.sinks import slots
    from ottla.pipelines.points import Point

    take = slots.take
    waiting: list[tuple[Any, Any, int]] = []

    def look(session: Any, slot: Any, task: int) -> bool:
        taken = take(session, slot, task)
        session.execute("rollback")
        session.begin()
        waiting[:] = [(session, slot, task)]
        return taken

    def after(point: Any) -> None:
        if point is Point.AFTER_COMMIT:
            [(session, slot, task)] = waiting
            session.begin()
            take(session, slot, task)
            session.execute("commit")

    slots.take = look
    return after


def _letters_twice() -> After:
    from ottla.pipelines.connectors.errors.letters import LetterTopic

    LetterTopic.known = lambda self, batch: set()
    return _nothing


MISTAKES: Final[dict[str, Callable[[], After]]] = {
    "finished-first": _finished_first,
    "slot-apart": _slot_apart,
    "letters-twice": _letters_twice,
}


def plant(name: str | None) -> After:
    """Make the mistake in this process, if one is named; returns what it does after a point."""
    return MISTAKES[name]() if name else _nothing
