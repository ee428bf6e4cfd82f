"""Answers that wait until what they tell of is committed.

An answer depends on an offset: the end of the records it tells of. It leaves when the partition's
high watermark has reached that offset, so nobody is told of anything that another leader might not
know; and, where the records are of a new leader's epoch, when that one has succeeded those before
it (`replication/lease.py`), who might tell what was before. It does not wait for ever: replicas
that do not follow leave a commit uncertain, and after `offsets.commit.timeout.ms` the client is
told to ask again.

However many answers wait, there is one timer, and one wait for each offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ottla.coordinator.errors import as_coordinator
from ottla.coordinator.replies import settle
from ottla.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
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

    def __init__(
        self, partition: Partition, settings: AnswerSettings, mark: Callable[[], int]
    ) -> None:
        """`mark` says below which offset records may be told of."""
        self._partition = partition
        self._settings = settings
        self._mark = mark
        self._held: list[_Held] = []  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: set[int] = set()  # the offsets that the partition was asked to wait for

    def hold(self, offset: int, deferred: Deferred[Any], value: Any) -> None:
        """Settle the Deferred when the mark, which is below `offset`, has reached it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.commit_timeout_ms / 1000
        self._held.append(_Held(offset, deadline, deferred, value))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._give_up)
        if offset > self._partition.high_watermark and offset not in self._awaited:
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
        self.look()

    def look(self) -> None:
        """The mark may have moved."""
        mark = self._mark()
        for answer in self._take(lambda answer: answer.offset <= mark):
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
