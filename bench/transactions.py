"""Transactions, on one broker and on three: how many, how many records, how soon they are read.

The client is librdkafka, one producer that does one transaction after the other. Where the one
before is not over yet the client is told so and waits for a while of its own before it asks again;
so a broker that is quick with markers saves the client that pause.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bench.client import measure
from bench.cluster import MIN_INSYNC, ClusterSession
from bench.course import Course
from bench.figures import Rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from bench.course import Step

RECORDS = (1, 100)
"""In a transaction."""
PACE = 50
"""Transactions a second where latency is measured: below what either broker can do."""
IN_ONE = 10_000
"""Records of a transaction where their throughput is measured."""
AT_ONCE = 500
"""Records of a transaction that copies them."""
_SIZE = 100


class TransactionRows(Course):
    """The rows, wherever they are measured."""

    PREFIX: ClassVar[str]
    CONFIGS: ClassVar[Mapping[str, str]] = {}

    def _steps(self) -> Sequence[Step]:
        key = self.PREFIX
        return [
            *(
                (
                    partial(self._rate, records),
                    (f"{key}-{records}", *((f"{key}-cpu",) if records == 1 else ())),
                )
                for records in RECORDS
            ),
            (self._produce_row, (f"{key}-produce",)),
            (self._latency, (f"{key}-latency-p50", f"{key}-latency-p99")),
            (self._transform, (f"{key}-transform",)),
        ]

    def _warm_up(self) -> None:
        """Of every kind, so that a JVM has compiled it."""
        self._topic("warm")
        self._topic("warm-copy")
        seconds = self._sizes.crowd_warm_seconds
        for records in RECORDS:
            self._transactions("warm", records, seconds)
        count = self._produce("warm", self._sizes.transaction_records // 4)["records"]
        self._copy("warm", "warm-copy", int(count) // 10)

    def _topic(self, name: str) -> None:
        self._create(f"{self.PREFIX}-{name}", 1, self.CONFIGS)

    def _rate(self, records: int) -> None:
        self._topic(f"rate-{records}")
        for _ in range(self._sizes.repeats):
            found = self._transactions(f"rate-{records}", records, self._sizes.request_seconds)
            self._report(f"{self.PREFIX}-{records}", found.a_second)
            if records == 1:
                self._report(f"{self.PREFIX}-cpu", found.cpu_microseconds)

    def _transactions(self, topic: str, records: int, seconds: float) -> Rate:
        os.sync()
        before = self._cpu_seconds()
        figures = measure(
            "transactions",
            bootstrap=self._bootstrap,
            topic=f"{self.PREFIX}-{topic}",
            records=records,
            size=_SIZE,
            seconds=seconds,
        )
        cpu = self._cpu_seconds() - before
        return Rate(figures["transactions"], figures["seconds"], cpu)

    def _produce_row(self) -> None:
        self._topic("produce")
        for _ in range(self._sizes.repeats):
            figures = self._produce("produce", self._sizes.transaction_records)
            self._report(f"{self.PREFIX}-produce", figures["records"] / figures["seconds"] / 1e6)

    def _produce(self, topic: str, count: int) -> dict[str, float]:
        os.sync()
        return measure(
            "transactional-produce",
            bootstrap=self._bootstrap,
            topic=f"{self.PREFIX}-{topic}",
            size=_SIZE,
            count=count,
            records=IN_ONE,
        )

    def _latency(self) -> None:
        self._topic("latency")
        os.sync()
        figures = measure(
            "committed-latency",
            bootstrap=self._bootstrap,
            topic=f"{self.PREFIX}-latency",
            pace=PACE,
            seconds=self._sizes.latency_seconds,
        )
        self._report(f"{self.PREFIX}-latency-p50", figures["p50"])
        self._report(f"{self.PREFIX}-latency-p99", figures["p99"])

    def _transform(self) -> None:
        self._topic("source")
        count = self._sizes.transaction_records // 4
        filled = int(self._produce("source", count)["records"])
        for turn in range(self._sizes.repeats):
            self._topic(f"target-{turn}")
            figures = self._copy("source", f"target-{turn}", filled)
            rate = figures["records"] / figures["seconds"]
            self._report(f"{self.PREFIX}-transform", rate / 1e3)

    def _copy(self, source: str, target: str, count: int) -> dict[str, float]:
        os.sync()
        return measure(
            "transform",
            bootstrap=self._bootstrap,
            source=f"{self.PREFIX}-{source}",
            target=f"{self.PREFIX}-{target}",
            count=count,
            at_once=AT_ONCE,
        )


class TransactionSession(TransactionRows):
    """One broker."""

    PREFIX = "txn"


class ClusterTransactionSession(TransactionRows, ClusterSession):
    """Three brokers, three replicas."""

    PREFIX = "cluster-txn"
    CONFIGS: ClassVar[Mapping[str, str]] = {"min.insync.replicas": str(MIN_INSYNC)}

    def _start(self, stack: ExitStack) -> None:
        self._start_all(stack)
