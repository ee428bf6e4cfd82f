"""Settings of groups: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44),
ListConfigResources (74) for resource type 32, and what they change for the group's members.

Codes and messages are those of Apache Kafka 4.2.
"""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

NONE, INVALID_CONFIG, INVALID_REQUEST = 0, 40, 42
GROUP = 32
DEFAULT, GROUP_CONFIG = 5, 8
STRING, INT = 2, 3
SET, DELETE, APPEND = 0, 1, 2
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


class GroupConfigs:
    """Short forms of the requests on one connection."""

    def __init__(self, connection):
        self.connection = connection

    def describe(self, group, *keys):
        (found,) = self.connection.ask(
            "describe_configs",
            4,
            resources=[
                {"resource_type": GROUP, "resource_name": group, "configuration_keys": keys or None}
            ],
            include_synonyms=True,
        ).results
        self.error = (found.error_code, found.error_message)
        return {setting.name: setting for setting in found.configs}

    def shown(self, group, key):
        found = self.describe(group, key)[key]
        return found.value, found.config_source

    def change(self, group, *changes, **more):
        """Changes are (key, operation, value); returns code and message."""
        configs = [{"name": k, "config_operation": op, "value": v} for k, op, v in changes]
        return self._alter("incremental_alter_configs", 1, group, configs, **more)

    def replace(self, group, values, **more):
        configs = [{"name": k, "value": v} for k, v in values.items()]
        return self._alter("alter_configs", 2, group, configs, **more)

    def _alter(self, api, version, group, configs, **more):
        resource = {"resource_type": GROUP, "resource_name": group, "configs": configs}
        (done,) = self.connection.ask(api, version, resources=[resource], **more).responses
        return done.error_code, done.error_message

    def listed(self):
        answer = self.connection.ask("list_config_resources", 1, resource_types=[GROUP])
        assert answer.error_code == NONE
        return {each.resource_name for each in answer.config_resources}


@pytest.fixture
def configs(wire):
    return GroupConfigs(wire())


@pytest.fixture
def group(unique):
    return unique("group")


def test_a_group_that_nobody_has_seen_has_all_settings(configs, group):
    found = configs.describe(group)
    assert configs.error[0] == NONE
    assert {
        name: (each.value, each.config_source, each.config_type, each.read_only, each.is_sensitive)
        for name, each in found.items()
    } == {
        INTERVAL: ("5000", DEFAULT, INT, False, False),
        SESSION: ("45000", DEFAULT, INT, False, False),
        "share.auto.offset.reset": ("latest", DEFAULT, STRING, False, False),
        "share.heartbeat.interval.ms": ("5000", DEFAULT, INT, False, False),
        "share.isolation.level": ("read_uncommitted", DEFAULT, STRING, False, False),
        "share.record.lock.duration.ms": ("30000", DEFAULT, INT, False, False),
        "share.session.timeout.ms": ("45000", DEFAULT, INT, False, False),
        "streams.heartbeat.interval.ms": ("5000", DEFAULT, INT, False, False),
        "streams.initial.rebalance.delay.ms": ("3000", DEFAULT, INT, False, False),
        "streams.num.standby.replicas": ("0", DEFAULT, INT, False, False),
        "streams.session.timeout.ms": ("45000", DEFAULT, INT, False, False),
    }
    assert configs.describe("") == {}
    assert configs.error == (INVALID_REQUEST, "Group name must not be empty")


def test_incremental_changes(configs, group, eventually):
    strange = f"{group} ö/.."
    assert configs.change(group, (SESSION, SET, " 50000 ")) == (NONE, None)
    assert configs.change(strange, (SESSION, SET, "51000"), (INTERVAL, SET, "6000")) == (NONE, None)
    eventually(lambda: configs.shown(group, SESSION) == ("50000", GROUP_CONFIG))
    eventually(lambda: configs.shown(strange, INTERVAL) == ("6000", GROUP_CONFIG))
    (setting,) = configs.describe(group, SESSION).values()
    assert [(each.name, each.value, each.source) for each in setting.synonyms] == [
        (SESSION, "50000", GROUP_CONFIG)
    ]
    eventually(lambda: {group, strange} <= configs.listed())
    assert configs.change(strange, (SESSION, SET, "52000"), validate_only=True) == (NONE, None)
    assert configs.change(strange, (SESSION, DELETE, None), ("no.such", DELETE, None)) == (
        NONE,
        None,
    )
    eventually(lambda: configs.shown(strange, SESSION) == ("45000", DEFAULT))
    assert configs.shown(strange, INTERVAL) == ("6000", GROUP_CONFIG)


def test_the_old_way_replaces_everything(configs, group, eventually):
    assert configs.change(group, (SESSION, SET, "50000")) == (NONE, None)
    assert configs.replace(group, {INTERVAL: "6000"}) == (NONE, None)
    eventually(lambda: configs.shown(group, INTERVAL) == ("6000", GROUP_CONFIG))
    assert configs.shown(group, SESSION) == ("45000", DEFAULT)
    assert configs.replace(group, {SESSION: "50000"}, validate_only=True) == (NONE, None)
    assert configs.replace(group, {}) == (NONE, None)
    eventually(lambda: configs.shown(group, INTERVAL) == ("5000", DEFAULT))


@pytest.mark.usefixtures("ours_only")  # Kafka lists it until it is started anew
def test_a_group_without_settings_of_its_own_is_not_listed(configs, group):
    configs.change(group, (SESSION, SET, "50000"))
    configs.change(group, (SESSION, DELETE, None))
    assert group not in configs.listed()


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("no.such", SET, "1")], INVALID_CONFIG, "Unknown group config name: no.such"),
        (
            [(SESSION, SET, None), (INTERVAL, SET, None)],
            INVALID_REQUEST,
            f"Null value not supported for : {SESSION}, {INTERVAL}",
        ),
        (
            [(SESSION, SET, "soon")],
            INVALID_CONFIG,
            f"Invalid value soon for configuration {SESSION}: Not a number of type INT",
        ),
        (
            [(SESSION, SET, "0")],
            INVALID_CONFIG,
            f"Invalid value 0 for configuration {SESSION}: Value must be at least 1",
        ),
        (
            [(SESSION, SET, "44999")],
            INVALID_CONFIG,
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            [(SESSION, SET, "60001")],
            INVALID_CONFIG,
            f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            [(INTERVAL, SET, "15001"), (SESSION, SET, "60001")],
            INVALID_CONFIG,
            f"{INTERVAL} must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
        (
            [("share.isolation.level", SET, "READ_COMMITTED")],
            INVALID_CONFIG,
            "Invalid value READ_COMMITTED for configuration share.isolation.level: "
            "String must be one of: read_committed, read_uncommitted",
        ),
        (
            [("streams.num.standby.replicas", SET, "99")],
            INVALID_CONFIG,
            "streams.num.standby.replicas must be less than or equal to "
            "group.streams.max.standby.replicas",
        ),
        (
            [(SESSION, APPEND, "50000")],
            INVALID_CONFIG,
            f"Can't APPEND to key {SESSION} because its type is not LIST.",
        ),
        (
            [(SESSION, SET, "50000"), (SESSION, DELETE, None)],
            INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
    ],
)
def test_changes_that_are_refused(changes, code, message, configs, group):
    assert configs.change(group, *changes) == (code, message)
    assert configs.shown(group, SESSION) == ("45000", DEFAULT)


def test_replacements_that_are_refused(configs, group):
    nameless = (INVALID_REQUEST, "Default group resources are not allowed.")
    assert configs.change("", (SESSION, SET, "50000")) == nameless
    assert configs.replace("", {SESSION: "50000"}) == nameless
    assert configs.replace(group, {SESSION: None, INTERVAL: None}) == (
        INVALID_REQUEST,
        f"Null value not supported for : {SESSION}, {INTERVAL}",
    )
    assert configs.replace(group, {"no.such": "1"}) == (
        INVALID_CONFIG,
        "Unknown group config name: no.such",
    )


# -- what the members notice -----------------------------------------------------------------


class Member:
    """One member of a group of the consumer protocol."""

    def __init__(self, connection, group):
        self.connection = connection
        self.group = group
        self.id = str(uuid.uuid4())
        self.epoch = 0

    def beat(self, **fields):
        answer = self.connection.ask(
            "consumer_group_heartbeat",
            1,
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.epoch,
            **fields,
        )
        if answer.error_code == NONE:
            self.epoch = answer.member_epoch
        return answer.error_code, int(answer.heartbeat_interval.total_seconds() * 1000)

    def join(self, topic):
        return self.beat(
            rebalance_timeout=30_000, topic_partitions=[], subscribed_topic_names=[topic.name]
        )


@pytest.fixture
def join(eventually, topic):
    """`join(connection, group)`: a member of a group whose coordinator has answered."""

    def make(connection, group):
        member = Member(connection, group)

        def joined():
            connection.ask("find_coordinator", 4, key_type=0, coordinator_keys=[group])
            return member.join(topic)[0] == NONE

        eventually(joined)
        return member

    return make


def test_members_are_told_the_heartbeat_interval_of_their_group(
    configs, group, wire, join, eventually
):
    assert configs.change(group, (INTERVAL, SET, "6000")) == (NONE, None)
    eventually(lambda: configs.shown(group, INTERVAL) == ("6000", GROUP_CONFIG))
    member = join(wire(), group)
    assert member.beat() == (NONE, 6000), "set before there was a group"
    assert configs.change(group, (INTERVAL, SET, "7000")) == (NONE, None)
    eventually(lambda: member.beat() == (NONE, 7000))
    assert configs.change(group, (INTERVAL, DELETE, None)) == (NONE, None)
    eventually(lambda: member.beat() == (NONE, 5000))


def test_a_shorter_session_ends_sooner_while_the_group_lives(start_broker, wire, eventually):
    broker = start_broker(
        settings={
            "group.consumer.min.session.timeout.ms": "200",
            "group.consumer.min.heartbeat.interval.ms": "50",
            "offsets.topic.num.partitions": "1",
        }
    )
    connection, group = wire(broker.bootstrap), "impatient"
    configs = GroupConfigs(connection)
    made = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": []}
    connection.ask("create_topics", 7, topics=[made], timeout=10_000)
    silent, lively = Member(connection, group), Member(connection, group)
    session = {
        "rebalance_timeout": 30_000,
        "topic_partitions": [],
        "subscribed_topic_names": ["t"],
    }

    def joined():
        connection.ask("find_coordinator", 4, key_type=0, coordinator_keys=[group])
        return silent.beat(**session)[0] == NONE

    eventually(joined)
    changes = ((SESSION, SET, "6000"), (INTERVAL, SET, "100"))
    assert configs.change(group, *changes) == (NONE, None)
    assert silent.beat() == (NONE, 100)
    assert lively.beat(**session)[0] == NONE

    def members():
        assert lively.beat()[0] == NONE
        (found,) = connection.ask("consumer_group_describe", 1, group_ids=[group]).groups
        return {each.member_id for each in found.members}

    assert members() == {silent.id, lively.id}
    eventually(lambda: members() == {lively.id})


def test_settings_of_groups_survive_kill_9(start_broker, wire):
    broker = start_broker()
    configs = GroupConfigs(wire(broker.bootstrap))
    assert configs.change("a/b", (SESSION, SET, "50000")) == (NONE, None)
    assert configs.change("gone", (SESSION, SET, "50000")) == (NONE, None)
    assert configs.change("gone", (SESSION, DELETE, None)) == (NONE, None)
    broker.kill()
    broker.start()
    configs = GroupConfigs(wire(broker.bootstrap))
    assert configs.shown("a/b", SESSION) == ("50000", GROUP_CONFIG)
    assert configs.listed() == {"a/b"}


# -- the tools -------------------------------------------------------------------------------


def run(*arguments):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_kafka_configs_and_ottla_config_change_and_show_groups(bootstrap, group):
    def kafka_configs(*arguments):
        words = ("kafka-configs", "--bootstrap-server", bootstrap, "--entity-type", "groups")
        done = run("ottla.cli.kafka_compat", *words, "--entity-name", group, *arguments)
        return done.returncode, done.stdout

    def ottla(verb, *arguments):
        done = run("ottla", "config", verb, "group", group, "--bootstrap", bootstrap, *arguments)
        return done.returncode, done.stdout or done.stderr

    assert kafka_configs("--describe") == (
        0,
        f"The group '{group}' doesn't exist and doesn't have dynamic config.\n",
    )
    assert kafka_configs("--alter", "--add-config", f"{SESSION}=50000") == (
        0,
        f"Completed updating config for group {group}.\n",
    )
    assert kafka_configs("--describe") == (
        0,
        f"Dynamic configs for group {group} are:\n"
        f"  {SESSION}=50000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{SESSION}=50000}}\n",
    )
    assert ottla("alter", "--set", f"{SESSION}=51000") == (0, f"altered group {group}\n")
    code, shown = ottla("describe")
    assert code == 0
    assert shown.splitlines()[1:] == [
        f"KEY{'':{len(SESSION) - 1}}VALUE  SOURCE",
        f"{SESSION}  51000  group",
    ]
    code, complaint = ottla("alter", "--set", f"{SESSION}=1")
    assert code == 1
    assert "group.consumer.min.session.timeout.ms; nothing was changed" in complaint
    assert kafka_configs("--alter", "--delete-config", SESSION)[0] == 0
