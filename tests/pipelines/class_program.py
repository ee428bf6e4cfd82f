"""Uses what most pipelines do of Spark, so that its classes can be kept: `quick_java` runs it.

spark-submit class_program.py BOOTSTRAP TOPIC FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import functions

from ottla.pipelines import spark_session


def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def main(bootstrap: str, topic: str, folder: str) -> None:
    spark = spark_session("classes", master="local[2]")

    def keep(batch: Any, number: int) -> None:
        rows = batch.select(
            "partition",
            "offset",
            functions.from_json(functions.col("value").cast("string"), "id long").alias("row"),
        )
        rows = rows.selectExpr("offset", "row.id as id", "current_timestamp() as seen")
        rows = rows.where("id > 2").mapInArrow(unchanged, rows.schema).persist()
        rows.groupBy("id").count().orderBy("id").collect()
        for each in ("parquet", "json", "csv"):
            rows.write.format(each).save(f"{folder}/{each}/{number}")
            spark.read.format(each).load(f"{folder}/{each}/{number}").toArrow()
        rows.unpersist()

    query = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
