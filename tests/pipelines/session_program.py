"""A driver of its own, for what can be seen of a session only while it starts.

    python session_program.py '{"name": "clicks", "packages": […], "plain": {…}}'

Prints one line of JSON: what the session has come to. With `plain` somebody else has started Spark,
with these settings, before `spark_session` is called with the rest; with `read` a topic is read.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from ottla.pipelines import java, spark_session


def main(asked: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    plain, read = asked.pop("plain", None), asked.pop("read", None)
    if plain is not None:
        java.prepare()
        SparkSession.builder.config(map=plain).getOrCreate()
    spark = spark_session(**asked)
    conf = dict(spark.sparkContext.getConf().getAll())
    found["shuffle"] = spark.conf.get("spark.sql.shuffle.partitions")
    if read is not None:
        try:
            spark.read.format("ottla").options(**read).load()
        except Exception as error:
            found["error"] = str(error)
    print(json.dumps(conf | found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]) if sys.argv[1:] else {})
