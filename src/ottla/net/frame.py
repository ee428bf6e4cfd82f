"""Cutting a byte stream into frames: a 4-byte length, then that many bytes. No I/O here.

Where the bytes are kept is what makes this fast and what keeps it bounded:

- All connections of a process receive into one shared scratch buffer. A connection whose bytes
  form whole frames (nearly always) owns no memory at all, so ten thousand idle connections cost
  ten thousand small objects.
- A frame that is not complete at the end of a turn moves to a buffer of the connection's own,
  taken from `FrameMemory`, which is limited over all connections together. The buffer grows with
  what has arrived: a length prefix alone buys a page.

One turn: `target()` says where to receive, `received(n)` takes note, `next_frame()` is called
until it returns None, `settle()` ends the turn. The memoryview of a frame is valid until then.
Nearly every turn of a small request is shorter: `only_frame(n)` instead of `received(n)` gives the
one frame that came, and then the turn is over.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import Protocol

_LENGTH = Struct(">i")
LENGTH_SIZE = 4
_unpack_length = _LENGTH.unpack_from

# A connection's own buffer has what its frame needs, but not more than a multiple of what has
# arrived: eight times up to this much, so that requests of a megabyte are seldom copied again, then
# twice. Who has sent nearly nothing gets the first grant.
FIRST_GRANT = 1 << 12
FAST_GROWTH = 8
FAST_LIMIT = 4 << 20
# While memory is short no more than this is received at once from a connection without a buffer.
SHORT_READ = 1 << 14


Buffer = bytearray | mmap


def granted(arrived: int, need: int) -> int:
    """How much memory a frame of `need` bytes gets once `arrived` bytes of it are there."""
    worth = max(FIRST_GRANT, 2 * arrived, min(FAST_GROWTH * arrived, FAST_LIMIT))
    return max(arrived, min(need, worth))


class FrameError(ValueError):
    """The stream cannot be cut: the length is negative or over the limit."""


class FrameMemory(Protocol):
    """Where partial frames get their buffers from; may say no for now."""

    def acquire(self, size: int, instead_of: int = 0) -> Buffer | None:
        """A buffer of at least `size` bytes, or None while too much is lent out.

        `instead_of` bytes are held by the same reader and come back right after.
        """
        ...

    def overdraw(self, size: int) -> Buffer:
        """A buffer whatever is lent out: bytes that were received must be somewhere."""
        ...

    @property
    def short(self) -> bool:
        """Nothing more can be lent: receive little at a time."""
        ...

    def release(self, buffer: Buffer) -> None: ...


class FrameReader:
    """One connection's incoming frames."""

    __slots__ = ("_end", "_limit", "_memory", "_need", "_own", "_scratch", "_start", "_view")

    def __init__(self, scratch: memoryview, limit: int, memory: FrameMemory) -> None:
        # for the life of the connection
        self._scratch = scratch
        self._limit = limit
        self._memory = memory
        # the frame being put together: bytes [start:end] of view; `need` is its whole size if known
        self._own: Buffer | None = None
        self._view = scratch
        self._start = 0
        self._end = 0
        self._need = 0

    @property
    def buffered(self) -> int:
        """Bytes received and not yet taken as frames."""
        return self._end - self._start

    @property
    def held(self) -> int:
        """Bytes of memory this connection has to itself."""
        return len(self._own) if self._own is not None else 0

    @property
    def wanted(self) -> int:
        """How large the unfinished frame is going to be, as far as is known."""
        return self._need

    def target(self) -> memoryview:
        """Where the next bytes go."""
        if self._own is None:
            return self._scratch[:SHORT_READ] if self._memory.short else self._scratch
        return self._view[self._end :]

    def received(self, count: int) -> None:
        if self._own is None:
            self._view = self._scratch
            self._start = 0
            self._end = count
        else:
            self._end += count

    def only_frame(self, count: int) -> memoryview | None:
        """The frame, if the `count` bytes received are one frame and nothing else.

        Then there is nothing to take note of and nothing to settle. If not (or if bytes were held
        from before), None: go on with `received`.
        """
        if self._own is None and count >= LENGTH_SIZE:
            (length,) = _unpack_length(self._scratch)
            if length == count - LENGTH_SIZE and length <= self._limit:
                return self._scratch[LENGTH_SIZE:count]
        return None

    def next_frame(self) -> memoryview | None:
        start = self._start
        available = self._end - start
        if available < LENGTH_SIZE:
            self._need = LENGTH_SIZE
            return None
        (length,) = _unpack_length(self._view, start)
        if length < 0 or length > self._limit:
            raise FrameError(
                f"a frame of {length} bytes was announced; between 0 and {self._limit} are accepted"
            )
        end = start + LENGTH_SIZE + length
        if end > self._end:
            self._need = end - start
            return None
        self._start = end
        self._need = 0
        return self._view[start + LENGTH_SIZE : end]

    def put_back(self, frame: memoryview) -> None:
        """The last frame is to be taken once more, in another turn."""
        self._start -= LENGTH_SIZE + len(frame)

    def settle(self) -> bool:
        """End the turn: what is left moves out of the shared buffer into one of our own.

        False means that the frame needs more memory than there is now. Nothing is lost; the
        caller stops reading and calls `settle` again when memory was given back.
        """
        left = self._end - self._start
        own = self._own
        if left == 0:
            if own is not None:
                self.drop()
            return True
        if own is None:
            buffer = self._memory.acquire(granted(left, self._need))
            if buffer is None:
                buffer = self._memory.overdraw(left)
        elif max(self._need, left) <= len(own) or left < len(own):
            if self._start:
                self._view[:left] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, left
            return True
        else:
            larger = self._memory.acquire(granted(left, self._need), instead_of=len(own))
            if larger is None:
                return False
            buffer = larger
        view = memoryview(buffer)
        view[:left] = self._view[self._start : self._end]
        if own is not None:
            self._memory.release(own)
        self._own, self._view = buffer, view
        self._start, self._end = 0, left
        return left < len(buffer) or self._need <= left

    def drop(self) -> None:
        """Give the own buffer back; whatever was in it is gone."""
        own, self._own = self._own, None
        self._view = self._scratch
        self._start = self._end = self._need = 0
        if own is not None:
            self._memory.release(own)
