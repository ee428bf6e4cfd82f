"""The kills of one pipeline, one after the other, in a thread of its own.

For each kill a trap is set at its point, more records are sent, and when a process of the pipeline
is in the trap, somebody is killed. Nobody waits for the pipeline to recover: the next trap is set
at once. That it closes shows that the pipeline has gone on.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import psutil

from kills.environment import Environment
from kills.executors import executor_of, executors_of, kill_all
from kills.pipelines import Shape
from kills.plan import Kill, Victim
from kills.switchboard import Reached, Trap
from ottla.pipelines.driver.offsets import progress_of

PATIENCE: Final = 1200.0
"""Seconds in which a pipeline reaches the next point, whatever was killed before."""
_COPY: Final = 30.0
_LOOK: Final = 0.2


class Stuck(Exception):
    """A pipeline does not go on."""


class Lane:
    """One pipeline under its kills.

    plan   the kill with a number; `total` of them in all, `done` in earlier runs
    tell   hears of every kill: its number, what it was, and whether a copy ran meanwhile
    """

    def __init__(
        self,
        environment: Environment,
        shape: Shape,
        plan: Callable[[int], Kill],
        total: int,
        done: int,
        tell: Callable[[int, Kill, dict[str, Any]], None],
    ) -> None:
        self._environment = environment
        self._shape = shape
        self._plan = plan
        self._total = total
        self._done = done
        self._tell = tell
        self._over = threading.Event()
        self._enough = threading.Event()
        self.fed = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=shape.name, daemon=True)

    def stop(self) -> None:
        """Begin no other kill."""
        self._over.set()

    def finish(self) -> None:
        """Begin no other kill, and let everything that was sent pass."""
        self._enough.set()

    def passed(self) -> int:
        """How many records are in finished batches."""
        position = self._environment.drivers[self._shape.name].checkpoint.position()
        progress = progress_of(position)
        return 0 if progress is None else sum(progress.ends().values())

    def _run(self) -> None:
        try:
            self.fed = self._environment.fed(self._shape)
            for number in range(self._done, self._total):
                if self._over.is_set():
                    return
                if self._enough.is_set():
                    break
                self._one(number, self._plan(number))
            else:
                self._feed(self._shape.count)
            self._settle()
        except BaseException as error:  # the main thread raises it
            self.error = error

    def _one(self, number: int, kill: Kill) -> None:
        begun = time.monotonic()
        trap = self._environment.board.set(kill.pipeline, kill.point.value, kill.partition)
        try:
            self._feed(self._shape.count * (number + 1) // self._total)
            held = self._caught(trap)
            if self._over.is_set():
                return
            if held is None:
                raise self._stuck(f"does not come to {kill.point.value} for kill {number} ({kill})")
            copy = self._environment.board.wait_copy(held, _COPY) if kill.copy else None
            facts = self._kill(kill, held, copy, trap)
        finally:
            trap.release()
        facts |= {"copy": copy is not None, "seconds": round(time.monotonic() - begun, 1)}
        self._done = number + 1
        self._tell(number, kill, facts)

    def _caught(self, trap: Trap) -> Reached | None:
        """Who is in the trap; None if nobody comes in time, or the run is stopped."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not self._over.is_set():
            held = trap.wait(_LOOK)
            if held is not None:
                return held
        return None

    def _kill(self, kill: Kill, held: Reached, copy: Reached | None, trap: Trap) -> dict[str, Any]:
        environment = self._environment
        facts: dict[str, Any] = {"batch": environment.drivers[kill.pipeline].checkpoint.planned}
        match kill.victim:
            case Victim.TASK:
                chosen = copy if kill.other and copy is not None else held
                facts["gone"] = not _killed(chosen.process)
            case Victim.EXECUTOR:
                executor = executor_of(held.process) or self._any_executor()
                if kill.zombie:
                    facts["gone"] = not _killed(executor.pid)
                else:
                    kill_all(executor)
            case Victim.DRIVER:
                environment.drivers[kill.pipeline].kill()
            case Victim.BROKER:
                self._away(environment.broker, "broker", kill.away, trap)
            case Victim.DATABASE:
                self._away(environment.postgres, "database", kill.away, trap)
        return facts

    def _any_executor(self) -> psutil.Process:
        """One of this pipeline's; after a kill it may take a moment until there is one again."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = executors_of(self._shape.name, self._environment.spark.workers)
            if found:
                return random.Random(self._done).choice(found)
            time.sleep(_LOOK)
        raise self._stuck("has no executor")

    def _away(self, server: Any, name: str, seconds: float, trap: Trap) -> None:
        """Kill a server, let everybody run into that, and start it again."""
        with self._environment.locks[name]:
            server.kill()
            trap.release()
            self._over.wait(seconds)
            server.start()

    def _feed(self, end: int) -> None:
        if end > self.fed:
            self._environment.feed(self._shape, self.fed, end)
            self.fed = end

    def _settle(self) -> None:
        """Wait until every record that was sent is in a finished batch."""
        last, since = -1, time.monotonic()
        while not self._over.is_set():
            passed = self.passed()
            if passed == self.fed:
                return
            if passed != last:
                last, since = passed, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise self._stuck(f"stands at {passed:,} of {self.fed:,} records")
            time.sleep(_LOOK)

    def _stuck(self, sentence: str) -> Stuck:
        driver = self._environment.drivers[self._shape.name]
        return Stuck(
            f"{self._shape.name} {sentence}; started {driver.starts} times, at "
            f"{self.passed():,} of {self.fed:,} records, batch {driver.checkpoint.planned} planned "
            f"and {driver.checkpoint.finished} finished. It said last: {driver.said()}"
        )


def _killed(process: int) -> bool:
    """Kill -9; False if somebody was faster: Spark ends the slower one of two copies."""
    try:
        psutil.Process(process).kill()
    except psutil.NoSuchProcess:
        return False
    return True
