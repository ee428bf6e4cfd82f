"""Functions that a consumer is handed: what they are, and what they may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import confluent_kafka as rd

from ottla.client.errors import translate
from ottla.client.settings import LOGGER
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


def log_commit(error: rd.KafkaError | None, partitions: Iterable[rd.TopicPartition] | None) -> None:
    """Say in the log what came of a commit that nobody waited for, if it failed."""
    refused = [each for each in partitions or () if each.error is not None]
    problem = error or (refused[0].error if refused else None)
    if problem is None or problem.code() == rd.KafkaError._NO_OFFSET:
        return
    places = [f"{each.topic}-{each.partition} at {each.offset}" for each in partitions or ()]
    reason = translate(problem).message
    LOGGER.warning("offsets were not committed (%s): %s", ", ".join(places), reason)
