"""A driver of its own for one write of a sink, in the JVM of a Spark that runs.

    python sink_driver.py '{"sink": "files", "options": {…}, "folder": "…", "batch": 0, "count": 9}'

`PYSPARK_GATEWAY_PORT` and `PYSPARK_GATEWAY_SECRET` lead to the JVM. It is this process, the
driver's Python, that a test kills.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from ottla.pipelines.connectors import catalog
from ottla.testing.connectors import batch, made, numbers, place, sample_rows


def main(text: str) -> None:
    order = json.loads(text)
    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    conf = SparkConf(_jvm=gateway.jvm, _jconf=java.getConf())
    spark = SparkSession(SparkContext(gateway=gateway, jsc=java, conf=conf))
    number, count = order["batch"], order["count"]
    rows = sample_rows(spark, numbers(count, number * count), start=number * count)
    sink = made(catalog.sink(order["sink"]), **order["options"])
    sink.prepare(spark, rows.schema, place(Path(order["folder"])))
    sink.write(rows, batch(number, replayed=order["replayed"]))
    print("written", flush=True)
    os._exit(0)  # the session belongs to others


if __name__ == "__main__":
    main(sys.argv[1])
