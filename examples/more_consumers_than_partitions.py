"""More consumers than partitions: one is idle, and takes over when another leaves.

Within a group, only one consumer at a time reads a partition; that keeps the partition in order. So
a topic of three partitions keeps three consumers of a group busy, and a fourth one is idle. It is
still useful: when one of the others leaves or dies, its partition goes to the idle one.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

import ottla

PARTITIONS = 3
CONSUMERS = 4
SECONDS = 60  # to wait for the group, which usually takes moments

Owners = dict[str, list[int]]
"""The partitions of each consumer."""


class Outcome(NamedTuple):
    """Who read what, before and after one consumer left."""

    before: Owners
    leaver: str
    after: Owners

    @property
    def idle(self) -> list[str]:
        return [name for name, partitions in self.before.items() if not partitions]


class Member:
    """A consumer of the group that knows its partitions, and whether it was told about them."""

    def __init__(self, bootstrap: str | None, topic: str) -> None:
        # Members learn from heartbeats that others came or went. Kafka's 3 s are long in a demo.
        config = {"heartbeat.interval.ms": 200}
        self.consumer = ottla.Consumer(bootstrap, group=topic, config=config)
        self.told = False
        self.consumer.subscribe(topic, on_assign=self.assigned)

    def assigned(self, _partitions: tuple[ottla.TopicPartition, ...]) -> None:
        self.told = True

    def partitions(self) -> list[int]:
        return [assigned.partition for assigned in self.consumer.assignment()]


def settle(members: dict[str, Member]) -> Owners:
    """Let all of them poll until each has its share and every partition is read by one."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for member in members.values():
            member.consumer.poll(0.02)
        owners = {name: member.partitions() for name, member in members.items()}
        read = sorted(number for numbers in owners.values() for number in numbers)
        if read == list(range(PARTITIONS)) and all(member.told for member in members.values()):
            return owners
    raise TimeoutError(f"the group did not settle within {SECONDS} s")


def run(bootstrap: str | None = None) -> Outcome:
    topic = f"readings-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    members = {f"consumer {n}": Member(bootstrap, topic) for n in range(1, CONSUMERS + 1)}
    try:
        before = settle(members)
        leaver = next(name for name, partitions in before.items() if partitions)
        members.pop(leaver).consumer.close()
        return Outcome(before, leaver, settle(members))
    finally:
        for member in members.values():
            member.consumer.close()


def main() -> None:
    outcome = run()
    busy = CONSUMERS - len(outcome.idle)
    print(f"{CONSUMERS} consumers, {PARTITIONS} partitions: {busy} busy, {len(outcome.idle)} idle")
    shares = sorted(len(partitions) for partitions in outcome.after.values())
    print(f"a busy one left: the others have {shares} partitions, and the idle one has work")


if __name__ == "__main__":
    main()
