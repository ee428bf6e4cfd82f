"""Which Python Spark starts, and whether it has Ottla.

Spark looks for `format("ottla")` in a Python that the JVM starts. It takes its path from the
environment in which the JVM began, `PYSPARK_DRIVER_PYTHON` or else `PYSPARK_PYTHON`, or else the
`python3` of the PATH. In an editor or a notebook that is often another Python than the one in which
the user types, and Spark then says no more than that it fails to find the data source.

`choose` says which one, before Spark starts. `check` looks at a Spark that somebody else has
started, and says what is wrong with it before the first query does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ottla.pipelines.launchers import launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("ottla.pipelines")

DRIVER: Final = "PYSPARK_DRIVER_PYTHON"
TASKS: Final = "PYSPARK_PYTHON"

# Spark puts a zip of PySpark's sources before the PySpark that is installed, and each process
# compiles those anew, for half a second. A first query starts four of them. A jar with no Python in
# it comes along; reading what it holds takes each process longer than it takes to start.
_PYTHON: Final = """\
#!/bin/sh
# {python} with the PySpark that is installed, not with the sources that Spark brings.
kept=
IFS=:
for place in $PYTHONPATH; do
  case "$place" in
    */python/lib/pyspark.zip|*/python/lib/py4j-*-src.zip|*/jars/spark-core_*.jar) ;;
    *) kept="$kept${{kept:+:}}$place" ;;
  esac
done
PYTHONPATH="$kept" exec '{python}' "$@"
"""
_HAS_IT: Final = "import importlib.util as u, sys; sys.exit(u.find_spec('pyspark_ottla') is None)"
_PATIENCE: Final = 30.0
_NOT_FOUND: Final = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: ottla."
_OTHER_THREAD: Final = (
    "Spark finds sources written in Python only in a thread that has an active session: call "
    "ottla.pipelines.spark_session() in this thread first, which makes the one that runs active."
)

_checked: dict[str, bool] = {}
"""By the path of a Python: whether it has Ottla."""


def choose() -> str:
    """Say in which Python Spark looks for sources, unless somebody has; for a JVM yet to start.

    Returns the one that is right for tasks as well, when these run on this machine.
    """
    python = sys.executable
    if "SPARK_HOME" not in os.environ:
        try:
            # One for each environment: they may run at the same time.
            place = f"python-{hashlib.sha256(python.encode()).hexdigest()[:12]}/python"
            python = str(launcher(place, _PYTHON.format(python=python), os.environ))
        except OSError as error:
            LOGGER.warning("Python starts more slowly, its launcher cannot be kept: %s", error)
    _checked[python] = True
    os.environ.setdefault(DRIVER, python)
    return python


@contextmanager
def chosen_for_cluster(wanted: str | None = None) -> Iterator[None]:
    """The same for a cluster: the JVM is to be started inside of this.

    Spark starts the Python of a source in the driver, where it is planned, and in the executors,
    where it is read, by the same words. So these are no path of this machine, but a name, which
    executors look for on their PATH; on that of the JVM it is this Python. A path that somebody has
    chosen is left as it is, and has to be right on all machines.
    """
    wanted = os.environ.get(TASKS) or wanted or same_minor()
    os.environ[TASKS] = wanted
    os.environ.setdefault(DRIVER, wanted)
    if os.sep in wanted:
        yield
        return
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:12]
    text = _PYTHON.format(python=sys.executable)
    folder = launcher(f"python-{digest}/{wanted}", text, os.environ).parent
    _checked[wanted] = True
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def same_minor() -> str:
    """What a Python of this minor version is called on other machines. Spark would take whatever
    `python3` is there, and refuses to work with another version than the driver's."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def check(spark: SparkSession) -> None:
    """Warn when this Spark cannot find `format("ottla")`, with the reason and what to do."""
    sentence = why_not_found(spark)
    if sentence:
        LOGGER.warning("%s", sentence)


def why_not_found(spark: SparkSession) -> str:
    """Why this Spark cannot find `format("ottla")`; empty when it can, or when nobody can tell."""
    jvm = getattr(spark, "_jvm", None)  # a session of Spark Connect has none of its own
    if jvm is None:
        return ""
    name = next((each for each in (DRIVER, TASKS) if jvm.System.getenv(each)), "")
    python = jvm.System.getenv(name) if name else "python3"
    if _has_ottla(python):
        return ""
    whence = (
        f"which is what {name} says"
        if name
        else f"the first of the PATH, since {TASKS} was not set when Spark started"
    )
    return (
        f'Spark looks for format("ottla") in {python}, {whence}, and there is no Ottla in it: stop '
        f"this session and let ottla.pipelines.spark_session() start one, or set "
        f"{name or TASKS}={sys.executable} before Spark starts."
    )


def explain_not_found() -> None:
    """Let Spark's own error say the same: `[DATA_SOURCE_NOT_FOUND] … ottla`.

    The error is made inside the JVM, without a call of ours, so its text can only be added to where
    Python shows it.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

    original = Py4JJavaError.__str__
    if getattr(original, "__module__", None) == __name__:
        return  # it is ours already

    def explained(self: Py4JJavaError) -> str:
        text = str(original(self))
        if _NOT_FOUND not in text:
            return text
        spark = SparkSession.getActiveSession()
        return f"{text}\n{why_not_found(spark) if spark else _OTHER_THREAD}".rstrip()

    Py4JJavaError.__str__ = explained


def make_active(spark: SparkSession) -> None:
    """Let this thread find `format("ottla")`: Spark asks the thread's active session for it."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


def _has_ottla(python: str) -> bool:
    if python == sys.executable:
        return True
    if python not in _checked:
        try:
            command = [python, "-c", _HAS_IT]
            subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=True)
        except (OSError, subprocess.SubprocessError):
            _checked[python] = False
        else:
            _checked[python] = True
    return _checked[python]
