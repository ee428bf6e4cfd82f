"""kafka-features: the feature levels of a cluster. Only `describe`; changing them is not served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.cli.kafka_compat.options import (
    Failure,
    UsageError,
    connection_settings,
    read_properties,
    subcommand_parser,
)

METADATA_VERSION = "metadata.version"

# The release each level of metadata.version came with, from level 1 on.
_RELEASES = (
    *("3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0"),
    *("3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1"),
    *("3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2"),
    *("4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1"),
)
LATEST_RELEASE = _RELEASES[-1]


def main(arguments: Sequence[str]) -> int:
    """kafka-features."""
    given = _parser().parse_args(arguments)
    if given.command != "describe":
        raise Failure(
            f"kafka-features {given.command} is not served: feature levels cannot be changed here"
        )
    from ottla.client.direct import DirectAdmin
    from ottla.client.settings import bootstrap_servers

    path = given.command_config
    settings = connection_settings({} if path is None else read_properties(path))
    try:
        servers = bootstrap_servers(given.bootstrap_server or given.bootstrap_controller)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with DirectAdmin(servers, **settings) as admin:
        epoch, features = admin.features(given.node_id)
    for each in features:
        print(
            f"Feature: {each.name}\tSupportedMinVersion: {level(each.name, each.minimum)}"
            f"\tSupportedMaxVersion: {level(each.name, each.maximum)}"
            f"\tFinalizedVersionLevel: {level(each.name, each.finalized)}"
            f"\tEpoch: {'-' if epoch < 0 else epoch}"
        )
    return 0


def level(feature: str, number: int) -> str:
    """A level as Java prints it: metadata.version by the release it came with."""
    if feature != METADATA_VERSION:
        return str(number)
    if 1 <= number <= len(_RELEASES):
        return _RELEASES[number - 1]
    return f"UNKNOWN {number}"


def _parser() -> Any:
    parser = subcommand_parser("kafka-features", "Look at the feature levels of a cluster.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap-server", help="The brokers to ask first.")
    where.add_argument("--bootstrap-controller", help="The controllers to ask first.")
    parser.add_argument("--command-config", help="A file with connection settings.")
    commands = parser.add_subparsers(dest="command", required=True)
    describe = commands.add_parser("describe", help="Show the levels.", allow_abbrev=False)
    describe.add_argument("--node-id", type=int, help="The broker to ask.")
    for name in ("upgrade", "downgrade", "disable", "version-mapping", "feature-dependencies"):
        other = commands.add_parser(name, help="Not served here.", allow_abbrev=False)
        for flag in ("--metadata", "--release-version", "--feature"):
            other.add_argument(flag, action="append", help="Not served here.")
        for flag in ("--unsafe", "--dry-run"):
            other.add_argument(flag, action="store_true", help="Not served here.")
    return parser
