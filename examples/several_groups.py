"""Several groups read one topic: each gets everything, at its own pace.

Billing, shipping and, long afterwards, an audit read the same orders. Each is a group with its
own offsets. Shipping is slow, but does not delay billing; and the audit, which did not exist when
the orders were written, still finds all of them.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import ottla

ORDERS = [f"order {number}" for number in range(1, 7)]


class Outcome(NamedTuple):
    """What each group had read by the end, and what shipping had read halfway."""

    billing: list[str | None]
    shipping_at_first: list[str | None]
    shipping: list[str | None]
    audit: list[str | None]


def run(bootstrap: str | None = None) -> Outcome:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with ottla.Producer(bootstrap) as producer:
        for order in ORDERS:
            producer.post(topic, order)

    def read(group: str, most: int | None = None) -> list[str | None]:
        """What a group has not read yet, or the next few of it."""
        with ottla.Consumer(
            bootstrap, value=ottla.STRING, group=f"{topic}-{group}", reset="earliest"
        ) as consumer:
            consumer.subscribe(topic)
            return [record.value for record in consumer.records(limit=most, until_end=True)]

    shipping_at_first = read("shipping", most=2)
    billing = read("billing")
    shipping = shipping_at_first + read("shipping")
    return Outcome(billing, shipping_at_first, shipping, audit=read("audit"))


def main() -> None:
    outcome = run()
    print(f"shipping has handled {len(outcome.shipping_at_first)} of {len(ORDERS)} orders")
    print(f"billing has handled {len(outcome.billing)} of {len(ORDERS)} orders")
    print(f"shipping has handled {len(outcome.shipping)} of {len(ORDERS)} orders")
    print(f"the audit has found {len(outcome.audit)} of {len(ORDERS)} orders")


if __name__ == "__main__":
    main()
