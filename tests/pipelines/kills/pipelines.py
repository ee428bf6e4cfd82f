"""The three pipelines, what goes into them, and what must come out.

    map       a topic into a topic, each row changed
    letters   the same, and some records are no JSON: these are dead letters
    upsert    a topic into a table of PostgreSQL, and some rows the table refuses: dead letters, too

A record is its number and nothing else, and so is all that must become of it: record n of a
pipeline is in partition n % PARTITIONS of its topic, at offset n // PARTITIONS. Which of them are
poison, and how the others look, follows from n.

The table counts how often each of its rows was written (`writes`, by a trigger), as an upsert would
hide what was written twice. A key comes back after `keys` records, more than a batch can have, so
each good record is one write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PARTITIONS: Final = 2
TABLE: Final = "totals"
CREATE: Final = f"""
create table if not exists {TABLE} (
    k bigint primary key, id bigint not null, amount bigint not null check (amount >= 0),
    writes integer not null default 1);
create or replace function count_writes() returns trigger language plpgsql as
    $$ begin new.writes := old.writes + 1; return new; end $$;
create or replace trigger count_writes before update on {TABLE}
    for each row execute function count_writes();
"""
_AMOUNTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """One pipeline.

    count   how many records it gets in all
    every   one record in so many is poison; 0: none is
    batch   how many records a batch has at most
    keys    of `upsert`: how many keys there are
    """

    name: str
    count: int
    every: int
    batch: int
    keys: int = 0

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def target(self) -> str:
        return f"{self.name}-out"

    @property
    def letters(self) -> str:
        return f"{self.name}-dlq"

    @property
    def topics(self) -> list[str]:
        topics = [self.source]
        if self.name != "upsert":
            topics.append(self.target)
        return [*topics, self.letters] if self.every else topics

    def is_poison(self, number: int) -> bool:
        return self.every > 0 and number % self.every == self.every // 2

    def value(self, number: int) -> bytes:
        """The record with this number."""
        if self.name == "upsert":
            amount = -1 if self.is_poison(number) else number % _AMOUNTS
            return b'{"id": %d, "amount": %d}' % (number, amount)
        if self.is_poison(number):
            return b"no json %d" % number
        return b'{"id": %d, "name": "record %d of %s"}' % (number, number, self.name.encode())

    def number(self, value: bytes) -> int:
        """Which record these bytes are; ValueError if none."""
        if value.startswith(b"no json "):
            number = int(value[8:])
        else:
            number = int(json.loads(value)["id"])
        if self.value(number) != value:
            raise ValueError(f"no record of {self.name} looks like this: {value[:200]!r}")
        return number

    def result(self, value: bytes) -> int:
        """Which record has become this one; ValueError if none can."""
        row = json.loads(value)
        number = int(row["id"])
        wanted = {"id": number, "name": f"RECORD {number} OF {self.name.upper()}"}
        if row != wanted or self.is_poison(number):
            raise ValueError(f"no record of {self.name} becomes this: {value[:200]!r}")
        return number

    def file(self, bootstrap: str, dsn: str, spark: Mapping[str, str]) -> dict[str, Any]:
        """The pipeline as its file says it; JSON is YAML."""
        schema = "id long, amount long" if self.name == "upsert" else "id long, name string"
        sink: dict[str, Any] = {"topic": {"name": self.target, "key": "id", "format": "json"}}
        transform = "select id, upper(name) as name from source"
        if self.name == "upsert":
            table = {"dsn": dsn, "table": TABLE, "mode": "upsert", "key": ["k"], "tasks": 2}
            sink = {"postgres": table}
            transform = f"select id % {self.keys} as k, id, amount from source"
        on_error: dict[str, Any] = {"retry": {"attempts": 5, "backoff": "200ms..2s"}}
        if self.every:
            on_error["dead_letter"] = self.letters
        source = {"name": self.source, "format": {"json": {"schema": schema}}}
        return {
            "name": self.name,
            "bootstrap": bootstrap,
            "source": {"topic": {**source, "max_records": self.batch}},
            "transform": transform,
            "sink": sink,
            "on_error": on_error,
            "trigger": "100ms",
            "spark": dict(spark),
        }


def place(number: int) -> str:
    """Where record n is in the topic of its pipeline."""
    return f"partition {number % PARTITIONS}, offset {number // PARTITIONS}"


def shapes(count: int, *, poison: int, batch: int) -> list[Shape]:
    """The three of them, with `count` records each; one letter in `poison` records of `letters`.

    Who refuses a row looks for it among all rows of a task: a refused row of `upsert` costs more,
    and there are fewer of them.
    """
    keys = max(count // 4 // PARTITIONS * PARTITIONS, PARTITIONS)
    refused = min(poison * 10, 5_000) if poison > 50 else poison
    return [
        Shape("map", count, 0, batch),
        Shape("letters", count, poison, batch),
        Shape("upsert", count, refused, batch, max(keys, 2 * batch)),
    ]
