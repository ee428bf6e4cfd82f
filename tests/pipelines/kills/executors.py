"""The executors of a standalone Spark: whose they are, and how they are killed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Final

import psutil

from kills.hook import PIPELINE
from ottla.testing.spark import SparkServer

_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


def executors_of(pipeline: str, workers: Iterable[SparkServer]) -> list[psutil.Process]:
    """The processes that run tasks of this pipeline."""
    return [
        each
        for worker in workers
        for each in _family(worker.pid)
        if _is_executor_of(each, pipeline)
    ]


def executor_of(process: int) -> psutil.Process | None:
    """The executor for which a Python process works; None for a local Spark, or if it is gone."""
    try:
        for parent in psutil.Process(process).parents():
            if any(_EXECUTOR in word for word in parent.cmdline()):
                return parent
    except psutil.NoSuchProcess:
        pass
    return None


def kill_all(process: psutil.Process) -> None:
    """Kill -9 of a process and of all that it has started."""
    for each in _family(process.pid):
        _kill(each)


def _family(process: int) -> Iterator[psutil.Process]:
    """A process and its children; it comes first, so that it cannot start others."""
    try:
        first = psutil.Process(process)
        yield from (first, *first.children(recursive=True))
    except psutil.NoSuchProcess:
        pass


def _is_executor_of(process: psutil.Process, pipeline: str) -> bool:
    try:
        return any(_EXECUTOR in word for word in process.cmdline()) and (
            process.environ().get(PIPELINE) == pipeline
        )
    except psutil.Error:
        return False  # it has just ended


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass
