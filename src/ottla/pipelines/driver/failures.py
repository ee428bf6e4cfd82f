"""Why a query has ended, in one sentence for a person.

Spark wraps what Python raised into Java's exceptions and those into Python's again, with a stack
trace of each. The cause is the last line that names an exception.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from ottla.pipelines.connectors.errors.outages import Verdict, judge, other_header
from ottla.pipelines.source.loss import OPTION, Cause

_RAISED = re.compile(
    r"^\s*(?:Caused by: |: )?([A-Za-z_][\w.]*(?:Error|Exception|Refused|Outage)): (.+)$"
)
_FULL: Final = (
    "No space left on device",
    "Disk quota exceeded",
    "not enough space",
    "File too large",  # than the process may make them: RLIMIT_FSIZE
)
_GONE: Final = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError")
_NO_ANSWER: Final = "Answer from Java side is empty"
_PLAN: Final = "=== Streaming Query ==="
_STARVED: Final = "Python worker failed to connect back"
_ENDED: Final = (
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "stopped SparkContext",
)
_FILE = re.compile(r"\[FAILED_READ_FILE[^\]]*\] Encountered error while reading file (\S+?)\.?\s")
_LOSS = re.compile(
    r"^DataLossError: (?P<what>.* of partition (?P<partition>\d+) of topic (?P<topic>\S+) .*); "
    rf"to go on without them set {OPTION} to (?P<cause>\w+)=.*$"
)
_WRONG_PYTHON = re.compile(r'\[PYTHON_VERSION_MISMATCH\]|Cannot run program "[^"\n]*python')


def sentence(error: BaseException) -> str:
    """The cause of a failure, without the traces around it."""
    text = str(error)
    header = other_header(text)
    if header is not None:
        return header
    found = [match for line in text.splitlines() if (match := _RAISED.match(line))]
    if found:
        name = found[-1][1].rpartition(".")[2]
        cause = f"{name}: {found[-1][2].strip()}"
        file = _FILE.search(text)  # Spark's words around a cause that may not name it
        if file is None or PurePosixPath(unquote(file[1])).name in cause:
            return cause
        return f"{file[1]} cannot be read: {cause}"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first or type(error).__name__


def told(error: BaseException, pipeline: str) -> str:
    """The cause, as whoever runs the pipeline can act upon it.

    The data source names an option of its own where records are gone; a pipeline's file has none,
    and moves its place instead.
    """
    said = sentence(error).removeprefix(f"pipeline {pipeline}: ")
    loss = _LOSS.match(said)
    if loss is None:
        return said
    reset, topic = f"ottla pipeline offsets reset {pipeline}", loss["topic"]
    if loss["what"].endswith("the topic was deleted"):
        way = (
            f"to go on without it, `{reset} --to current` where a pattern has found it; where the "
            "file names it, take it out and run with --accept-changes"
        )
    elif loss["cause"] == Cause.RECREATED.value:
        way = f"`{reset} --topic {topic} --to earliest` lets the pipeline begin with the new one"
    else:
        place = f"{topic}:{loss['partition']}"
        way = f"`{reset} --topic {place} --to current` lets the pipeline go on without them"
    return f"{loss['what']}; {way}"


def is_full_disk(error: BaseException) -> bool:
    """Whether somebody could not write for want of space."""
    return any(word in str(error) for word in _FULL)


def away(error: BaseException) -> str | None:
    """What a query has ended for that passes by itself, in a sentence; None if that is not so.

    A machine that is busy starts no Python within Spark's ten seconds; a file system does not
    answer for a while. Behind its reason Spark shows the plan of the query, which may hold any
    word.
    """
    text = str(error).partition(_PLAN)[0]
    if _STARVED in text:
        return "Spark's Python processes do not start, as on a machine that is busy"
    found = judge(RuntimeError(text))
    return found.sentence if found.verdict is Verdict.OUTAGE else None


def is_gone(error: BaseException) -> bool:
    """Whether the JVM itself has ended: what was raised is about the way to it."""
    return type(error).__name__ in _GONE or _NO_ANSWER in str(error)


def is_ended(error: BaseException) -> bool:
    """Whether the cluster has ended the application: its master has, or gives it nobody to run."""
    return any(word in str(error) for word in _ENDED)


def is_wrong_python(error: BaseException) -> bool:
    """Whether executors have no Python of the driver's version."""
    return _WRONG_PYTHON.search(str(error)) is not None
