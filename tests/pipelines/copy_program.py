"""A driver of its own: copies a topic into a SQLite table whose key is a record's place.

    python copy_program.py BOOTSTRAP TOPIC FOLDER [key=value …]

A place that comes again raises its count; that its value was another would be seen, too. A query
that fails is started again from its checkpoint, as a supervisor would. With `available_now=1` it
ends when everything has been read; other words are Spark's settings, `master` among them.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from ottla.pipelines import spark_session

TABLE = """CREATE TABLE IF NOT EXISTS records (
    place TEXT PRIMARY KEY, value BLOB, times INTEGER DEFAULT 1, same INTEGER DEFAULT 1)"""
INSERT = """INSERT INTO records (place, value) VALUES (?, ?) ON CONFLICT (place)
    DO UPDATE SET times = times + 1, same = same AND value = excluded.value"""


def main(bootstrap: str, topic: str, home: str, *words: str) -> None:
    folder = Path(home)
    settings = dict(word.split("=", 1) for word in words)
    now = settings.pop("available_now", "") == "1"
    spark = spark_session("copy", master=settings.pop("master", "local[2,4]"), config=settings)
    spark.sparkContext.setLogLevel("ERROR")
    places = spark.sparkContext.parallelize(range(4), 4).map(lambda _: where()).distinct().collect()
    (folder / "imported").write_text("\n".join(places))

    def keep(batch: Any, _number: int) -> None:
        rows = [
            (f"{row.topic}/{row.partition}/{row.offset}", bytes(row.value))
            for row in batch.collect()
        ]
        with sqlite3.connect(folder / "rows.db") as table:
            table.execute(TABLE)
            table.executemany(INSERT, rows)
        table.close()

    while True:
        stream = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "2000")
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(folder / "checkpoint"))
        )
        query = (stream.trigger(availableNow=True) if now else stream).start()
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            print(f"started again after: {str(error)[:2000]}", file=sys.stderr, flush=True)
    spark.stop()


def where() -> str:
    """Which copy of Ottla a task has."""
    import ottla

    return str(Path(ottla.__file__).resolve())


if __name__ == "__main__":
    main(*sys.argv[1:])
