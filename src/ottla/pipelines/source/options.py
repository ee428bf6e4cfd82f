"""The options of a read, checked and typed: what the driver plans by and the tasks read by.

The rules are those of Spark's connector (its KafkaSourceProvider is the reference), and departures
are meant: an unknown name is refused, `endingTimestamp` is refused for a stream where Spark takes
no notice of it, and `isolation.level` is `read_committed` unless set otherwise.

Nothing is looked up here. A query is built in one process, planned in another and run in others
still; `ReadOptions` is made once and travels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.pipelines.errors import OptionError
from ottla.pipelines.kafka_settings import KafkaSettings
from ottla.pipelines.option_table import Use
from ottla.pipelines.options import MAX_INT, Options
from ottla.pipelines.source.column_choice import HEADERS, chosen
from ottla.pipelines.source.loss import OPTION as FAIL_ON_DATA_LOSS
from ottla.pipelines.source.loss import LossPolicy
from ottla.pipelines.source.positions import (
    Edge,
    Position,
    check_batch,
    check_topics,
    ending,
    starting,
)
from ottla.pipelines.source.strategy import OPTIONS as STRATEGIES
from ottla.pipelines.source.strategy import Assign, Pattern, Strategy, Subscribe


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Times are seconds; None is "not given", and then there is no limit."""

    streaming: bool
    bootstrap: str
    strategy: Strategy
    starting: Position
    ending: Position
    latest_if_too_late: bool
    """startingOffsetsByTimestampStrategy=latest"""
    loss: LossPolicy
    columns: tuple[str, ...]
    """What the table has, in this order."""
    group_id_prefix: str
    kafka: KafkaSettings

    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None

    poll_timeout: float = 120.0
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval: float = 0.01
    metadata_cache: float | None = None
    pushdown: bool = False
    commit_offsets: bool = True
    notices: tuple[str, ...] = ()
    """A sentence for each option that was given and has no effect."""

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Read what the user gave; OptionError for the first thing that is wrong."""
        options = Options(given, Use.STREAM if streaming else Use.BATCH)
        kafka = KafkaSettings.of(options.kafka, options.use)
        bootstrap = kafka.bootstrap()
        strategy = _strategy(options)
        begin = starting(options, Edge.LATEST if streaming else Edge.EARLIEST)
        end = Edge.LATEST if streaming else ending(options)
        if not streaming:
            check_batch(begin, end)
        check_topics(begin, strategy)
        check_topics(end, strategy)
        most = options.whole("maxOffsetsPerTrigger", least=1)
        least = options.whole("minOffsetsPerTrigger", least=1)
        if most is not None and least is not None and least > most:
            raise OptionError(
                "minOffsetsPerTrigger",
                f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}: give a "
                "minimum that is not above the maximum.",
            )
        if kafka.given("group.id") and options.given("groupIdPrefix"):
            options.notices.append("groupIdPrefix has no effect, kafka.group.id is given.")
        loss = options.text(FAIL_ON_DATA_LOSS)
        retries = options.whole("fetchOffset.numRetries", least=0, most=MAX_INT)
        interval = options.whole("fetchOffset.retryIntervalMs", least=0)
        poll = options.whole("kafkaConsumer.pollTimeoutMs", least=0)
        too_late = options.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        )
        return cls(
            streaming=streaming,
            bootstrap=bootstrap,
            strategy=strategy,
            starting=begin,
            ending=end,
            latest_if_too_late=too_late == "latest",
            loss=LossPolicy() if loss is None else LossPolicy.parse(loss),
            columns=chosen(options),
            group_id_prefix=options.text("groupIdPrefix") or "spark-kafka-source",
            kafka=kafka,
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay=options.seconds("maxTriggerDelay", 900.0),
            min_partitions=options.whole("minPartitions", least=1, most=MAX_INT),
            max_records_per_partition=options.whole("maxRecordsPerPartition", least=1),
            poll_timeout=120.0 if poll is None else poll / 1000,
            fetch_offset_retries=3 if retries is None else retries,
            fetch_offset_retry_interval=0.01 if interval is None else interval / 1000,
            metadata_cache=_metadata_cache(options),
            pushdown=options.truth("pushdown"),
            commit_offsets=options.truth("commitOffsets", default=True),
            notices=(*options.notices, *kafka.notices),
        )

    @property
    def group_id(self) -> str:
        """The consumer group that shows how far the query is.

        Named after what is read and where that began, so that a query keeps its group when it is
        started again, also with another limit or another number of tasks. Two queries that read the
        same in the same way share it, unless `groupIdPrefix` or `kafka.group.id` keeps them apart.
        """
        given = self.kafka.text("group.id")
        if given:
            return given
        reading = (
            f"{self.strategy.option}={self.strategy} {self.starting!r} {HEADERS in self.columns}"
        )
        digest = hashlib.sha256(reading.encode()).hexdigest()[:12]
        return f"{self.group_id_prefix}-{digest}"

    @property
    def read_committed(self) -> bool:
        return self.kafka.text("isolation.level") == "read_committed"


def _strategy(options: Options) -> Strategy:
    given = [name for name in STRATEGIES if options.given(name)]
    if not given:
        raise OptionError(
            "subscribe",
            "Nothing says what to read: give one of the options subscribe, subscribePattern and "
            "assign.",
        )
    if len(given) > 1:
        raise OptionError(
            given[1], f"{' and '.join(given)} contradict each other: give one of them."
        )
    text = options.text(given[0]) or ""
    kind: type[Subscribe] | type[Pattern] | type[Assign] = {
        "subscribe": Subscribe,
        "subscribePattern": Pattern,
        "assign": Assign,
    }[given[0]]
    return kind.parse(text)


def _metadata_cache(options: Options) -> float | None:
    name = "partition.metadata.cache.ttl.ms"
    value = options.whole(name, least=-1)
    if value == 0:
        raise OptionError(
            name, f"{name}=0 is not right: give milliseconds above 0, or -1 to look every time."
        )
    return None if value in (None, -1) else value / 1000
