"""A folder of CSV files sent to a topic: one JSON record per line, keyed by one column.

The next run with the same checkpoint sends files that were added since, each of them once.
"""

from __future__ import annotations

import csv
import json
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ottla
from ottla.client.settings import bootstrap_servers
from ottla.pipelines import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "city STRING, day DATE, rain DOUBLE"
FILES = {
    "may.csv": [("Prague", "2026-05-01", 1.5), ("Berlin", "2026-05-01", 0.0)],
    "june.csv": [("Prague", "2026-06-01", 12.25), ("Vienna", "2026-06-01", 3.0)],
}


class Outcome(NamedTuple):
    """What is in the topic by city."""

    rows: list[tuple[str, dict[str, Any]]]


def send_files(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """Send the lines of all files of `folder`/files that have not been sent yet."""
    lines = spark.readStream.schema(COLUMNS).option("header", "true").csv(str(folder / "files"))
    query = (
        lines.selectExpr("city AS key", "to_json(struct(*)) AS value")
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Outcome:
    topic = f"rain-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    (folder / "files").mkdir()
    for name, rows in FILES.items():
        with (folder / "files" / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(column.split(" ")[0] for column in COLUMNS.split(", "))
            writer.writerows(rows)
        send_files(spark, bootstrap, topic, folder)
    with ottla.Consumer(bootstrap, key=ottla.STRING, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        found = [
            (str(record.key), json.loads(record.value or ""))
            for record in consumer.records(until_end=True)
        ]
    return Outcome(sorted(found, key=lambda row: (row[1]["day"], row[0])))


def show(outcome: Outcome) -> None:
    for city, row in outcome.rows:
        print(f"{city:6} {row['day']} {row['rain']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        show(run(spark_session("rain"), bootstrap_servers(None), Path(folder)))


if __name__ == "__main__":
    main()
