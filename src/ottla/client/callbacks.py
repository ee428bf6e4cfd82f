"""Functions that a consumer is handed: what they are, and what they may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ottla.model.ids import TopicPartition

RebalanceCallback = Callable[[tuple[TopicPartition, ...]], Any]


def settle(outcome: object) -> None:
    """Wait for the future of a record that an error handler has sent; raises if it failed."""
    check_done(outcome, "on_error=")
    if isinstance(outcome, Future):
        outcome.result()


def check_done(outcome: object, callback: str) -> None:
    """Refuse what only an event loop could go on with."""
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise TypeError(f"{callback} of a Consumer cannot be awaited; use a plain function")
