"""What a write is told: which topic, how safely, and Kafka's producer settings.

`WriteOptions` is read and checked on the driver without asking any broker, and travels to the
tasks pickled. Settings have the defaults of Java's producer, with two exceptions that suit a writer
whose rows arrive by the thousand: batches hold up to 512 KB before compression (Java: 16 KB), and
a record is measured by the topic's `max.message.bytes` alone unless `kafka.max.request.size` is
given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.pipelines.errors import OptionError
from ottla.pipelines.kafka_settings import KafkaSettings
from ottla.pipelines.option_table import Use
from ottla.pipelines.options import MAX_INT, Options, shown
from ottla.records.compression import Compression

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

AT_LEAST_ONCE: Final = "at_least_once"
IDEMPOTENT: Final = "idempotent"

_ROUND_ROBIN: Final = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
_BATCH: Final = 512 * 1024
_CHUNK: Final = 16 * 1024  # rows without a key that go to one partition before the next
_ONE_ROW: Final = 1  # bytes: every row fills such a chunk
_REQUEST: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """One write, ready to be carried out. Times are seconds."""

    bootstrap: str
    topic: str | None = None
    idempotent: bool = True
    keep_timestamps: bool = False
    acks: int = -1
    compression: Compression = Compression.NONE
    level: int | None = None
    batch_bytes: int = _BATCH
    chunk_bytes: int = _CHUNK
    buffer_bytes: int = 32 << 20
    request_bytes: int = _REQUEST
    record_bytes: int | None = None
    ignore_keys: bool = False
    client_id: str = "ottla-spark"
    request_timeout: float = 30.0
    delivery_timeout: float = 120.0
    max_block: float = 60.0
    retries: int = MAX_INT
    backoff: float = 0.1
    longest_backoff: float = 1.0
    streaming: bool = False
    """Whether this is a task of a stream, which waits for a broker unless it is told how long."""
    max_block_given: bool = False
    delivery_timeout_given: bool = False
    notices: tuple[str, ...] = ()
    """A sentence for each option that was given and has no effect."""

    @property
    def endless_block(self) -> bool:
        return self.streaming and not self.max_block_given

    @property
    def endless_delivery(self) -> bool:
        return self.streaming and not self.delivery_timeout_given

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """From Spark's options; OptionError for what cannot be followed."""
        options = Options(given, Use.WRITE)
        kafka = KafkaSettings.of(options.kafka, Use.WRITE)
        topic = options.text("topic")
        if topic == "":
            raise OptionError("topic", "topic is empty: name the topic to write to.")
        request_timeout, delivery_timeout = _timeouts(kafka)
        round_robin = _round_robin(kafka)
        limit = kafka.whole("max.request.size") if kafka.given("max.request.size") else None
        codec = Compression.named(kafka.text("compression.type"))
        level = f"compression.{codec.name.lower()}.level"
        return cls(
            bootstrap=kafka.bootstrap(),
            topic=topic,
            idempotent=_idempotent(options, kafka),
            keep_timestamps=options.truth("keepTimestamps"),
            acks=_ACKS[kafka.text("acks")],
            compression=codec,
            level=kafka.whole(level) if kafka.given(level) else None,
            batch_bytes=min(kafka.whole("batch.size"), limit or _REQUEST),
            chunk_bytes=_chunk(kafka, round_robin),
            buffer_bytes=kafka.whole("buffer.memory"),
            request_bytes=limit or _REQUEST,
            record_bytes=limit,
            ignore_keys=round_robin or kafka.truth("partitioner.ignore.keys"),
            client_id=kafka.text("client.id"),
            request_timeout=request_timeout,
            delivery_timeout=delivery_timeout,
            max_block=kafka.seconds("max.block.ms"),
            retries=kafka.whole("retries"),
            backoff=kafka.seconds("retry.backoff.ms"),
            longest_backoff=kafka.seconds("retry.backoff.max.ms"),
            max_block_given=kafka.given("max.block.ms"),
            delivery_timeout_given=kafka.given("delivery.timeout.ms"),
            notices=(*options.notices, *kafka.notices),
        )


def _idempotent(options: Options, kafka: KafkaSettings) -> bool:
    """As in Java's ProducerConfig: on unless turned off.

    What it cannot go with turns it off without a word, or is refused where it was asked for.
    """
    delivery = options.choice("delivery", (AT_LEAST_ONCE, IDEMPOTENT), "")
    asked, wanted = kafka.given("enable.idempotence"), kafka.truth("enable.idempotence")
    if delivery and asked and wanted != (delivery == IDEMPOTENT):
        raise OptionError(
            "delivery",
            f"delivery={delivery} contradicts kafka.enable.idempotence={str(wanted).lower()}: "
            f"give one of them.",
        )
    if delivery == AT_LEAST_ONCE or (asked and not wanted):
        return False
    acks_all, retried = _ACKS[kafka.text("acks")] == -1, kafka.whole("retries") > 0
    if delivery or asked:
        why = "delivery=idempotent" if delivery else "kafka.enable.idempotence=true"
        if not acks_all:
            raise OptionError(
                "kafka.acks", f"{why} needs kafka.acks=all, not {kafka.text('acks')}."
            )
        if not retried:
            raise OptionError("kafka.retries", f"{why} needs kafka.retries above 0.")
    return acks_all and retried


def _timeouts(kafka: KafkaSettings) -> tuple[float, float]:
    request, delivery = kafka.seconds("request.timeout.ms"), kafka.seconds("delivery.timeout.ms")
    if delivery < request:
        if kafka.given("delivery.timeout.ms"):
            raise OptionError(
                "kafka.delivery.timeout.ms",
                f"kafka.delivery.timeout.ms={delivery * 1000:.0f} is below "
                f"kafka.request.timeout.ms={request * 1000:.0f}: a request must be able to fail "
                f"before the time for its retries is over.",
            )
        delivery = request
    return request, delivery


def _round_robin(kafka: KafkaSettings) -> bool:
    name = kafka.text("partitioner.class")
    if name and name != _ROUND_ROBIN:
        raise OptionError(
            "kafka.partitioner.class",
            f"kafka.partitioner.class={shown(name)} is a class of Java that cannot run here: leave "
            f"it out, give {_ROUND_ROBIN}, or put the partition into the column partition.",
        )
    return bool(name)


def _chunk(kafka: KafkaSettings, round_robin: bool) -> int:
    if round_robin:
        return _ONE_ROW
    return max(_ONE_ROW, kafka.whole("batch.size")) if kafka.given("batch.size") else _CHUNK


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Whether rows like these can be records; ValueError with one sentence when not."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        StringType,
        StructType,
        TimestampType,
    )

    columns = {field.name: field.dataType for field in schema.fields}
    if "value" not in columns:
        raise ValueError(
            f"the column value is missing, which becomes the value of each record; there are "
            f"{', '.join(columns) or 'no columns at all'}."
        )
    if options.topic is None and "topic" not in columns:
        raise ValueError("there is no topic to write to: give the option topic or a column topic.")

    def demand(name: str, right: str, *kinds: type[DataType]) -> None:
        found = columns.get(name)
        if found is not None and not isinstance(found, kinds):
            raise ValueError(
                f"the column {name} has the type {found.simpleString()}: it must be {right}."
            )

    demand("value", "string or binary", StringType, BinaryType)
    demand("key", "string or binary", StringType, BinaryType)
    demand("topic", "string", StringType)
    demand("partition", "int", IntegerType)
    if options.keep_timestamps:
        if "timestamp" not in columns:
            raise ValueError(
                "keepTimestamps=true needs a column timestamp, and there is none: add it, or leave "
                "the option out."
            )
        demand("timestamp", "timestamp", TimestampType)
    headers = columns.get("headers")
    if headers is None:
        return
    pair = headers.elementType if isinstance(headers, ArrayType) else None
    fields = pair.fields if isinstance(pair, StructType) else []
    if [(field.name, type(field.dataType)) for field in fields] != [
        ("key", StringType),
        ("value", BinaryType),
    ]:
        raise ValueError(
            f"the column headers has the type {headers.simpleString()}: it must be "
            f"array<struct<key:string,value:binary>>."
        )
