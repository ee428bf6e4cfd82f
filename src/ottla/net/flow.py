"""How much memory clients may make the broker hold with unfinished requests.

`ReceiveMemory` lends buffers to connections that are in the middle of a frame. All of them
together get `limit` bytes. When that is used up, connections that want more wait, unread, while
everybody whose requests fit the shared scratch buffer is served as before; and a borrower that
makes no progress while others wait is hung up on, the largest first. So five hundred clients that
each announce 50 MB and send half of it cost `limit` bytes and one another their connections,
and nobody else anything.

What is lent is mapped, not allocated: it takes memory as bytes arrive in it, and gives it back to
the system when it is let go, which the C library's heap does only at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Protocol

from ottla.net.frame import Buffer

# Buffers up to this size are left to malloc; larger ones are mapped.
SMALL = 1 << 14
# They are rounded up to this size and kept for reuse, because fresh pages cost more than the bytes
# that go into them; but not when so many sweeps have passed without anybody using one.
GRAIN = 1 << 16
POOL_LIMIT = 32 << 20
POOL_SWEEPS = 5

# A borrower that received less than this in a second while others wait is not making progress.
PROGRESS_BYTES = 1 << 16


class Borrower(Protocol):
    """A connection, as far as its memory goes."""

    @property
    def held(self) -> int: ...

    @property
    def wanted(self) -> int:
        """The size of the frame it is in the middle of."""
        ...

    @property
    def received_bytes(self) -> int:
        """Everything it ever received."""
        ...

    def memory_available(self) -> None:
        """Some memory came back: try again."""
        ...

    def evict(self) -> None:
        """Hang up: the memory is needed by others."""
        ...


class ReceiveMemory:
    """Lends receive buffers, `limit` bytes in all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lent = 0
        self._pool: dict[int, list[mmap]] = {}
        self._pooled = 0
        self._unused_sweeps = 0
        self._waiting: deque[Borrower] = deque()
        self._seen: dict[Borrower, int] = {}  # what each had received a second ago

    @property
    def short(self) -> bool:
        return self.lent >= self.limit

    def acquire(self, size: int, instead_of: int = 0) -> Buffer | None:
        if size > SMALL:
            size = -(-size // GRAIN) * GRAIN
        # One frame larger than everything is still let through when nobody else holds anything.
        others = self.lent - instead_of
        if others and others + size > self.limit:
            return None
        self.lent += size
        if size <= SMALL:
            return bytearray(size)
        self._unused_sweeps = 0
        stock = self._pool.get(size)
        if stock:
            self._pooled -= size
            return stock.pop()
        return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)

    def overdraw(self, size: int) -> Buffer:
        self.lent += size
        return bytearray(size)

    def release(self, buffer: Buffer) -> None:
        size = len(buffer)
        self.lent -= size
        if isinstance(buffer, mmap) and self._pooled + size <= POOL_LIMIT:
            self._pool.setdefault(size, []).append(buffer)
            self._pooled += size
        if self._waiting and not self.short:
            self._waiting.popleft().memory_available()

    def wait(self, borrower: Borrower) -> None:
        if borrower not in self._waiting:
            self._waiting.append(borrower)

    def forget(self, borrower: Borrower) -> None:
        if borrower in self._waiting:
            self._waiting.remove(borrower)

    def relieve(self, borrowers: Iterable[Borrower]) -> None:
        """Called every second: while somebody waits, make room. What nobody uses goes back.

        Borrowers that stood still since the last call go first, the largest before the others.
        One that waits for us cannot be blamed for standing still; but when all that hold memory
        wait for more of it, the one that wants most in the end has to go.
        """
        self._unused_sweeps += 1
        if self._unused_sweeps >= POOL_SWEEPS and self._pool:
            self._pool.clear()
            self._pooled = 0
        if not self._waiting:
            self._seen.clear()
            return
        holders = sorted(
            (borrower for borrower in borrowers if borrower.held),
            key=lambda borrower: borrower.held,
            reverse=True,
        )
        stalled = [
            borrower
            for borrower in holders
            if borrower in self._seen
            and borrower not in self._waiting
            and borrower.received_bytes - self._seen[borrower] < PROGRESS_BYTES
        ]
        if not stalled and all(borrower in self._waiting for borrower in holders):
            stalled = sorted(holders, key=lambda borrower: borrower.wanted)[-1:]
        self._seen = {borrower: borrower.received_bytes for borrower in holders}
        room = self.limit // 4
        for borrower in stalled:
            if room <= 0:
                break
            room -= borrower.held
            self._seen.pop(borrower, None)
            borrower.evict()
        self._offer_to_all()

    def _offer_to_all(self) -> None:
        """The first who waits may want more than there is, and those behind it less. Whom it is not
        enough for waits again, in the same order."""
        if not self.short:
            waiting, self._waiting = self._waiting, deque()
            for borrower in waiting:
                borrower.memory_available()
