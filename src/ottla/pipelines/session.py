"""A SparkSession that is ready for topics.

    from ottla.pipelines import spark_session

    spark = spark_session("clicks")
    spark.read.format("ottla").option("subscribe", "clicks").load().show()

`format("ottla")` works in any session of a PySpark that has Ottla beside it; this one finds or
brings Java, listens on loopback only, and has the settings that our measurements recommend.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from ottla.pipelines import java
from ottla.pipelines.launchers import launcher

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
    "spark.ui.showConsoleProgress": "false",
}

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


def spark_session(
    name: str = "ottla", *, master: str = "local[*]", config: dict[str, str] | None = None
) -> SparkSession:
    """Start a session, or get the one that runs.

    name    what Spark's pages call the application
    master  where Spark runs: "local[*]" is a JVM of this process's own; else "spark://host:7077", …
    config  Spark's properties; they win over ours
    """
    java.prepare()
    try:
        from pyspark.sql import SparkSession

        from ottla.pipelines.sink.updates import name_the_helper
    except ImportError:
        raise ImportError(
            "pipelines need PySpark: pip install 'ottla[pipelines]'", name="pyspark"
        ) from None

    name_the_helper()
    local = master.startswith("local")
    _choose_python(local=local)
    if local:
        # Spark's pages (port 4040) heed no property: without this they are open to the network.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(name).master(master)
    settings = DEFAULTS | (_WHEN_LOCAL if local else {}) | (config or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _choose_python(*, local: bool) -> None:
    """Say which Python Spark starts, unless somebody has.

    For that it asks the environment and not its properties, and takes the `python3` of the PATH
    when that is silent: one for finding sources by name and for planning, one for the tasks.
    """
    python = sys.executable
    if "SPARK_HOME" not in os.environ:
        try:
            # One for each environment: they may run at the same time.
            place = f"python-{hashlib.sha256(python.encode()).hexdigest()[:12]}/python"
            python = str(launcher(place, _PYTHON.format(python=python), os.environ))
        except OSError as error:
            LOGGER.warning("Python starts more slowly, its launcher cannot be kept: %s", error)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", python)
