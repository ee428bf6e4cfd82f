"""ShardRunner: a coordinator's shard without its host, for tests of state machines.

It does with a command what `coordinator.host` does, at once and in memory: handle, append, replay,
`after`, answers. Time moves only by `advance`, appends fail when told to, work for threads waits in
a list until `do_work`, and the shard is validated after every step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ottla.coordinator.shard import Now, Parked, Record, Result, Shard, Work, Written
from ottla.errors import ErrorCode, KafkaError

S = TypeVar("S", bound=Shard)

START_MS = 1_700_000_000_000
WHOLE_LOG = sys.maxsize


class ShardRunner(Generic[S]):
    """One shard, its log, and its time.

    check  asserts the shard's invariants, after every step
    read   what a record means; one that was written with its meaning must be read as the same
    """

    def __init__(
        self,
        make: Callable[[], S],
        check: Callable[[S], None] | None = None,
        read: Callable[[bytes, bytes | None], Any] | None = None,
    ) -> None:
        self._make = make
        self._check = check
        self._read = read
        self.shard = make()
        self.ms = 0
        self.log: list[Record] = []
        self.work: list[Work] = []
        self.effects: list[Any] = []
        """What is to happen outside, of this shard and not of those before a reload."""
        self.failures = 0
        """How many appends from now on will fail."""
        self._answers: dict[Parked, Any] = {}
        self.shard.loaded(self.now)

    @property
    def now(self) -> Now:
        return Now(START_MS + self.ms, self.ms)

    def run(self, command: Any) -> Any:
        """The reply. Raises the KafkaError it is; a `Parked` is given to `answer` later."""
        result = self.shard.handle(command, self.now)
        reply = self._apply(result)
        self.validate()
        if isinstance(reply, KafkaError):
            raise reply
        return reply

    def answer(self, parked: Parked) -> Any:
        """What a parked reply has become. Raises the KafkaError it is; KeyError: nothing yet."""
        value = self._answers.pop(parked)
        if isinstance(value, KafkaError):
            raise value
        return value

    def is_answered(self, parked: Parked) -> bool:
        return parked in self._answers

    def advance(self, milliseconds: int) -> None:
        """Let time pass; what comes due on the way comes due at its time."""
        end = self.ms + milliseconds
        while (due := self.shard.next_due_ms) is not None and due <= end:
            self.ms = max(self.ms, due)
            for command in self.shard.due(self.now):
                with suppress(KafkaError):  # nobody waits for the outcome
                    self.run(command)
        self.ms = end

    def do_work(self) -> int:
        """Do what was left to threads; returns how much that was."""
        work, self.work = self.work, []
        for task in work:
            try:
                outcome, error = task.function(), None
            except Exception as failure:
                outcome, error = None, failure
            with suppress(KafkaError):
                self.run(task.command(outcome, error))
        return len(work)

    def reload(self, *, compact: bool = False, slice_of: int = WHOLE_LOG) -> S:
        """A new shard from the log, as after a restart; `compact` keeps the last of each key, in
        each slice of so many records."""
        self.shard = self._make()
        self.effects = []
        last = {(offset // slice_of, key): offset for offset, (key, _) in enumerate(self.log)}
        for offset, (key, value) in enumerate(self.log):
            if not compact or last[offset // slice_of, key] == offset:
                self.shard.replay(key, value, offset=offset)
        for command in self.shard.loaded(self.now):
            self.run(command)
        self.validate()
        return self.shard

    def validate(self) -> None:
        if self._check is not None:
            self._check(self.shard)

    def _apply(self, result: Result) -> Any:
        reply = result.reply
        error: KafkaError | None = None
        if result.records and self.failures:
            self.failures -= 1
            reply = error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if error is None:
            for record in result.records:
                meaning = None
                if type(record) is Written:
                    meaning = record.meaning
                    if self._read is not None:
                        assert self._read(*record) == meaning, "it would be read as something else"
                self.shard.replay(*record, offset=len(self.log), meaning=meaning)
                self.log.append(record)
            self._answers.update(result.answers)
            self.effects += result.effects
            known = {task.key for task in self.work}
            self.work.extend(task for task in result.work if task.key not in known)
        if result.after is not None:
            followed = result.after(error, self.now)
            if followed is not None:
                more = self._apply(followed)
                reply = reply if more is None else more
        return reply
