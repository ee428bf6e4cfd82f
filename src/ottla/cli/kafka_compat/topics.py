"""kafka-topics and the older kafka-list-topic: create, list, describe, grow and delete topics.

Like Kafka's own: failures are printed on stdout after `Error while executing topic command : `,
--topic is a regular expression except with --create, and --alter and --delete say nothing when
they succeed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    BROKER_LIST,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    check_excluded,
    check_required,
    connect,
    explain,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.descriptions import ConfigEntry, PartitionDescription, TopicDescription
    from ottla.client.direct import DirectAdmin
    from ottla.client.reassignments import Ongoing

ACTIONS = ("list", "describe", "create", "alter", "delete")
REPORTS = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
MAX_REPLICATION = 32767

PARSER = Parser(
    "kafka-topics",
    "Create, list, describe, alter and delete topics.",
    [
        BOOTSTRAP,
        BROKER_LIST,
        COMMAND_CONFIG,
        Option("list", "List topics."),
        Option("create", "Create a topic."),
        Option("delete", "Delete topics."),
        Option("alter", "Add partitions to topics; settings are changed with kafka-configs."),
        Option("describe", "Show topics with their partitions and settings."),
        Option("topic", "The topic; a regular expression except with --create.", "topic"),
        Option("topic-id", "With --describe: the topic's id.", "topic id"),
        Option("config", "With --create: a setting of the topic; repeatable.", "name=value"),
        Option("delete-config", "Not supported any more; use kafka-configs.", "name"),
        Option("partitions", "With --create and --alter: how many.", "number", int),
        Option("replication-factor", "With --create: copies of each.", "number", int),
        Option(
            "replica-assignment",
            "With --create and --alter: the brokers of each partition.",
            "broker:broker,broker:broker,...",
        ),
        Option("under-replicated-partitions", "Describe those with replicas out of sync."),
        Option("unavailable-partitions", "Describe those without a leader."),
        Option("under-min-isr-partitions", "Describe those below min.insync.replicas."),
        Option("at-min-isr-partitions", "Describe those exactly at min.insync.replicas."),
        Option("topics-with-overrides", "Describe topics that have settings of their own."),
        Option("if-exists", "Do nothing, without an error, when no topic matches."),
        Option("if-not-exists", "With --create: a topic that exists is no error."),
        Option("exclude-internal", "With --list and --describe: without Kafka's own topics."),
        Option(
            "partition-size-limit-per-response",
            "With --describe: partitions asked for at a time.",
            "number",
            int,
        ),
    ],
)

LIST_PARSER = Parser(
    "kafka-list-topic",
    "Show topics, a line for each partition.",
    [
        BOOTSTRAP,
        BROKER_LIST,
        COMMAND_CONFIG,
        Option("topic", "The topics; a regular expression.", "topic"),
        Option("under-replicated-partitions", "Only those with replicas out of sync."),
        Option("unavailable-partitions", "Only those without a leader."),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-topics."""
    if not arguments:
        sys.stderr.write(PARSER.help())
        return 1
    options = PARSER.parse(arguments)
    action = _checked_action(options)
    try:
        with connect(options, "bootstrap-server", "broker-list") as admin:
            action(admin, options)
    except KafkaError as error:
        raise _failed(explain(error)) from None
    except Failure as failure:
        raise _failed(failure.message) from None
    return 0


def list_topic(arguments: Sequence[str]) -> int:
    """kafka-list-topic of Kafka 0.8: a line for each partition."""
    options = LIST_PARSER.parse(arguments)
    try:
        with connect(options, "bootstrap-server", "broker-list") as admin:
            # Kafka 0.8 had no topics of its own.
            names = _matching(admin, options, internal=options.has("topic"))
            if not names:
                print("no topics exist!")
            live = {node.id for node in admin.describe_cluster().nodes}
            reports = [name for name in REPORTS if options.has(name)]
            for topic in admin.describe_topics(names):
                for part in topic.partitions:
                    if not reports or any(_reported(name, part, 1, live) for name in reports):
                        print(_old_line(topic.name, part))
    except KafkaError as error:
        raise Failure(explain(error)) from None
    return 0


def _old_line(topic: str, part: PartitionDescription) -> str:
    return (
        f"topic: {topic} partition: {part.partition} "
        f"leader: {'none' if part.leader is None else part.leader} "
        f"replicas: {','.join(map(str, part.replicas))} isr: {','.join(map(str, part.isr))}"
    )


def _failed(text: str) -> Failure:
    return Failure(f"Error while executing topic command : {text}", out=True)


def _checked_action(options: Options) -> Callable[[DirectAdmin, Options], None]:
    given = [action for action in ACTIONS if options.has(action)]
    if len(given) != 1:
        raise UsageError(
            "Command must include exactly one action: --list, --describe, --create, --alter or "
            "--delete"
        )
    [action] = given
    if options.has("delete-config"):
        print(
            "delete-config option is no longer supported and deprecated since version 4.0. "
            "The config will be fully removed in future releases.",
            file=sys.stderr,
        )
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise UsageError("--bootstrap-server must be specified")
    named = options.has("topic") or options.has("topic-id")
    if action == "describe" and options.has("if-exists") and not named:
        raise UsageError("--topic or --topic-id is required to describe a topic")
    if action not in ("list", "describe"):
        check_required(options, "topic")
    if action == "alter":
        if options.has("config"):
            raise UsageError(
                'Option combination "[[bootstrap-server], [config]]" can\'t be used with option '
                '"[alter]" (To alter topic configurations, the kafka-configs tool can be used.)'
            )
        check_required(options, "partitions")
    _check_combinations(options, action)
    return {
        "list": _list,
        "describe": _describe,
        "create": _create,
        "alter": _alter,
        "delete": _delete,
    }[action]


def _check_combinations(options: Options, action: str) -> None:
    allowed = {
        "config": ("alter", "create"),
        "partitions": ("alter", "create"),
        "replication-factor": ("create",),
        "replica-assignment": ("alter", "create"),
        **dict.fromkeys(REPORTS, ("describe",)),
        "topics-with-overrides": ("describe",),
        "if-exists": ("alter", "delete", "describe"),
        "if-not-exists": ("create",),
        "exclude-internal": ("list", "describe"),
    }
    for name, actions in allowed.items():
        if action not in actions:
            check_excluded(options, name, action)
    if action == "create":
        check_excluded(options, "replica-assignment", "partitions", "replication-factor")
    for name in REPORTS:
        check_excluded(options, name, "topics-with-overrides")


# -- the actions


def _create(admin: DirectAdmin, options: Options) -> None:
    from ottla.client.descriptions import NewTopic

    name = options.required("topic")
    if not name:
        raise Failure("The given topic name '' cannot be represented in a request.")
    config = _topic_settings(options.values("config"))
    partitions, replication = options.integer("partitions"), options.integer("replication-factor")
    assignment = _assignment(options.value("replica-assignment"))
    if "." in name or "_" in name:
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore "
            "('_') could collide. To avoid issues it is best to use either, but not both."
        )
    if replication is not None and not 1 <= replication <= MAX_REPLICATION:
        raise Failure(f"The replication factor must be between 1 and {MAX_REPLICATION} inclusive")
    if partitions is not None and partitions < 1:
        raise Failure("The partitions must be greater than 0")
    try:
        admin.create_topic(NewTopic(name, partitions, replication, config, assignment))
    except KafkaError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and options.has("if-not-exists"):
            return
        raise
    print(f"Created topic {name}.")


def _list(admin: DirectAdmin, options: Options) -> None:
    print("\n".join(_matching(admin, options)))


def _alter(admin: DirectAdmin, options: Options) -> None:
    total = options.integer("partitions") or 0
    assignment = _assignment(options.value("replica-assignment"))
    names = _matching(admin, options)
    _ensure_exists(names, options)
    if not names:
        return
    placed: dict[str, list[list[int]]] = {}
    if assignment is not None:
        described = admin.describe_topics(names)
        placed = {topic.name: assignment[len(topic.partitions) :] for topic in described}
    admin.create_partitions(dict.fromkeys(names, total), placed)


def _delete(admin: DirectAdmin, options: Options) -> None:
    names = _matching(admin, options)
    _ensure_exists(names, options)
    if names:
        admin.delete_topics(names)


def _describe(admin: DirectAdmin, options: Options) -> None:
    from ottla.client.direct import TOPIC

    topic_id = options.value("topic-id")
    if topic_id is not None and topic_id != "AAAAAAAAAAAAAAAAAAAAAA":
        if options.has("topic"):
            print(
                "Only topic id will be used when both --topic and --topic-id are specified and "
                "topicId is not Uuid.ZERO_UUID"
            )
        names = [name for name, each in admin.topic_ids().items() if each == topic_id]
        if not names and not options.has("if-exists"):
            raise Failure(f"TopicId '{topic_id}' does not exist as expected")
    else:
        names = _matching(admin, options)
        _ensure_exists(names, options)
    page = options.integer("partition-size-limit-per-response")
    topics = admin.describe_topics(names, page=2000 if page is None else page)
    live = {node.id for node in admin.describe_cluster().nodes}
    moving = _moving(admin, topics)
    for topic in topics:
        config = admin.describe_configs(TOPIC, topic.name)
        _show(topic, config, options, live, moving)


def _show(
    topic: TopicDescription,
    config: Sequence[ConfigEntry],
    options: Options,
    live: set[int],
    moving: Mapping[TopicPartition, Ongoing],
) -> None:
    reports = [name for name in REPORTS if options.has(name)]
    own = [entry for entry in config if entry.source != "default"]
    overrides_only = options.has("topics-with-overrides")
    if not reports and (own or not overrides_only):
        settings = ",".join(f"{entry.name}={entry.value}" for entry in own)
        first = topic.partitions[0]
        factor = _factor(first, moving.get(TopicPartition(topic.name, first.partition)))
        print(
            f"Topic: {topic.name}\tTopicId: {topic.id}\tPartitionCount: {len(topic.partitions)}"
            f"\tReplicationFactor: {factor}\tConfigs: {settings}"
        )
    if overrides_only:
        return
    least = next((int(e.value or 1) for e in config if e.name == "min.insync.replicas"), 1)
    for part in topic.partitions:
        ongoing = moving.get(TopicPartition(topic.name, part.partition))
        if not reports or any(_reported(name, part, least, live, ongoing) for name in reports):
            print(_partition_line(topic.name, part, ongoing))


def _moving(
    admin: DirectAdmin, topics: Sequence[TopicDescription]
) -> Mapping[TopicPartition, Ongoing]:
    """The partitions of topics that are being moved, as far as these brokers can tell."""
    from ottla.client.reassignments import ongoing

    if not topics:
        return {}
    try:
        return ongoing(
            admin.router,
            [
                TopicPartition(each.name, part.partition)
                for each in topics
                for part in each.partitions
            ],
        )
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise


def _factor(part: PartitionDescription, ongoing: Ongoing | None) -> int:
    """How many replicas a partition is to have: those that are on their way do not count."""
    if ongoing is None or not {*ongoing.adding, *ongoing.removing} <= {*part.replicas}:
        return len(part.replicas)
    return len(ongoing.replicas) - len(ongoing.adding)


def _reported(
    report: str,
    part: PartitionDescription,
    least: int,
    live: set[int],
    ongoing: Ongoing | None = None,
) -> bool:
    if report == "under-replicated-partitions":
        return len(part.isr) < _factor(part, ongoing)
    if report == "under-min-isr-partitions":
        return part.leader is None or len(part.isr) < least
    if report == "at-min-isr-partitions":
        return len(part.isr) == least
    return part.leader is None or part.leader not in live


def _partition_line(topic: str, part: PartitionDescription, ongoing: Ongoing | None) -> str:
    def ids(brokers: tuple[int, ...] | None) -> str:
        return "N/A" if brokers is None else ",".join(map(str, brokers))

    moved = ""
    if ongoing is not None:
        moved = (
            f"\tAdding Replicas: {ids(ongoing.adding)}\tRemoving Replicas: {ids(ongoing.removing)}"
        )
    return (
        f"\tTopic: {topic}\tPartition: {part.partition}"
        f"\tLeader: {'none' if part.leader is None else part.leader}"
        f"\tReplicas: {ids(part.replicas)}\tIsr: {ids(part.isr)}{moved}"
        f"\tElr: {ids(part.elr)}\tLastKnownElr: {ids(part.last_known_elr)}"
    )


# -- what the arguments mean


def topic_pattern(text: str) -> re.Pattern[str]:
    """A topic filter as Kafka reads one: a comma is an or, quotes and blanks are dropped."""
    pattern = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(pattern)
    except re.error:
        raise Failure(f"{pattern} is an invalid regex.") from None


def _matching(admin: DirectAdmin, options: Options, *, internal: bool = True) -> list[str]:
    """The topics that a command is about, by name."""
    wanted = options.value("topic")
    pattern = None if wanted is None else topic_pattern(wanted)
    without_internal = not internal or options.has("exclude-internal")
    return sorted(
        name
        for name, is_internal in admin.topics().items()
        if not (is_internal and without_internal)
        and (pattern is None or pattern.fullmatch(name) is not None)
    )


def _ensure_exists(names: list[str], options: Options) -> None:
    wanted = options.value("topic")
    if wanted and not names and not options.has("if-exists"):
        raise Failure(f"Topic '{wanted}' does not exist as expected")


def _topic_settings(pairs: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not value or "=" in value:
            raise Failure(
                "requirement failed: Invalid topic config: all configs to be added must be in the "
                'format "key=val".'
            )
        settings[name.strip()] = value.strip()
    return settings


def _assignment(text: str | None) -> list[list[int]] | None:
    """`1:2,2:1` as the brokers of each partition."""
    if not text:
        return None
    placed: list[list[int]] = []
    for number, part in enumerate(text.split(",")):
        try:
            brokers = [int(broker) for broker in part.split(":")]
        except ValueError:
            raise Failure(
                f"--replica-assignment {text!r}: expected broker ids as in 1:2,2:1"
            ) from None
        twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
        if twice:
            raise Failure(
                "Partition replica lists may not contain duplicate entries: "
                + ",".join(map(str, twice))
            )
        if placed and len(brokers) != len(placed[0]):
            raise Failure(f"Partition {number} has different replication factor: {brokers}")
        placed.append(brokers)
    return placed
