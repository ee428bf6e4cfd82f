"""What the examples of pipelines run on: a broker, a Spark session and a folder of their own.

    with on_a_stage() as stage:
        stage.create("logs", partitions=2)
        stage.run("logs_to_topic.yaml", LOGS="/var/log/shop")

All of it is gone when the block ends. `run` does what this command does, but several pipelines of
an example share one Spark, whose start takes longer than all of them:

    LOGS=/var/log/shop ottla pipeline run logs_to_topic.yaml --once
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ottla
from ottla.pipelines import Pipeline, spark_session
from ottla.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


class Stage(NamedTuple):
    """Where an example runs."""

    bootstrap: str
    folder: Path
    spark: SparkSession

    def create(self, *topics: str, partitions: int = 2) -> None:
        with ottla.Admin(self.bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions=partitions)

    def run(self, file: str, **variables: object) -> None:
        """Take what is there now through the pipeline of a file, and say how much it was."""
        environment = {name: str(value) for name, value in variables.items()}
        environment["OTTLA_BOOTSTRAP"] = self.bootstrap
        pipeline = Pipeline.from_file(HERE / file, environment)
        done = pipeline.run(once=True, state_dir=str(self.folder / "state"), session=self.spark)
        letters = f", {done.letters} in the dead-letter topic" if done.letters else ""
        print(f"{pipeline.spec.name}: {done.rows} rows read, {done.written} written{letters}")


@contextmanager
def on_a_stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        spark = spark_session("examples", master="local[2]", config={"spark.ui.enabled": "false"})
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield Stage(broker.bootstrap, Path(folder), spark)
        finally:
            spark.stop()
