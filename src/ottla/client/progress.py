"""Progress: which records a reader has in hand that no commit covers yet.

A consumer whose offsets are committed by transactions has to answer three questions.

Where to go back to after an abort? To the first record of each partition that is not committed.
librdkafka knows only how far it has read, and the group only what it had before.

Were partitions taken away while their records were in hand? Their next owner reads those records
again. A transaction with what was made of them must not be committed, with or without offsets.

Was an abort overlooked? Records from before it were not undone in the group, but in the topics. Who
neither reads them again nor has them still in hand would lose them with the next commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ottla.model.ids import TopicPartition


class Progress:
    """Of one consumer, of which `given` tells how far its reader is, by partition."""

    def __init__(
        self,
        given: Mapping[TopicPartition, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = given
        self._clock = clock
        # The oldest offset in hand, by partition.
        self.first: dict[TopicPartition, int] = {}
        self.taken_away: set[TopicPartition] = set()
        # When the oldest and the newest record in hand were given.
        self._since: float | None = None
        self._latest = 0.0

    def give(self, tp: TopicPartition, offset: int) -> None:
        """The reader has got this record."""
        if tp not in self.first:
            self.first[tp] = offset
        self._latest = self._clock()
        if self._since is None:
            self._since = self._latest

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Callable[[], None]:
        """These offsets are committed, or will be with the transaction that has got them. Calling
        what is returned says that it was aborted: the reader has the records in hand as before."""
        before = {tp: self.first.pop(tp) for tp in offsets if tp in self.first}
        since = self._since
        for tp, offset in offsets.items():
            if offset < self._given.get(tp, offset):
                self.first[tp] = offset
        if not self.first:
            self._since = None

        def restore() -> None:
            for tp, offset in before.items():
                if tp in self._given:  # else another member has it by now
                    self.first[tp] = min(offset, self.first.get(tp, offset))
            if self.first and since is not None:
                self._since = since

        return restore

    def take_away(self, partitions: Iterable[TopicPartition]) -> None:
        """Other members may read these from now on."""
        self.taken_away.update(tp for tp in partitions if tp in self.first)

    def forget(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Who moves a partition by hand has decided what becomes of the records before."""
        if partitions is None:
            self.first.clear()
        else:
            for tp in partitions:
                self.first.pop(tp, None)
        if not self.first:
            self._since = None

    def settle(self) -> None:
        """Everything in hand is about to be read again."""
        self.forget()
        self.taken_away.clear()

    def objection(self, aborted: float | None) -> str | None:
        """Why what is in hand cannot be committed as a whole; `aborted` is when the producer's last
        transaction was, if one was aborted."""
        if self.taken_away:
            names = ", ".join(map(str, sorted(self.taken_away)))
            return (
                f"the group took {names} away while records of it were in hand: another member "
                f"reads them again"
            )
        if aborted is not None and self._since is not None and self._since < aborted < self._latest:
            return (
                "records from before the last abort were neither committed nor read again, and "
                "would be skipped"
            )
        return None
