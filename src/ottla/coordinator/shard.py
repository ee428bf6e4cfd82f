"""The interface between a coordinator's state machine and the host that runs it.

A shard is the state of one partition of an internal topic (`__consumer_offsets`,
`__transaction_state`). It is event-sourced: what must survive is in the partition's log, and only
`replay` changes it. A command goes

    handle(command)  ->  records, a reply, answers to earlier commands
    append the records as one batch   (the host; write(2) returns, or it failed)
    replay(each record)
    after(None), or after(error) when the append failed and nothing was replayed

and its reply leaves when the partition's high watermark has reached the end of all records about
the command's subject, so nobody is told of anything that another leader might not know. Of commands
that come in a crowd the records are replayed first and appended together; if that fails, the shard
is thrown away.

What need not survive is soft state: who waits for a rebalance, whose session ends when. `handle`
changes it at once. A machine must leave the shard consistent when the append fails: it changes
nothing before, or puts it right in `after`.

Machines do no I/O, read no clock, and know no event loop: `Now` is handed in, and time-outs are
commands that the host gets from `due` when `next_due_ms` has come.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.errors import KafkaError

Record = tuple[bytes, bytes | None]
"""Key and value of a record; without a value it is a tombstone."""


class Written(tuple[bytes, bytes | None]):
    """A record whose meaning is at hand: whoever replays it need not read it again."""

    meaning: Any

    @classmethod
    def of(cls, record: Record, meaning: Any) -> Written:
        made = cls(record)
        made.meaning = meaning
        return made


class Now(NamedTuple):
    """A moment by two clocks, because time-outs must not change when the wall clock is set."""

    wall_ms: int
    """Milliseconds since the epoch: what is written into records."""
    ms: int
    """Milliseconds that never run backwards: what deadlines are computed with."""


class TransactionalProducer(NamedTuple):
    """Whose transaction records are written in; `guard` is what the log gave out for its first."""

    producer_id: int
    producer_epoch: int
    guard: Any = None


class Parked:
    """A reply that is not known yet. The machine keeps it, and answers it in a later `Result`.

    `waiting` is the host's; a machine only passes the object around.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: Any = None


Answer = tuple[Parked, Any]
"""A parked reply and what it has become: a value, or a KafkaError."""

After = Callable[[KafkaError | None, Now], "Result | None"]


@dataclass(frozen=True, slots=True)
class Work:
    """Something too long for the event loop: run in a thread, its outcome comes back as a command.

    A second piece of work with the key of one that is still under way is dropped.
    """

    key: Hashable
    function: Callable[[], Any]
    """Run in a thread: must not touch the shard."""
    command: Callable[[Any, Exception | None], Any]
    """Makes the command from the function's result, or from what it raised."""


@dataclass(slots=True)
class Result:
    """What a command leads to."""

    reply: Any = None
    """The answer to the command itself, a KafkaError, or a `Parked`."""
    records: Sequence[Record] = ()
    """Appended as one batch, all or nothing, unless `atomic` is False."""
    answers: Sequence[Answer] = ()
    """Answers to earlier commands; given only when the records have been appended."""
    after: After | None = None
    """Called once the records have been replayed (None), or could not be appended (the error; the
    reply is then the error, unless `after` returns a Result, whose reply and answers count)."""
    work: Sequence[Work] = ()
    """Begun when the records have been appended."""
    atomic: bool = True
    """False: the records are independent of one another and may go into several batches."""
    effects: Sequence[Any] = ()
    """What is to happen outside of the shard, once everything about the command's subject is
    committed: given to whoever made the host, again and again until then, never before."""
    producer: TransactionalProducer | None = None
    """The records are part of this producer's transaction: they go into a batch of their own."""
    must_fit: bool = False
    """The one record is written though it is larger than `max.message.bytes`: it ends what has been
    written before, when it fitted."""


class Shard(Protocol):
    """One partition's state."""

    def handle(self, command: Any, now: Now) -> Result:
        """Decide. Raises KafkaError for a command that is refused as a whole."""
        ...

    def subject(self, command: Any) -> Hashable | None:
        """What a command is about: a reply tells nothing of records about other subjects, and need
        not wait for them. None: about everything."""
        ...

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int = -1,
        producer_id: int = -1,
        meaning: Any = None,
    ) -> None:
        """Apply one record, either just appended or read while loading.

        A record that was just appended may come with its decoded `meaning`, as the machine gave it.

        With a producer id the record is part of a transaction: it counts when `end_transaction`
        says so.
        """
        ...

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a commit or abort marker."""
        ...

    def loaded(self, now: Now) -> Iterable[Any]:
        """The log has been replayed to its end: start the clocks. Returns commands to run first."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """When `due` has something to say, in `Now.ms`; None: never."""
        ...

    def due(self, now: Now) -> list[Any]:
        """The time-outs that have come, as commands."""
        ...

    def unload(self, error: KafkaError) -> list[Answer]:
        """The partition is lost: everybody who waits here is told so."""
        ...


K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Many deadlines, most of which are put off again and again and never come.

    Putting one off (every heartbeat does) is one dictionary entry: the heap keeps the older,
    earlier time, and when that comes the entry is moved to where it belongs by then. So `next_ms`
    may be early, never late.
    """

    __slots__ = ("_at", "_heap", "_order", "_queued")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._queued: dict[K, int] = {}  # the earliest heap entry of each key
        self._heap: list[tuple[int, int, K]] = []
        self._order = 0  # first set, first out among equals; keys are never compared

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def get(self, key: K) -> int | None:
        return self._at.get(key)

    def set(self, key: K, at_ms: int) -> None:
        """Set or move the deadline of `key`."""
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: K) -> None:
        """Forget it. Its heap entry stays until its time comes or too many such have gathered."""
        if self._at.pop(key, None) is not None and len(self._heap) > 64 + 4 * len(self._at):
            self._rebuild()

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> list[K]:
        """Take out the keys whose deadline has come, the earliest first."""
        due = []
        heap, at, queued = self._heap, self._at, self._queued
        while heap and heap[0][0] <= now_ms:
            entry, _, key = heapq.heappop(heap)
            if queued.get(key) != entry:
                continue  # an earlier entry stood for the key since
            del queued[key]
            deadline = at.get(key)
            if deadline is None:
                continue
            if deadline <= now_ms:
                del at[key]
                due.append(key)
            else:
                self._push(key, deadline)
        return due

    def _push(self, key: K, at_ms: int) -> None:
        self._queued[key] = at_ms
        self._order += 1
        heapq.heappush(self._heap, (at_ms, self._order, key))

    def _rebuild(self) -> None:
        self._heap.clear()
        self._queued.clear()
        for key, at_ms in self._at.items():
            self._push(key, at_ms)
