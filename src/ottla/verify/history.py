"""A history: what every client asked for and was told, in the order in which that happened.

A file of JSON lines, compressed by gzip. The first line describes the run, every further one is an
event:

    [microseconds, client, action, phase, {…}]

What changes something (a send, a commit, the creation of a topic) has two events: `invoke` before
the request leaves, and how it ended: `ok`, `fail` (it certainly did not happen) or `unknown` (it
may have happened, or may yet happen). What only looks has one, at its end, which says when it was
`begun`; but the last look at a partition, `end`, has two: what is told of a partition after it was
begun may have come later than what it finds. A client does one thing at a time, so an end belongs
to its client's last `invoke`.

Values are not written one by one. A value is a writer's number and the number of the record among
this writer's, and what is sent and read are runs: so many values from this one on.

Events are numbered by their line. The file has one writer; whatever was flushed can be read after
the writer was killed, and `complete` tells whether it came to its end.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

VERSION: Final = 1
FLUSH_SECONDS: Final = 0.5

Phase = Literal["invoke", "ok", "fail", "unknown"]
PHASES: Final[tuple[Phase, ...]] = ("invoke", "ok", "fail", "unknown")


class NoHistory(Exception):
    """The file is no history, or one of a version that is not known here."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    number: int
    time: int  # microseconds since the run began
    client: str
    action: str
    phase: Phase
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def begun(self) -> int:
        """When it was asked for, of an event that has no `invoke` of its own."""
        return int(self.data.get("begun", self.time))

    def __str__(self) -> str:
        told = " ".join(f"{name}={json.dumps(value)}" for name, value in self.data.items())
        return (
            f"#{self.number} {self.time / 1e6:.3f}s {self.client} {self.action} {self.phase} {told}"
        )


class Recorder:
    """Writes a history. Threads may share it."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._compress = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self._file = path.open("wb")
        self._count = 0
        self._begun = self._flushed = clock()
        self._write({"history": VERSION, **header})
        self._flush(self._begun)

    def now(self) -> int:
        """The time of an event that would be recorded now."""
        return int((self._clock() - self._begun) * 1e6)

    def record(self, client: str, action: str, phase: Phase, **data: Any) -> int:
        """Add an event; returns its number."""
        with self._lock:
            moment = self._clock()
            self._count += 1
            self._write([int((moment - self._begun) * 1e6), client, action, phase, data])
            if moment - self._flushed >= FLUSH_SECONDS:
                self._flush(moment)
            return self._count

    def flush(self) -> None:
        """Everything so far can be read from the file after this."""
        with self._lock:
            self._flush(self._clock())

    def close(self) -> None:
        """Mark the history as complete. May be called twice."""
        with self._lock:
            if self._file.closed:
                return
            self._write(None)
            self._file.write(self._compress.flush())
            self._file.close()

    def break_off(self) -> None:
        """End the file without that mark: the run did not come to its end."""
        with self._lock:
            if not self._file.closed:
                self._flush(self._clock())
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.break_off()

    def _write(self, document: Any) -> None:
        line = json.dumps(document, separators=(",", ":")).encode()
        self._file.write(self._compress.compress(line + b"\n"))

    def _flush(self, moment: float) -> None:
        self._flushed = moment
        self._file.write(self._compress.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()


class History:
    """A recorded history, read from its file as often as it is iterated over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        """Known after the last event: whether the run came to its end."""
        lines = self._lines()
        try:
            header = json.loads(next(lines))
        except (StopIteration, OSError, zlib.error, ValueError):
            raise NoHistory(f"{path} is not a history of `ottla verify`") from None
        finally:
            lines.close()
        if not isinstance(header, dict) or "history" not in header:
            raise NoHistory(f"{path} is not a history of `ottla verify`")
        if header["history"] != VERSION:
            raise NoHistory(
                f"{path} is a history of version {header['history']}; this release knows {VERSION}"
            )
        self.header: Mapping[str, Any] = header

    def __iter__(self) -> Iterator[Event]:
        self.complete = False
        for number, line in enumerate(self._lines()):
            if number == 0:
                continue
            try:
                document = json.loads(line)
            except ValueError:
                return  # the writer was killed in the middle of this one
            if document is None:
                self.complete = True
                return
            time_, client, action, phase, data = document
            yield Event(number, time_, client, action, phase, data)

    def _lines(self) -> Generator[bytes]:
        with gzip.open(self.path, "rb") as file:
            try:
                yield from file
            except (EOFError, zlib.error, gzip.BadGzipFile):
                return  # not closed, or damaged: what could be read has been given


def excerpt(events: Iterable[Event], numbers: Iterable[int]) -> list[Event]:
    """The events of these numbers, in their order."""
    wanted = set(numbers)
    return [event for event in events if event.number in wanted]
