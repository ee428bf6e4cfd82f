"""Work that must not stop the event loop.

Places, by what the work holds:

- `run_in_thread` for calls that wait in the kernel and let go of the interpreter: fsync, unlink of
  large files, making pages resident.
- `run_native` for calls that compute in native code which lets go of it as well: compressing a
  large batch. Threads of their own, so that an fsync never waits for somebody's gzip.
- `run_in_child` for calls that compute in Python: scanning a segment after a crash, walking the
  records of a large batch where there is no native code for that. A thread would take the
  interpreter from the loop in slices of milliseconds; a child process at low priority takes only
  the processor time that nobody else wants.
- `look_ups` for what a request has to find in files that may not be in memory, or inside of record
  batches; `long_look_ups` for the few that need much memory or time, one at a time. Both are shared
  fairly between connections.

A child is this interpreter running `serve` below, fed pickled calls over a pipe. It is not made by
`multiprocessing`: forking a process with threads and an event loop is unsafe, and spawning would
run the main module again, which a broker embedded in somebody's script or test must not do.
Children start with the first call, end when they have been idle for a while, and die with their
parent, so that none is still writing to a data folder when the next broker opens it.

`stream_from_child` is for work of minutes that has something to tell on its way: a generator runs
in the child, and what it yields arrives one by one. Such work gets `Workers` of its own, so that
nobody waits behind it.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import GeneratorType
from typing import IO, ParamSpec, TypeVar, cast

from ottla.runtime.fair import FairThreads

P = ParamSpec("P")
T = TypeVar("T")

_LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1
_START_ATTEMPTS = 20
_START_PAUSE = 0.1
_CHILD_PROGRAM = "from ottla.runtime.workers import serve; serve()"


class ChildDied(RuntimeError):
    """A child process ended without an answer, twice: killed, or crashed by native code."""


class NoChild(RuntimeError):
    """No child process could be started: there was no descriptor, process or memory for it."""


class Workers:
    """A few threads, and a few child processes on demand. Belongs to one event loop."""

    def __init__(
        self,
        *,
        threads: int = 4,
        native_threads: int = 2,
        children: int = 1,
        niceness: int = 10,
        idle_seconds: float = 30.0,
    ) -> None:
        self._niceness = niceness
        self._idle_seconds = idle_seconds
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="ottla-worker")
        self._native = ThreadPoolExecutor(native_threads, thread_name_prefix="ottla-native")
        # One thread per child waits for its answer; kept apart so that fsyncs never queue behind.
        self._waiting = ThreadPoolExecutor(children, thread_name_prefix="ottla-child")
        self._slots = asyncio.Semaphore(children)
        self.look_ups = FairThreads(2, "ottla-look-up")
        self.long_look_ups = FairThreads(1, "ottla-long-look-up")
        self._idle: list[_Child] = []
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def idle_children(self) -> int:
        return len(self._idle)

    async def run_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread and wait for its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def run_to_end(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `run_in_thread`, but whoever is cancelled here still waits until `function` has
        returned. So a task that has ended has left no thread that writes."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError:
                    continue
            if not running.cancelled():
                running.exception()  # whoever would have wanted to know it has gone
            raise

    async def run_native(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`, which spends its time in native code, in a thread kept for such."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._native, lambda: function(*args, **kwargs))

    async def run_in_child(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`, which must be importable, in a child process and wait for its result.

        Arguments, result and exception travel by pickle. A child that dies is replaced once and the
        call repeated, so it must do no harm to run `function` again. Cancelling kills the child.
        """
        call = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        async with self._slots:
            for attempt in (1, 2):
                child = await self._take(function)
                try:
                    answer = await asyncio.get_running_loop().run_in_executor(
                        self._waiting, child.call, call
                    )
                except (EOFError, OSError) as error:
                    status = child.kill()
                    if attempt == 2:
                        name = getattr(function, "__qualname__", repr(function))
                        raise ChildDied(f"{name}: the child ended with {status}") from error
                    continue
                except BaseException:
                    child.kill()
                    raise
                self._give_back(child)
                break
        succeeded, value = pickle.loads(answer)
        if not succeeded:
            raise value
        return cast("T", value)

    async def stream_from_child(
        self, function: Callable[P, Iterator[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T]:
        """What the generator `function` yields in a child process, as it comes.

        Nothing is repeated when the child dies: that is a ChildDied. Leaving the iteration early
        kills the child; close the iterator (`contextlib.aclosing`) so that this happens at once.
        """
        call = pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)
        loop = asyncio.get_running_loop()
        async with self._slots:
            child = await self._take(function)
            try:
                answer = await loop.run_in_executor(self._waiting, child.call, call)
                succeeded, value = pickle.loads(answer)
                while succeeded is None:
                    yield cast("T", value)
                    answer = await loop.run_in_executor(self._waiting, child.read)
                    succeeded, value = pickle.loads(answer)
            except (EOFError, OSError) as error:
                name = getattr(function, "__qualname__", repr(function))
                raise ChildDied(f"{name}: the child ended with {child.kill()}") from error
            except BaseException:
                child.kill()
                raise
            self._give_back(child)
        if not succeeded:
            raise value

    def close(self) -> None:
        """End the children and let the threads finish what they have begun."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        self._reap()
        self.look_ups.close()
        self.long_look_ups.close()
        self._threads.shutdown(wait=True)
        self._native.shutdown(wait=True)
        self._waiting.shutdown(wait=False)

    async def _take(self, function: object) -> _Child:
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        for _ in range(_START_ATTEMPTS):
            if self._idle:
                return self._idle.pop()
            try:
                return _Child(self._niceness)
            except OSError as error:
                reason = error
            await asyncio.sleep(_START_PAUSE)
        name = getattr(function, "__qualname__", repr(function))
        raise NoChild(f"{name}: no child process could be started: {reason}") from reason

    def _give_back(self, child: _Child) -> None:
        self._idle.append(child)
        if self._closed:
            self._reap()
        elif self._reaper is None:
            loop = asyncio.get_running_loop()
            self._reaper = loop.call_later(self._idle_seconds, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        while self._idle:
            self._idle.pop().kill()


class _Child:
    """The parent's end of one child process."""

    __slots__ = ("_process",)

    def __init__(self, niceness: int) -> None:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD_PROGRAM, str(os.getpid()), str(niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def call(self, request: bytes) -> bytes:
        """Send one pickled call and wait for the pickled answer. Blocks."""
        assert self._process.stdin is not None
        self._process.stdin.write(_LENGTH.pack(len(request)) + request)
        self._process.stdin.flush()
        return self.read()

    def read(self) -> bytes:
        """Wait for the next pickled answer. Blocks."""
        assert self._process.stdout is not None
        return _read_frame(self._process.stdout)

    def kill(self) -> str:
        """End the process and say how it ended."""
        process = self._process
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        code = process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def serve() -> None:
    """The child's whole life: answer calls until the pipe is closed."""
    parent, niceness = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a Ctrl-C at the terminal is the parent's to handle
    _die_with(parent)
    os.nice(niceness)
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    while True:
        try:
            request = _read_frame(requests)
        except EOFError:
            return
        for answer in _answers(request):
            try:
                answers.write(_LENGTH.pack(len(answer)) + answer)
                answers.flush()
            except BrokenPipeError:
                os._exit(0)


def _answers(request: bytes) -> Iterator[bytes]:
    """(True, result) or (False, exception); before it (None, item) for what a generator yields."""
    try:
        function, args, kwargs = pickle.loads(request)
        result = function(*args, **kwargs)
        if isinstance(result, GeneratorType):
            for item in result:
                yield pickle.dumps((None, item), pickle.HIGHEST_PROTOCOL)
            result = None
    except Exception as error:
        yield _pickled((False, error))
    else:
        yield _pickled((True, result))


def _pickled(result: tuple[bool, object]) -> bytes:
    try:
        answer = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        if not result[0]:
            pickle.loads(answer)  # some exceptions can be written but not read back
    except Exception:
        answer = pickle.dumps((False, RuntimeError(repr(result[1]))))
    return answer


def _die_with(parent: int) -> None:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux: the closed pipe ends us at the end of the current call
    if os.getppid() != parent:
        os._exit(0)


def _read_frame(pipe: IO[bytes] | io.BufferedReader) -> bytes:
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("the pipe was closed")
    (length,) = _LENGTH.unpack(header)
    body = pipe.read(length)
    if len(body) < length:
        raise EOFError("the pipe was closed")
    return body
