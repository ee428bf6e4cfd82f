"""Kafka's own settings, `kafka.*`: every name of the Java clients 4.2, and what becomes of it.

A job brings the settings that it had. Those that this source and sink can follow are honoured.
Those that tune a Java client's inner works are taken without effect, and a notice says so: a job
need not be edited to run. Refused is what would change the meaning of the job if it were passed
over: a deserializer, an interceptor, encryption. A name that no Java client knows is refused with
the nearest one that it does.

A setting of the producer given to a read, or of the consumer given to a write, has no effect, so
that one map of options can serve both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict, Unpack

from ottla.pipelines.errors import OptionError
from ottla.pipelines.option_table import Status, Use
from ottla.pipelines.options import KAFKA, MAX_INT, MAX_LONG, choice, truth, unknown, whole

ACCEPTED, HARMLESS, REFUSED = Status.ACCEPTED, Status.HARMLESS, Status.REFUSED


@dataclass(frozen=True, slots=True)
class Standing:
    """What becomes of a setting on one side, and why if it is not honoured."""

    status: Status
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KafkaSetting:
    """One name. `reader` and `writer` are None where the Java client of that side has no such name.

    `choices` are words in lower case; `least` and `most` bound a whole number. A setting with
    neither, and not `flag`, is any text. Only what is honoured is checked.
    """

    name: str
    reader: Standing | None
    writer: Standing | None
    default: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int = MAX_INT
    flag: bool = False

    def side(self, use: Use) -> Standing:
        mine, other = (self.writer, self.reader) if use is Use.WRITE else (self.reader, self.writer)
        if mine is not None:
            return mine
        kind = "producer" if other is self.writer else "consumer"
        return Standing(HARMLESS, f"it is a setting of the {kind}")

    def check(self, value: str) -> str:
        """The value in its one spelling; OptionError when it is not allowed."""
        option = KAFKA + self.name
        if self.choices:
            return choice(option, value, self.choices)
        if self.least is not None:
            return str(whole(option, value, least=self.least, most=self.most))
        if self.flag:
            return str(truth(option, value)).lower()
        return value.strip()


_HONOURED = Standing(ACCEPTED)
_NO_MEMBER = Standing(HARMLESS, "a query commits to its group but is not a member of it")
_NO_JAVA = Standing(HARMLESS, "it names or tunes something of the Java client")
_NO_METRICS = Standing(HARMLESS, "Spark's progress events have the figures")
_ALL_ROWS = Standing(HARMLESS, "a task reads what it was planned to read")
_OWN_PACE = Standing(HARMLESS, "connections live as long as a task and are opened anew as needed")
_LOOKED_UP = Standing(HARMLESS, "partitions and leaders are looked up for every batch")
_PLAIN = Standing(
    HARMLESS, "security.protocol can only be PLAINTEXT yet, and that uses no such setting"
)
_NO_SHARES = Standing(HARMLESS, "a query is no member of a share group")
_AT_ONCE = Standing(HARMLESS, "a task sends what it has at once, in full batches")
_CREATES = Standing(HARMLESS, "a query does not create the topics it reads")
_WAITS = Standing(HARMLESS, "fetchOffset.numRetries and kafkaConsumer.pollTimeoutMs say how long")
_NO_INTERNAL = Standing(HARMLESS, "a pattern never matches an internal topic")
_ONE_BY_ONE = Standing(
    HARMLESS,
    "a partition has one batch on its way at a time, in order, so that no number of requests "
    "stands against idempotence",
)
_EVEN = Standing(HARMLESS, "rows without a key and a partition are spread evenly")
_UNUSED_TRANSACTIONS = Standing(HARMLESS, "nothing is written in transactions")

_PLAINTEXT_ONLY = Standing(
    REFUSED, "TLS and SASL are not there yet: use a PLAINTEXT listener, or Spark's own connector"
)
_NO_INTERCEPTOR = Standing(REFUSED, "an interceptor is a Java class and cannot be run here")
_USE_STARTING = Standing(
    REFUSED, "the checkpoint decides where to go on: say where to begin with startingOffsets"
)
_COMMITS = Standing(
    REFUSED, "progress is kept in the checkpoint and committed to the group after each batch"
)
_BYTES_OUT = Standing(REFUSED, "keys and values come as bytes: cast or decode the columns")
_BYTES_IN = Standing(REFUSED, "keys and values are written as bytes: cast or encode the columns")
_NO_TRANSACTIONS = Standing(REFUSED, "writing in transactions is not there yet")


class _Values(TypedDict, total=False):
    default: str
    choices: tuple[str, ...]
    least: int
    most: int
    flag: bool


def _both(name: str, standing: Standing = _HONOURED, **values: Unpack[_Values]) -> KafkaSetting:
    return KafkaSetting(name, standing, standing, **values)


def _read(name: str, standing: Standing = _HONOURED, **values: Unpack[_Values]) -> KafkaSetting:
    return KafkaSetting(name, standing, None, **values)


def _write(name: str, standing: Standing = _HONOURED, **values: Unpack[_Values]) -> KafkaSetting:
    return KafkaSetting(name, None, standing, **values)


_SECURITY = (
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.mechanism",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    "security.providers",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)


def _rows() -> Iterator[KafkaSetting]:  # noqa: C901, PLR0915 - a table, row by row
    yield _both("bootstrap.servers")
    yield KafkaSetting("security.protocol", _PLAINTEXT_ONLY, _PLAINTEXT_ONLY, "PLAINTEXT")
    yield _both("client.id", default="ottla-spark")
    yield _both("request.timeout.ms", default="30000", least=1)
    yield _both("retry.backoff.ms", default="100", least=0, most=MAX_LONG)
    yield _both("retry.backoff.max.ms", default="1000", least=0, most=MAX_LONG)
    for name in ("metadata.max.age.ms", "metadata.recovery.rebootstrap.trigger.ms"):
        yield _both(name, _LOOKED_UP)
    yield _both("metadata.recovery.strategy", _LOOKED_UP)
    for name in (
        "connections.max.idle.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ):
        yield _both(name, _OWN_PACE)
    for name in (
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
    ):
        yield _both(name, _NO_METRICS)
    for name in ("client.dns.lookup", "config.providers"):
        yield _both(name, _NO_JAVA)
    yield _both("interceptor.classes", _NO_INTERCEPTOR)
    for name in _SECURITY:
        yield _both(name, _PLAIN)

    yield _read("group.id")
    yield _read("client.rack")
    yield _read(
        "isolation.level", default="read_committed", choices=("read_committed", "read_uncommitted")
    )
    yield _read("fetch.min.bytes", default="1", least=0)
    yield _read("fetch.max.bytes", default="52428800", least=1)
    yield _read("fetch.max.wait.ms", default="500", least=0)
    yield _read("max.partition.fetch.bytes", default="8388608", least=1)
    yield _read("check.crcs", default="true", flag=True)
    yield _read("default.api.timeout.ms", _WAITS)
    for name in ("max.poll.interval.ms", "max.poll.records"):
        yield _read(name, _ALL_ROWS)
    for name in (
        "auto.commit.interval.ms",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "internal.throw.on.fetch.stable.offset.unsupported",
    ):
        yield _read(name, _NO_MEMBER)
    for name in ("share.acknowledgement.mode", "share.acquire.mode"):
        yield _read(name, _NO_SHARES)
    yield _read("allow.auto.create.topics", _CREATES)
    yield _read("exclude.internal.topics", _NO_INTERNAL)
    yield _read("auto.offset.reset", _USE_STARTING)
    yield _read("enable.auto.commit", _COMMITS)
    for name in ("key.deserializer", "value.deserializer"):
        yield _read(name, _BYTES_OUT)

    yield _write("acks", default="all", choices=("all", "-1", "1", "0"))
    yield _write("batch.size", default="524288", least=0)
    yield _write("buffer.memory", default="33554432", least=1, most=MAX_LONG)
    yield _write(
        "compression.type", default="none", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    yield _write("compression.gzip.level", default="-1", least=-1, most=9)
    yield _write("compression.lz4.level", default="9", least=1, most=17)
    yield _write("compression.zstd.level", default="3", least=-131072, most=22)
    yield _write("delivery.timeout.ms", default="120000", least=1)
    yield _write("enable.idempotence", default="true", flag=True)
    yield _write("max.request.size", least=1)
    yield _write("retries", default="2147483647", least=0)
    yield _write("linger.ms", _AT_ONCE)
    yield _write("max.block.ms", default="60000", least=0, most=MAX_LONG)
    yield _write("max.in.flight.requests.per.connection", _ONE_BY_ONE)
    yield _write("metadata.max.idle.ms", _LOOKED_UP)
    for name in ("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"):
        yield _write(name, _EVEN)
    yield _write("partitioner.class")
    yield _write("partitioner.ignore.keys", default="false", flag=True)
    yield _write("transactional.id", _NO_TRANSACTIONS)
    yield _write("transaction.two.phase.commit.enable", _NO_TRANSACTIONS)
    yield _write("transaction.timeout.ms", _UNUSED_TRANSACTIONS)
    for name in ("key.serializer", "value.serializer"):
        yield _write(name, _BYTES_IN)


SETTINGS: Mapping[str, KafkaSetting] = {row.name: row for row in _rows()}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What was given, checked for one use. Getters fall back on the table's default."""

    values: Mapping[str, str]
    notices: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str], use: Use) -> KafkaSettings:
        """`given` without the prefix `kafka.`; OptionError for what is refused or unknown."""
        values: dict[str, str] = {}
        notices: list[str] = []
        for name, value in sorted(given.items()):
            option = KAFKA + name
            setting = SETTINGS.get(name)
            if setting is None:
                raise unknown(option, (KAFKA + known for known in SETTINGS))
            standing = setting.side(use)
            if name == "security.protocol" and value.strip().upper() == "PLAINTEXT":
                continue
            if standing.status is REFUSED:
                raise OptionError(option, f"{option} is refused, {standing.reason}.")
            if standing.status is HARMLESS:
                notices.append(f"{option} has no effect, {standing.reason}.")
            else:
                values[name] = setting.check(value)
        return cls(values, tuple(notices))

    def given(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str) -> str:
        """The value, or the default; empty when there is neither."""
        return self.values.get(name, SETTINGS[name].default)

    def whole(self, name: str) -> int:
        return int(self.text(name))

    def truth(self, name: str) -> bool:
        return self.text(name) == "true"

    def seconds(self, name: str) -> float:
        """A setting that is in milliseconds, in seconds."""
        return self.whole(name) / 1000

    def bootstrap(self) -> str:
        """`kafka.bootstrap.servers`, which has to be given, as `host:port,host:port`."""
        from ottla.client.settings import parse_address

        option = "kafka.bootstrap.servers"
        names = [name for name in map(str.strip, self.text("bootstrap.servers").split(",")) if name]
        if not names:
            raise OptionError(
                option,
                f"{option} is missing: give the brokers to start from, such as 127.0.0.1:9092.",
            )
        try:
            found = [parse_address(name) for name in names]
        except ValueError as error:
            raise OptionError(option, f"{option} is not right, {error}.") from None
        return ",".join(f"{host}:{port}" for host, port in found)
