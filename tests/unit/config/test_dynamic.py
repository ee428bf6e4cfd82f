"""Changes at run time: Kafka's codes and Kafka's words."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.dynamic import (
    AlterOp,
    Change,
    apply_incremental,
    apply_replacement,
    validate_broker_overrides,
    validate_group_overrides,
    validate_topic_overrides,
)
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError

MAX = 2**63 - 1


def refusal(error: KafkaError) -> tuple[ErrorCode, str | None]:
    return error.code, error.message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"foo": "1"}, "Unknown topic config name: foo"),
        (
            {"retention.ms": "abc"},
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            {"retention.ms": "-2"},
            "Invalid value -2 for configuration retention.ms: Value must be at least -1",
        ),
        (
            {"cleanup.policy": "foo"},
            "Invalid value foo for configuration cleanup.policy: "
            "String must be one of: compact, delete",
        ),
        (
            {"segment.bytes": "100"},
            "Invalid value 100 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            {"min.compaction.lag.ms": str(MAX), "max.compaction.lag.ms": "5"},
            f"conflict topic config setting min.compaction.lag.ms ({MAX}) > "
            "max.compaction.lag.ms (5)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
        (
            {"retention.ms": None, "flush.ms": "1", "segment.ms": None},
            "Null value not supported for topic configs: retention.ms,segment.ms",
        ),
    ],
)
def test_a_bad_topic_setting_is_refused_in_kafkas_words(
    overrides: dict[str, str | None], message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_topic_overrides(overrides)
    assert refusal(caught.value) == (ErrorCode.INVALID_CONFIG, message)


def test_good_topic_settings_come_back() -> None:
    overrides = {"cleanup.policy": "", "internal.segment.bytes": "100", "local.retention.ms": "5"}
    assert validate_topic_overrides(overrides) == overrides


def test_a_topic_is_judged_together_with_the_brokers_settings() -> None:
    broker = BrokerConfig.of({"log.cleaner.min.compaction.lag.ms": "10"})
    with pytest.raises(KafkaError, match="conflict topic config setting"):
        validate_topic_overrides({"max.compaction.lag.ms": "9"}, broker)
    validate_topic_overrides({"max.compaction.lag.ms": "9"})


@pytest.mark.parametrize(
    ("overrides", "per_broker", "message"),
    [
        (
            {"num.partitions": "3"},
            True,
            "Cannot update these configs dynamically: Set(num.partitions)",
        ),
        (
            {"log.retention.minutes": "5"},
            False,
            "Cannot update these configs dynamically: Set(log.retention.minutes)",
        ),
        (
            {"log.retention.ms": "0"},
            True,
            "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or "
            "equal to 1",
        ),
        (
            {"log.retention.ms": "abc"},
            False,
            "Invalid value abc for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            {"listeners": "PLAINTEXT://:1"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "Set(listeners)",
        ),
        (
            {"ssl.keystore.location": "x"},
            True,
            "These security configs can be dynamically updated only per-listener using the "
            "listener prefix: HashSet(ssl.keystore.location)",
        ),
        (
            {"listener.name.plaintext.ssl.client.auth": "none"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "Set(listener.name.plaintext.ssl.client.auth)",
        ),
        (
            {"listener.name.plaintext.max.connections": "many"},
            True,
            "Invalid value many for configuration max.connections: Not a number of type INT",
        ),
        (
            {"leader.replication.throttled.rate": "-1"},
            True,
            "Invalid value -1 for configuration leader.replication.throttled.rate: "
            "Value must be at least 0",
        ),
        (
            {"max.connections.per.ip": "0"},
            True,
            "requirement failed: max.connections.per.ip can be set to zero only if "
            "max.connections.per.ip.overrides property is set.",
        ),
        (
            {"log.cleaner.dedupe.buffer.size": "1000"},
            True,
            "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner "
            "thread.",
        ),
        ({"log.retention.ms": None}, True, "Null value not supported for : log.retention.ms"),
        (
            {"log.cleaner.threads": "3"},
            True,
            "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads "
            "cannot be increased to more than double the current value 1 for configuration "
            "Invalid dynamic configuration",
        ),
        (
            {"log.cleaner.threads": "0"},
            False,
            "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads "
            "should be at least 1 for configuration Invalid dynamic configuration",
        ),
        (
            {"num.io.threads": "17"},
            False,
            "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count "
            "update validation failed for num.io.threads=17, value should not be greater than "
            "double the current value 8 for configuration Invalid dynamic configuration",
        ),
        (
            {"background.threads": "4"},
            True,
            "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count "
            "update validation failed for background.threads=4, value should be at least half "
            "the current value 10 for configuration Invalid dynamic configuration",
        ),
    ],
)
def test_a_bad_broker_setting_is_refused_in_kafkas_words(
    overrides: dict[str, str | None], per_broker: bool, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_broker_overrides(overrides, per_broker=per_broker)
    assert refusal(caught.value) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("overrides", "per_broker"),
    [
        ({"log.retention.ms": "100"}, True),
        ({"foo": "bar"}, True),
        ({"listener.name.plaintext.ssl.keystore.location": "x"}, True),
        ({"listener.name.plaintext.max.connections": "5"}, False),
        ({"leader.replication.throttled.rate": "500"}, False),
        ({"message.max.bytes": "0", "log.flush.interval.ms": "-5"}, True),
        ({"log.cleaner.threads": "2", "num.io.threads": "16", "num.network.threads": "1"}, True),
        ({"background.threads": "5"}, False),
    ],
)
def test_what_kafka_accepts_for_a_broker_is_accepted(
    overrides: dict[str, str], per_broker: bool
) -> None:
    assert validate_broker_overrides(overrides, per_broker=per_broker) == overrides


def test_a_broker_setting_is_judged_together_with_the_others() -> None:
    broker = BrokerConfig.of({"max.connections.per.ip.overrides": "10.0.0.1:5"})
    validate_broker_overrides({"max.connections.per.ip": "0"}, per_broker=False, broker=broker)


def test_a_thread_pool_is_resized_from_what_it_is_now() -> None:
    now = BrokerConfig.of({"log.cleaner.threads": "8"}, dynamic={"log.cleaner.threads": "4"})
    validate_broker_overrides({"log.cleaner.threads": "2"}, per_broker=True, broker=now)
    validate_broker_overrides({}, per_broker=True, broker=now)  # back to 8, the double
    with pytest.raises(KafkaError, match="less than half the current value 4"):
        validate_broker_overrides({"log.cleaner.threads": "1"}, per_broker=True, broker=now)


def test_a_contradiction_that_is_there_already_does_not_block_a_repair() -> None:
    broken = BrokerConfig.of({"max.connections.per.ip": "0"})
    validate_broker_overrides({"log.retention.ms": "5"}, per_broker=True, broker=broken)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"foo": "1"}, "Unknown group config name: foo"),
        (
            {"consumer.session.timeout.ms": "1"},
            "consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"consumer.heartbeat.interval.ms": "60000"},
            "consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {"share.record.lock.duration.ms": "1000"},
            "share.record.lock.duration.ms must be greater than or equal to "
            "group.share.min.record.lock.duration.ms",
        ),
        (
            {"streams.num.standby.replicas": "5"},
            "streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas",
        ),
        (
            {"share.auto.offset.reset": "by_duration:5"},
            "Invalid value by_duration:5 for configuration share.auto.offset.reset: Invalid value "
            "`by_duration:5` for configuration share.auto.offset.reset. The value must be either "
            "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        ),
    ],
)
def test_a_bad_group_setting_is_refused_in_kafkas_words(
    overrides: dict[str, str | None], message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_group_overrides(overrides)
    assert refusal(caught.value) == (ErrorCode.INVALID_CONFIG, message)


def test_a_groups_session_must_outlast_its_heartbeats() -> None:
    limits = {
        "group_consumer_min_session_timeout_ms": 1,
        "group_consumer_max_session_timeout_ms": 60_000,
    }
    broker = BrokerConfig(**limits)
    validate_group_overrides({"consumer.session.timeout.ms": "5001"}, broker)
    with pytest.raises(KafkaError) as caught:
        validate_group_overrides({"consumer.session.timeout.ms": "5000"}, broker)
    assert refusal(caught.value) == (
        ErrorCode.INVALID_CONFIG,
        "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms",
    )


@pytest.mark.parametrize("start", ["latest", "earliest", "by_duration:PT5S", "by_duration:P1DT2H"])
def test_a_share_group_may_start_at_an_end_or_some_time_ago(start: str) -> None:
    validate_group_overrides({"share.auto.offset.reset": start})


@pytest.mark.parametrize(
    ("current", "change", "expected"),
    [
        ({}, Change("retention.ms", AlterOp.SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "5"}, Change("retention.ms", AlterOp.DELETE), {}),
        ({}, Change("foo", AlterOp.DELETE), {}),
        (
            {},
            Change("cleanup.policy", AlterOp.APPEND, "compact"),
            {"cleanup.policy": "delete,compact"},
        ),
        (
            {"cleanup.policy": ""},
            Change("cleanup.policy", AlterOp.APPEND, "compact"),
            {"cleanup.policy": "compact"},
        ),
        (
            {"cleanup.policy": "compact"},
            Change("cleanup.policy", AlterOp.APPEND, "compact,delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        (
            {"cleanup.policy": "compact,delete"},
            Change("cleanup.policy", AlterOp.SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
        ({}, Change("cleanup.policy", AlterOp.SUBTRACT, "delete,"), {"cleanup.policy": ""}),
    ],
)
def test_operations_change_what_is_there(
    current: dict[str, str], change: Change, expected: dict[str, str]
) -> None:
    assert apply_incremental(current, [change]) == expected


def test_appending_nothing_leaves_an_empty_item_for_validation_to_refuse() -> None:
    result = apply_incremental({}, [Change("cleanup.policy", AlterOp.APPEND, "")])
    with pytest.raises(KafkaError, match="values must not be empty"):
        validate_topic_overrides(result)


def test_what_no_answer_has_room_for_cannot_be_reached_by_appending() -> None:
    """Who asked for the settings of that topic was hung up on."""
    name = "leader.replication.throttled.replicas"
    first = ",".join(f"{index}:1" for index in range(4_000))
    more = ",".join(f"{index}:2" for index in range(2_000))
    current = apply_incremental({name: first}, [Change(name, AlterOp.APPEND, "7:2,3:1,7:2")])
    assert current[name] == f"{first},7:2"
    with pytest.raises(KafkaError, match="more than 32767, which is the most") as refused:
        apply_incremental(current, [Change(name, AlterOp.APPEND, more)])
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    less = apply_incremental(current, [Change(name, AlterOp.SUBTRACT, f"{first},{more}")])
    assert less == {name: ""}


def test_what_was_there_is_left_alone() -> None:
    current = {"retention.ms": "5"}
    changes = [Change("flush.ms", AlterOp.SET, "1"), Change("segment.ms", AlterOp.SET, "2")]
    result = apply_incremental(current, changes)
    assert result == {"retention.ms": "5", "flush.ms": "1", "segment.ms": "2"}
    assert current == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("kind", "change", "code", "message"),
    [
        (
            TopicConfig,
            Change("retention.ms", AlterOp.APPEND, "5"),
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TopicConfig,
            Change("foo", AlterOp.SUBTRACT, "5"),
            ErrorCode.INVALID_CONFIG,
            "Can't SUBTRACT to key foo because its type is not LIST.",
        ),
        (
            BrokerConfig,
            Change("log.retention.ms", AlterOp.APPEND, "5"),
            ErrorCode.INVALID_CONFIG,
            "Config value append is not allowed for config key: log.retention.ms",
        ),
        (
            BrokerConfig,
            Change("log.retention.ms", AlterOp.SUBTRACT, "5"),
            ErrorCode.INVALID_CONFIG,
            "Config value subtract is not allowed for config key: log.retention.ms",
        ),
        (
            BrokerConfig,
            Change("foo", AlterOp.APPEND, "5"),
            ErrorCode.INVALID_CONFIG,
            "Unknown config name: foo",
        ),
        (
            TopicConfig,
            Change("retention.ms", AlterOp.SET),
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
    ],
)
def test_operations_that_make_no_sense_are_refused_in_kafkas_words(
    kind: type[TopicConfig] | type[BrokerConfig], change: Change, code: ErrorCode, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        apply_incremental({}, [change], kind)
    assert refusal(caught.value) == (code, message)


def test_a_name_may_appear_once_in_a_change() -> None:
    twice = [Change("flush.ms", AlterOp.SET, "1"), Change("flush.ms", AlterOp.DELETE)]
    refused = (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    with pytest.raises(KafkaError) as caught:
        apply_incremental({}, twice)
    assert refusal(caught.value) == refused
    with pytest.raises(KafkaError) as caught:
        apply_replacement([("flush.ms", "1"), ("flush.ms", None)])
    assert refusal(caught.value) == refused


def test_a_replacement_has_no_null_in_it() -> None:
    assert apply_replacement([("a", "1"), ("b", "")]) == {"a": "1", "b": ""}
    with pytest.raises(KafkaError) as caught:
        apply_replacement([("a", None), ("b", "1"), ("c", None)])
    assert refusal(caught.value) == (
        ErrorCode.INVALID_REQUEST,
        "Null value not supported for : a, c",
    )
