"""Clicks per minute and page, by the time of the click and not of its arrival.

Clicks are JSON and arrive slightly out of order. A minute stays open for one more minute of event
time (the watermark); a click that arrives even later is dropped. Each batch writes the counts that
have changed, keyed by minute and page, so the newest value of a key is its count. This is Spark's
Update mode, which Spark does not allow for Python sinks; `write_updates` provides it.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ottla
from ottla.client.settings import bootstrap_servers
from ottla.pipelines import spark_session, write_updates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
# Seconds after START, and the page: in the order of their arrival.
CLICKS = [
    *[(5, "home"), (12, "home"), (40, "prices"), (58, "home")],
    *[(65, "prices"), (50, "docs"), (110, "home"), (119, "home")],
    *[(121, "docs"), (100, "docs"), (179, "docs"), (200, "home")],
]
TOO_LATE = (1, "home")


class Outcome(NamedTuple):
    """Clicks by the start of the minute and the page."""

    counts: dict[tuple[datetime, str], int]


def count_clicks(spark: SparkSession, bootstrap: str, source: str, target: str, home: Path) -> None:
    """Read what is new in `source`; write the counts that changed to `target`."""
    clicks = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("from_json(CAST(value AS string), 'at TIMESTAMP, page STRING') AS click")
        .select("click.*")
    )
    counts = (
        clicks.withWatermark("at", "1 minute")
        .selectExpr("window(at, '1 minute') AS minute", "page")
        .groupBy("minute", "page")
        .count()
        .selectExpr(
            "concat(date_format(minute.start, \"yyyy-MM-dd'T'HH:mm:ssXXX\"), ' ', page) AS key",
            "CAST(count AS string) AS value",
        )
    )
    query = (
        write_updates(counts, {"kafka.bootstrap.servers": bootstrap, "topic": target})
        .option("checkpointLocation", str(home))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Outcome:
    name = uuid.uuid4().hex[:8]
    source, target = f"clicks-{name}", f"per-minute-{name}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(source, partitions=1)
        admin.create_topic(target, partitions=1)
    with ottla.Producer(bootstrap) as producer:
        for part in (CLICKS, [TOO_LATE]):
            for seconds, page in part:
                at = (START + timedelta(seconds=seconds)).isoformat()
                producer.send(source, json.dumps({"at": at, "page": page})).result()
            count_clicks(spark, bootstrap, source, target, folder / "clicks")
    return Outcome(latest(bootstrap, target))


def latest(bootstrap: str, topic: str) -> dict[tuple[datetime, str], int]:
    """The newest value of every key."""
    counts = {}
    with ottla.Consumer(bootstrap, key=ottla.STRING, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        for record in consumer.records(until_end=True):
            minute, page = str(record.key).split(" ")
            counts[datetime.fromisoformat(minute), page] = int(record.value or 0)
    return counts


def show(outcome: Outcome) -> None:
    for (minute, page), count in sorted(outcome.counts.items()):
        print(f"{minute.astimezone(UTC):%H:%M} {page:6} {count}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        show(run(spark_session("clicks"), bootstrap_servers(None), Path(folder)))


if __name__ == "__main__":
    main()
