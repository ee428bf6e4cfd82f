"""Words counted as their lines arrive: a topic of text in, a topic of counts out.

The query reads what is there and ends (`availableNow`). Run again with the same checkpoint, it
continues with what has arrived since. The checkpoint keeps the counts, and each run writes all of
them again.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ottla
from ottla.client.settings import bootstrap_servers
from ottla.pipelines import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = [
    "Someone must have been telling lies about Josef K.,",
    "he knew he had done nothing wrong but, one morning, he was arrested.",
    "Every day at eight in the morning he was brought his breakfast",
    "but today she didn't come. That had never happened before.",
]


class Outcome(NamedTuple):
    """The counts after the first half of the lines, and after all of them."""

    first: dict[str, int]
    all: dict[str, int]


def count_words(spark: SparkSession, bootstrap: str, source: str, target: str, home: Path) -> None:
    """Read what is new in `source` and write the counts of all words so far to `target`."""
    lines = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    words = lines.selectExpr(r"explode(split(lower(CAST(value AS string)), '[^a-z\']+')) AS word")
    counts = words.where("word <> ''").groupBy("word").count()
    query = (
        counts.selectExpr("word AS key", "CAST(count AS string) AS value")
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(home))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(spark: SparkSession, bootstrap: str, folder: Path) -> Outcome:
    name = uuid.uuid4().hex[:8]
    source, target = f"lines-{name}", f"counts-{name}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(source, partitions=2)
        admin.create_topic(target, partitions=1)
    counts = []
    with ottla.Producer(bootstrap) as producer:
        for part in (LINES[:2], LINES[2:]):
            for line in part:
                producer.send(source, line).result()
            count_words(spark, bootstrap, source, target, folder / "words")
            counts.append(latest(bootstrap, target))
    return Outcome(*counts)


def latest(bootstrap: str, topic: str) -> dict[str, int]:
    """The newest value of every key."""
    with ottla.Consumer(bootstrap, key=ottla.STRING, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        records = consumer.records(until_end=True)
        return {str(record.key): int(record.value or 0) for record in records}


def show(outcome: Outcome) -> None:
    for word, count in sorted(outcome.all.items(), key=lambda counted: (-counted[1], counted[0]))[
        :5
    ]:
        print(f"{count} {word}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        show(run(spark_session("word count"), bootstrap_servers(None), Path(folder)))


if __name__ == "__main__":
    main()
