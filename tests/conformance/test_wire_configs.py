"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74).

Codes and messages are those of Apache Kafka 4.2.
"""

from __future__ import annotations

import pytest

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, UNSUPPORTED_VERSION = 3, 17, 35
INVALID_CONFIG, INVALID_REQUEST = 40, 42
TOPIC, BROKER = 2, 4
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = 1, 2, 3, 4, 5
BOOLEAN, STRING, INT, LONG, LIST = 1, 2, 3, 5, 7
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


class Configs:
    """Short forms of the three requests on one connection."""

    def __init__(self, connection):
        self.connection = connection

    def describe(self, kind, name, keys=None, **more):
        (found,) = self.connection.ask(
            "describe_configs",
            4,
            resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
            include_synonyms=True,
            **more,
        ).results
        self.error = (found.error_code, found.error_message)
        return {setting.name: setting for setting in found.configs}

    def change(self, kind, name, *changes, **more):
        """Changes are (key, operation, value); returns code and message."""
        configs = [{"name": k, "config_operation": op, "value": v} for k, op, v in changes]
        (done,) = self.connection.ask(
            "incremental_alter_configs",
            1,
            resources=[{"resource_type": kind, "resource_name": name, "configs": configs}],
            **more,
        ).responses
        return done.error_code, done.error_message

    def replace(self, kind, name, values, **more):
        configs = [{"name": k, "value": v} for k, v in values.items()]
        (done,) = self.connection.ask(
            "alter_configs",
            2,
            resources=[{"resource_type": kind, "resource_name": name, "configs": configs}],
            **more,
        ).responses
        return done.error_code, done.error_message


@pytest.fixture
def configs(wire):
    return Configs(wire())


@pytest.fixture
def node(wire):
    (broker,) = wire().ask("metadata", 12, topics=[]).brokers
    return str(broker.node_id)


# -- describing ------------------------------------------------------------------------------


def test_a_topics_settings_with_type_source_and_synonyms(configs, new_topic):
    topic = new_topic(retention_ms="77777")
    found = configs.describe(TOPIC, topic.name)
    assert len(found) == 33
    shown = {
        name: (s.value, s.config_source, s.config_type, s.read_only, s.is_sensitive)
        for name, s in found.items()
    }
    assert shown["retention.ms"] == ("77777", DYNAMIC_TOPIC, LONG, False, False)
    assert shown["cleanup.policy"] == ("delete", DEFAULT, LIST, False, False)
    assert shown["segment.bytes"] == ("1073741824", DEFAULT, INT, False, False)
    assert shown["compression.type"] == ("producer", DEFAULT, STRING, False, False)
    assert shown["preallocate"] == ("false", DEFAULT, BOOLEAN, False, False)
    assert shown["flush.ms"] == ("9223372036854775807", DEFAULT, LONG, False, False)

    def synonyms(name):
        return [(s.name, s.value, s.source) for s in found[name].synonyms]

    assert synonyms("retention.ms") == [("retention.ms", "77777", DYNAMIC_TOPIC)]
    assert synonyms("cleanup.policy") == [("log.cleanup.policy", "delete", DEFAULT)]
    assert synonyms("flush.ms") == []


def test_only_the_keys_asked_for(configs, topic):
    assert set(configs.describe(TOPIC, topic.name, ["retention.ms", "no.such"])) == {"retention.ms"}
    assert len(configs.describe(TOPIC, topic.name, [])) == 33


def test_documentation_when_asked_for(configs, topic):
    plain = configs.describe(TOPIC, topic.name, ["retention.ms"])["retention.ms"]
    assert plain.documentation is None
    more = configs.describe(TOPIC, topic.name, ["retention.ms"], include_documentation=True)
    assert len(more["retention.ms"].documentation) > 40


def test_a_brokers_settings(configs, node):
    found = configs.describe(BROKER, node)
    shown = {name: (s.value, s.config_type, s.read_only) for name, s in found.items()}
    assert shown["num.partitions"] == ("1", INT, True)
    assert shown["log.retention.hours"] == ("168", INT, True)
    assert shown["log.retention.minutes"] == (None, INT, True)
    assert shown["message.max.bytes"] == ("1048588", INT, False)
    assert shown["node.id"] == (node, INT, True)
    assert found["log.dirs"].config_source == STATIC_BROKER
    assert found["num.partitions"].config_source == DEFAULT
    assert found["ssl.keystore.password"].is_sensitive


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no-such-topic", UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", INVALID_TOPIC),
        (TOPIC, "", INVALID_TOPIC),
        (BROKER, "77", INVALID_REQUEST),
        (BROKER, "abc", INVALID_REQUEST),
        (9, "x", INVALID_REQUEST),
    ],
)
def test_resources_that_do_not_exist(kind, name, code, configs):
    assert configs.describe(kind, name) == {}
    assert configs.error[0] == code


# -- changing topics -------------------------------------------------------------------------


def values(configs, topic, *keys):
    found = configs.describe(TOPIC, topic.name, list(keys))
    return [(found[key].value, found[key].config_source) for key in keys]


def test_incremental_changes(configs, topic, eventually):
    def change(*changes, **more):
        assert configs.change(TOPIC, topic.name, *changes, **more) == (0, None)

    change(("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact"))
    eventually(
        lambda: (
            values(configs, topic, "retention.ms", "cleanup.policy")
            == [("5", DYNAMIC_TOPIC), ("delete,compact", DYNAMIC_TOPIC)]
        )
    )
    # adding what is there, or taking away what is not, changes nothing
    change(("cleanup.policy", APPEND, "compact"))
    change(("cleanup.policy", SUBTRACT, "nonexistent"))
    change(("retention.ms", SET, "99"), validate_only=True)
    change(("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
    eventually(
        lambda: (
            values(configs, topic, "retention.ms", "cleanup.policy")
            == [("604800000", DEFAULT), ("compact", DYNAMIC_TOPIC)]
        )
    )


def test_the_old_way_replaces_everything(configs, topic, eventually):
    assert configs.change(TOPIC, topic.name, ("retention.ms", SET, "5")) == (0, None)
    assert configs.replace(TOPIC, topic.name, {"flush.ms": "7"}) == (0, None)
    eventually(
        lambda: (
            values(configs, topic, "retention.ms", "flush.ms")
            == [("604800000", DEFAULT), ("7", DYNAMIC_TOPIC)]
        )
    )
    assert configs.replace(TOPIC, topic.name, {"flush.ms": "8"}, validate_only=True) == (0, None)
    assert configs.replace(TOPIC, topic.name, {}) == (0, None)
    eventually(lambda: values(configs, topic, "flush.ms") == [("9223372036854775807", DEFAULT)])


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            [("retention.ms", SET, "soon")],
            INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (
            [("retention.ms", SET, None)],
            INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            [("retention.ms", APPEND, "5")],
            INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        ([("no.such", SET, "1")], INVALID_CONFIG, "Unknown topic config name: no.such"),
        (
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
    ],
)
def test_changes_that_are_refused(changes, code, message, configs, topic):
    assert configs.change(TOPIC, topic.name, *changes) == (code, message)
    assert configs.describe(TOPIC, topic.name)["retention.ms"].config_source == DEFAULT


def test_resources_that_cannot_be_changed(configs, topic, node):
    change = ("retention.ms", SET, "1")
    missing = (UNKNOWN_TOPIC_OR_PARTITION, "The topic 'no-such-topic' does not exist.")
    assert configs.change(TOPIC, "no-such-topic", change) == missing
    assert configs.replace(TOPIC, "no-such-topic", {"retention.ms": "1"}) == missing
    nameless = (INVALID_REQUEST, "Default topic resources are not allowed.")
    assert configs.change(TOPIC, "", change) == nameless
    assert configs.change(9, topic.name, change) == (INVALID_REQUEST, "Unknown resource type 9")
    assert configs.change(BROKER, "77", ("log.retention.ms", SET, "1"))[0] == INVALID_REQUEST
    twice = [{"resource_type": TOPIC, "resource_name": topic.name, "configs": []}] * 2
    answer = configs.connection.ask("incremental_alter_configs", 1, resources=twice)
    assert {(r.error_code, r.error_message) for r in answer.responses} == {
        (INVALID_REQUEST, "Each resource must appear at most once.")
    }


# -- changing brokers ------------------------------------------------------------------------


def test_a_brokers_own_setting_beats_the_clusters_which_beats_the_default(
    configs, node, topic, eventually
):
    key, default = "log.segment.delete.delay.ms", "60000"

    def shown():
        found = configs.describe(BROKER, node, [key])[key]
        of_topic = configs.describe(TOPIC, topic.name, ["file.delete.delay.ms"])
        assert of_topic["file.delete.delay.ms"].value == found.value
        return found.value, found.config_source

    try:
        assert configs.change(BROKER, "", (key, SET, "61000")) == (0, None)
        eventually(lambda: shown() == ("61000", DYNAMIC_DEFAULT_BROKER))
        assert configs.change(BROKER, node, (key, SET, "62000")) == (0, None)
        eventually(lambda: shown() == ("62000", DYNAMIC_BROKER))
        found = configs.describe(BROKER, node, [key])[key]
        assert [(s.value, s.source) for s in found.synonyms] == [
            ("62000", DYNAMIC_BROKER),
            ("61000", DYNAMIC_DEFAULT_BROKER),
            (default, DEFAULT),
        ]
    finally:
        configs.change(BROKER, node, (key, DELETE, None))
        configs.change(BROKER, "", (key, DELETE, None))
    eventually(lambda: shown() == (default, DEFAULT))


def test_static_broker_settings_cannot_be_changed(configs, node):
    for key in ("num.partitions", "log.dirs", "node.id"):
        code, message = configs.change(BROKER, node, (key, SET, "1"))
        assert code == INVALID_REQUEST
        assert message == f"Cannot update these configs dynamically: Set({key})"
    assert configs.change(BROKER, "", ("message.max.bytes", SET, "abc")) == (
        INVALID_REQUEST,
        "Invalid value abc for configuration message.max.bytes: Not a number of type INT",
    )


# -- listing ---------------------------------------------------------------------------------


def test_config_resources_are_listed_by_type(wire, topic, node):
    connection = wire()

    def listed(*types):
        answer = connection.ask("list_config_resources", 1, resource_types=types)
        assert answer.error_code == 0
        return {(r.resource_type, r.resource_name) for r in answer.config_resources}

    assert (TOPIC, topic.name) in listed(TOPIC)
    assert listed(BROKER) == {(BROKER, node)}
    assert {(TOPIC, topic.name), (BROKER, node)} <= listed()
    # version 0 knows client metrics only
    assert connection.ask("list_config_resources", 0).config_resources == ()
    unknown = connection.ask("list_config_resources", 1, resource_types=[9])
    assert (unknown.error_code, unknown.config_resources) == (UNSUPPORTED_VERSION, ())
