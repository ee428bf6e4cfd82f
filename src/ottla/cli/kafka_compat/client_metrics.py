"""kafka-client-metrics: subscriptions to what clients measure (KIP-714)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    check_excluded,
    connect,
    explain,
)
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin

CLIENT_METRICS = 16
_SET, _DELETE = 0, 1
_ACTIONS = ("alter", "delete", "describe", "list")
_CHANGES = ("generate-name", "interval", "match", "metrics")

PARSER = Parser(
    "kafka-client-metrics",
    "Say which metrics clients push to the brokers.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option("alter", "Make a subscription, or change one."),
        Option("delete", "Delete a subscription."),
        Option("describe", "Show the settings of one subscription, or of all."),
        Option("list", "List the subscriptions."),
        Option("name", "The name of a subscription.", "name"),
        Option("generate-name", "With --alter: make up a name."),
        Option("interval", "How often clients push, in milliseconds.", "ms", int),
        Option(
            "match",
            "Which clients: pairs of client_id, client_instance_id, client_software_name, "
            "client_software_version, client_source_address or client_source_port and a pattern.",
            "k1=v1,k2=v2",
        ),
        Option("metrics", "Which metrics: prefixes of their names; * for all.", "m1,m2"),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-client-metrics."""
    options = PARSER.parse(arguments)
    _check(options)
    try:
        with connect(options, "bootstrap-server") as admin:
            if options.has("alter"):
                _alter(admin, options)
            elif options.has("delete"):
                _delete(admin, options.required("name"))
            elif options.has("describe"):
                _describe(admin, options.value("name"))
            else:
                print("\n".join(admin.config_resources(CLIENT_METRICS)))
    except KafkaError as error:
        # Apache's tool tells it on stdout.
        raise Failure(
            f"Error while executing client metrics command : {explain(error)}", out=True
        ) from None
    return 0


def _check(options: Options) -> None:
    if sum(options.has(action) for action in _ACTIONS) != 1:
        raise UsageError(
            "Command must include exactly one action: --alter, --delete, --describe or --list."
        )
    if not options.has("bootstrap-server"):
        raise Failure("--bootstrap-server must be specified.")
    check_excluded(options, "delete", *_CHANGES)
    check_excluded(options, "describe", *_CHANGES)
    check_excluded(options, "list", "name", *_CHANGES)
    if options.has("alter") and options.has("name") == options.has("generate-name"):
        raise Failure("One of --name or --generate-name must be specified with --alter.")
    if options.has("delete") and not options.has("name"):
        raise Failure("A client metrics resource name must be specified with --delete.")


def _alter(admin: DirectAdmin, options: Options) -> None:
    name = options.value("name")
    if name is None:
        name = _new_name()
    interval = options.value("interval")
    given = {
        "interval.ms": None if interval is None else str(int(interval)),
        "metrics": _joined(options, "metrics"),
        "match": _joined(options, "match"),
    }
    admin.alter_configs(
        CLIENT_METRICS,
        name,
        [
            (key, _SET, value) if value else (key, _DELETE, None)
            for key, value in given.items()
            if value is not None
        ],
    )
    print(f"Altered client metrics config for {name}.")


def _delete(admin: DirectAdmin, name: str) -> None:
    entries = admin.describe_configs(CLIENT_METRICS, name)
    admin.alter_configs(CLIENT_METRICS, name, [(each.name, _DELETE, None) for each in entries])
    print(f"Deleted client metrics config for {name}.")


def _describe(admin: DirectAdmin, name: str | None) -> None:
    known = admin.config_resources(CLIENT_METRICS)
    if name is not None and name not in known:
        print(f"The client metric resource {name} doesn't exist and doesn't have dynamic config.")
        return
    for each in known if name is None else [name]:
        print(f"Client metrics configs for {each} are:")
        for entry in admin.describe_configs(CLIENT_METRICS, each):
            print(f"  {entry.name}={entry.value}")


def _joined(options: Options, name: str) -> str | None:
    return ",".join(options.values(name)) if options.has(name) else None


def _new_name() -> str:
    import base64
    import uuid

    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
