"""kafka-cluster: the cluster's id and its brokers' addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka_compat.java_errors import spell_error
from ottla.cli.kafka_compat.options import (
    Failure,
    UsageError,
    connection_settings,
    read_properties,
    subcommand_parser,
)
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin


def main(arguments: Sequence[str]) -> int:
    """kafka-cluster."""
    given = _parser().parse_args(arguments)
    from ottla.client.direct import DirectAdmin
    from ottla.client.settings import bootstrap_servers

    path = given.command_config or given.config
    settings = connection_settings({} if path is None else read_properties(path))
    try:
        servers = bootstrap_servers(given.bootstrap_server or given.bootstrap_controller)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with DirectAdmin(servers, **settings) as admin:
        if given.command == "unregister":
            _unregister(admin, given.id)
            return 0
        if given.command == "cluster-id":
            print(f"Cluster ID: {admin.describe_cluster().id}")
            return 0
        nodes = admin.describe_cluster(fenced=given.include_fenced_brokers).nodes
        fenced = admin.fenced_brokers()
    width = max([4, *(len(node.host) for node in nodes)])
    row = f"%-10s %-{width}s %-10s %-10s %-10s %-15s"
    print(row % ("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"))
    for node in nodes:
        rack = "null" if node.rack is None else node.rack
        state = "fenced" if node.id in fenced else "unfenced"
        print(row % (node.id, node.host, node.port, rack, state, "broker"))
    return 0


def _unregister(admin: DirectAdmin, broker: int) -> None:
    try:
        admin.unregister_broker(broker)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            raise Failure(
                "The target cluster does not support the broker unregistration API.", out=True
            ) from None
        raise Failure(spell_error(error)) from None
    print(f"Broker {broker} is no longer registered.")


def _parser() -> Any:
    parser = subcommand_parser("kafka-cluster", "Look at a cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("cluster-id", "Show the cluster's id."),
        ("unregister", "Take a broker out of the cluster."),
        ("list-endpoints", "Show the brokers' addresses."),
    ):
        command = commands.add_parser(name, help=help_text, allow_abbrev=False)
        where = command.add_mutually_exclusive_group(required=True)
        where.add_argument("--bootstrap-server", "-b", help="The brokers to ask first.")
        where.add_argument("--bootstrap-controller", "-C", help="The controllers to ask first.")
        command.add_argument("--config", help="The older name of --command-config.")
        command.add_argument("--command-config", "-c", help="A file with connection settings.")
        if name == "unregister":
            command.add_argument("--id", "-i", type=int, required=True, help="The broker's id.")
        if name == "list-endpoints":
            command.add_argument(
                "--include-fenced-brokers", action="store_true", help="Also those shut out."
            )
    return parser
