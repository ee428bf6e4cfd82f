"""Log aggregation: the log files of many machines become one topic, and an archive by day.

One pipeline watches the folders of the machines and sends the lines as they are. Another takes them
apart and keeps them in files, a folder for each day. What is no log line goes to a dead-letter
topic, and none is lost. A machine that is added later needs nothing but a folder.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from stage import Stage, on_a_stage

import ottla

START = datetime(2026, 5, 1, 20, tzinfo=UTC)
LEVELS = ("INFO", "INFO", "INFO", "WARNING", "ERROR")


def lines_of(machine: int, name: str, count: int) -> list[str]:
    """One every few minutes, so that they reach into the next day."""
    found = []
    for number in range(count):
        at = START + timedelta(minutes=(7 + machine) * number)
        level = LEVELS[(number + machine) % len(LEVELS)]
        found.append(f"{at:%Y-%m-%dT%H:%M:%SZ} {name} {level} request {number} of {name}")
    return found


AT_FIRST = {
    "web-1": lines_of(1, "web-1", 40),
    "web-2": [*lines_of(2, "web-2", 50), "Traceback (most recent call last):", "KeyError: 'price'"],
}
LATER = {"db-1": lines_of(3, "db-1", 30)}


class Outcome(NamedTuple):
    """Lines in the archive by day and level, and those that are in the dead-letter topic."""

    archived: Counter[tuple[str, str]]
    letters: list[str]


def run(stage: Stage) -> Outcome:
    logs, archive = stage.folder / "logs", stage.folder / "archive"
    stage.create("logs", "logs.dlq")
    for machines in (AT_FIRST, LATER):
        for name, lines in machines.items():
            (logs / name).mkdir(parents=True)
            # A file is complete when it appears: it is renamed when it is.
            hidden = logs / name / ".app.log"
            hidden.write_text("".join(f"{line}\n" for line in lines))
            hidden.rename(logs / name / "app.log")
        print(f"{' and '.join(machines)} wrote {sum(map(len, machines.values()))} lines")
        stage.run("logs_to_topic.yaml", LOGS=logs)
    stage.run("logs_to_files.yaml", ARCHIVE=archive)

    archived: Counter[tuple[str, str]] = Counter()
    for file in archive.glob("day=*/*.json"):
        day = file.parent.name.removeprefix("day=")
        lines = file.read_text().splitlines()
        archived.update((day, json.loads(line)["level"]) for line in lines)
    with ottla.Consumer(stage.bootstrap, value=ottla.STRING) as consumer:
        consumer.assign("logs.dlq", "earliest")
        letters = [str(record.value) for record in consumer.records(until_end=True)]
    for (day, level), count in sorted(archived.items()):
        print(f"{day} {level:7} {count:3}")
    print("dead letters:", "; ".join(sorted(letters)))
    return Outcome(archived, letters)


if __name__ == "__main__":
    with on_a_stage() as stage:
        run(stage)
