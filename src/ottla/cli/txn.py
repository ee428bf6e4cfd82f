"""`ottla txn`: who holds up whom with a transaction, and how to end one.

A consumer that reads committed records waits where the first open transaction of a partition
begins. The tables tell what coordinators and partitions know; below them a sentence for each
partition says who waits there, for whom, and how long still.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Noun
from ottla.cli.live import age
from ottla.cli.options import bootstrap_option, complete_topics, json_option, open_router
from ottla.cli.output import Column, broker_errors, count, show_json, show_table
from ottla.cli.patience import patience
from ottla.cli.txn_abort import abort
from ottla.cli.txn_words import Ages, no_transaction, sentence
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.admin_transactions import TransactionDescription, Transactions
    from ottla.client.open_transactions import HoldUp

_STATES = {
    name.lower(): name
    for name in (
        *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit"),
        *("CompleteAbort", "PrepareEpochFence"),
    )
}


@click.group(cls=Noun)
def txn() -> None:
    """List, describe and abort transactions; find those that hang."""


@contextmanager
def _asked(bootstrap: str) -> Iterator[Transactions]:
    from ottla.client.admin_transactions import Transactions

    waiting = patience(
        "still waiting for coordinators of transactions; `ottla cluster status` tells what is amiss"
    )
    with broker_errors(bootstrap), waiting, open_router(bootstrap) as router:
        yield Transactions(router)


# -- list


@txn.command(name="list")
@click.option("--state", "states", multiple=True,
              type=click.Choice(tuple(_STATES), case_sensitive=False),
              help="Only transactions in this state; repeatable.")  # fmt: skip
@click.option("--longer-than", type=click.FloatRange(0), metavar="SECONDS",
              help="Only those that have been open for longer.")  # fmt: skip
@bootstrap_option
@json_option
def list_(
    states: tuple[str, ...], longer_than: float | None, bootstrap: str, as_json: bool
) -> None:
    """List transactional ids, and who waits for their transactions.

    OPEN is how long a transaction has been open, TIMES OUT in which time its coordinator will abort
    it. HOLDS UP counts the partitions whose consumers wait for it.

    \b
    JSON: [{"transactional_id", "state", "coordinator", "producer_id", "producer_epoch",
            "timeout_ms", "started_ms", "open_seconds", "times_out_in_seconds",
            "partitions": [{"topic", "partition"}],
            "holds_up": [{"topic", "partition", "offset", "held", "begins_at",
                          "behind_producer_id", "says"}]}]
    """
    from ottla.client.open_transactions import hold_ups

    with _asked(bootstrap) as transactions:
        found = transactions.survey(states=[_STATES[each.lower()] for each in states])
        ages = Ages(time.time_ns() // 1_000_000)
        chosen = [
            each
            for each in sorted(found, key=lambda each: each.transactional_id)
            if longer_than is None or (ages.open(each) or -1.0) > longer_than
        ]
        held = hold_ups(transactions, chosen)
    if as_json:
        show_json([_document(each, _of(each, held), ages) for each in chosen])
        return
    show_table(
        [
            Column("TRANSACTIONAL ID"),
            Column("STATE"),
            Column("PRODUCER", True, is_name=True),
            Column("EPOCH", True, is_name=True),
            Column("OPEN", True),
            Column("TIMES OUT", True),
            Column("PARTITIONS", True),
            Column("HOLDS UP", True),
            Column("COORDINATOR", True, is_name=True),
        ],
        [
            (
                each.transactional_id,
                each.state,
                each.producer_id,
                each.producer_epoch,
                age(ages.open(each)),
                age(ages.left(each)),
                len(each.partitions),
                sum(hold.behind is None for hold in _of(each, held)),
                each.coordinator,
            )
            for each in chosen
        ],
    )
    _say(held, ages)


# -- describe


@txn.command()
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show what transactions include, where they begin, and who waits for them.

    BEGINS is the first offset of the transaction in a partition, WAITING where consumers of
    committed records stop there, HELD how many offsets follow, BEHIND the producer whose
    transaction has to end first.

    JSON: as of `ottla txn list`
    """
    from ottla.client.open_transactions import hold_ups

    with _asked(bootstrap) as transactions:
        found = [_look(transactions, name) for name in names]
        ages = Ages(time.time_ns() // 1_000_000)
        held = hold_ups(transactions, found)
    if as_json:
        show_json([_document(each, _of(each, held), ages) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            click.echo()
        _show(each, _of(each, held), ages)


def _look(transactions: Transactions, name: str) -> TransactionDescription:
    try:
        return transactions.describe(name)[name]
    except KafkaError as error:
        raise no_transaction(transactions, name, error) from None


def _show(found: TransactionDescription, held: Sequence[HoldUp], ages: Ages) -> None:
    left = ages.left(found)
    facts = [
        found.transactional_id,
        found.state,
        f"producer {found.producer_id}",
        f"epoch {found.producer_epoch}",
        *([f"open for {age(ages.open(found))}"] if ages.open(found) is not None else []),
        *([f"times out in {age(left)}"] if left is not None else []),
        f"time-out {age(found.timeout_ms / 1000)}",
        f"coordinator {found.coordinator}",
    ]
    by_partition = {each.partition: each for each in held}
    rows = []
    for tp in found.partitions:
        hold = by_partition.get(tp)
        behind = None if hold is None or hold.behind is None else hold.behind.producer.producer_id
        rows.append(
            (
                tp.topic,
                tp.partition,
                None if hold is None else hold.open.start_offset,
                None if hold is None else hold.offset,
                None if hold is None else hold.held,
                None if behind is None else f"producer {behind}",
            )
        )
    columns = [
        Column("TOPIC"),
        Column("PARTITION", True, is_name=True),
        Column("BEGINS", True),
        Column("WAITING", True),
        Column("HELD", True),
        Column("BEHIND"),
    ]
    if rows:
        show_table(columns, rows, title="  ".join(facts))
    else:
        click.echo("  ".join(facts))
    _say(held, ages)


def _of(found: TransactionDescription, held: Sequence[HoldUp]) -> list[HoldUp]:
    name = found.transactional_id
    return [
        each
        for each in held
        if each.transaction is not None and each.transaction.transactional_id == name
    ]


def _say(held: Sequence[HoldUp], ages: Ages) -> None:
    if held:
        click.echo()
    for each in held:
        click.echo(sentence(each, ages))


def _document(
    found: TransactionDescription, held: Sequence[HoldUp], ages: Ages
) -> dict[str, object]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "started_ms": found.started_ms,
        "open_seconds": ages.open(found),
        "times_out_in_seconds": ages.left(found),
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in found.partitions],
        "holds_up": [_held(each, ages) for each in held],
    }


def _held(hold: HoldUp, ages: Ages) -> dict[str, object]:
    return {
        "topic": hold.partition.topic,
        "partition": hold.partition.partition,
        "offset": hold.offset,
        "held": hold.held,
        "begins_at": hold.open.start_offset,
        "behind_producer_id": None if hold.behind is None else hold.behind.producer.producer_id,
        "says": sentence(hold, ages),
    }


# -- find-hanging


@txn.command(name="find-hanging")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option("--longer-than", type=click.FloatRange(0), default=0.0, show_default=True,
              metavar="SECONDS", help="Only those last written to before that.")  # fmt: skip
@bootstrap_option
@json_option
def find_hanging(
    topics: tuple[str, ...], longer_than: float, bootstrap: str, as_json: bool
) -> None:
    """Find transactions that no coordinator will ever end, in these topics or in all.

    Consumers of committed records wait for them for ever. Exits with 1 if partitions could not be
    asked, and names them.

    \b
    JSON: [{"topic", "partition", "producer_id", "producer_epoch", "begins_at", "offset",
            "held", "last_written_ms", "idle_seconds", "says"}]
    """
    from ottla.client.open_transactions import hanging, hold_ups, open_in, partitions_of

    with broker_errors(bootstrap, topics=topics), _asked(bootstrap) as transactions:
        opened, failures = open_in(transactions, partitions_of(transactions, topics or None))
        ages = Ages(time.time_ns() // 1_000_000)
        late = [each for each in opened if ages.idle(each) > longer_than]
        held = hold_ups(transactions, (), hanging(transactions, late))
    if as_json:
        show_json(
            [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "producer_id": each.open.producer.producer_id,
                    "producer_epoch": each.open.producer.producer_epoch,
                    "begins_at": each.open.start_offset,
                    "offset": each.offset,
                    "held": each.held,
                    "last_written_ms": each.open.producer.last_timestamp,
                    "idle_seconds": ages.idle(each.open),
                    "says": sentence(each, ages),
                }
                for each in held
            ]
        )
    elif held:
        show_table(
            [
                Column("TOPIC"),
                Column("PARTITION", True, is_name=True),
                Column("PRODUCER", True, is_name=True),
                Column("EPOCH", True, is_name=True),
                Column("BEGINS", True),
                Column("LAST WRITTEN", True),
            ],
            [
                (
                    each.partition.topic,
                    each.partition.partition,
                    each.open.producer.producer_id,
                    each.open.producer.producer_epoch,
                    each.open.start_offset,
                    f"{age(ages.idle(each.open))} ago",
                )
                for each in held
            ],
        )
        _say(held, ages)
    else:
        click.echo("no transaction hangs")
    if failures:
        reasons = sorted({error.message or error.code.text for error in failures.values()})
        names = ", ".join(map(str, sorted(failures)))
        raise click.ClickException(
            f"{count(len(failures), 'partition')} could not be asked ({'; '.join(reasons)}): "
            f"{names}; `ottla cluster status` tells why"
        )


txn.add_command(abort)
