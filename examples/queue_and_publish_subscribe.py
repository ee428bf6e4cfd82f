"""A queue and publish-subscribe: the same topic, and only the groups differ.

    queue               two readers in one group: each record goes to one of them
    publish-subscribe   two readers, each in its own group: each record goes to both

The topic and the producer are the same in both cases; only the consumers differ. You can mix the
two: a service of many processes is one group, and gets each record once.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

import ottla

PARTITIONS = 2
TASKS = [f"task {number}" for number in range(1, 11)]
SECONDS = 60  # to wait for groups and records, which usually takes moments


class Outcome(NamedTuple):
    """What each of the two readers got."""

    first: list[str | None]
    second: list[str | None]


def run(groups: tuple[str, str], bootstrap: str | None = None) -> Outcome:
    """Two readers, one in each of these groups, which may be the same."""
    topic = f"tasks-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    readers = [
        ottla.Consumer(
            bootstrap,
            value=ottla.STRING,
            group=f"{topic}-{group}",
            reset="earliest",
            # Members learn from heartbeats that another came. Kafka's 3 s are long in a demo.
            config={"heartbeat.interval.ms": 200},
        )
        for group in groups
    ]
    got: list[list[str | None]] = [[] for _ in readers]
    same = groups[0] == groups[1]
    share = PARTITIONS // 2 if same else PARTITIONS
    deadline = time.monotonic() + SECONDS

    def poll() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {SECONDS} s")
        for reader, records in zip(readers, got, strict=True):
            if (record := reader.poll(0.02)) is not None:
                records.append(record.value)

    try:
        for reader in readers:
            reader.subscribe(topic)
        while any(len(reader.assignment()) != share for reader in readers):
            poll()
        with ottla.Producer(bootstrap) as producer:
            for number, task in enumerate(TASKS):
                producer.post(topic, task, partition=number % PARTITIONS)
        while sum(map(len, got)) < len(TASKS) * len(set(groups)):
            poll()
    finally:
        for reader in readers:
            reader.close()
    return Outcome(*got)


def main() -> None:
    queue = run(("workers", "workers"))
    print(f"queue: {len(queue.first)} and {len(queue.second)} of {len(TASKS)} tasks")
    subscribed = run(("mail", "statistics"))
    print(
        f"publish-subscribe: {len(subscribed.first)} and {len(subscribed.second)} "
        f"of {len(TASKS)} tasks"
    )


if __name__ == "__main__":
    main()
