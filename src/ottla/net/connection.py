"""One inbound connection: frames in, answers out in the order of their requests.

The common request never leaves the call that received it: `recv_into` the shared buffer, cut,
hand the frame to `answer`, write its parts. No task, no future, no copy. Only when an answer is
not there yet (a long poll, a wait for replicas or for fsync) does the connection remember a slot.

What `answer` may return
    a list of parts         the response; parts are buffers and `FileRegion`s, none of them empty
    None                    no response is wanted (acks=0)
    a Deferred of those     the response comes later; the next request is dispatched meanwhile,
                            unless the Deferred is exclusive: then when the response has left
It may raise `Hangup(reason)` to close the connection, as Kafka does with what it cannot parse, and
`NotYet` to be given the request again when those before it have been answered.

Back-pressure. A client that does not read its answers is not read from, nor one whose answers wait
for an earlier one: above `OUT_LIMIT` bytes of unsent memory (file regions cost none), `PARTS_LIMIT`
unsent parts of whatever kind, or `SLOT_LIMIT` unanswered requests, reading stops until half of it
has gone. The requests then wait in the kernel, and in the client.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ottla.net.flow import ReceiveMemory
from ottla.net.frame import LENGTH_SIZE, Buffer, FrameError, FrameReader
from ottla.net.traffic import Traffic
from ottla.runtime.files import FileRegion
from ottla.runtime.logs import RateLimit
from ottla.runtime.page_cache import PageCache
from ottla.runtime.waiters import Deferred

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

Part = bytes | bytearray | memoryview | FileRegion
Reply = list[Part] | None
Answer = Callable[["Connection", memoryview], "Reply | Deferred[Reply]"]

OUT_LIMIT = 1 << 18
PARTS_LIMIT = 128
SLOT_LIMIT = 256
# Requests of one connection that are answered before the others have their turn.
TURN_LIMIT = 256

# Regions up to this size are read and sent together with what stands before them: one system call
# for the answer. Larger ones go by sendfile.
INLINE_REGION = 1 << 16
SENDFILE_CHUNK = 1 << 20
# So much is sent to one client before the others have their turn. A socket whose client reads as
# fast as we write is never full: 4 ms of CPU were spent in one turn, 1.2 with this limit.
SEND_TURN = 2 << 20
# How far apart a region is probed for being in the page cache: the kernel reads ahead in runs of
# at least this size, so a hole smaller than it is unusual.
PROBE_STRIDE = 1 << 17
IOV_LIMIT = 512

_NUMBERS = re.compile(r"\d+")


class Hangup(Exception):
    """Close this connection; the reason goes to the log."""


class NotYet(Exception):
    """Nothing has been done about a request: it is to wait for its turn, which has come when every
    request before it has been answered (`Connection.owes_answers`)."""


class Host(Protocol):
    """What a connection needs of the listener that accepted it."""

    loop: asyncio.AbstractEventLoop
    scratch: memoryview
    frame_limit: int
    memory: ReceiveMemory
    traffic: Traffic
    answer: Answer
    complaints: RateLimit

    def closed(self, connection: Connection) -> None: ...
    def run_blocking(self, work: Callable[[], None]) -> asyncio.Future[None]: ...


class Connection:
    """See the module's description. `listener` is the name of the listener it came in on."""

    __slots__ = (
        "_backlog",
        "_exclusive",
        "_fd",
        "_frames",
        "_host",
        "_in_line",
        "_loaded",
        "_loading",
        "_out",
        "_paused",
        "_reading",
        "_slots",
        "_sock",
        "_starving",
        "_traffic",
        "_writing",
        "client",
        "last_active",
        "listener",
        "noted",
        "peer",
        "received_bytes",
        "remembered",
        "sent_bytes",
        "software",
    )

    def __init__(self, host: Host, sock: socket.socket, peer: str, listener: str) -> None:
        # for the life of the connection
        self._host = host
        self._traffic = host.traffic
        self._sock = sock
        self._fd = sock.fileno()
        self.peer = peer
        self.listener = listener
        self.client = ""  # the client id of its last request, for the log
        self.software = ("unknown", "unknown")  # what it is called by itself, and its version
        self.remembered: Any = None  # what `answer` wants to know again at the next request
        self.noted: Any = None  # the same for the handlers of requests
        self.received_bytes = 0
        self.sent_bytes = 0
        self.last_active = host.loop.time()
        # requests on their way in
        self._frames = FrameReader(host.scratch, host.frame_limit, host.memory)
        self._reading = False
        self._backlog = False  # whole frames may be waiting in the reader
        self._starving = False  # the reader waits for memory
        # answers on their way out
        self._slots: deque[Deferred[Reply]] = deque()  # in the order of their requests
        self._exclusive = 0  # 1 while the last of them holds back what comes behind it
        self._in_line = False  # the next request waits until there are none
        self._out: deque[Part] = deque()
        self._writing = False
        self._loading = False  # a region is being read into the page cache
        self._loaded = False  # the one at the head was read a moment ago
        self._paused = False

    def start(self) -> None:
        self._read(True)

    @property
    def held(self) -> int:
        return self._frames.held

    @property
    def wanted(self) -> int:
        return self._frames.wanted

    def keep(self, frame: memoryview) -> Buffer:
        """A copy of a frame that outlives the call which was given it, of the memory for requests;
        `let_go` gives it back."""
        buffer = self._host.memory.overdraw(len(frame))
        memoryview(buffer)[:] = frame
        return buffer

    def let_go(self, kept: Buffer) -> None:
        self._host.memory.release(kept)

    @property
    def open(self) -> bool:
        return self._fd >= 0

    @property
    def idle(self) -> bool:
        """Nothing is being worked on for this client."""
        return not self._slots and not self._out and not self._exclusive

    @property
    def owes_answers(self) -> bool:
        """Whether a request before the one that is being handled has not been answered. That one
        may have its place already, if it holds back those behind it."""
        return bool(self._slots) and not self._slots[0].exclusive

    # ------------------------------------------------------------------ requests in

    def _on_readable(self) -> None:
        try:
            count = self._sock.recv_into(self._frames.target())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"read failed: {error.strerror}")
            return
        if count == 0:
            self.close(None)
            return
        self.received_bytes += count
        self.last_active = self._host.loop.time()
        if not self._exclusive and not self._paused:
            frame = self._frames.only_frame(count)
            if frame is not None:
                self._serve_one(frame)
                return
        self._frames.received(count)
        self._serve()
        if self._reading and self._frames.buffered:
            # uvloop tells of a connection that was reset only once, when there may be bytes left.
            self._host.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._reading and self._fd >= 0:
            self._on_readable()

    def _serve_one(self, frame: memoryview) -> None:
        """The common turn: one whole request, and nothing before or behind it. As `_serve`."""
        try:
            self._give(self._host.answer(self, frame))
        except NotYet:
            self._frames.received(len(frame) + LENGTH_SIZE)
            self._stand_in_line()
            self._serve()
            return
        except Exception as error:
            self._answering_failed(error)
            return
        if self._fd >= 0:
            self._traffic.answered(self)

    def _serve(self) -> None:
        """Answer the whole frames there are, as far as back-pressure and fairness allow."""
        frames = self._frames
        answer = self._host.answer
        self._backlog = True
        try:
            for _ in range(TURN_LIMIT):
                if self._paused:
                    break
                if self._exclusive or self._in_line:
                    if self._held_back:
                        # Still read from, until it says more: that it has gone is to be noticed.
                        self._backlog = bool(frames.buffered)
                        break
                    self._in_line = False
                frame = frames.next_frame()
                if frame is None:
                    self._backlog = False
                    break
                try:
                    reply = answer(self, frame)
                except NotYet:
                    frames.put_back(frame)
                    self._stand_in_line()
                    continue
                self._give(reply)
                if self._fd < 0:
                    return
            else:
                self._host.loop.call_soon(self._resume)
        except Exception as error:
            self._answering_failed(error)
            return
        self._traffic.answered(self)
        if frames.settle():
            self._starving = False
            self._read(not self._backlog)
        else:
            self._starving = True
            self._host.memory.wait(self)
            self._read(False)

    @property
    def _held_back(self) -> bool:
        """Whether the next request has to wait for an answer to one before it."""
        return bool(self._exclusive or (self._in_line and self._slots))

    def _stand_in_line(self) -> None:
        assert self._slots, "a request that waits for nothing is handled"
        self._in_line = True
        self.remembered = None  # it may look at the frame, which moves

    def _give(self, reply: Reply | Deferred[Reply]) -> None:
        """An answer on its way, now or in its turn."""
        if type(reply) is list and not self._slots:
            if self._traffic.in_crowd(self):
                self._gather(reply)
            else:
                self._send(reply)
        elif reply is not None:
            self._enqueue(reply)

    def _answering_failed(self, error: Exception) -> None:
        if isinstance(error, FrameError | Hangup):
            self._hang_up(str(error))
            return
        # A bug of ours. The bytes in the shared buffer must not outlive this call, and a
        # connection that is out of step cannot be saved.
        logger.error("closed %s: answering it failed", self.peer, exc_info=error)
        self.close(None)

    def memory_available(self) -> None:
        if self._starving and self._fd >= 0:
            self._host.loop.call_soon(self._resume)

    def evict(self) -> None:
        self._hang_up(
            f"{self._frames.held} bytes of an unfinished request were held "
            "while the memory for requests was used up"
        )

    def _resume(self) -> None:
        """Something that held this connection back has changed."""
        if self._fd >= 0 and (self._backlog or self._starving):
            self._serve()

    def _resume_soon(self) -> None:
        """Not at once: the caller may still be at work on this very connection."""
        if self._backlog and not self._held_back and not self._paused:
            self._host.loop.call_soon(self._resume)

    def _read(self, wanted: bool) -> None:
        if wanted != self._reading and self._fd >= 0:
            self._reading = wanted
            if wanted:
                self._host.loop.add_reader(self._fd, self._on_readable)
            else:
                self._host.loop.remove_reader(self._fd)

    # ------------------------------------------------------------------ answers out

    def _enqueue(self, reply: Reply | Deferred[Reply]) -> None:
        if isinstance(reply, Deferred):
            self._slots.append(reply)
            if reply.exclusive:
                self._exclusive += 1
            if len(self._slots) >= SLOT_LIMIT:
                self._paused = True
            reply.on_done(self._on_reply)
        elif reply is not None:
            done: Deferred[Reply] = Deferred()
            done.resolve(reply)
            self._slots.append(done)
            if len(self._slots) >= SLOT_LIMIT or self._unsent() > OUT_LIMIT:
                self._paused = True

    def _on_reply(self, reply: Deferred[Reply]) -> None:
        if self._fd < 0:
            return
        slots = self._slots
        try:
            while slots and slots[0].done:
                if slots[0].exclusive:
                    self._exclusive -= 1
                parts = slots.popleft().result()
                if parts is not None:
                    self._send(parts)
                if self._fd < 0:
                    return
        except Hangup as error:
            self._hang_up(str(error))
            return
        self._unpause()
        self._resume_soon()

    def _send(self, parts: Sequence[Part]) -> None:
        if len(parts) == 1 and not self._out:
            self._send_one(parts[0])
        else:
            self._queue(parts)

    def _gather(self, parts: Sequence[Part]) -> None:
        """Send with the answers of others, when the turn of the loop ends."""
        out = self._out
        if not out:
            self._traffic.gather(self)
            if len(parts) == 1 and len(parts[0]) <= OUT_LIMIT:  # the common answer
                out.append(parts[0])
                return
        out.extend(parts)
        self._pause_if_full()

    def send_gathered(self) -> None:
        """The turn has ended: send what has waited for that."""
        if self._fd < 0 or self._writing or self._loading:
            return
        if len(self._out) == 1:
            self._send_one(self._out.popleft())
        else:
            self._flush()
        if self._fd >= 0 and (self._paused or self._backlog):
            self._unpause()
            self._resume_soon()

    def _send_one(self, part: Part) -> None:
        """The common answer: one small buffer, and nothing before it. The same as `_queue`."""
        if not isinstance(part, FileRegion):
            try:
                sent = self._sock.send(part)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.close(f"write failed: {error.strerror}")
                return
            self.sent_bytes += sent
            if sent == len(part):
                return
            part = memoryview(part)[sent:]
        self._queue((part,))

    def _queue(self, parts: Sequence[Part]) -> None:
        out = self._out
        if out:
            out.extend(parts)
        else:
            out.extend(parts)
            self._flush()
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        out = self._out
        if out and (len(out) > PARTS_LIMIT or self._unsent() > OUT_LIMIT):
            self._paused = True

    def _on_writable(self) -> None:
        self._flush()
        if self._fd >= 0:
            self._unpause()
            if self._backlog and not self._paused and not self._held_back:
                self._resume()

    def _unpause(self) -> None:
        if self._paused and len(self._slots) <= SLOT_LIMIT // 2:
            self._paused = len(self._out) > PARTS_LIMIT // 2 or self._unsent() > OUT_LIMIT // 2

    def _unsent(self) -> int:
        """Bytes of memory that wait to be sent: for the socket, or for their turn."""
        unsent = _in_memory(self._out)
        for slot in self._slots:
            if slot.done and slot.error is None:
                unsent += _in_memory(slot.result() or ())
        return unsent

    def _flush(self) -> None:
        """Write what the socket takes, up to `SEND_TURN`; be called again for the rest."""
        out = self._out
        enough = self.sent_bytes + SEND_TURN
        try:
            while out:
                if self.sent_bytes >= enough:
                    self._write(True)
                    return
                if self._loading:
                    self._write(False)
                    return
                head = out[0]
                if type(head) is FileRegion:
                    sent = self._send_region(head)
                else:
                    sent = self._send_buffers()
                if sent < 0:
                    return
                self.sent_bytes += sent
        except (BlockingIOError, InterruptedError):
            self._write(True)
            return
        except OSError as error:
            self.close(f"write failed: {error.strerror}")
            return
        self.last_active = self._host.loop.time()
        self._write(False)

    def _send_buffers(self) -> int:
        """Send the buffers at the head of the queue, with small file regions read in between."""
        out = self._out
        batch: list[bytes | bytearray | memoryview] = []
        more = False
        for index, part in enumerate(out):
            if isinstance(part, FileRegion):
                data = read_if_resident(part) if part.length <= INLINE_REGION else None
                if data is None:
                    more = True
                    break
                out[index] = data
                batch.append(data)
            else:
                batch.append(part)
            if len(batch) >= IOV_LIMIT:
                break
        if len(batch) == 1:
            sent = self._sock.send(batch[0], socket.MSG_MORE if more else 0)
        else:
            sent = self._sock.sendmsg(batch, (), socket.MSG_MORE if more else 0)
        left = sent
        while left:
            part = out[0]
            size = len(part)
            if size > left:
                assert not isinstance(part, FileRegion)  # all that was sent are buffers
                out[0] = memoryview(part)[left:]
                break
            left -= size
            out.popleft()
        return sent

    def _send_region(self, region: FileRegion) -> int:
        length = min(region.length, SENDFILE_CHUNK)
        if self._loaded:
            # Sent whether or not the page cache has it now, or this would never end where a file
            # system keeps its pages elsewhere, or where the file has become shorter.
            self._loaded = False
        elif not is_resident(region, length):
            self._load(region, length)
            return -1
        sent = os.sendfile(self._fd, region.file.fileno(), region.position, length)
        if not sent:
            # The file is shorter than the region: it was truncated under us. The length of the
            # answer has been announced, so the only honest end is to hang up.
            self.close(f"{region.file.path} ends before position {region.position}")
            return -1
        if sent == region.length:
            self._out.popleft()
        else:
            self._out[0] = FileRegion(region.file, region.position + sent, region.length - sent)
        return sent

    def _load(self, region: FileRegion, length: int) -> None:
        """Bring a cold region into the page cache in a thread, then go on sending.

        sendfile(2) would read the disk inside the loop and hold up every other client.
        """
        self._loading = True
        self._write(False)
        work = self._host.run_blocking(lambda: make_resident(region, length))
        work.add_done_callback(partial(self._on_loaded, region, length))

    def _on_loaded(self, region: FileRegion, length: int, work: asyncio.Future[None]) -> None:
        self._loading = False
        if work.cancelled() or self._fd < 0:
            return
        error = work.exception()
        if error is not None:
            self.close(f"reading the log failed: {error}")
            return
        self._loaded = True
        _page_cache.was_read(region.file.fileno(), region.position, length)
        self._on_writable()

    def _write(self, wanted: bool) -> None:
        if wanted != self._writing and self._fd >= 0:
            self._writing = wanted
            if wanted:
                self._host.loop.add_writer(self._fd, self._on_writable)
            else:
                self._host.loop.remove_writer(self._fd)

    # ------------------------------------------------------------------ the end

    def _hang_up(self, reason: str) -> None:
        # Reasons that differ only in their numbers and details are of one kind.
        self.send_gathered()
        kind = _NUMBERS.sub("#", reason.partition(":")[0])
        self._host.complaints.warning(
            kind, "closed %s (client id %r): %s", self.peer, self.client[:100], reason
        )
        self.close(None)

    def close(self, reason: str | None) -> None:
        """Close now; answers that are not written are dropped."""
        if self._fd < 0:
            return
        if reason is not None:
            logger.debug("closed %s: %s", self.peer, reason)
        self._read(False)
        self._write(False)
        self._fd = -1
        self._host.memory.forget(self)
        self._frames.drop()
        self._out.clear()
        for slot in self._slots:
            slot.abandon()
        self._slots.clear()
        self._sock.close()
        self._host.closed(self)


def _in_memory(parts: Iterable[Part]) -> int:
    return sum(len(part) for part in parts if type(part) is not FileRegion)


_PROBE = bytearray(1)
_page_cache = PageCache()


def is_resident(region: FileRegion, length: int) -> bool:
    """Whether the region can be sent without waiting for the disk, as far as probes can tell."""
    fd = region.file.fileno()
    position = region.position
    known = _page_cache.holds(fd, position, length)
    if known is not None:
        return known
    last = position + length - 1
    try:
        while position < last:
            os.preadv(fd, (_PROBE,), position, os.RWF_NOWAIT)
            position += PROBE_STRIDE
        os.preadv(fd, (_PROBE,), last, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system that cannot say
    return True


def read_if_resident(region: FileRegion) -> bytearray | None:
    """The bytes of a small region, if they are in memory."""
    buffer = bytearray(region.length)
    try:
        count = os.preadv(region.file.fileno(), (buffer,), region.position, os.RWF_NOWAIT)
    except OSError:
        return None
    return buffer if count == region.length else None


def make_resident(region: FileRegion, length: int) -> None:
    """Read the region once, with the kernel told to go on reading. Blocks: for threads only."""
    fd = region.file.fileno()
    os.posix_fadvise(fd, region.position, 4 * length, os.POSIX_FADV_WILLNEED)
    buffer = bytearray(min(length, 1 << 18))
    end = region.position + length
    position = region.position
    while position < end:
        count = os.preadv(fd, (memoryview(buffer)[: end - position],), position)
        if not count:
            return
        position += count
