"""Exactly once from topic to topic: a killed worker's transaction leaves nothing behind.

A worker reads orders and writes an invoice for each, three to a transaction, together with the
offsets of what it has read. It kills itself with SIGKILL in the middle of the second transaction,
when the invoices for orders 4 and 5 are stored already. A second worker with the same transactional
id takes its place: the open transaction is aborted, and it begins again with order 4.

Who reads committed records, as `ottla.Consumer` does by default, finds one invoice for each order.
Who asks for uncommitted ones finds those of the aborted transaction as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from typing import NamedTuple

import ottla

ORDERS = [f"order {number}" for number in range(1, 8)]
BATCH = 3
KILLED_AFTER = "order 5"


class Outcome(NamedTuple):
    """Which orders have an invoice, in the order in which these were written."""

    committed: list[str]
    stored: list[str]
    """With those of aborted transactions."""

    @property
    def aborted(self) -> list[str]:
        rest = list(self.stored)
        for order in self.committed:
            rest.remove(order)
        return rest


def work(orders: str, invoices: str, bootstrap: str, killed_after: str) -> None:
    """Write invoices until there are no more orders, or until the end of this process."""
    with (
        ottla.Producer(bootstrap or None, transactional_id=orders) as producer,
        ottla.Consumer(
            bootstrap or None,
            value=ottla.STRING,
            group=orders,
            reset="earliest",
            auto_commit=False,
            config={"group.instance.id": "worker"},
        ) as consumer,
    ):
        producer.init_transactions()  # aborts what a killed worker has left open
        consumer.subscribe(orders)
        while batch := list(consumer.records(limit=BATCH, until_end=True)):
            with producer.transaction() as txn:
                for record in batch:
                    txn.send(invoices, record.value).result()
                    if record.value == killed_after:
                        os.kill(os.getpid(), signal.SIGKILL)
                txn.commit_offsets(consumer)


def worker(*arguments: str) -> None:
    """Run `work` in another process."""
    command = [sys.executable, __file__, *arguments]
    ended = subprocess.run(command, timeout=60, check=False)
    if ended.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the worker ended with {ended.returncode}")


def read(topic: str, bootstrap: str | None, *, uncommitted: bool) -> list[str]:
    with ottla.Consumer(bootstrap, value=ottla.STRING, read_uncommitted=uncommitted) as consumer:
        consumer.assign(topic, "earliest")
        return [record.value or "" for record in consumer.records(until_end=True)]


def run(bootstrap: str | None = None) -> Outcome:
    name = uuid.uuid4().hex[:8]
    orders, invoices = f"orders-{name}", f"invoices-{name}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(orders, partitions=1)
        admin.create_topic(invoices, partitions=1)
    with ottla.Producer(bootstrap) as producer:
        for order in ORDERS:
            producer.post(orders, order)
    worker(orders, invoices, bootstrap or "", KILLED_AFTER)
    worker(orders, invoices, bootstrap or "", "")
    return Outcome(
        read(invoices, bootstrap, uncommitted=False), read(invoices, bootstrap, uncommitted=True)
    )


def main() -> None:
    outcome = run()
    print(f"invoices: {', '.join(outcome.committed)}")
    print(f"aborted:  {', '.join(outcome.aborted)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(*sys.argv[1:])
    else:
        main()
