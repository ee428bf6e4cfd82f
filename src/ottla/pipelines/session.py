"""A SparkSession that is ready for topics.

    from ottla.pipelines import spark_session

    spark = spark_session("clicks")
    spark.read.format("ottla").option("subscribe", "clicks").load().show()

`format("ottla")` works in any session of a PySpark that has Ottla beside it; this one finds or
brings Java, listens on loopback only, and has the settings that our measurements recommend.

What somebody has set stays: `spark-submit`'s flags, `spark-defaults.conf` (also that of
`SPARK_CONF_DIR`), `PYSPARK_SUBMIT_ARGS`, a session that runs already. Arguments of the call win
over these, as they do with Spark's own builder. To know what is set, the JVM is started first and
asked.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines import interpreters, java, masters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("ottla.pipelines")

LOOPBACK: Final = "127.0.0.1"
DEFAULTS: Final = {
    # What a query asks of offset, partition and timestamp reaches the source (`pushdown=true`).
    "spark.sql.python.filterPushdown.enabled": "true",
}
_WHEN_LOCAL: Final = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
}
_CHOSEN: Final = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS")
"""Variables with which somebody chooses the address that Spark gives to executors."""
NAME: Final = "ottla"

_APP_NAME: Final = "spark.app.name"
_BAR: Final = "spark.ui.showConsoleProgress"
_HOST: Final = "spark.driver.host"
_MASTER: Final = "spark.master"
_PACKAGES: Final = "spark.jars.packages"
_PYTHON: Final = "spark.pyspark.python"
_SUBMITTED: Final = "PYSPARK_SUBMIT_ARGS"
_SHUFFLE: Final = "spark.sql.shuffle.partitions"
_PATIENCE: Final = 5.0
_STDERR: Final = 2
_THREADS = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_PROPERTY = re.compile(r"\s*([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*?)\s*")


def spark_session(
    name: str | None = None,
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    packages: str | Iterable[str] = (),
) -> SparkSession:
    """Start a session, or get the one that runs.

    name      what Spark's pages call the application; "ottla" when nobody says
    master    where Spark runs: "local[*]" is a JVM of this process's own, "spark://host:7077" a
              cluster; "local[*]" when nobody says
    config    Spark's properties
    packages  jars that Spark fetches when it starts, "group:artifact:version"

    A local Spark has as many shuffle partitions as threads, since most of the 200 that it would
    have are empty and take longer than the rest. A progress bar is shown on a terminal.
    """
    given = dict(config or {})
    if name is not None:
        given[_APP_NAME] = name
    if master is not None:
        given[_MASTER] = master
    wanted = _listed(packages)
    try:
        from pyspark import SparkConf
        from pyspark.core.context import SparkContext
        from pyspark.sql import SparkSession

        from ottla.pipelines.sink.updates import name_the_helper
    except ImportError:
        raise ImportError(
            "pipelines need PySpark: pip install 'ottla[pipelines]'", name="pyspark"
        ) from None

    name_the_helper()
    interpreters.explain_not_found()
    if "SPARK_REMOTE" in os.environ or "spark.remote" in given:
        _refuse_missing(wanted, None)
        return _build(SparkSession, given)  # Spark Connect: the server has its own settings
    running = SparkContext._active_spark_context
    if running is not None:
        _refuse_missing(wanted, running.getConf().get(_PACKAGES))
        if given.get(_MASTER, running.master) != running.master:
            LOGGER.warning("Spark runs already, on %s: master has no effect.", running.master)
        rest = {key: value for key, value in given.items() if key not in (_MASTER, _APP_NAME)}
        session = _build(SparkSession, rest)
        interpreters.check(session)
        interpreters.make_active(session)
        return session

    if wanted:
        there = given.get(_PACKAGES, _defaults_file().get(_PACKAGES, ""))
        given[_PACKAGES] = ",".join(dict.fromkeys([*_listed(there), *wanted]))
    python = _launch(given)
    known = dict(SparkConf().getAll())
    _refuse_missing(wanted, known.get(_PACKAGES))
    ours = _ours(known | given, os.isatty(_STDERR), os.cpu_count() or 1)
    everything = known | given | ours
    if masters.is_remote(everything[_MASTER]):
        ours |= _seen_from(everything)
    else:
        os.environ.setdefault(interpreters.TASKS, python)
    session = _build(SparkSession, ours | given)
    interpreters.check(session)
    return session


def _launch(given: Mapping[str, str]) -> str:
    """Start the JVM, if nobody has; returns the Python of tasks, if these run on this machine."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext

    python = sys.executable
    names: AbstractContextManager[None] = nullcontext()
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        java.prepare()
        if _starts_local(given):
            python = interpreters.choose()
            # Spark's pages (port 4040) heed no property: without this they are open to the network.
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        else:
            names = interpreters.chosen_for_cluster(given.get(_PYTHON))
    at_start = SparkConf(loadDefaults=False)
    for key, value in given.items():
        at_start.set(key, value)
    with names:
        SparkContext._ensure_initialized(conf=at_start)
    return python


def start_jvm() -> Any:
    """The JVM alone, without a session: Spark's classes, for what needs no more. A session that
    is started later runs in the same."""
    from pyspark.core.context import SparkContext
    from pyspark.errors.exceptions.captured import install_exception_handler

    if SparkContext._gateway is None:
        java.prepare()
        interpreters.choose()
        SparkContext._ensure_initialized()
        install_exception_handler()  # which a session does otherwise: Java's errors as Python's
    return SparkContext._jvm


@contextmanager
def failures_untold() -> Iterator[None]:
    """PySpark logs every statement that fails, with the whole stack of Java's. Whoever finds out
    by such failures which row is to blame, or tells them in a sentence, does not want that."""
    talker = logging.getLogger("SQLQueryContextLogger")
    before = talker.level
    talker.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        talker.setLevel(before)


def _ours(known: Mapping[str, str], terminal: bool, cores: int) -> dict[str, str]:
    """What to set beside what is known to be set."""
    ours = dict(DEFAULTS)
    # A name is always there: spark-submit takes that of the program when it is given none.
    if known.get(_APP_NAME) in (None, "pyspark-shell", Path(sys.argv[0]).name):
        ours[_APP_NAME] = NAME
    ours[_MASTER] = known.get(_MASTER, "local[*]")
    if not masters.is_remote(ours[_MASTER]):
        ours |= _WHEN_LOCAL | {_SHUFFLE: str(_threads(ours[_MASTER], cores))}
    missing = {key: value for key, value in ours.items() if key == _APP_NAME or key not in known}
    # Spark turns the bar on for everything that is not a file given to spark-submit, also where it
    # goes into a log, line after line.
    if _BAR not in known or (known[_BAR] == "true" and not terminal and not _bar_is_asked_for()):
        missing[_BAR] = str(terminal).lower()
    return missing


def _seen_from(known: Mapping[str, str]) -> dict[str, str]:
    """The address at which executors find the driver, unless somebody has chosen it."""
    if _HOST in known or any(os.environ.get(name) for name in _CHOSEN):
        return {}
    try:
        found = masters.own_address(known[_MASTER], _PATIENCE)
    except (OSError, ValueError):
        return {}  # Spark will say that there is no such master
    return {} if found is None else {_HOST: found}


def _starts_local(given: Mapping[str, str]) -> bool:
    """Whether the master that Spark will have is a local one, as far as one can tell before."""
    submitted = re.search(r"--master[\s=]+['\"]?([^\s'\"]+)", os.environ.get(_SUBMITTED, ""))
    named = given.get(_MASTER) or (submitted and submitted[1]) or _defaults_file().get(_MASTER)
    return named is None or not masters.is_remote(named)


def _threads(master: str, cores: int) -> int:
    """How many tasks a local master runs at a time."""
    match = _THREADS.fullmatch(master)
    count = match[1] if match else "*"
    return cores if count == "*" else int(count or 1)


def _build(kind: type[SparkSession], settings: Mapping[str, str]) -> SparkSession:
    builder = kind.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _listed(packages: str | Iterable[str]) -> list[str]:
    each = packages.split(",") if isinstance(packages, str) else packages
    return [package.strip() for package in each if package.strip()]


def _refuse_missing(wanted: list[str], there: str | None) -> None:
    missing = [package for package in wanted if package not in _listed(there or "")]
    if missing:
        raise RuntimeError(
            f"{', '.join(missing)} cannot be added to a Spark that has started: give packages to "
            "the first spark_session() of a program, or with --packages to spark-submit or to the "
            "server of Spark Connect."
        )


def _bar_is_asked_for() -> bool:
    return _BAR in os.environ.get(_SUBMITTED, "") or _BAR in _defaults_file()


def _defaults_file() -> dict[str, str]:
    """What spark-defaults.conf sets, in the folder in which Spark looks for it."""
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf"
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    found = (_PROPERTY.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}
