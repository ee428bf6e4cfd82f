"""RefusedBatches: what a producer has sent, and was turned away for the moment.

A client that has several batches in flight does not stop when the first of them is refused. Those
behind it are not to be stored before it: `ProducerStates` turns them away as well, until the first
one comes again, or is seen to have been given up.
"""

from __future__ import annotations

from collections.abc import Iterable

WINDOW = 5
"""Batches of a producer that can be on their way at once: what a client may have in flight."""
CONNECTIONS = 3
"""Connections of a producer that may be read at once: those that it has closed may be, too."""
MOST = CONNECTIONS * WINDOW
"""Batches remembered for each producer: those of closed connections, which come again though they
are stored, must not drive out those that are not."""
MOST_GIVEN_UP = 2
"""Batches that are given up one after the other, and the next one is waited for still: of those
that were refused long ago one may have come twice then."""
MAX_SEQUENCE = 0x7FFFFFFF


class RefusedBatches:
    """The last batches of a producer that were turned away."""

    __slots__ = (
        "_behind", "_come", "_given_up", "_in_a_row", "_in_order", "_last", "epoch", "sequences",
        "silent_since_ms",
    )  # fmt: skip

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        # In the order they came in, and how often each has come since the next one did. Any of them
        # may be the next one of its producer, or become it when that one is stored, or when a
        # truncation takes away what is stored now.
        self.sequences: dict[int, int] = {}
        # As `ProducerStates.expire` has seen it; None when one was turned away since.
        self.silent_since_ms: int | None = None
        self.restart()

    def restart(self) -> None:
        """The one that comes next has come, or is another."""
        # Those behind it that have come since: how many, the last one, how often that one came in a
        # row, and how many up to it came one behind the other.
        self.sequences = dict.fromkeys(self.sequences, 0)
        self._behind = self._in_a_row = self._in_order = 0
        self._last: int | None = None
        # And the last of them. Over one connection no more than these are sent before the first one
        # is sent again.
        self._come: tuple[int, ...] = ()
        # How many were given up one after the other, before this one.
        self._given_up = 0

    @property
    def first(self) -> int:
        return _first(self.sequences)

    def note(self, sequence: int) -> None:
        """One was turned away."""
        self.silent_since_ms = None
        self._come = (*self._come, sequence)[-WINDOW:]
        times = self.sequences.pop(sequence, 0)
        if len(self.sequences) >= MOST:
            del self.sequences[next(iter(self.sequences))]
        self.sequences[sequence] = times + 1

    def end_run(self) -> None:
        """One was turned away for another reason: it may be one of those between two others."""
        self._in_a_row = self._in_order = 0

    def drop_to(self, sequence: int) -> None:
        """Forget what is not behind one."""
        for each in [each for each in self.sequences if not is_behind(sequence, each)]:
            del self.sequences[each]

    def is_given_up(self, behind: int) -> bool:
        """Whether another one that comes behind the next one shows that this will not come again.
        That is seen only where a client begins to send all again, unless it never does: of those in
        flight the first goes first. What comes again may be from a connection that the client has
        closed, which is read beside its new one: one that comes the fourth time is not."""
        again = self._last is not None and not is_behind(self._last, behind)
        if behind == self._last:
            self._in_a_row += 1
        else:
            self._in_a_row = 1
            self._in_order = 1 if again else self._in_order + 1
        self._last = behind
        self._behind += 1
        often = self.sequences.get(behind, 0) >= CONNECTIONS or self._behind > MOST
        return self._behind > WINDOW and ((again and often) or self._is_first_in_flight)

    @property
    def _is_first_in_flight(self) -> bool:
        """Whether the last one that came is the first that its client has not heard of: more than
        can be in flight came up to it, none of them again behind another one, or it came again and
        again alone."""
        return self._in_order > WINDOW or self._in_a_row > CONNECTIONS

    @property
    def none_comes_again(self) -> bool:
        """Whether nothing that came before the last one is waited for. Of a client that gives up
        batch after batch that would be one that it has given up, too, and so for ever."""
        return self._is_first_in_flight or self._given_up == MOST_GIVEN_UP

    def give_up(self, behind: int) -> None:
        """The next one does not come again: wait for the first of those that do, of which one is
        `behind`."""
        self.note(behind)
        again = (sequence for sequence, times in self.sequences.items() if times > 1)
        self.drop_to((_first((*self._come, *again)) - 1) & MAX_SEQUENCE)
        given_up = self._given_up + 1
        self.restart()
        self._given_up = given_up


def is_behind(first: int, other: int) -> bool:
    """Whether a batch is sent after another; sequence numbers go round."""
    return 0 < (other - first) & MAX_SEQUENCE <= MAX_SEQUENCE >> 1


def _first(sequences: Iterable[int]) -> int:
    """Which of some batches is sent first."""
    first, *others = sequences
    for each in others:
        if is_behind(each, first):
            first = each
    return first
