"""A pipeline in a process of its own, with a source and a sink that are as small as can be.

    python driven_copy.py STATE BOOTSTRAP TOPIC FOLDER [--once] [--kill POINT:BATCH] …

The source is a topic of text. The sink writes each batch as one file, named after run and batch,
and appends a line to `attempts`. At a named point of a named batch the process and Spark's Java are
killed with SIGKILL: `before-sink`, `after-sink`, `after-commit-log`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ottla.pipelines.connectors.contract import HIDDEN, Batch, Guarantee, Place
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import Way
from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec
from ottla.pipelines.driver import run as runs
from ottla.pipelines.driver.home import Home, Refused
from ottla.pipelines.driver.start import Choices, Follow


def die() -> None:
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # Java's children end by themselves when it has
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


class Text:
    """A topic's values as text, in batches of at most ten."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def topics_read(self) -> list[str]:
        return [self._topic]

    def stream(self, spark: Any, place: Place) -> Any:
        reader = spark.readStream.format("ottla").option("subscribe", self._topic)
        given = {
            "kafka.bootstrap.servers": place.bootstrap,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "10",
            "commitOffsets": "false",
        }
        return reader.options(**given).load()

    def rows(self, batch: Any) -> Any:
        hidden = "named_struct('position', cast(offset as string), 'error', cast(null as string))"
        return batch.selectExpr("cast(value as string) as value", f"{hidden} as {HIDDEN}")


class Files:
    """A file per batch, there whole or not at all."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, folder: Path, kill: str | None) -> None:
        self._folder = folder
        self._kill = kill

    def prepare(self, spark: Any, schema: Any, place: Place) -> None:
        self._folder.mkdir(exist_ok=True)

    def write(self, rows: Any, batch: Batch) -> None:
        if self._kill == f"before-sink:{batch.number}":
            die()
        if self._kill == f"after-commit-log:{batch.number - 1}":
            signal.pause()  # Spark is quicker than the look at its log that kills us
        with (self._folder / "attempts").open("a") as attempts:
            attempts.write(f"{batch.run} {batch.number} {batch.replayed}\n")
        values = [row.value for row in rows.select("value").collect()]
        if "fail" in values:
            raise ValueError("the value is fail")
        path = self._folder / f"{batch.run}-{batch.number}"
        if not path.exists():
            path.with_suffix(".part").write_text("".join(f"{value}\n" for value in values))
            path.with_suffix(".part").rename(path)
        if self._kill == f"after-sink:{batch.number}":
            die()

    def probe(self, rows: Any, batch: Batch) -> None:
        raise AssertionError("nothing is probed here")


def connector(name: str, **options: Any) -> Connector:
    return Connector(name, options, Declaration(name, "", (), dict))


def main() -> int:
    words = argparse.ArgumentParser()
    for name in ("state", "bootstrap", "topic", "folder"):
        words.add_argument(name)
    words.add_argument("--once", action="store_true")
    words.add_argument("--kill")
    words.add_argument("--transform")
    words.add_argument("--accept-changes", action="store_true")
    words.add_argument("--follow", type=Follow)
    given = words.parse_args()
    source, sink = Text(given.topic), Files(Path(given.folder), given.kill)
    spec = PipelineSpec(
        "copy",
        given.bootstrap,
        connector("text", topic=given.topic),
        connector("folder", path=given.folder),
        transform=given.transform,
        trigger=0.1,
        spark={"spark.sql.streaming.noDataProgressEventInterval": "1000"},
    )
    way = Way(source, lambda frame: frame, sink)
    choices = Choices(
        once=given.once,
        master="local[1]",
        follow=given.follow,
        accept_changes=given.accept_changes,
    )
    audience = runs.Audience(
        session_started=lambda: signal.signal(signal.SIGTERM, lambda *_: driver.stop()) and None
    )
    driver = runs.Driver(spec, way, Home(Path(given.state), "copy"), choices, audience)
    if given.kill and given.kill.startswith("after-commit-log:"):
        number = int(given.kill.rpartition(":")[2])
        follow = driver._follow

        def follow_or_die(checkpoint: Any, member: Any, lag: Any) -> None:
            if checkpoint.finished is not None and checkpoint.finished >= number:
                die()
            follow(checkpoint, member, lag)

        driver._follow = follow_or_die
    try:
        outcome = driver.run()
    except (Refused, runs.Failed) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"stopped after {driver.figures().batch}, {outcome.rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
