"""Somebody who looks whether a cluster has anybody to run a pipeline's tasks.

A master that has no free cores or memory gives no executors, and executors that do not reach the
driver end, and others take their place, without an end. Either way Spark's jobs just wait, so this
says it. While nobody has to run anything, nobody is missed: executors may be given back then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("ottla.pipelines.driver")

GRACE: Final = 15.0
"""Seconds that executors may take to start."""
_LOOK: Final = 2.0
_HOST: Final = "spark.driver.host"
_PORT: Final = "spark.driver.port"


class Absence:
    """Since when jobs wait for executors; no part of Spark is in it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def seconds(self, executors: int, jobs: int) -> float | None:
        """How long there has been nobody, if that is worth a word."""
        if executors or not jobs:
            self._since = None
            return None
        if self._since is None:
            self._since = self._clock()
        passed = self._clock() - self._since
        return passed if passed >= GRACE else None


class ExecutorWatch:
    """Looks every two seconds, in a thread of its own.

    tell       hears what is missing, and None when it is there again
    abandoned  whether nobody wants the jobs any more that are under way: they are cancelled, since
               their caller waits for them as long as they wait for executors
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: str,
        tell: Callable[[str | None], None],
        abandoned: Callable[[], bool],
    ) -> None:
        self._context = spark.sparkContext
        self._pipeline = pipeline
        self._tell = tell
        self._abandoned = abandoned
        self._absence = Absence()
        self._told: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK):
            try:
                if self._abandoned():
                    self._context.cancelAllJobs()
                jobs = len(self._context.statusTracker().getActiveJobsIds())
                java = self._context._jsc.sc()
                # The driver itself is one of those that have memory.
                executors = int(java.getExecutorMemoryStatus().size()) - 1
            except Exception:  # Spark is gone, which its query says
                return
            self._look(executors, jobs)

    def _look(self, executors: int, jobs: int) -> None:
        missed = self._absence.seconds(executors, jobs)
        if missed is None:
            if self._told is not None:
                LOGGER.warning("Pipeline %s has executors again.", self._pipeline)
                self._told = None
                self._tell(None)
            return
        if self._told is None:
            self._told = self._sentence()
            LOGGER.warning("Pipeline %s waits for %s", self._pipeline, self._told)
            self._tell(self._told)

    def _sentence(self) -> str:
        settings = self._context.getConf()
        return (
            f"executors: {self._context.master} has none for it, or they do not reach the driver "
            f"at {settings.get(_HOST)}:{settings.get(_PORT)}. Are cores and memory free (spark."
            "cores.max, spark.executor.memory)? Can its machines reach this address (spark.driver."
            "host)? The page of the master shows it"
        )
