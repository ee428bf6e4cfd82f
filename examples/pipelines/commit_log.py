"""A topic as the commit log of another system: whoever reads it from the start has its state.

A store of accounts writes every change to a topic before it counts: the new state of an account, or
nothing if the account was closed. A replica, here a SQLite file, follows the log with a pipeline.
It is stopped, misses some changes, and goes on where it was. A second replica is made much later,
from the log alone, and has the same accounts. The topic is compacted: the log of a store needs no
more room than the store, however long it is kept.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from stage import Stage, on_a_stage

import ottla

OWNERS = ("ann", "bob", "cho", "dee")


class Change(NamedTuple):
    """`balance` is None when the account is closed."""

    account: str
    owner: str
    balance: int | None


def changes(seed: int, count: int) -> list[Change]:
    dice = random.Random(seed)
    return [
        Change(
            account := f"account-{dice.randrange(12):02}",
            OWNERS[int(account[-2:]) % len(OWNERS)],
            None if dice.random() < 0.2 else dice.randrange(1_000),
        )
        for _ in range(count)
    ]


FIRST, SECOND = changes(1, 60), changes(2, 40)


class Outcome(NamedTuple):
    """Accounts and balances of the first replica halfway and at the end, and of the second."""

    halfway: dict[str, int]
    first: dict[str, int]
    second: dict[str, int]


def write(bootstrap: str, log: list[Change]) -> None:
    with ottla.Producer(bootstrap) as producer:
        for change in log:
            state = json.dumps({"owner": change.owner, "balance": change.balance})
            producer.post("accounts", None if change.balance is None else state, key=change.account)


def accounts(store: Path) -> dict[str, int]:
    with closing(sqlite3.connect(store)) as database:
        return dict(database.execute("select account, balance from accounts order by 1"))


def run(stage: Stage) -> Outcome:
    with ottla.Admin(stage.bootstrap) as admin:
        admin.create_topic("accounts", partitions=2, config={"cleanup.policy": "compact"})
    first, second = stage.folder / "first.db", stage.folder / "second.db"
    write(stage.bootstrap, FIRST)
    stage.run("replica.yaml", REPLICA="first-replica", STORE=first)
    halfway = accounts(first)
    write(stage.bootstrap, SECOND)
    stage.run("replica.yaml", REPLICA="first-replica", STORE=first)
    stage.run("replica.yaml", REPLICA="second-replica", STORE=second)
    outcome = Outcome(halfway, accounts(first), accounts(second))
    same = "the same" if outcome.first == outcome.second else "another"
    print(f"after {len(FIRST)} changes, the first replica has {len(halfway)} accounts")
    print(f"after {len(FIRST + SECOND)}, it has {len(outcome.first)}; the second has {same} state")
    print("in all accounts:", sum(outcome.first.values()))
    return outcome


if __name__ == "__main__":
    with on_a_stage() as stage:
        run(stage)
