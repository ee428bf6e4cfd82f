"""kafka-transactions: list and describe transactions, and end those that hang.

What Java's admin client puts into its exceptions is part of what the tool prints, so the sentences
are here. `forceTerminateTransaction` fences the producer of an id, known or not, as in Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka_compat.java_errors import sentence
from ottla.cli.kafka_compat.options import (
    KAFKA_VERSION,
    Failure,
    HelpShown,
    UsageError,
    connection_settings,
    read_properties,
    subcommand_parser,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.admin_transactions import ProducerState, Transactions
    from ottla.client.open_transactions import OpenTransaction

LISTED = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBED = (
    *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"),
    *("TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs"),
    "TopicPartitions",
)
PRODUCERS = (
    *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
    "CurrentTransactionStartOffset",
)
HANGING = (
    *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset"),
    *("LastTimestamp", "Duration(min)"),
)
_MINUTE_MS = 60_000


def main(arguments: Sequence[str]) -> int:
    """kafka-transactions."""
    given = _parser().parse_args(arguments)
    _check(given)
    from ottla.client.admin_transactions import Transactions
    from ottla.client.direct import DirectAdmin
    from ottla.client.settings import bootstrap_servers

    path = given.command_config
    settings = connection_settings({} if path is None else read_properties(path))
    try:
        servers = bootstrap_servers(given.bootstrap_server)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with DirectAdmin(servers, **settings) as admin:
        COMMANDS[given.command](Transactions(admin.router), given)
    return 0


def _check(given: Any) -> None:
    """What Kafka checks before it asks anybody."""
    if given.command == "find-hanging":
        if given.topic is None and given.broker_id is None:
            raise Failure(
                "The `find-hanging` command requires either --topic or --broker-id to limit the "
                "scope of the search"
            )
        if given.partition is not None and given.topic is None:
            raise Failure("The --partition argument requires --topic to be provided")
    if given.command == "abort" and given.start_offset is None:
        if given.producer_id is None:
            raise Failure(
                "The transaction to abort must be identified either with --start-offset (for "
                "brokers on 3.0 or above) or with --producer-id, --producer-epoch, and "
                "--coordinator-epoch (for older brokers)"
            )
        for name in ("producer-epoch", "coordinator-epoch"):
            if getattr(given, name.replace("-", "_")) is None:
                raise Failure(f"Missing required argument --{name}")


# -- looking


def _list(transactions: Transactions, given: Any) -> None:
    longer = given.duration_filter
    with _failing("Failed to list transactions", _unlisted):
        found = transactions.list_transactions(
            open_longer_than_ms=-1 if longer is None else longer,
            pattern=given.transactional_id_pattern,
        )
    _print_table(
        LISTED,
        [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found],
    )


def _unlisted(error: KafkaError) -> str:
    if error.code is ErrorCode.INVALID_REGULAR_EXPRESSION:
        # Java says only that something is wrong.
        return "--transactional-id-pattern is no regular expression of RE2"
    return sentence(error.code)


def _describe(transactions: Transactions, given: Any) -> None:
    name = given.transactional_id
    request = f"DescribeTransactions request for transactionalId `{name}` failed"

    def why(error: KafkaError) -> str:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return f"{request} because the ID could not be found"
        return f"{request} due to unexpected error"

    with _failing(f"Failed to describe transaction state of transactional-id `{name}`", why):
        found = transactions.describe(name)[name]
    now_ms = _now_ms()
    started_ms = found.started_ms
    _print_table(
        DESCRIBED,
        [
            (
                found.coordinator,
                name,
                found.producer_id,
                found.producer_epoch,
                found.state,
                found.timeout_ms,
                started_ms,
                None if started_ms is None else now_ms - started_ms,
                ",".join(map(str, found.partitions)),
            )
        ],
    )


def _describe_producers(transactions: Transactions, given: Any) -> None:
    tp = TopicPartition(given.topic, given.partition)
    where = "leader" if given.broker_id is None else f"broker {given.broker_id}"
    _print_table(
        PRODUCERS,
        [
            (
                each.producer_id,
                each.producer_epoch,
                -1 if each.coordinator_epoch is None else each.coordinator_epoch,
                each.last_sequence,
                each.last_timestamp,
                each.txn_start_offset,
            )
            for each in _producers(
                transactions,
                tp,
                given.broker_id,
                f"Failed to describe producers for partition {tp} on {where}",
            )
        ],
    )


def _producers(
    transactions: Transactions, tp: TopicPartition, broker: int | None, failed: str
) -> tuple[ProducerState, ...]:
    def why(error: KafkaError) -> str:
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and broker is not None:
            return f"Failed to describe active producers for partition {tp} on brokerId {broker}"
        return sentence(error.code)

    with _failing(failed, why):
        found = transactions.producers([tp], broker=broker)[tp]
        if isinstance(found, KafkaError):
            raise found
        return found


# -- ending


def _abort(transactions: Transactions, given: Any) -> None:
    tp = TopicPartition(given.topic, given.partition)
    if given.start_offset is None:
        # -1 is what is shown of a producer that has no marker yet; no coordinator is older than 0.
        spec = (given.producer_id, given.producer_epoch, max(0, given.coordinator_epoch))
    else:
        states = _producers(
            transactions, tp, None, f"Failed to validate producer state for partition {tp}"
        )
        found = next((each for each in states if each.txn_start_offset == given.start_offset), None)
        if found is None:
            raise Failure(
                f"Could not find any open transactions starting at offset {given.start_offset} on "
                f"partition {tp}"
            )
        spec = (found.producer_id, found.producer_epoch, found.coordinator_epoch or 0)
    producer_id, producer_epoch, coordinator_epoch = spec
    shown = (
        f"AbortTransactionSpec(topicPartition={tp}, producerId={producer_id}, "
        f"producerEpoch={producer_epoch}, coordinatorEpoch={coordinator_epoch})"
    )

    def why(error: KafkaError) -> str:
        request = f"WriteTxnMarkers request with {shown} failed"
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            return f"{request} due an invalid producer epoch"
        if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            return (
                f"{request} since the provided coordinator epoch {coordinator_epoch} has been "
                f"fenced by the active coordinator"
            )
        return f"{request} due to unexpected error: {sentence(error.code)}"

    with _failing(f"Failed to abort transaction {shown}", why):
        transactions.abort(
            tp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )


def _force_terminate(transactions: Transactions, given: Any) -> None:
    name = given.transactional_id

    def why(error: KafkaError) -> str:
        return f"InitProducerId request for transactionalId `{name}` failed due to unexpected error"

    with _failing(f"Failed to force terminate transactionalId `{name}`", why):
        transactions.fence(name)


def _find_hanging(transactions: Transactions, given: Any) -> None:
    from ottla.client.open_transactions import hanging, open_in, partitions_of

    broker = given.broker_id
    if given.partition is not None:
        partitions = [TopicPartition(given.topic, given.partition)]
    else:
        topics = None if given.topic is None else [given.topic]
        with _failing(f"Failed to describe {len(topics or ())} topics"):
            partitions = partitions_of(transactions, topics, broker=broker)
    at = "Optional.empty" if broker is None else f"Optional[{broker}]"
    with _failing(f"Failed to describe producers for {len(partitions)} partitions on broker {at}"):
        opened, failures = open_in(transactions, partitions, broker=broker)
        for error in failures.values():
            raise error
    shortest_ms = given.max_transaction_timeout * _MINUTE_MS
    now_ms = _now_ms()
    candidates = [each for each in opened if now_ms - each.producer.last_timestamp > shortest_ms]
    count = len({each.producer.producer_id for each in candidates})
    with _failing(f"Failed to list transactions for {count} producers"):
        found = hanging(transactions, candidates)
    _print_table(HANGING, [_hanging_row(each, now_ms) for each in found])


def _hanging_row(each: OpenTransaction, now_ms: int) -> tuple[object, ...]:
    producer = each.producer
    return (
        each.partition.topic,
        each.partition.partition,
        producer.producer_id,
        producer.producer_epoch,
        -1 if producer.coordinator_epoch is None else producer.coordinator_epoch,
        each.start_offset,
        producer.last_timestamp,
        (now_ms - producer.last_timestamp) // _MINUTE_MS,
    )


COMMANDS: Mapping[str, Callable[[Transactions, Any], None]] = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _force_terminate,
}


# -- what all have


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def _failing(what: str, why: Callable[[KafkaError], str] | None = None) -> Iterator[None]:
    """A failure as Java prints it; `why` is what its exception would say. Of a broker that nobody
    knows of, or that does not answer, we say so; Java only that its time is up."""
    from ottla.client.router import NoBrokerAnswers, NotConnected

    try:
        yield
    except NoBrokerAnswers:
        raise  # said in the same words by all tools
    except NotConnected as error:
        raise Failure(f"{what}: {error.message or error.code.text}") from None
    except KafkaError as error:
        reason = sentence(error.code) if why is None else why(error)
        raise Failure(f"{what}: {reason}. Enable debug logging for additional detail.") from None


def _print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [["None" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    for row in (headers, *texts):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("".join(f"{cell}\t" for cell in cells))


def _whole(bits: int) -> Callable[[str], int]:
    """Reads a number that fits into so many bits, as Java's types do."""

    def read(text: str) -> int:
        number = int(text)
        if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            raise ValueError(text)
        return number

    read.__name__ = {16: "Short", 32: "Integer", 64: "Long"}[bits]  # argparse names it
    return read


SHORT, INTEGER, LONG = _whole(16), _whole(32), _whole(64)


def _parser() -> Any:
    parser = subcommand_parser(
        "kafka-transactions", "See the transactions of producers; find and end those that hang."
    )
    parser.add_argument("-v", "--version", action=_version(), help="Print Kafka's version.")
    parser.add_argument("--bootstrap-server", required=True, help="The brokers to ask first.")
    parser.add_argument("--command-config", help="A file with connection settings.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> Any:
        return commands.add_parser(name, help=about, description=about, allow_abbrev=False)

    listed = command("list", "List transactions.")
    listed.add_argument(
        "--duration-filter", type=LONG, help="Only those open for longer than so many milliseconds."
    )
    listed.add_argument(
        "--transactional-id-pattern", help="Only ids that this regular expression matches."
    )
    described = command("describe", "Show the transaction of one id.")
    described.add_argument("--transactional-id", required=True, help="The id.")
    producers = command("describe-producers", "Show the producers that a partition remembers.")
    producers.add_argument("--broker-id", type=INTEGER, help="The replica to ask, else the leader.")
    _add_partition(producers, required=True)
    aborted = command("abort", "End a transaction that hangs, in one partition.")
    _add_partition(aborted, required=True)
    aborted.add_argument("--start-offset", type=LONG, help="Where the transaction begins; enough.")
    for flag, kind, about in (
        ("--producer-id", LONG, "Its producer, where the brokers are older than 3.0."),
        ("--producer-epoch", SHORT, "The producer's epoch, then."),
        ("--coordinator-epoch", INTEGER, "The coordinator's epoch, then."),
    ):
        aborted.add_argument(flag, type=kind, help=about)
    hanging = command("find-hanging", "Find transactions that no coordinator will end.")
    hanging.add_argument(
        "--broker-id", type=INTEGER, help="The broker whose replicas are looked at."
    )
    hanging.add_argument(
        "--max-transaction-timeout",
        type=INTEGER,
        default=15,
        help="Only those open for longer than so many minutes (15).",
    )
    _add_partition(hanging, required=False)
    forced = command("forceTerminateTransaction", "Abort what an id has open, and fence it.")
    forced.add_argument("--transactionalId", dest="transactional_id", required=True, help="The id.")
    return parser


def _add_partition(command: Any, *, required: bool) -> None:
    command.add_argument("--topic", required=required, help="The topic.")
    command.add_argument("--partition", type=INTEGER, required=required, help="The partition.")


def _version() -> Any:
    import argparse

    class PrintVersion(argparse.Action):
        def __init__(self, **options: Any) -> None:
            super().__init__(nargs=0, **options)

        def __call__(self, *_: Any) -> None:
            print(KAFKA_VERSION)
            raise HelpShown(0)

    return PrintVersion
