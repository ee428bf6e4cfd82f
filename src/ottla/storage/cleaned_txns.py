"""Transactions as the cleaner walks over them: whose records were aborted, which markers can go.

The rules are Kafka's. Records of an aborted transaction are dropped. A marker stays as long as a
batch of its transaction is in the log, even an empty one: a reader of committed records needs it to
know the outcome. After that it is treated like a tombstone: the first cleaning that finds nothing
left of the transaction gives the marker a delete horizon, one after the horizon removes it. What an
aborted transaction still needs in the segment's transaction index is collected on the way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ottla.records.control import read_end_marker
from ottla.storage import paths
from ottla.storage.txn_index import AbortedTxn, TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import ReadableBuffer

    from ottla.records.batch import BatchHeader
    from ottla.runtime.files import FileSystem


def read_aborted(
    fs: FileSystem, folder: str, bases: Iterable[int], first: int, upper: int
) -> list[AbortedTxn]:
    """The aborted transactions with offsets from `first` up to, not including, `upper`. A marker
    may be in a later segment than the records, so `bases` are all segments of the log."""
    found: list[AbortedTxn] = []
    for base in bases:
        index = TransactionIndex(fs, f"{folder}/{paths.txnindex_name(base)}")
        found += (txn for txn in index if txn.last_offset >= first and txn.first_offset < upper)
    return found


class CleanedTransactions:
    """Told of each batch with a transaction, in the order of the log."""

    __slots__ = ("_aborted", "_committed", "_seen", "_waiting", "retained")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda txn: txn.first_offset))
        self._aborted: dict[int, AbortedTxn] = {}
        self._seen: set[int] = set()
        """Producers of `_aborted` of whose transaction a batch was met."""
        self._committed: set[int] = set()
        self.retained: list[AbortedTxn] = []
        """What the transaction index of the new segment must hold; the caller takes it."""

    def data(self, header: BatchHeader) -> bool:
        """A transactional batch of records: whether it was aborted."""
        self._begin_up_to(header.last_offset)
        producer = header.producer_id
        txn = self._aborted.get(producer)
        if txn is not None and header.base_offset > txn.last_offset:
            # Its marker is gone; what comes after it is another transaction.
            self._forget(producer)
            txn = None
        if txn is None:
            self._committed.add(producer)
            return False
        self._seen.add(producer)
        return True

    def marker(self, header: BatchHeader, batch: ReadableBuffer) -> bool:
        """A control batch: whether nothing of its transaction is left, so that it may go."""
        self._begin_up_to(header.last_offset)
        if header.record_count == 0:
            return True
        found = read_end_marker(batch, header)
        producer = header.producer_id
        if found is None:
            return False
        if not found.aborted:
            gone = producer not in self._committed
            self._committed.discard(producer)
            return gone
        txn = self._aborted.get(producer)
        seen = producer in self._seen
        self._forget(producer)
        if txn is None or not seen:
            return True
        self.retained.append(txn)
        return False

    def _forget(self, producer: int) -> None:
        self._aborted.pop(producer, None)
        self._seen.discard(producer)

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            txn = self._waiting.popleft()
            self._aborted.setdefault(txn.producer_id, txn)
