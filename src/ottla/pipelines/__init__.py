"""Topics as Spark tables, through PySpark: `spark.read.format("ottla")`.

Needs the `[pipelines]` extra. Spark finds the data source by itself, by the name `pyspark_ottla`.

    spark_session(name, …)   a session that is ready for topics, Java included
    write_updates(df, …)     writes a query in Update mode, which Spark refuses a Python sink
    Pipeline(…)              a source, a transform and a sink, as in a pipeline's file

They are imported when they are first used: a Spark task that only reads needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.pipelines.pipeline import Pipeline
    from ottla.pipelines.session import spark_session
    from ottla.pipelines.sink.updates import write_updates

__all__ = ["Pipeline", "spark_session", "write_updates"]


def __getattr__(name: str) -> Any:
    if name == "spark_session":
        from ottla.pipelines.session import spark_session

        return spark_session
    if name == "write_updates":
        from ottla.pipelines.sink.updates import write_updates

        return write_updates
    if name == "Pipeline":
        from ottla.pipelines.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
