"""Every setting of the Java clients 4.2 is known; what cannot be followed is refused with a reason.

The names below were printed by ConsumerConfig.configDef() and ProducerConfig.configDef() of
kafka-clients 4.2.0.
"""

from __future__ import annotations

import pickle

import pytest

from ottla.pipelines.errors import OptionError
from ottla.pipelines.kafka_settings import SETTINGS, KafkaSettings
from ottla.pipelines.option_table import Status, Use

SHARED = [
    "bootstrap.servers",
    "client.dns.lookup",
    "client.id",
    "config.providers",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "interceptor.classes",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
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
    "security.protocol",
    "security.providers",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
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
]

CONSUMER = [
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "check.crcs",
    "client.rack",
    "default.api.timeout.ms",
    "enable.auto.commit",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "isolation.level",
    "key.deserializer",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "share.acknowledgement.mode",
    "share.acquire.mode",
    "value.deserializer",
]

PRODUCER = [
    "acks",
    "batch.size",
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delivery.timeout.ms",
    "enable.idempotence",
    "key.serializer",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "partitioner.class",
    "partitioner.ignore.keys",
    "retries",
    "transaction.timeout.ms",
    "transaction.two.phase.commit.enable",
    "transactional.id",
    "value.serializer",
]


def refusal(name: str, value: str, use: Use) -> str:
    with pytest.raises(OptionError) as caught:
        KafkaSettings.of({name: value}, use)
    assert caught.value.option == f"kafka.{name}"
    return str(caught.value)


def test_the_names_are_those_of_the_java_clients() -> None:
    assert {n for n, s in SETTINGS.items() if s.reader} == {*SHARED, *CONSUMER}
    assert {n for n, s in SETTINGS.items() if s.writer} == {*SHARED, *PRODUCER}


@pytest.mark.parametrize("name", [*SHARED, *CONSUMER, *PRODUCER])
def test_each_setting_is_honoured_or_noticed_or_refused_with_a_reason(name: str) -> None:
    setting = SETTINGS[name]
    value = setting.default or ("true" if setting.flag else "1")
    if name == "security.protocol":
        value = "SASL_SSL"
    for use in Use:
        standing = setting.side(use)
        assert standing.reason or standing.status is Status.ACCEPTED
        if standing.status is Status.REFUSED:
            assert refusal(name, value, use) == f"kafka.{name} is refused, {standing.reason}."
            continue
        found = KafkaSettings.of({name: value}, use)
        if standing.status is Status.ACCEPTED:
            assert found == KafkaSettings({name: value})
        else:
            notice = f"kafka.{name} has no effect, {standing.reason}."
            assert found == KafkaSettings({}, (notice,))


@pytest.mark.parametrize(
    "name",
    [
        "auto.offset.reset",
        "enable.auto.commit",
        "interceptor.classes",
        "key.deserializer",
        "value.deserializer",
    ],
)
def test_what_sparks_connector_refuses_to_a_reader_is_refused_here(name: str) -> None:
    refusal(name, "x", Use.STREAM)
    refusal(name, "x", Use.BATCH)


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer", "transactional.id"])
def test_a_writer_refuses_serializers_and_transactions(name: str) -> None:
    refusal(name, "x", Use.WRITE)


def test_settings_of_the_other_side_have_no_effect() -> None:
    for use, name in ((Use.WRITE, "key.deserializer"), (Use.BATCH, "key.serializer")):
        found = KafkaSettings.of({name: "x"}, use)
        assert "it is a setting of the" in found.notices[0]


def test_a_reader_is_told_how_to_say_where_to_begin() -> None:
    assert "startingOffsets" in refusal("auto.offset.reset", "earliest", Use.STREAM)


def test_plaintext_is_the_one_protocol() -> None:
    assert not KafkaSettings.of({"security.protocol": "plaintext"}, Use.STREAM).notices
    assert "PLAINTEXT" in refusal("security.protocol", "SASL_SSL", Use.WRITE)


def test_an_unknown_setting_is_answered_with_the_nearest_name() -> None:
    assert "did you mean kafka.fetch.min.bytes?" in refusal("fetch.min.byte", "1", Use.STREAM)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("fetch.min.bytes", "-1", "a whole number from 0"),
        ("fetch.min.bytes", "many", "a whole number from 0"),
        ("request.timeout.ms", "0", "a whole number above 0"),
        ("check.crcs", "perhaps", "true or false"),
        ("isolation.level", "dirty", "read_committed or read_uncommitted"),
    ],
)
def test_a_wrong_value_is_shown_with_what_would_be_right(name: str, value: str, right: str) -> None:
    assert refusal(name, value, Use.STREAM) == f"kafka.{name}={value} is not right: give {right}."


def test_a_compression_level_has_two_limits() -> None:
    assert "a whole number from 1 to 17" in refusal("compression.lz4.level", "18", Use.WRITE)


def test_getters_fall_back_on_the_default() -> None:
    none = KafkaSettings.of({}, Use.STREAM)
    assert none.text("isolation.level") == "read_committed"
    assert none.whole("fetch.min.bytes") == 1
    assert none.seconds("fetch.max.wait.ms") == 0.5
    assert none.truth("check.crcs")
    some = KafkaSettings.of(
        {"check.crcs": "FALSE", "fetch.max.wait.ms": " 20 ", "isolation.level": "Read_Uncommitted"},
        Use.BATCH,
    )
    assert not some.truth("check.crcs")
    assert some.seconds("fetch.max.wait.ms") == 0.02
    assert some.text("isolation.level") == "read_uncommitted"


def test_the_brokers_must_be_given_and_have_addresses() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        KafkaSettings.of({}, Use.BATCH).bootstrap()
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is not right, 'a:b'"):
        KafkaSettings.of({"bootstrap.servers": "a:b"}, Use.BATCH).bootstrap()
    given = KafkaSettings.of({"bootstrap.servers": " one:1, two "}, Use.WRITE)
    assert given.bootstrap() == "one:1,two:9092"


def test_settings_travel_pickled() -> None:
    found = KafkaSettings.of({"client.id": "me", "linger.ms": "5"}, Use.WRITE)
    assert pickle.loads(pickle.dumps(found)) == found
