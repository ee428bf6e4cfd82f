"""Transactions as clients know them, and what must hold of them after every step.

NoAbortedVisible           who reads committed records meets none of a transaction that has not
                           ended, was aborted, or that nobody has asked to commit
NoTornTransaction          of a transaction all partitions show everything, once, or nothing; all
                           of it if the producer was told that it is committed
MonotonicLastStableOffset  no leader shows less than what it, or a leader before it, has shown
NoHangingTransaction       when everything has settled no transaction is left open anywhere
ZombieFenced               a producer that was replaced gets nothing done any more; see `producers`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.transaction.state import Identity
from ottla.model.ids import TopicPartition
from ottla.records.batch import read_header
from ottla.records.reader import iter_records

from .batch_log import BatchLog
from .broker import TRANSACTIONAL_TOPIC
from .invariants import Violation

if TYPE_CHECKING:
    from .cluster import Cluster


class SimTransaction:
    """One transaction: what its producer has written, asked for, and was told."""

    def __init__(self, number: int, name: str, producer: Identity) -> None:
        self.number = number  # also the offset that it commits, if it does
        self.name = name
        self.producer = producer
        self.sequences: dict[TopicPartition, int] = {}
        self.acked: set[int] = set()  # numbers of records
        self.asked = False  # to commit
        self.told: bool | None = None  # whether it was committed
        self.shown: set[int] = set()
        self.hidden: set[int] = set()  # aborted
        self.offset_acked = False
        self.offset_shown = False

    def __str__(self) -> str:
        producer_id, epoch = self.producer
        return f"transaction of {self.name} (producer {producer_id}, epoch {epoch})"


class History:
    """All transactions, and the invariants about them."""

    def __init__(self) -> None:
        self.transactions: list[SimTransaction] = []
        self._of: list[tuple[SimTransaction, TopicPartition]] = []  # by number of record
        self._read: dict[TopicPartition, int] = {}  # up to here, by a reader of committed records
        self._stable: dict[TopicPartition, dict[int, int]] = {}  # what was shown, by leader epoch

    def begin(self, name: str, producer: Identity) -> SimTransaction:
        transaction = SimTransaction(len(self.transactions), name, producer)
        self.transactions.append(transaction)
        return transaction

    def add(self, transaction: SimTransaction, tp: TopicPartition) -> int:
        """The number of a record that is about to be written."""
        self._of.append((transaction, tp))
        return len(self._of) - 1

    # --- after every step ---------------------------------------------------------------------

    def verify(self, cluster: Cluster) -> None:
        for broker, partition in cluster.leaders():
            tp = partition.id
            if tp.topic != TRANSACTIONAL_TOPIC or not partition.knows_high_watermark:
                continue
            own, stable = partition.leader_epoch, partition.last_stable_offset()
            shown = self._stable.setdefault(tp, {})
            if shown.get(own) == stable:
                continue
            for epoch, before in shown.items():
                if epoch <= own and stable < before:
                    text = (
                        f"{tp}: broker {broker} shows {stable} under epoch {own}, and {before} was "
                        f"shown under epoch {epoch}"
                    )
                    raise Violation("MonotonicLastStableOffset", text)
            shown[own] = stable
            if stable > self._read.get(tp, 0):
                self._read_on(tp, cast(BatchLog, cluster.log_of(broker, tp)), stable)

    def _read_on(self, tp: TopicPartition, log: BatchLog, stable: int) -> None:
        ended = {
            (each.producer_id, offset): each.aborted
            for each in log.ended
            for offset in range(each.first_offset, each.last_offset)
        }
        for offset, data in log.batches(self._read.get(tp, 0), stable):
            header = read_header(data)
            if header.is_control:
                continue
            aborted = ended.get((header.producer_id, offset))
            for record in iter_records(memoryview(data), header):
                self._meet(int(record.value or b""), tp, offset, aborted)
        self._read[tp] = stable

    def _meet(self, number: int, tp: TopicPartition, offset: int, aborted: bool | None) -> None:
        transaction, written_to = self._of[number]
        where = f"{tp} at offset {offset}: a record of the {transaction}"
        if aborted is None:
            raise Violation("NoAbortedVisible", f"{where} is shown before that has ended")
        if number in transaction.shown | transaction.hidden or tp != written_to:
            raise Violation("NoTornTransaction", f"{where} is there twice")
        if aborted:
            transaction.hidden.add(number)
            if transaction.told or transaction.offset_shown:
                raise Violation("NoTornTransaction", f"{where} is aborted; that was committed")
        else:
            transaction.shown.add(number)
            if not transaction.asked:
                raise Violation("NoAbortedVisible", f"{where} is shown; nobody asked for that")
            if transaction.told is False:
                raise Violation("NoAbortedVisible", f"{where} is shown; that was aborted")
        if transaction.shown and transaction.hidden:
            raise Violation("NoTornTransaction", f"{where} is {aborted=}, others are not")

    # --- offsets, see `offsets` ---------------------------------------------------------------

    def last_told(self, name: str) -> int:
        """The last transaction with an offset of which its producer knows that it is committed."""
        numbers = (
            each.number
            for each in reversed(self.transactions)
            if each.name == name and each.offset_acked and each.told
        )
        return next(numbers, -1)

    def meet_offset(self, number: int) -> None:
        """A group was told this offset."""
        transaction = self.transactions[number]
        transaction.offset_shown = True
        if not transaction.asked or transaction.told is False or transaction.hidden:
            text = f"the offset of the {transaction} is shown, which is not committed"
            raise Violation("OffsetsWithTransaction", text)

    def check_last_offset(self, name: str, last: int) -> None:
        """When everything has settled, and everybody has read everything: with its records the
        offset of a transaction is shown, too, or a later one's."""
        for transaction in self.transactions:
            if (
                transaction.name == name
                and transaction.number > last
                and transaction.offset_acked
                and transaction.shown
            ):
                text = f"the group has {last}, and the records of the {transaction} are shown"
                raise Violation("OffsetsWithTransaction", text)

    # --- when everything has settled ----------------------------------------------------------

    def open(self, cluster: Cluster) -> list[str]:
        """What is not ended: by coordinators, and in partitions."""
        found = []
        for broker in cluster.brokers.values():
            if broker.transactions is not None:
                for slot in broker.transactions.host:
                    shard = slot.shard
                    found += [
                        f"{each.transactional_id} is {each.state.name}"
                        for each in getattr(shard, "transactions", {}).values()
                        if not each.state.is_idle
                    ]
        for broker_id, partition in cluster.leaders():
            if partition.id.topic in (TRANSACTIONAL_TOPIC, OFFSETS_TOPIC):
                log = cast(BatchLog, cluster.log_of(broker_id, partition.id))
                if log.open_transactions() or partition.last_stable_offset() < log.log_end_offset:
                    found.append(f"{partition.id} has open transactions")
        return found

    def check_end(self) -> None:
        """All or nothing of each."""
        for transaction in self.transactions:
            missing = transaction.acked - transaction.shown
            if missing and (transaction.shown or transaction.told):
                text = f"of the {transaction} records {sorted(missing)} are missing"
                raise Violation("NoTornTransaction", text)
