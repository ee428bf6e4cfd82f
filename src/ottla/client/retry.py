"""Which failures pass by themselves, how long one tries again, and with which pauses.

The one place where a client of ours decides that. Kafka's own table (`ErrorCode.retriable`) says
what may be asked again at all; the sets here say why, since that tells what to do first:

    UNREACHABLE    nobody answered: connect again, and look whether somebody else leads by now
    WRONG_BROKER   somebody answered who is not the one to ask, or not yet: look who is
    ABSENT         the topic or partition is not there: for the caller to judge

    retry(ask, timeout=30.0, passes=lambda error: passes(error.code))
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.errors import ErrorCode, KafkaError

T = TypeVar("T")

UNREACHABLE: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
WRONG_BROKER: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
ABSENT: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def is_retriable(code: ErrorCode) -> bool:
    """Whether asking again may help. That nobody listens is no answer of Kafka's, so it is not in
    Kafka's table."""
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE


def passes(code: ErrorCode) -> bool:
    """Whether a program that has time waits for this to pass, however long.

    A topic that is not there is no such thing, nor a batch that arrives damaged each time.
    """
    return is_retriable(code) and code not in ABSENT and code is not ErrorCode.CORRUPT_MESSAGE


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double, from `first` seconds to `longest`."""

    first: float = 0.02
    longest: float = 0.5

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, counted from 0."""
        return min(self.first * 2.0 ** min(failures, 20), self.longest)


def retry(
    call: Callable[[], T],
    *,
    timeout: float,
    passes: Callable[[KafkaError], bool],
    endless: Callable[[KafkaError], bool] | None = None,
    backoff: Backoff | None = None,
    on_failure: Callable[[KafkaError], None] | None = None,
) -> T:
    """Call again while the failure is one that passes, for `timeout` seconds in all.

    endless     failures that are waited out: the time begins anew after each
    on_failure  told of every failure after which there is another attempt, before the pause
    """
    backoff = backoff or Backoff()
    deadline = time.monotonic() + timeout
    failures = 0
    while True:
        pause = backoff.pause(failures)
        try:
            return call()
        except KafkaError as error:
            now = time.monotonic()
            if endless is not None and endless(error):
                deadline = now + timeout
            elif not passes(error) or now + pause > deadline:
                raise
            if on_failure is not None:
                on_failure(error)
        time.sleep(pause)
        failures += 1
