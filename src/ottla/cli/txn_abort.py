"""`ottla txn abort`: end a transaction, by its coordinator or past it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, json_option, open_router
from ottla.cli.output import broker_errors, grouped, show_json
from ottla.cli.patience import patience
from ottla.cli.txn_words import no_transaction
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.admin_transactions import TransactionDescription, Transactions
    from ottla.client.open_transactions import OpenTransaction

_LAST = {
    "CompleteCommit": "the last one was committed",
    "CompleteAbort": "the last one was aborted",
    "Empty": "it has had none since its producer began",
}


@click.command(cls=Command)
@click.argument("name", metavar="[ID]", required=False)
@click.option("--topic", metavar="TOPIC", help="The topic of a transaction that hangs.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Its partition.")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Where it begins there.")
@bootstrap_option
@json_option
def abort(
    name: str | None,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Abort the transaction of a transactional id, or one that hangs.

    With an ID its coordinator aborts the transaction, and its producer is fenced: it cannot write
    any more. This ends when consumers see the abort in all partitions. What is being committed
    already cannot be aborted.

    With --topic, --partition and --offset a transaction that no coordinator will end (`ottla txn
    find-hanging`) is aborted in this one partition.

    \b
    JSON: {"transactional_id", "producer_id", "producer_epoch", "partitions": [{"topic",
           "partition"}]}, after the abort
    """
    from ottla.client.admin_transactions import Transactions

    with broker_errors(bootstrap), open_router(bootstrap) as router:
        transactions = Transactions(router)
        if name is not None and topic is None and partition is None and offset is None:
            _by_coordinator(transactions, name, as_json=as_json)
        elif name is None and topic is not None and partition is not None and offset is not None:
            _by_marker(transactions, TopicPartition(topic, partition), offset, as_json=as_json)
        else:
            raise click.UsageError(
                "name a transactional id, or all of --topic, --partition and --offset"
            )


def _by_coordinator(transactions: Transactions, name: str, *, as_json: bool) -> None:
    try:
        found = transactions.describe(name)[name]
    except KafkaError as error:
        raise no_transaction(transactions, name, error) from None
    _check(found)
    with patience("still waiting for the partitions of the transaction to have their markers"):
        producer_id, epoch = transactions.fence(name, timeout_ms=found.timeout_ms)
    if as_json:
        _show(name, producer_id, epoch, found.partitions)
        return
    names = ", ".join(map(str, found.partitions))
    click.echo(
        f"aborted the transaction of {name!r}"
        + (f" in {names}" if names else "")
        + f"; producer {found.producer_id} with epoch {found.producer_epoch} is fenced"
    )


def _check(found: TransactionDescription) -> None:
    """Only what is open, or being aborted already, can be aborted."""
    name = found.transactional_id
    if found.state == "PrepareCommit":
        names = ", ".join(map(str, found.partitions))
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"the transaction of {name!r} is being committed, which cannot be undone: only the "
            f"markers in {names} are missing; if they do not come, `ottla cluster status` tells "
            f"which partitions have no leader",
        )
    if not (found.is_ongoing or found.is_decided):
        last = _LAST.get(found.state, f"its state is {found.state}")
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{name!r} has no transaction open: {last}")


def _by_marker(
    transactions: Transactions, tp: TopicPartition, offset: int, *, as_json: bool
) -> None:
    from ottla.client.open_transactions import hanging, open_in

    opened, failures = open_in(transactions, [tp])
    for error in failures.values():
        missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise KafkaError(error.code, f"there is no partition {tp}") if missing else error
    chosen = next((each for each in opened if each.start_offset == offset), None)
    if chosen is None:
        others = ", ".join(
            f"{grouped(each.start_offset)} (producer {each.producer.producer_id})"
            for each in opened
        )
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"no transaction that begins at offset {grouped(offset)} is open in {tp}; "
            + (f"open are those from {others}" if others else "none is open there"),
        )
    if not hanging(transactions, [chosen]):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, _not_hanging(transactions, chosen))
    producer = chosen.producer
    transactions.abort(
        tp,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=producer.coordinator_epoch or 0,
    )
    if as_json:
        _show(None, producer.producer_id, producer.producer_epoch, (tp,))
        return
    click.echo(
        f"aborted the transaction of producer {producer.producer_id} in {tp} that began at offset "
        f"{grouped(offset)}"
    )


def _not_hanging(transactions: Transactions, opened: OpenTransaction) -> str:
    producer_id = opened.producer.producer_id
    names = [
        each.transactional_id for each in transactions.list_transactions(producer_ids=[producer_id])
    ]
    whose = f"is that of {names[0]!r}" if names else "has just ended"
    end = f": use `ottla txn abort {names[0]}`" if names else ""
    return (
        f"the transaction of producer {producer_id} in {opened.partition} does not hang: it "
        f"{whose}, and its coordinator will end it{end}"
    )


def _show(
    name: str | None, producer_id: int, epoch: int, partitions: tuple[TopicPartition, ...]
) -> None:
    show_json(
        {
            "transactional_id": name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in partitions],
        }
    )
