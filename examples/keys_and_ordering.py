"""Keys and ordering: records with the same key stay in order, others need not.

Three parcels are on their way at the same time. Each event is sent with the parcel's number as the
key. The key determines the partition, so everything about one parcel is in one partition, and a
partition is read in the order in which it was written. There is no order between partitions: the
events of two parcels may be read in a different order than they were sent.

Records without a key can go to any partition.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import ottla

PARCELS = ["parcel-1", "parcel-2", "parcel-3"]
EVENTS = ["packed", "collected", "sorted", "delivered"]
PARTITIONS = 3


class Outcome(NamedTuple):
    """What was sent and what was read, in the order of each."""

    sent: list[tuple[str, str]]
    read: list[ottla.Record[str, str]]

    def partitions_of(self, parcel: str) -> set[int]:
        return {record.partition for record in self.read if record.key == parcel}

    def events_of(self, parcel: str) -> list[str | None]:
        return [record.value for record in self.read if record.key == parcel]


def run(bootstrap: str | None = None) -> Outcome:
    topic = f"parcels-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    sent = [(parcel, event) for event in EVENTS for parcel in PARCELS]
    with ottla.Producer(bootstrap) as producer:
        for parcel, event in sent:
            producer.post(topic, event, key=parcel)
    with ottla.Consumer(bootstrap, key=ottla.STRING, value=ottla.STRING) as consumer:
        consumer.assign(topic, "earliest")
        return Outcome(sent, list(consumer.records(until_end=True)))


def main() -> None:
    outcome = run()
    for parcel in PARCELS:
        [partition] = outcome.partitions_of(parcel)
        print(
            f"{parcel} in partition {partition}: {', '.join(map(str, outcome.events_of(parcel)))}"
        )


if __name__ == "__main__":
    main()
