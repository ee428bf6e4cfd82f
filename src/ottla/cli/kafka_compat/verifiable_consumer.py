"""kafka-verifiable-consumer: read in a group, and print what happens as lines of JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka_compat.client_properties import librdkafka_properties
from ottla.cli.kafka_compat.options import Failure, UsageError, subcommand_parser
from ottla.cli.kafka_compat.perf_output import (
    client_config,
    for_librdkafka,
    quiet_client_log,
    warn_of_old,
)
from ottla.cli.kafka_compat.verifiable_producer import Events, Stop
from ottla.client.contact import check_reachable
from ottla.client.settings import bootstrap_servers
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.consumer import Consumer
    from ottla.client.records import Record
    from ottla.model.ids import TopicPartition

TOOL = "kafka-verifiable-consumer"
_MOST = 500  # records between two commits, as Java's poll gives
_WAIT = 0.2  # seconds between two looks at whether to stop
_RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made: argparse.ArgumentParser = subcommand_parser(TOOL, "Read in a group and report it all.")
    made.add_argument("--bootstrap-server", "--broker-list", metavar="HOST:PORT", required=True,
                      help="The brokers to ask first.")  # fmt: skip
    made.add_argument("--topic", required=True, help="The topic to read.")
    made.add_argument("--group-id", required=True, help="The group to be a member of.")
    made.add_argument("--group-protocol", default="classic", type=str.lower,
                      choices=("classic", "consumer"), help="Its protocol.")  # fmt: skip
    made.add_argument("--group-remote-assignor", help="The broker's assignor (consumer protocol).")
    made.add_argument("--group-instance-id", help="Be a static member of that name.")
    made.add_argument("--max-messages", type=int, default=-1, help="How many; -1 for no end.")
    made.add_argument("--session-timeout", type=int, metavar="MS", help="Classic protocol only.")
    made.add_argument("--verbose", action="store_true", help="Print every record.")
    made.add_argument("--enable-autocommit", action="store_true", help="Commit now and then.")
    made.add_argument("--reset-policy", default="earliest", choices=("earliest", "latest", "none"),
                      help="Where to begin without an offset.")  # fmt: skip
    made.add_argument("--assignment-strategy", default=_RANGE, help="Classic protocol only.")
    for name in ("--consumer.config", "--command-config"):
        made.add_argument(name, dest=name.lstrip("-"), metavar="FILE", help="A properties file.")
    return made


def main(arguments: Sequence[str]) -> int:
    """The tool."""
    given = parser().parse_args(list(arguments))
    try:
        bootstrap = bootstrap_servers(given.bootstrap_server)
    except ValueError as error:
        raise UsageError(str(error)) from None
    config = settings(given)
    quiet_client_log()
    check_reachable(bootstrap)
    from ottla.client.consumer import Consumer

    stop = Stop()
    events = Events()
    try:
        consumer = Consumer(
            bootstrap,
            group=given.group_id,
            reset="error" if given.reset_policy == "none" else given.reset_policy,
            auto_commit=given.enable_autocommit,
            client_id=str(config.pop("client.id", TOOL)),
            config=config,
        )
    except ValueError as error:
        raise Failure(str(error)) from None
    events.say("startup_complete")
    try:
        consumer.subscribe(
            given.topic,
            on_assign=lambda got: events.say("partitions_assigned", partitions=_listed(got)),
            on_revoke=lambda lost: events.say("partitions_revoked", partitions=_listed(lost)),
        )
        read(consumer, given, events, stop)
    finally:
        consumer.close()
        events.say("shutdown_complete")
    return stop.code


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """What librdkafka is told besides what `Consumer` takes by name."""
    files = (getattr(given, "consumer.config"), getattr(given, "command-config"))
    if files[0] is not None:
        warn_of_old("--consumer.config", "--command-config")
    config = for_librdkafka(client_config(files, ()))
    for taken in ("group.id", "auto.offset.reset", "enable.auto.commit", "isolation.level"):
        config.pop(taken, None)
    config["group.protocol"] = given.group_protocol
    if given.group_protocol == "consumer":
        if given.session_timeout is not None:
            raise UsageError("--session-timeout cannot be used with --group-protocol consumer")
        if given.group_remote_assignor:
            config["group.remote.assignor"] = given.group_remote_assignor
    else:
        config |= librdkafka_properties(
            {"partition.assignment.strategy": given.assignment_strategy}
        )
        if given.session_timeout is not None:
            config["session.timeout.ms"] = given.session_timeout
    if given.group_instance_id:
        config["group.instance.id"] = given.group_instance_id
    return config


def read(
    consumer: Consumer[bytes, bytes],
    given: argparse.Namespace,
    events: Events,
    stop: Stop,
) -> None:
    """Records until there were enough, or somebody stops us."""
    left = given.max_messages
    while not stop and left != 0:
        records = consumer.take(_MOST if left < 0 else min(_MOST, left), _WAIT)
        if not records:
            continue
        if left > 0:
            left -= len(records)
        report(records, events, verbose=given.verbose)
        if not given.enable_autocommit:
            commit(consumer, records, events)


def report(records: list[Record[bytes, bytes]], events: Events, *, verbose: bool) -> None:
    """What was read: each record if asked to, and a summary by partition."""
    if verbose:
        for record in records:
            events.say(
                "record_data",
                key=_text(record.key),
                value=_text(record.value),
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
            )
    events.say(
        "records_consumed",
        count=len(records),
        partitions=[
            {
                "topic": topic,
                "partition": partition,
                "count": len(offsets),
                "minOffset": offsets[0],
                "maxOffset": offsets[-1],
            }
            for (topic, partition), offsets in _by_partition(records).items()
        ],
    )


def commit(
    consumer: Consumer[bytes, bytes], records: list[Record[bytes, bytes]], events: Events
) -> None:
    """Commit what was read, and say what became of that."""
    offsets = [
        {"topic": topic, "partition": partition, "offset": numbers[-1] + 1}
        for (topic, partition), numbers in _by_partition(records).items()
    ]
    try:
        consumer.commit()
    except KafkaError as error:
        events.say(
            "offsets_committed", offsets=offsets, error=error.message or str(error), success=False
        )
    else:
        events.say("offsets_committed", offsets=offsets, success=True)


def _by_partition(records: list[Record[bytes, bytes]]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record.offset)
    return found


def _listed(partitions: tuple[TopicPartition, ...]) -> list[dict[str, object]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
