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
MAX_SEQUENCE = 0x7FFFFFFF


class RefusedBatches:
    """The last batches of a producer that were turned away."""

    __slots__ = ("_behind", "_come", "_in_order", "_last", "epoch", "sequences")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        # In the order they came in, and how often each has come since the next one did. Any of them
        # may be the next one of its producer, or become it when that one is stored, or when a
        # truncation takes away what is stored now.
        self.sequences: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        """The one that comes next has come, or is another."""
        # Those behind it that have come since: how many, the last one, and how many up to that one
        # came one behind the other.
        self.sequences = dict.fromkeys(self.sequences, 0)
        self._behind = self._in_order = 0
        self._last: int | None = None
        # And the last of them. Over one connection no more than these are sent before the first one
        # is sent again.
        self._come: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        return _first(self.sequences)

    def note(self, sequence: int) -> None:
        """One was turned away."""
        self._come = (*self._come, sequence)[-WINDOW:]
        times = self.sequences.pop(sequence, 0)
        if len(self.sequences) >= MOST:
            del self.sequences[next(iter(self.sequences))]
        self.sequences[sequence] = times + 1

    def drop_to(self, sequence: int) -> None:
        """Forget what is not behind one."""
        for each in [each for each in self.sequences if not is_behind(sequence, each)]:
            del self.sequences[each]

    def is_given_up(self, behind: int) -> bool:
        """Whether another one that comes behind the next one shows that this will not come again.
        That is seen only where a client begins to send all again, unless it never does: of those in
        flight the first goes first. What comes again may be from a connection that the client has
        closed, which is read beside its new one: one that comes the fourth time is not."""
        anew = self._last is not None and not is_behind(self._last, behind)
        self._last = behind
        self._behind += 1
        self._in_order = 1 if anew else self._in_order + 1
        often = self.sequences.get(behind, 0) >= CONNECTIONS or self._behind > MOST
        return self._behind > WINDOW and ((anew and often) or self.none_comes_again)

    @property
    def none_comes_again(self) -> bool:
        return self._in_order > WINDOW

    def give_up(self, behind: int) -> None:
        """The next one does not come again: wait for the first of those that do, of which one is
        `behind`."""
        self.note(behind)
        again = (sequence for sequence, times in self.sequences.items() if times > 1)
        self.drop_to((_first((*self._come, *again)) - 1) & MAX_SEQUENCE)
        self.restart()


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
