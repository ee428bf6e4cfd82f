"""Decoupling: a shop writes orders, and knows nobody who reads them.

Billing and shipping are pipelines, and so groups with offsets of their own. Shipping is down while
billing goes on, and the shop does not notice. When shipping is back, it goes on where it was, and
has missed nothing. Billing makes invoices in a database, shipping labels in files; a third reader
would be one more file of a few lines, and nobody else would have to change.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from typing import NamedTuple

from stage import Stage, on_a_stage

import ottla

CITIES = ("Prague", "Vienna", None, "Berlin")
ORDERS = [
    {"id": n, "customer": f"c{n % 7}", "city": CITIES[n % len(CITIES)], "cents": 100 + 37 * n}
    for n in range(1, 41)
]


class Outcome(NamedTuple):
    """The lags while shipping was down, and what came of the orders."""

    lags: dict[str, int]
    invoices: dict[int, int]
    labels: list[tuple[int, str]]


def order(bootstrap: str, orders: list[dict[str, object]]) -> None:
    with ottla.Producer(bootstrap) as producer:
        for each in orders:
            producer.post("orders", json.dumps(each), key=str(each["customer"]))
    print(f"the shop: {len(orders)} orders")


def lag(bootstrap: str, group: str) -> int:
    with ottla.Admin(bootstrap) as admin:
        return sum(each.lag or 0 for each in admin.group_lag(group))


def run(stage: Stage) -> Outcome:
    books, labels = stage.folder / "books.db", stage.folder / "labels"
    stage.create("orders")
    order(stage.bootstrap, ORDERS[:10])
    stage.run("shipping.yaml", LABELS=labels)
    order(stage.bootstrap, ORDERS[10:])
    stage.run("billing.yaml", BOOKS=books)
    lags = {name: lag(stage.bootstrap, f"ottla-{name}") for name in ("billing", "shipping")}
    print(f"shipping is down, and {lags['shipping']} orders behind; billing {lags['billing']}")
    stage.run("shipping.yaml", LABELS=labels)

    with closing(sqlite3.connect(books)) as database:
        invoices = dict(database.execute("select id, gross from invoices"))
    found = []
    for file in sorted(labels.glob("*.csv")):
        with file.open(newline="") as lines:
            found += [(int(row["id"]), row["city"]) for row in csv.DictReader(lines)]
    print(f"{len(invoices)} invoices over {sum(invoices.values()) / 100:.2f}, {len(found)} labels")
    return Outcome(lags, invoices, sorted(found))


if __name__ == "__main__":
    with on_a_stage() as stage:
        run(stage)
