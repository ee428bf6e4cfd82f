"""Every option there is, as data: what it is for, its default, its meaning, what becomes of it.

The names are those of Spark's "Structured Streaming + Kafka Integration Guide", so that a job
changes one word. Each is accepted, or accepted without effect (`HARMLESS`), or refused, and the
latter two say why. An option that belongs to another use (a limit of streams given to a batch
read) has no effect there, as with Spark's connector, unless `elsewhere` says that it is refused.

The table in docs/spark.md is made from this one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Use(enum.Enum):
    """What options are read for."""

    BATCH = "batch"
    STREAM = "stream"
    WRITE = "write"


class Status(enum.Enum):
    ACCEPTED = "accepted"
    HARMLESS = "harmless"
    REFUSED = "refused"


BATCH = frozenset({Use.BATCH})
STREAM = frozenset({Use.STREAM})
READ = BATCH | STREAM
WRITE = frozenset({Use.WRITE})
ALL = READ | WRITE


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is as documentation prints it; empty when there is none.

    `reason` says why it is refused or has no effect. `elsewhere` is a reason to refuse it in a use
    that it is not for; without one it has no effect there.
    """

    name: str
    uses: frozenset[Use]
    default: str
    meaning: str
    status: Status = Status.ACCEPTED
    reason: str = ""
    elsewhere: str = ""

    @property
    def applies_to(self) -> str:
        """`batch`, `stream`, `both` (reads), `write` or `all`."""
        names = {BATCH: "batch", STREAM: "stream", READ: "both", WRITE: "write", ALL: "all"}
        return names[self.uses]

    def status_in(self, use: Use) -> tuple[Status, str]:
        """What becomes of it when it is given for `use`, and why."""
        if use in self.uses:
            return self.status, self.reason
        if self.elsewhere:
            return Status.REFUSED, self.elsewhere
        return Status.HARMLESS, f"it is not for a {_CALLED[use]}"


_CALLED = {Use.BATCH: "batch read", Use.STREAM: "stream", Use.WRITE: "write"}

_NO_END = "a stream has no end: read a batch, or filter on the columns offset and timestamp"
_NO_POOL = "no consumers or producers are pooled: a task opens its connections and closes them"
_SETTING_OF_SPARK = "it is a setting of Spark for its own connector"
_TOKENS = "delegation tokens are not there yet"

OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", ALL, "", "brokers to start from, `host:port,host:port`; required"
    ),
    Option("subscribe", READ, "", "topics to read, by comma; one of these three is required"),
    Option(
        "subscribePattern",
        READ,
        "",
        "a regular expression (Python's) that the whole name of a topic matches; topics made later "
        "are read as well",
    ),
    Option("assign", READ, "", 'partitions to read, `{"orders":[0,1],"clicks":[2]}`'),
    Option(
        "startingOffsets",
        READ,
        "`latest` for a stream, `earliest` for a batch",
        'where a new query begins: `earliest`, `latest` (streams), or `{"orders":{"0":23,"1":-2}}` '
        "with every partition, -2 for the earliest and -1 for the latest offset; a query that has "
        "a checkpoint goes on from there, and new partitions begin at their earliest offset",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READ,
        "",
        'begin at the first record not older than `{"orders":{"0":1767225600000}}`, milliseconds '
        "since 1970, for every partition; wins over `startingOffsets`",
    ),
    Option(
        "startingTimestamp",
        READ,
        "",
        "the same for all partitions, one number; wins over `startingOffsetsByTimestamp`",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READ,
        "`error`",
        "what to do with a partition that has no record so late: `error`, or `latest`",
    ),
    Option(
        "endingOffsets",
        BATCH,
        "`latest`",
        "where a batch ends (that offset is not read): `latest`, or JSON with every partition, "
        "-1 for the latest",
        elsewhere=_NO_END,
    ),
    Option(
        "endingOffsetsByTimestamp",
        BATCH,
        "",
        "end before the first record not older than this, per partition; the latest offset where "
        "there is none; wins over `endingOffsets`",
        elsewhere=_NO_END,
    ),
    Option(
        "endingTimestamp",
        BATCH,
        "",
        "the same for all partitions; wins over `endingOffsetsByTimestamp`",
        elsewhere=_NO_END,
    ),
    Option(
        "failOnDataLoss",
        READ,
        "`true`",
        "when records are missing: `true`, fail; `false`, go on; or a choice of `fail`, `skip`, "
        "`rewind` per cause, `aged_out=skip,deleted=fail,recreated=rewind,truncated=fail`",
    ),
    Option(
        "maxOffsetsPerTrigger",
        STREAM,
        "",
        "the most offsets of one micro-batch, shared out over the partitions in proportion to "
        "what they have waiting",
    ),
    Option(
        "minOffsetsPerTrigger",
        STREAM,
        "",
        "wait for so many offsets before a micro-batch, but not longer than `maxTriggerDelay`",
    ),
    Option("maxTriggerDelay", STREAM, "`15m`", "how long `minOffsetsPerTrigger` may wait"),
    Option(
        "minPartitions",
        READ,
        "",
        "cut large partitions so that about so many tasks read; one task per partition else",
    ),
    Option("maxRecordsPerPartition", READ, "", "the most offsets that one task reads"),
    Option(
        "includeHeaders",
        READ,
        "`false`",
        "add the column `headers`; for a write the column itself says it",
    ),
    Option(
        "columns",
        READ,
        "",
        "the columns that are read, by comma, `key,timestamp`: what is not named is not sent to "
        "Spark, which asks no Python source for fewer; Ottla's own",
    ),
    Option(
        "groupIdPrefix",
        READ,
        "`spark-kafka-source`",
        "how the name of the query's consumer group begins; the rest follows from what it reads",
    ),
    Option(
        "kafka.group.id",
        READ,
        "",
        "the name of the query's consumer group, where its progress is committed for all to see; "
        "wins over `groupIdPrefix`",
    ),
    Option(
        "commitOffsets",
        STREAM,
        "`true`",
        "commit the progress to the query's consumer group; `false` for a query whose driver is a "
        "member of its group and commits for itself, as that of a pipeline; Ottla's own",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        READ,
        "`120000`",
        "how long a batch read waits for a broker, when it is planned and in each of its tasks, "
        "milliseconds; a stream keeps trying",
    ),
    Option(
        "fetchOffset.numRetries",
        READ,
        "`3`",
        "how often, at the least, a batch read asks again for offsets that it could not get; a "
        "stream keeps asking",
    ),
    Option(
        "fetchOffset.retryIntervalMs", READ, "`10`", "the pause before it asks again, milliseconds"
    ),
    Option(
        "partition.metadata.cache.ttl.ms",
        READ,
        "`-1`",
        "how long, in milliseconds, the partitions found are believed before they are looked up "
        "again; -1: for one look",
    ),
    Option(
        "pushdown",
        BATCH,
        "`false`",
        "narrow what is read by filters on `topic`, `partition`, `offset` and `timestamp`; needs "
        "`spark.sql.python.filterPushdown.enabled=true`; Ottla's own",
    ),
    Option("topic", WRITE, "", "the topic of every row; wins over the column `topic`"),
    Option(
        "delivery",
        WRITE,
        "`idempotent`",
        "`idempotent`: a request that is sent again writes nothing twice; or `at_least_once`; "
        "Ottla's own",
    ),
    Option(
        "keepTimestamps",
        WRITE,
        "`false`",
        "take the timestamp of each record from the column `timestamp`, where it is not null; the "
        "time of writing else; Ottla's own",
    ),
    Option("kafka.*", ALL, "", "any setting of Kafka's consumer or producer, see below"),
    Option("checkpointLocation", ALL, "", "Spark's own: where a query keeps its progress"),
    Option("queryName", ALL, "", "Spark's own: what a query is called"),
    Option(
        "path",
        ALL,
        "",
        "what is given to `load`, `save` or `start`",
        Status.REFUSED,
        "a topic is no path: name it with subscribe to read, with topic to write",
    ),
    *(
        Option(name, ALL, "", "the pools of Spark's connector", Status.HARMLESS, _NO_POOL)
        for name in (
            "spark.kafka.consumer.cache.capacity",
            "spark.kafka.consumer.cache.timeout",
            "spark.kafka.consumer.cache.evictorThreadRunInterval",
            "spark.kafka.consumer.cache.jmx.enable",
            "spark.kafka.consumer.fetchedData.cache.timeout",
            "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval",
            "spark.kafka.producer.cache.timeout",
            "spark.kafka.producer.cache.evictorThreadRunInterval",
        )
    ),
    Option(
        "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
        READ,
        "",
        "how Spark's connector asks for offsets",
        Status.HARMLESS,
        _SETTING_OF_SPARK,
    ),
    Option(
        "spark.security.credentials.kafka.enabled",
        ALL,
        "",
        "whether Spark fetches delegation tokens",
        Status.HARMLESS,
        _SETTING_OF_SPARK,
    ),
    *(
        Option(
            f"spark.kafka.clusters.*.{name}",
            ALL,
            "",
            "delegation tokens of Spark's connector",
            Status.REFUSED,
            _TOKENS,
        )
        for name in (
            "auth.bootstrap.servers",
            "target.bootstrap.servers.regex",
            "security.protocol",
            "sasl.kerberos.service.name",
            "ssl.truststore.type",
            "ssl.truststore.location",
            "ssl.truststore.password",
            "ssl.keystore.type",
            "ssl.keystore.location",
            "ssl.keystore.password",
            "ssl.key.password",
            "sasl.token.mechanism",
            "kafka.*",
        )
    ),
)
