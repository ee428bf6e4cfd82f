"""kafka-features: the feature levels of a cluster, shown and changed.

`--metadata` and `--release-version` are not served: what they would change is always the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka_compat.options import (
    Failure,
    UsageError,
    connection_settings,
    read_properties,
    subcommand_parser,
)
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin

METADATA_VERSION = "metadata.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
KINDS = {"upgrade": UPGRADE, "downgrade": SAFE_DOWNGRADE, "disable": SAFE_DOWNGRADE}

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
    levels: dict[str, int] = {}
    if given.command != "describe":
        levels = _levels(given)
    from ottla.client.direct import DirectAdmin
    from ottla.client.settings import bootstrap_servers

    path = given.command_config
    settings = connection_settings({} if path is None else read_properties(path))
    try:
        servers = bootstrap_servers(given.bootstrap_server or given.bootstrap_controller)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with DirectAdmin(servers, **settings) as admin:
        if levels:
            return _update(admin, given, levels)
        epoch, features = admin.features(given.node_id)
    for each in features:
        print(
            f"Feature: {each.name}\tSupportedMinVersion: {level(each.name, each.minimum)}"
            f"\tSupportedMaxVersion: {level(each.name, each.maximum)}"
            f"\tFinalizedVersionLevel: {level(each.name, each.finalized)}"
            f"\tEpoch: {'-' if epoch < 0 else epoch}"
        )
    return 0


def _levels(given: Any) -> dict[str, int]:
    """What features are to be at, by the command line."""
    command = given.command
    if command not in KINDS:
        raise Failure(f"kafka-features {command} is not served")
    if given.metadata or given.release_version:
        raise Failure(
            f"kafka-features {command} takes --feature only: {METADATA_VERSION} and releases "
            f"cannot be changed here"
        )
    if not given.feature:
        raise Failure(f"You must specify at least one feature to {command}")
    levels: dict[str, int] = {}
    for text in given.feature:
        name, separator, number = text.partition("=")
        if command == "disable":
            levels[text] = 0
            continue
        if not separator:
            raise Failure(f"Can't parse feature=level string {text}: equals sign not found.")
        try:
            levels[name.strip()] = int(number)
        except ValueError:
            raise Failure(
                f"Can't parse feature=level string {text}: unable to parse {number.strip()} as a "
                f"short."
            ) from None
    return levels


def _update(admin: DirectAdmin, given: Any, levels: dict[str, int]) -> int:
    command, dry_run = given.command, given.dry_run
    kind = UNSAFE_DOWNGRADE if given.unsafe and command != "upgrade" else KINDS[command]
    try:
        admin.update_features(levels, kind=kind, dry_run=dry_run)
    except KafkaError as error:
        cannot = "Can not" if dry_run else "Could not"
        for name, number in sorted(levels.items()):
            what = f"disable {name}" if command == "disable" else f"{command} {name} to {number}"
            print(f"{cannot} {what}. {error.message or error.code.name}")
        raise Failure(f"{len(levels)} out of {len(levels)} operation(s) failed.") from None
    was = "can be" if dry_run else "was"
    for name, number in sorted(levels.items()):
        done = "disabled" if command == "disable" else f"{command}d to {number}"
        print(f"{name} {was} {done}.")
    return 0


def level(feature: str, number: int) -> str:
    """A level as Java prints it: metadata.version by the release it came with."""
    if feature != METADATA_VERSION:
        return str(number)
    if 1 <= number <= len(_RELEASES):
        return _RELEASES[number - 1]
    return f"UNKNOWN {number}"


def _parser() -> Any:
    parser = subcommand_parser("kafka-features", "See and change the feature levels of a cluster.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap-server", help="The brokers to ask first.")
    where.add_argument("--bootstrap-controller", help="The controllers to ask first.")
    parser.add_argument("--command-config", help="A file with connection settings.")
    commands = parser.add_subparsers(dest="command", required=True)
    describe = commands.add_parser("describe", help="Show the levels.", allow_abbrev=False)
    describe.add_argument("--node-id", type=int, help="The broker to ask.")
    for name in (*KINDS, "version-mapping", "feature-dependencies"):
        about = f"{name.title()} features." if name in KINDS else "Not served here."
        other = commands.add_parser(name, help=about, allow_abbrev=False)
        other.add_argument("--feature", action="append", help="A feature: name=level, or its name.")
        for flag in ("--metadata", "--release-version"):
            other.add_argument(flag, action="append", help="Not served here.")
        other.add_argument("--unsafe", action="store_true", help="Even where something is lost.")
        other.add_argument("--dry-run", action="store_true", help="Only see whether it could be.")
    return parser
