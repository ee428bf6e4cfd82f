"""Channel: one outbound connection on the event loop. Frames out, frames in, paired by number.

Requests are written in the order of `send`, and answers come back in any order: each begins with
the number that its request was sent under. An answer to a request that was given up is dropped; one
to a request that was never made ends the connection, as whoever waits would wait in vain. A channel
that has failed stays failed; whoever wants to go on opens another one. Every waiting answer is
failed with the same reason, at once.

An answer may have a time limit: TimeoutError then. One timer of the loop serves all of them, since
nearly every answer comes in time: it is set for the first that was due when it was set.

A frame larger than the scratch buffer is received straight into a buffer of its own, which grows
with what has arrived (`frame.granted`): whoever sends a length and then nothing has bought little.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from struct import Struct

from ottla.net.frame import granted

_LENGTH = Struct(">i")
_HEAD = Struct(">ii")  # length, correlation id
_HEAD_SIZE = 8
SCRATCH = 1 << 16
MAX_FRAME = 256 << 20


class ChannelClosed(ConnectionError):
    """The connection is gone, or was never made; the message says why."""


class Channel(asyncio.BufferedProtocol):
    """One connection. Made by `open`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._given_up: set[int] = set()  # asked, and nobody waits any more
        self._due: dict[int, float] = {}  # those that wait and have a limit
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failure: ChannelClosed | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # what has arrived: in the scratch buffer, or of one large frame
        self._scratch = bytearray(SCRATCH)
        self._view = memoryview(self._scratch)
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_length = 0  # announced; the buffer may be smaller by now

    @classmethod
    async def open(cls, host: str, port: int, *, timeout: float) -> Channel:
        """Connect. ChannelClosed with the reason when that fails, and nothing else: the address was
        told by another broker, and may be one that no resolver takes."""
        name = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, channel = await loop.create_connection(lambda: cls(name), host, port)
        except TimeoutError:
            raise ChannelClosed(f"{name} did not answer within {timeout:g} s") from None
        except OSError as error:
            failure = ChannelClosed(f"{name}: {error.strerror or error}")
            failure.errno = error.errno
            raise failure from None
        except (ValueError, OverflowError) as error:
            raise ChannelClosed(f"{name} is no address: {error}") from None
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return channel

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return len(self._waiting)

    async def wait_closed(self) -> None:
        """Returns when the connection has ended."""
        await asyncio.shield(self._ended)

    def send(
        self, correlation_id: int, parts: Iterable[bytes], timeout: float | None = None
    ) -> asyncio.Future[memoryview]:
        """Send a frame, without its length; the future is the answer to it, number included.
        Whoever does not wait for it to the end says so (`give_up`)."""
        self._check_open()
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self._waiting[correlation_id] = answer
        if timeout is not None:
            self._due[correlation_id] = due = self._loop.time() + timeout
            if self._timer is None or due < self._timer_at:
                self._set_timer(due)
        assert self._transport is not None
        frame = b"".join(parts)
        self._transport.write(_LENGTH.pack(len(frame)) + frame)
        return answer

    def give_up(self, correlation_id: int) -> None:
        """Nobody waits for this answer any more."""
        self._due.pop(correlation_id, None)
        if self._waiting.pop(correlation_id, None) is not None:
            self._given_up.add(correlation_id)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self._loop.time()
        for correlation_id in [each for each, due in self._due.items() if due <= now]:
            answer = self._waiting.get(correlation_id)
            self.give_up(correlation_id)
            if answer is not None and not answer.done():
                answer.set_exception(TimeoutError())
        if self._due:
            self._set_timer(min(self._due.values()))

    def close(self, reason: str = "closed by this side") -> None:
        self._fail(reason)

    def abort(self) -> None:
        """Close at once, what is still to be sent included."""
        if self._transport is not None:
            self._transport.abort()
        self._fail("closed by this side")

    # ------------------------------------------------------------------ the protocol's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's can do what a Transport can, but is none by its class.
        self._transport = transport  # type: ignore[assignment]  # see above

    def connection_lost(self, error: Exception | None) -> None:
        reason = getattr(error, "strerror", None) or error or "the other side closed the connection"
        self._fail(str(reason))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == self._large_length:
                frame, self._large = self._large, None
                self._arrived(memoryview(frame))
            elif self._large_filled == len(self._large):
                self._enlarge(memoryview(self._large))
            return
        self._filled += count
        position = 0
        view, filled = self._view, self._filled
        while filled - position >= _HEAD_SIZE:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 4 <= length <= MAX_FRAME:
                self._fail(f"a frame of {length} bytes was announced: it is no Kafka broker")
                return
            end = position + 4 + length
            if end <= filled:
                self._arrived(memoryview(bytes(view[position + 4 : end])))
                position = end
                continue
            if 4 + length > SCRATCH:
                self._large_length = length
                self._enlarge(view[position + 4 : filled])
                position = filled
            break
        left = filled - position
        if position and left:
            view[:left] = bytes(view[position:filled])
        self._filled = left

    def _enlarge(self, arrived: memoryview) -> None:
        """A buffer for the rest of the large frame, or for some of it. A new one each time: the
        transport still holds a view of the last, which cannot be resized under it."""
        self._large_filled = len(arrived)
        self._large = bytearray(granted(len(arrived), self._large_length))
        self._large[: len(arrived)] = arrived

    def _arrived(self, frame: memoryview) -> None:
        (correlation_id,) = _LENGTH.unpack_from(frame)
        answer = self._waiting.pop(correlation_id, None)
        self._due.pop(correlation_id, None)
        if answer is None:
            if correlation_id in self._given_up:
                self._given_up.discard(correlation_id)
            else:
                self._fail(f"an answer came to a request that was not made ({correlation_id})")
        elif not answer.done():
            answer.set_result(frame)

    # ------------------------------------------------------------------ the end

    def _check_open(self) -> None:
        if self._failure is not None:
            raise ChannelClosed(str(self._failure))

    def _fail(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = ChannelClosed(f"{self.name}: {reason}")
        self._ended.set_result(None)
        waiting, self._waiting = self._waiting, {}
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosed(str(self._failure)))
        if self._transport is not None:
            self._transport.close()
