"""Consumers can leave and come back: the group remembers where it was.

A reader takes three chapters and leaves; leaving commits what it has read. Meanwhile the author
keeps writing. When a reader of the same group comes back, minutes or days later and perhaps on
another machine, it continues with the fourth chapter. Reading removes nothing: a reader can always
start again from the first chapter.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import ottla


class Outcome(NamedTuple):
    """What was read when."""

    first_visit: list[str | None]
    committed: int | None
    """Where the group stood while nobody was there."""
    second_visit: list[str | None]
    from_the_start: list[str | None]


def write(bootstrap: str | None, topic: str, chapters: range) -> None:
    with ottla.Producer(bootstrap) as producer:
        for number in chapters:
            producer.post(topic, f"chapter {number}")


def run(bootstrap: str | None = None) -> Outcome:
    topic = f"novel-{uuid.uuid4().hex[:8]}"

    def reader() -> ottla.Consumer[bytes, str]:
        return ottla.Consumer(bootstrap, value=ottla.STRING, group=topic, reset="earliest")

    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    write(bootstrap, topic, range(1, 5))
    with reader() as consumer:
        consumer.subscribe(topic)
        first_visit = [record.value for record in consumer.records(limit=3)]
    write(bootstrap, topic, range(5, 7))
    with reader() as consumer:
        [committed] = consumer.committed((topic, 0)).values()
        consumer.subscribe(topic)
        second_visit = [record.value for record in consumer.records(until_end=True)]
    with ottla.Consumer(bootstrap, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        from_the_start = [record.value for record in consumer.records(until_end=True)]
    return Outcome(first_visit, committed, second_visit, from_the_start)


def main() -> None:
    outcome = run()
    print(f"first visit:  {', '.join(map(str, outcome.first_visit))}")
    print(f"meanwhile:    the group is at offset {outcome.committed}")
    print(f"second visit: {', '.join(map(str, outcome.second_visit))}")
    print(f"all that is still there: {len(outcome.from_the_start)} chapters")


if __name__ == "__main__":
    main()
