"""`ottla topic`: create, list, describe, alter and delete topics; `retention` explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.cluster_moves import replicate
from ottla.cli.command import Noun
from ottla.cli.elections import elect_leaders
from ottla.cli.options import (
    bootstrap_option,
    complete_topics,
    connect,
    json_option,
    settings,
)
from ottla.cli.output import Column, broker_errors, say, show_json, show_table
from ottla.cli.patience import patience
from ottla.cli.retention import explain_retention
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ottla.client.descriptions import OffsetInfo, TopicDescription
    from ottla.client.direct import DirectAdmin

    Bounds = Mapping[tuple[str, int], tuple[int, int]]


@click.group(cls=Noun)
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


topic.add_command(explain_retention)
topic.add_command(elect_leaders)
topic.add_command(replicate)


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--partitions", type=click.IntRange(1, 2**31 - 1), help="How many.  [default: the broker's]"
)
@click.option(
    "--replication", type=click.IntRange(1, 10_000), help="Copies of each.  [default: the broker's]"
)
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A topic setting; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing for a topic that exists.")
@bootstrap_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create topics.

    JSON: {"created": [name], "existed": [name]}
    """
    from ottla.client.descriptions import NewTopic

    config = settings(configs, "--config")
    with broker_errors(bootstrap), _admin(bootstrap) as admin, patience():
        failures = admin.create_topics(
            NewTopic(name, partitions, replication, config) for name in names
        )
        existed = _tolerated(
            failures, names, ErrorCode.TOPIC_ALREADY_EXISTS, if_not_exists, "--if-not-exists"
        )
    created = [name for name in names if name not in existed]
    if as_json:
        show_json({"created": created, "existed": existed})
        return
    for name in names:
        click.echo(f"topic {name} exists" if name in existed else f"created topic {name}")


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="Also those that brokers keep for themselves.")
@bootstrap_option
@json_option
def list_(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List topics.

    JSON: [{"name", "partitions", "replication", "internal"}]
    """
    with broker_errors(bootstrap), _admin(bootstrap) as admin:
        topics = admin.list_topics(internal=internal)
    if as_json:
        show_json(
            [
                {
                    "name": each.name,
                    "partitions": each.partitions,
                    "replication": each.replication,
                    "internal": each.internal,
                }
                for each in topics
            ]
        )
        return
    show_table(
        [Column("TOPIC"), Column("PARTITIONS", True), Column("REPLICATION", True)],
        [(each.name, each.partitions, each.replication) for each in topics],
    )


@topic.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_topics)
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show partitions, offsets and settings of topics (of all of them without a name).

    EARLIEST is the first offset still there, LATEST the one the next record will get.

    \b
    JSON: [{"name", "id", "internal", "replication", "config": {key: value},
            "partitions": [{"partition", "leader", "replicas", "isr", "earliest", "latest"}]}]
    """
    with broker_errors(bootstrap, topics=names), _admin(bootstrap) as admin:
        topics = _described(admin, names or tuple(each.name for each in admin.list_topics()))
        configs = {each.name: _own_config(admin, each.name) for each in topics}
        bounds = _offsets(admin, topics)
        if as_json:
            show_json([_document(each, configs[each.name], bounds) for each in topics])
            return
        for number, each in enumerate(topics):
            if number:
                click.echo()
            _show(each, configs[each.name], bounds)
            if any(part.leader is None for part in each.partitions):
                _say_why_offline(each, admin)


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--partitions", type=click.IntRange(1, 2**31 - 1), help="Grow to this many partitions."
)
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a setting; repeatable."
)
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Go back to the default of a setting; repeatable.",
)
@bootstrap_option
@json_option
def alter(
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Change a topic's settings or add partitions.

    Records with a key may go to another partition once there are more of them.

    JSON: {"name", "partitions" (null when unchanged), "set": {key: value}, "deleted": [key]}
    """
    changes = settings(configs, "--config")
    if partitions is None and not changes and not deleted:
        raise click.UsageError("nothing to change; give --partitions, --config or --delete-config")
    with broker_errors(bootstrap, topics=[name]), _admin(bootstrap) as admin, patience():
        try:
            _alter(admin, name, partitions, changes, deleted)
        except KafkaError as error:
            raise _explained(name, error) from None
    if as_json:
        show_json(
            {"name": name, "partitions": partitions, "set": changes, "deleted": list(deleted)}
        )
    else:
        click.echo(f"altered topic {name}")


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Do nothing for a topic that does not exist.")
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str, as_json: bool) -> None:
    """Delete topics with all their records.

    JSON: {"deleted": [name], "missing": [name]}
    """
    with broker_errors(bootstrap, topics=names), _admin(bootstrap) as admin, patience():
        missing = _tolerated(
            admin.delete_each(names),
            names,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            if_exists,
            "--if-exists",
        )
    deleted = [name for name in names if name not in missing]
    if as_json:
        show_json({"deleted": deleted, "missing": missing})
        return
    for name in names:
        click.echo(f"no topic {name}" if name in missing else f"deleted topic {name}")


def _admin(bootstrap: str) -> DirectAdmin:
    connect(bootstrap)
    from ottla.client.direct import DirectAdmin

    return DirectAdmin(bootstrap, client_id="ottla-cli")


def _tolerated(
    failures: Mapping[str, KafkaError],
    names: tuple[str, ...],
    code: ErrorCode,
    allowed: bool,
    flag: str,
) -> list[str]:
    """The names that failed with `code`, if that is allowed; whatever else failed is raised."""
    tolerated = [name for name, error in failures.items() if allowed and error.code is code]
    others = {
        name: _explained(name, error) for name, error in failures.items() if name not in tolerated
    }
    if not allowed and len(others) == 1:
        [error] = others.values()
        if error.code is code:
            text = (error.message or code.text).rstrip(".")
            raise KafkaError(code, f"{text}; with {flag} that is no error")
    _raise_all(others, names)
    return tolerated


def _described(admin: DirectAdmin, names: tuple[str, ...]) -> tuple[TopicDescription, ...]:
    found = admin.describe_each(names)
    failures = {
        name: _explained(name, each) for name, each in found.items() if isinstance(each, KafkaError)
    }
    _raise_all(failures, names)
    return tuple(each for each in found.values() if not isinstance(each, KafkaError))


def _raise_all(failures: Mapping[str, KafkaError], asked: Collection[str]) -> None:
    """Raise what failed, under the names of topics where more than one was asked for."""
    if not failures:
        return
    if len(asked) == 1:
        raise next(iter(failures.values()))
    from ottla.client.errors import PartialFailureError

    raise PartialFailureError(failures)


def _explained(name: str, error: KafkaError) -> KafkaError:
    """The same error, which names a topic that is not there."""
    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    return KafkaError(error.code, f"there is no topic {name!r}")


def _alter(
    admin: DirectAdmin,
    name: str,
    partitions: int | None,
    changes: Mapping[str, str],
    deleted: tuple[str, ...],
) -> None:
    from ottla.client.direct import DELETE, SET, TOPIC

    operations: list[tuple[str, int, str | None]] = [
        *((key, SET, value) for key, value in changes.items()),
        *((key, DELETE, None) for key in deleted),
    ]
    if operations:
        admin.alter_configs(TOPIC, name, operations)
    if partitions is not None:
        admin.create_partitions({name: partitions}, {})


def _own_config(admin: DirectAdmin, name: str) -> dict[str, str | None]:
    """What was set on the topic itself."""
    from ottla.client.direct import TOPIC

    entries = sorted(admin.describe_configs(TOPIC, name), key=lambda entry: entry.name)
    return {entry.name: entry.value for entry in entries if entry.source == "topic"}


def _offsets(admin: DirectAdmin, topics: tuple[TopicDescription, ...]) -> Bounds:
    """Beginning and end of every partition that has a leader to ask."""
    from ottla.client.topic_offsets import EARLIEST, LATEST
    from ottla.model.ids import TopicPartition

    led = [
        TopicPartition(each.name, part.partition)
        for each in topics
        for part in each.partitions
        if part.leader is not None
    ]
    earliest = admin.list_offsets(dict.fromkeys(led, EARLIEST))
    latest = admin.list_offsets(dict.fromkeys(led, LATEST))
    return {tp: (_offset(earliest[tp]), _offset(latest[tp])) for tp in led}


def _offset(found: OffsetInfo | KafkaError) -> int:
    if isinstance(found, KafkaError):
        raise found
    return found.offset


def _document(
    described: TopicDescription, config: Mapping[str, str | None], bounds: Bounds
) -> dict[str, object]:
    return {
        "name": described.name,
        "id": described.id,
        "internal": described.internal,
        "replication": described.replication,
        "config": config,
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": part.replicas,
                "isr": part.isr,
                "earliest": _bounds(bounds, described.name, part.partition)[0],
                "latest": _bounds(bounds, described.name, part.partition)[1],
            }
            for part in described.partitions
        ],
    }


def _show(described: TopicDescription, config: Mapping[str, str | None], bounds: Bounds) -> None:
    facts = [f"id {described.id}", *(f"{key}={value}" for key, value in config.items())]
    show_table(
        [
            Column("PARTITION", True, is_name=True),
            Column("LEADER", True, is_name=True),
            Column("REPLICAS"),
            Column("IN SYNC"),
            Column("EARLIEST", True),
            Column("LATEST", True),
        ],
        [
            (
                part.partition,
                "offline" if part.leader is None else part.leader,
                ",".join(map(str, part.replicas)),
                ",".join(map(str, part.isr)),
                *_bounds(bounds, described.name, part.partition),
            )
            for part in described.partitions
        ],
        title=f"{described.name}  {'  '.join(facts)}",
    )


def _say_why_offline(described: TopicDescription, admin: DirectAdmin) -> None:
    from ottla.client.offline import problems
    from ottla.model.ids import TopicPartition

    offline = [
        TopicPartition(described.name, part.partition)
        for part in described.partitions
        if part.leader is None
    ]
    for error in problems(admin.router, offline).values():
        say(error.message or error.code.text)


def _bounds(bounds: Bounds, name: str, partition: int) -> tuple[int | None, int | None]:
    return bounds.get((name, partition), (None, None))
