"""From a database to a topic to files: every state of every order, for those who analyze them.

One pipeline asks PostgreSQL for rows that are new or changed and sends them to a topic; another
keeps the topic as parquet. The database is asked for what is new only, and those who analyze never
ask it at all. Orders that are free of charge are left out by the pipeline's SQL.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import NamedTuple

from pyarrow import parquet
from stage import Stage, on_a_stage

from ottla.testing.postgres import PostgresProcess

TABLE = """
create table orders (
  id serial primary key, customer text not null, amount numeric(10, 2) not null,
  status text not null default 'new', updated_at timestamptz not null default now());
create index on orders (updated_at, id);
"""
ORDERS = [(f"c{n % 9}", Decimal(n % 6) * Decimal("2.50")) for n in range(1, 61)]
SHIPPED = "id % 4 = 0"


class Outcome(NamedTuple):
    """Rows and amounts in the files, by status."""

    rows: Counter[str]
    amounts: dict[str, Decimal]


def run(stage: Stage, postgres: PostgresProcess) -> Outcome:
    dsn, lake = postgres.new_database(), stage.folder / "lake"
    stage.create("orders-changed")
    values = ", ".join(f"('{customer}', {amount})" for customer, amount in ORDERS)
    postgres.sql(f"{TABLE} insert into orders (customer, amount) values {values}", dsn)
    stage.run("orders_to_topic.yaml", PG_DSN=dsn)
    postgres.sql(f"update orders set status = 'shipped', updated_at = now() where {SHIPPED}", dsn)
    stage.run("orders_to_topic.yaml", PG_DSN=dsn)
    stage.run("orders_to_files.yaml", LAKE=lake)

    rows: Counter[str] = Counter()
    amounts: dict[str, Decimal] = {}
    for file in sorted(lake.glob("status=*/*.parquet")):
        status = file.parent.name.removeprefix("status=")
        found = parquet.ParquetFile(file).read().column("amount").to_pylist()
        rows[status] += len(found)
        amounts[status] = sum(found, amounts.get(status, Decimal(0)))
    for status, count in sorted(rows.items()):
        print(f"{status:7} {count} rows, {amounts[status]} in all")
    return Outcome(rows, amounts)


if __name__ == "__main__":
    with on_a_stage() as stage, PostgresProcess(stage.folder) as postgres:
        postgres.start()
        run(stage, postgres)
