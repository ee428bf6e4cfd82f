"""A topic archived as parquet files, with a folder for every hour of the records' timestamps.

Run it regularly, for example from cron, with the same checkpoint: each run appends what is new and
ends. Only the checkpoint knows which records are in the archive, and Spark's file sink writes a
batch completely or not at all, so no record is in the archive twice.
"""

from __future__ import annotations

import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ottla
from ottla.client.settings import bootstrap_servers
from ottla.pipelines import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = 3
PER_HOUR = 20


class Outcome(NamedTuple):
    """How many records there are by the archive's folders, and what was sent."""

    archived: dict[str, int]
    offsets: list[tuple[int, int]]
    sent: list[datetime]


def archive(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """Append what is new in the topic to `folder`/files."""
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.selectExpr(
            "*",
            "date_format(to_utc_timestamp(timestamp, current_timezone()), 'yyyy-MM-dd') AS day",
            "date_format(to_utc_timestamp(timestamp, current_timezone()), 'HH') AS hour",
        )
        .writeStream.format("parquet")
        .partitionBy("day", "hour")
        .option("path", str(folder / "files"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Outcome:
    topic = f"events-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS)
    sent = [begin + timedelta(minutes=60 * number / PER_HOUR) for number in range(HOURS * PER_HOUR)]
    with ottla.Producer(bootstrap) as producer:
        for part in (sent[::2], sent[1::2]):
            for at in part:
                producer.send(topic, f"event of {at:%H:%M}", timestamp=at).result()
            archive(spark, bootstrap, topic, folder)
    files = spark.read.parquet(str(folder / "files"))
    archived = {
        f"{row.day} {int(row.hour):02d}": row["count"]
        for row in files.groupBy("day", "hour").count().collect()
    }
    offsets = [(row.partition, row.offset) for row in files.select("partition", "offset").collect()]
    return Outcome(archived, sorted(offsets), sent)


def show(outcome: Outcome) -> None:
    for hour, count in sorted(outcome.archived.items()):
        print(f"{hour}h: {count} records")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        show(run(spark_session("archive"), bootstrap_servers(None), Path(folder)))


if __name__ == "__main__":
    main()
