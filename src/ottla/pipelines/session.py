"""A SparkSession that is ready for topics.

    from ottla.pipelines import spark_session

    spark = spark_session("clicks")
    spark.read.format("ottla").option("subscribe", "clicks").load().show()

`format("ottla")` works in any session of a PySpark that has Ottla beside it; this one finds or
brings Java, listens on loopback only, and has the settings that our measurements recommend.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from ottla.pipelines import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: Final = {
    # What a query asks of offset, partition and timestamp reaches the source (`pushdown=true`).
    "spark.sql.python.filterPushdown.enabled": "true",
}
_WHEN_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}


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
    # Which Python runs what, Spark asks the environment and not its properties, and takes the
    # `python3` of the PATH when that is silent: here for finding sources by name and for planning,
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):  # and for the tasks, where they are on this machine.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    settings = DEFAULTS | (_WHEN_LOCAL if master.startswith("local") else {}) | (config or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
