"""Records of a command in transactions: one for all of them, or one for every so many.

Whatever ends the input before its end (a line that cannot be sent, Ctrl-C, a record that a broker
refuses) aborts the transaction that is open. Those before it are committed, and counted as sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.output import count, explain
from ottla.cli.sending import Sender, Target
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from datetime import datetime

    from ottla.client.producer import DeliveryCallback, Producer
    from ottla.client.records import Headers
    from ottla.client.transactions import Transaction

    Text = bytes | str


class Transacting:
    """Stands before a producer with a transactional id; `size` is how many records make a
    transaction, None for all of them."""

    def __init__(self, producer: Producer[Text, Text], size: int | None) -> None:
        self.posted = self.posted_bytes = 0  # records, and their bytes
        self.committed = self.committed_bytes = 0
        self._producer = producer
        self._size = size
        self._txn: Transaction[Text, Text] | None = None
        self._open = 0  # records of the transaction

    def post(
        self,
        topic: str,
        value: Text | None = None,
        *,
        key: Text | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        from ottla.client.records import record_size

        if self._txn is None:
            self._txn = self._producer.transaction().__enter__()
        self._txn.post(
            topic,
            value,
            key=key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
            on_delivery=on_delivery,
        )
        self._open += 1
        self.posted += 1
        self.posted_bytes += record_size(_bytes(key), _bytes(value), headers)
        if self._open == self._size:
            self.commit()

    def commit(self) -> None:
        """End the open transaction, if there is one."""
        txn, self._txn = self._txn, None
        if txn is not None:
            self._open = 0
            txn.__exit__(None, None, None)
            self.committed, self.committed_bytes = self.posted, self.posted_bytes

    def abort(self) -> None:
        txn, self._txn = self._txn, None
        if txn is not None:
            txn.abort()

    def close(self, timeout: float | None = None) -> None:
        self._producer.close(timeout)

    def __len__(self) -> int:
        return len(self._producer)


class TransactionalSender(Sender):
    """Sends one input in transactions."""

    all_or_nothing = True

    def __init__(self, transacting: Transacting, target: Target, bootstrap: str) -> None:
        super().__init__(transacting, target, bootstrap)
        self._transacting = transacting

    def _settle(self, problems: list[str]) -> tuple[int, int]:
        """End the last transaction, one way or the other."""
        transacting = self._transacting
        try:
            if problems or self._interrupts.count:
                transacting.abort()
            else:
                transacting.commit()
        except KafkaError as error:
            problems.append(explain(error, self._bootstrap))
        try:
            transacting.close()
        except KafkaError as error:
            problems.append(explain(error, self._bootstrap))
        # The record whose turn it was to end a transaction is in it, whatever became of that.
        self._offered, self._size = transacting.posted, transacting.posted_bytes
        failed = self._offered - transacting.committed
        if failed:
            problems.append(f"{count(failed, 'record')} of the open transaction: not committed")
        return failed, self._size - transacting.committed_bytes


def _bytes(text: Text | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
