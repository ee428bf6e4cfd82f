"""A driver of its own: copies a topic to another, and stops in each batch until it is let on.

    python gated_copy.py BOOTSTRAP FROM TO FOLDER

A batch that has rows makes the file `begun` and waits for the file `gate`. Progress events that say
anything of an outage are lines of the file `progress`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql.functions import udf

from ottla.pipelines import spark_session


def main(bootstrap: str, source: str, target: str, home: str) -> None:
    folder = Path(home)
    spark = spark_session("copy", master="local[2]", config={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")

    @udf("binary")
    def held(value: bytes) -> bytes:
        (folder / "begun").touch()
        while not (folder / "gate").exists():
            time.sleep(0.05)
        return value

    query = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .select(held("value").alias("value"))
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while not query.awaitTermination(1):
        found = [
            json.loads(source.latestOffset)
            for progress in query.recentProgress
            for source in progress.sources
            if source.latestOffset and "lastOutage" in source.latestOffset
        ]
        (folder / "progress").write_text(json.dumps(found[-1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
