"""DescribeTransactions (65), ListTransactions (66): what coordinators know.

Versions   DescribeTransactions 0, ListTransactions 0-2.
Behaviour  Each broker tells of the transactions that it coordinates; tools ask all of them. A
           transaction is listed if every filter that was given matches: its state, its producer id,
           how long it has been open, the pattern of its id (RE2, all of the id).
Odd        A state that does not exist is named in the answer, and matches nothing. A pattern that
           cannot be read: INVALID_REGULAR_EXPRESSION.
           The start of a transaction that has never begun is -1.
           While a shard is being loaded ListTransactions fails as a whole with
           COORDINATOR_LOAD_IN_PROGRESS.
See        KIP-664, KIP-994, KIP-1152
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ottla.coordinator.group import patterns
from ottla.coordinator.replies import attempt, gather, then
from ottla.coordinator.transaction.state import DescribeTransaction, State, Transaction
from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    TransactionState,
)
from ottla.runtime.waiters import Deferred

NO_PATTERN = (None, "")
_STATES = {state.shown: state for state in State}
# Kafka's, which no transaction here is ever in.
_PASSING = frozenset({"Dead", "PrepareEpochFence"})


# --- DescribeTransactions -------------------------------------------------------------------------


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(1))
def describe_transactions(
    request: Request[DescribeTransactionsRequest], services: Services
) -> DescribeTransactionsResponse | Deferred[DescribeTransactionsResponse]:
    names = request.body.transactional_ids
    run = services.transactions.run
    replies = [attempt(partial(run, DescribeTransaction(name))) for name in names]
    return then(gather(replies), partial(_described, names))


def _described(
    names: list[str], found: list[Transaction | KafkaError]
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(transactional_id=name, error_code=each.code)
            if isinstance(each, KafkaError)
            else _shown(each)
            for name, each in zip(names, found, strict=True)
        ]
    )


def _shown(found: Transaction) -> TransactionState:
    topics: dict[str, TopicData] = {}
    for topic, partition in sorted(found.partitions):
        topics.setdefault(topic, TopicData(topic=topic, partitions=[])).partitions.append(partition)
    return TransactionState(
        transactional_id=found.transactional_id,
        transaction_state=found.state.shown,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=list(topics.values()),
    )


# --- ListTransactions -----------------------------------------------------------------------------


def _list_failed(
    request: Request[ListTransactionsRequest], error: KafkaError
) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=error.code)


@handles(ApiKey.LIST_TRANSACTIONS, versions=range(3), failure=_list_failed)
def list_transactions(
    request: Request[ListTransactionsRequest], services: Services
) -> ListTransactionsResponse | Deferred[ListTransactionsResponse]:
    body = request.body
    pattern = body.transactional_id_pattern
    if pattern not in NO_PATTERN:
        try:
            patterns.check(pattern or "")
        except patterns.InvalidPattern as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
    now_ms = services.clock.now_ms()
    return then(
        services.transactions.list_all(), lambda found: _listed(_chosen(found, body, now_ms), body)
    )


def _chosen(
    transactions: Iterable[Transaction], body: ListTransactionsRequest, now_ms: int
) -> list[Transaction]:
    """Those that every filter lets through."""
    found = list(transactions)
    if body.state_filters:
        states = {_STATES.get(name) for name in body.state_filters}
        found = [each for each in found if each.state in states]
    if body.producer_id_filters:
        producers = set(body.producer_id_filters)
        found = [each for each in found if each.producer_id in producers]
    if body.duration_filter >= 0:
        found = [each for each in found if now_ms - each.started_ms > body.duration_filter]
    pattern = body.transactional_id_pattern
    if pattern is not None and pattern:
        names = patterns.resolve([pattern], [each.transactional_id for each in found])[pattern]
        found = [each for each in found if each.transactional_id in names]
    return found


def _listed(
    found: Iterable[Transaction], body: ListTransactionsRequest
) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        unknown_state_filters=[
            name for name in body.state_filters if name not in _STATES and name not in _PASSING
        ],
        transaction_states=[
            ListedTransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.shown,
            )
            for each in found
        ],
    )
