"""Who is at which point, and who is held there.

    with Switchboard() as board:
        trap = board.set("map", "after-write")
        caught = trap.wait(60.0)          # a process is at the point, and stays there
        ...somebody is killed...
        trap.release()

`hook.py` tells of every point that a process of a pipeline reaches. One that is in a trap is
answered when the trap is released, all others at once.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

BEGUN = "task-begun"


@dataclass(frozen=True, slots=True)
class Reached:
    """A process at a point. `stage`, `partition` and `attempt` are those of a task's process."""

    pipeline: str
    point: str
    process: int
    stage: int | None = None
    partition: int | None = None
    attempt: int | None = None

    def is_copy_of(self, other: Reached) -> bool:
        """Whether this is another attempt at the same task, and not one that was killed."""
        return (
            (self.pipeline, self.stage, self.partition)
            == (other.pipeline, other.stage, other.partition)
            and None not in (self.stage, self.attempt, other.attempt)
            and self.process != other.process
            and (self.attempt > other.attempt or psutil.pid_exists(self.process))
        )


@dataclass(eq=False, slots=True)
class Trap:
    """Catches the next process of a pipeline at a point; of a task, only this partition's."""

    pipeline: str
    point: str
    partition: int | None = None
    caught: Reached | None = None
    _closed: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def takes(self, reached: Reached) -> bool:
        return (
            self.caught is None
            and (reached.pipeline, reached.point) == (self.pipeline, self.point)
            and (None in (self.partition, reached.partition) or reached.partition == self.partition)
        )

    def hold(self, reached: Reached) -> None:
        self.caught = reached
        self._closed.set()

    def wait_released(self) -> None:
        self._released.wait()

    def wait(self, timeout: float) -> Reached | None:
        """Who is caught; None if nobody comes in time."""
        return self.caught if self._closed.wait(timeout) else None

    def release(self) -> None:
        self._released.set()


class Switchboard:
    """The socket to which the processes of all pipelines talk; a thread for each that waits."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kills-")  # a short path: sockets need it
        self.address = str(Path(self._folder.name) / "points")
        self._changed = threading.Condition()
        self._traps: list[Trap] = []
        self._begun: list[Reached] = []
        """The last tasks that have begun, of all pipelines."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """How often each point was reached, by pipeline and point."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Switchboard:
        self._listener.bind(self.address)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        with self._changed:
            for trap in self._traps:
                trap.release()
            self._traps.clear()
        self._folder.cleanup()

    def set(self, pipeline: str, point: str, partition: int | None = None) -> Trap:
        """A trap for the next process at this point."""
        trap = Trap(pipeline, point, partition)
        with self._changed:
            self._traps.append(trap)
        return trap

    def wait_copy(self, held: Reached, timeout: float) -> Reached | None:
        """Another attempt at the task that is held: a copy that Spark has started beside it."""
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                for each in self._begun:
                    if each.is_copy_of(held):
                        return each
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return None

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            with connection.makefile("rb") as lines:
                line = lines.readline()
            if not line.endswith(b"\n"):
                return  # killed before it could say where it is
            trap = self._note(_read(line))
            if trap is not None:
                trap.wait_released()
            try:
                connection.sendall(b"\n")
            except OSError:
                pass  # killed while it was held

    def _note(self, reached: Reached) -> Trap | None:
        with self._changed:
            self.counts[reached.pipeline, reached.point] += 1
            if reached.point == BEGUN:
                self._begun = [*self._begun[-100:], reached]
                self._changed.notify_all()
            for trap in self._traps:
                if trap.takes(reached):
                    self._traps.remove(trap)
                    trap.hold(reached)
                    return trap
        return None


def _read(line: bytes) -> Reached:
    told: dict[str, Any] = json.loads(line)
    return Reached(**told)
