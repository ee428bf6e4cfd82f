"""At most once and at least once: what a killed consumer loses, and what it does twice.

A consumer does two things with every batch of records: the work, and the commit that tells its
group how far it has read. Their order decides what a `kill -9` between the two costs:

    commit, then work    at most once    records that were committed but not processed are lost
    work, then commit    at least once   records that were processed but not committed are repeated

A worker in its own process handles ten orders in batches of three, and kills itself with SIGKILL as
soon as it has handled order 5. A second worker takes its place. The work is a line on standard
output: like a mail that was sent, it cannot be undone.

The worker is a static member (`group.instance.id`), so the second one takes the place of the first
at once. Otherwise the group would wait until the session of the dead one times out (45 s).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from typing import NamedTuple

import ottla

AT_MOST_ONCE, AT_LEAST_ONCE = "at most once", "at least once"
ORDERS = [f"order {number}" for number in range(1, 11)]
BATCH = 3
KILLED_AFTER = "order 5"


class Outcome(NamedTuple):
    """What happened to the orders."""

    killed: list[str]
    """What the worker that was killed had handled."""
    successor: list[str]
    """What the one after it handled."""

    @property
    def lost(self) -> list[str]:
        return [order for order in ORDERS if order not in self.killed + self.successor]

    @property
    def repeated(self) -> list[str]:
        times = Counter(self.killed + self.successor)
        return [order for order in ORDERS if times[order] > 1]


def work(semantics: str, topic: str, bootstrap: str, killed_after: str) -> None:
    """Handle orders until there are no more, or until the end of this process."""
    with ottla.Consumer(
        bootstrap or None,
        value=ottla.STRING,
        group=topic,
        reset="earliest",
        auto_commit=False,
        config={"group.instance.id": "worker"},
    ) as consumer:
        consumer.subscribe(topic)
        while batch := list(consumer.records(limit=BATCH, until_end=True)):
            if semantics == AT_MOST_ONCE:
                consumer.commit()
            for record in batch:
                print(record.value, flush=True)
                if record.value == killed_after:
                    os.kill(os.getpid(), signal.SIGKILL)
            if semantics == AT_LEAST_ONCE:
                consumer.commit()


def worker(*arguments: str) -> list[str]:
    """Run `work` in another process; returns what it handled."""
    command = [sys.executable, __file__, *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    if ended.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the worker ended with {ended.returncode}")
    return ended.stdout.splitlines()


def run(semantics: str, bootstrap: str | None = None) -> Outcome:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with ottla.Producer(bootstrap) as producer:
        for order in ORDERS:
            producer.post(topic, order)
    killed = worker(semantics, topic, bootstrap or "", KILLED_AFTER)
    successor = worker(semantics, topic, bootstrap or "", "")
    return Outcome(killed, successor)


def main() -> None:
    for semantics in (AT_MOST_ONCE, AT_LEAST_ONCE):
        outcome = run(semantics)
        print(f"{semantics}: killed after {outcome.killed[-1]}, went on with", end=" ")
        print(outcome.successor[0])
        print(f"  lost:     {', '.join(outcome.lost) or 'nothing'}")
        print(f"  repeated: {', '.join(outcome.repeated) or 'nothing'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(*sys.argv[1:])
    else:
        main()
