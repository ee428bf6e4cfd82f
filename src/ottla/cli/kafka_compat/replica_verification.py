"""kafka-replica-verification: do all replicas of topics have the same records?

In rounds: of every partition each replica is asked for what comes next, as a consumer, and what all
of them have is compared, batch by batch, up to their high watermarks. It goes on until it is
stopped. Batches of other lengths end it with 1, as in Kafka; other checksums are told.

Odd   A broker that does not answer is waited for, and so is one that holds a replica no longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import Failure, Option, Parser, check_required, connect
from ottla.cli.kafka_compat.topics import topic_pattern
from ottla.client.retry import UNREACHABLE
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition, parse_topic_id

if TYPE_CHECKING:
    from ottla.client.descriptions import TopicDescription
    from ottla.client.direct import DirectAdmin
    from ottla.client.replica_reads import Answer
    from ottla.records.batch import BatchHeader

PAUSE = 0.1

PARSER = Parser(
    "kafka-replica-verification",
    "Compare what the replicas of topics have, until it is stopped.",
    [
        Option("broker-list", "The brokers to ask first (required).", "HOST:PORT,..."),
        Option("fetch-size", "Bytes of a partition in one answer.", "bytes", int, "1048576"),
        Option("max-wait-ms", "How long a broker waits for records.", "ms", int, "1000"),
        Option("topics-include", "The topics; a regular expression.", "topics", default=".*"),
        Option(
            "time",
            "Where to begin: a time in ms, -1 for the end, -2 for the beginning.",
            "time",
            int,
            "-1",
        ),
        Option("report-interval-ms", "How often the lag is told.", "ms", int, "30000"),
    ],
)


class Mismatch(Exception):
    """Replicas have batches that end elsewhere."""


def compare(
    partition: TopicPartition,
    offset: int,
    answers: Mapping[int, Answer],
    tell: Callable[[str], None],
) -> int:
    """Where the next round begins: after what all replicas have. Raises Mismatch."""
    for together in zip(*(_safe(answer) for answer in answers.values()), strict=False):
        of_replicas = zip(answers, together, strict=True)
        first, expected = next(of_replicas)
        for replica, batch in of_replicas:
            if batch.last_offset != expected.last_offset:
                raise Mismatch(
                    f"partition {partition}: replica {first}'s offset {expected.last_offset} "
                    f"doesn't match replica {replica}'s offset {batch.last_offset}"
                )
            if batch.crc != expected.crc:
                tell(
                    f"partition {partition} has unmatched checksum at offset {batch.last_offset}; "
                    f"replica {first}'s checksum {expected.crc}; "
                    f"replica {replica}'s checksum {batch.crc}"
                )
        offset = expected.next_offset
    return offset


def _safe(answer: Answer) -> Iterator[BatchHeader]:
    return (each for each in answer.batches if each.last_offset < answer.high_watermark)


def main(arguments: Sequence[str]) -> int:
    """kafka-replica-verification."""
    options = PARSER.parse(arguments)
    check_required(options, "broker-list")
    pattern = topic_pattern(options.required("topics-include"))
    with connect(options, "broker-list") as admin:
        names = [name for name in admin.topics() if pattern.fullmatch(name)]
        if not names:
            raise Failure("No topics found: --topics-include leaves none, or there is no topic")
        topics = admin.describe_topics(sorted(names))
        verification = Verification(
            admin,
            topics,
            start=options.integer("time") or 0,
            fetch_size=options.integer("fetch-size") or 1,
            max_wait_ms=options.integer("max-wait-ms") or 0,
        )
        _tell("verification process is started")
        interval = (options.integer("report-interval-ms") or 0) / 1000
        reported = time.monotonic()
        while True:
            try:
                verification.round(_tell)
            except Mismatch as mismatch:
                raise Failure(f"{_now()}: {mismatch}", out=True) from None
            if time.monotonic() - reported > interval:
                reported = time.monotonic()
                _tell(verification.report())


class Verification:
    """How far the replicas of some topics were compared."""

    def __init__(
        self,
        admin: DirectAdmin,
        topics: Sequence[TopicDescription],
        *,
        start: int,
        fetch_size: int,
        max_wait_ms: int,
    ) -> None:
        self._admin = admin
        self._ids = {topic.name: parse_topic_id(topic.id) for topic in topics}
        self._replicas = {
            TopicPartition(topic.name, part.partition): part.replicas
            for topic in topics
            for part in topic.partitions
        }
        # As they are asked for: an answer has room for the records of the first few dozen.
        self._order = list(self._replicas)
        self._fetch_size = fetch_size
        self._max_wait_ms = max_wait_ms
        found = admin.list_offsets(dict.fromkeys(self._replicas, start))
        self.offsets: dict[TopicPartition, int] = {}
        for tp, position in found.items():
            if isinstance(position, KafkaError):
                raise position
            self.offsets[tp] = position.offset
        self._high_watermarks = dict(self.offsets)

    def round(self, tell: Callable[[str], None]) -> None:
        """Ask every broker once; compare what all replicas of a partition have answered."""
        from ottla.client.replica_reads import read_replicas

        answers: dict[TopicPartition, dict[int, Answer]] = {tp: {} for tp in self._replicas}
        for broker in sorted({each for replicas in self._replicas.values() for each in replicas}):
            mine = [tp for tp in self._order if broker in self._replicas[tp]]
            try:
                for tp, answer in read_replicas(
                    self._admin,
                    broker,
                    {tp: self.offsets[tp] for tp in mine},
                    self._ids,
                    most_bytes=self._fetch_size,
                    max_wait_ms=self._max_wait_ms,
                ):
                    answers[tp][broker] = answer
            except KafkaError as error:
                if error.code not in UNREACHABLE:
                    raise  # it is no use to ask again
                time.sleep(PAUSE)  # it is waited for
        # Those that had no room come first the next time; else they never had any where the others
        # wait for a replica that does not answer, and are sent again and again.
        self._order.sort(key=lambda tp: any(each.batches for each in answers[tp].values()))
        for tp, found in answers.items():
            if found:
                marks = [answer.high_watermark for answer in found.values()]
                self._high_watermarks[tp] = max(marks)
            if len(found) == len(self._replicas[tp]):
                self.offsets[tp] = compare(tp, self.offsets[tp], found, tell)

    def report(self) -> str:
        """The partition that is most behind."""
        tp = max(self.offsets, key=lambda each: self._high_watermarks[each] - self.offsets[each])
        lag = self._high_watermarks[tp] - self.offsets[tp]
        return (
            f"max lag is {lag} for partition {tp} at offset {self.offsets[tp]} among "
            f"{len(self.offsets)} partitions"
        )


def _tell(text: str) -> None:
    print(f"{_now()}: {text}", flush=True)


def _now() -> str:
    now = datetime.now()
    return f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"
