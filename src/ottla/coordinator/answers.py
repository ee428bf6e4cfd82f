"""Answers that wait until what they tell of is committed.

An answer depends on an offset: the end of the records it tells of. It leaves when the partition's
high watermark has reached that offset, so nobody is told of anything that another leader might not
know. It does not wait for ever: replicas that do not follow leave a commit uncertain, and after
`offsets.commit.timeout.ms` the client is told to ask again.

However many answers wait, there is one timer, and one wait for each offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ottla.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import AppendInfo


class AnswerSettings(Protocol):
    """What of the broker's settings is read here."""

    @property
    def commit_timeout_ms(self) -> int: ...


class _Held(NamedTuple):
    offset: int
    deadline: float
    deferred: Deferred[Any]
    value: Any


class UncommittedAnswers:
    """The answers of one partition that wait for its high watermark."""

    def __init__(self, partition: Partition, settings: AnswerSettings) -> None:
        self._partition = partition
        self._settings = settings
        self._held: list[_Held] = []  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: set[int] = set()  # the offsets that the partition was asked to wait for

    def hold(self, offset: int, deferred: Deferred[Any], value: Any) -> None:
        """Settle the Deferred when the high watermark has reached `offset`, which is above it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.commit_timeout_ms / 1000
        self._held.append(_Held(offset, deadline, deferred, value))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._give_up)
        if offset not in self._awaited:
            self._awaited.add(offset)
            last = offset - 1
            self._partition.wait_committed(AppendInfo(last, last, -1, 0, False, 0)).on_done(
                lambda done: self._on_committed(offset, done)
            )

    def close(self, error: KafkaError) -> None:
        """The partition is not ours any more."""
        for answer in self._take(lambda answer: True):
            answer.deferred.fail(error)

    def _on_committed(self, offset: int, done: Deferred[None]) -> None:
        self._awaited.discard(offset)
        try:
            done.result()
        except KafkaError as failure:
            error = as_coordinator(failure)
            for answer in self._take(lambda answer: answer.offset <= offset):
                answer.deferred.fail(error)
            return
        for answer in self._take(lambda answer: answer.offset <= offset):
            settle(answer.deferred, answer.value)

    def _give_up(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for answer in self._take(lambda answer: answer.deadline <= now):
            answer.deferred.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _take(self, wanted: Callable[[_Held], bool]) -> list[_Held]:
        """Those that are waited for no longer. The timer is set for the others."""
        taken = [answer for answer in self._held if wanted(answer)]
        self._held = [answer for answer in self._held if not wanted(answer)]
        if self._timer is not None and (taken or not self._held):
            self._timer.cancel()
            self._timer = None
        if self._held and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._held[0].deadline, self._give_up)
        return taken


def settle(deferred: Deferred[Any], value: Any) -> None:
    """Resolve it, or fail it if the value is a KafkaError."""
    if isinstance(value, KafkaError):
        deferred.fail(value)
    else:
        deferred.resolve(value)


_TRANSLATED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_coordinator(error: KafkaError) -> KafkaError:
    """What a failed append means to a client of the coordinator: it did not produce anything."""
    if isinstance(error, OutOfDescriptors):  # the log is here, and works again in a moment
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    code = _TRANSLATED.get(error.code)
    return error if code is None else KafkaError(code, error.message)
