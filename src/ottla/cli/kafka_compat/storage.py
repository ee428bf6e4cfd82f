"""kafka-storage: look at and prepare the data folders that a configuration file names.

Formatting a folder writes its meta.properties: the cluster it belongs to and the node that owns
it. A broker started on it takes the cluster's id from there. Kafka also writes the first records
of its metadata log; we have none, so the flags about quorums and feature levels are accepted and
change nothing, and --add-scram is refused rather than forgotten.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka_compat.features import LATEST_RELEASE, METADATA_VERSION
from ottla.cli.kafka_compat.options import Failure, HelpShown, subcommand_parser

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.storage.checkpoints import MetaProperties

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]+")


def main(arguments: Sequence[str]) -> int:
    """kafka-storage."""
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        raise HelpShown(1)
    given = parser.parse_args(arguments)
    if given.command == "random-uuid":
        print(random_uuid())
        return 0
    if given.command == "info":
        return _info(_folders(_load(given.config)))
    if given.command == "format":
        return _format(given)
    raise Failure(f"kafka-storage {given.command} is not served: there are no feature levels here")


def random_uuid() -> str:
    """A new id in Kafka's spelling. One that begins with a dash would look like an option."""
    while True:
        raw = bytearray(secrets.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        text = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _load(path: str) -> BrokerConfig:
    from ottla.config.load import InvalidConfig, load

    if not os.path.exists(path):
        raise Failure(f"{path}: No such file or directory; check the path")
    try:
        return load(path, {}, strict=False).config
    except InvalidConfig as error:
        raise Failure(f"{path}: {'; '.join(error.problems)}") from None


def _folders(config: BrokerConfig) -> list[str]:
    return sorted(dict.fromkeys(config.log_dirs))


def _info(folders: Sequence[str]) -> int:  # noqa: C901 - one branch for each line that it may print
    problems: list[str] = []
    found: list[str] = []
    described: dict[str, MetaProperties] = {}
    for folder in folders:
        if not os.path.exists(folder):
            problems.append(f"{folder} does not exist")
        elif not os.path.isdir(folder):
            problems.append(f"{folder} is not a directory")
        else:
            found.append(folder)
            try:
                meta = _read(folder)
            except Failure as failure:
                problems.append(failure.message)
                continue
            if meta is None:
                problems.append(f"{folder} is not formatted.")
            else:
                described[folder] = meta
    if found:
        print("Found log director" + ("y:" if len(found) == 1 else "ies:"))
        for folder in found:
            print(f"  {folder}")
        print()
    if described:
        first = next(iter(described.values()))
        fields = {
            "cluster.id": first.cluster_id,
            "directory.id": first.directory_id,
            "node.id" if first.version else "broker.id": first.node_id,
            "version": first.version,
        }
        shown = ", ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        print(f"Found metadata: {{{shown}}}\n")
    if problems:
        print("Found problem:" if len(problems) == 1 else "Found problems:")
        for problem in problems:
            print(f"  {problem}")
        print()
    return 1 if problems else 0


def _format(given: Any) -> int:
    from ottla.runtime.files import OsFileSystem
    from ottla.storage.checkpoints import MetaProperties, write_meta_properties

    config = _load(given.config)
    if given.add_scram:
        raise Failure("--add-scram is not served: there are no SCRAM users here yet")
    if not _CLUSTER_ID.fullmatch(given.cluster_id):
        raise Failure(
            f"Cluster ID string {given.cluster_id} is not an id; make one with "
            f"`kafka-storage random-uuid`"
        )
    folders = _folders(config)
    known = {folder: _read(folder) for folder in folders}
    for folder, meta in known.items():
        if meta is None:
            continue
        if meta.cluster_id not in (None, given.cluster_id):
            raise Failure(
                f"Invalid cluster.id in: {folder}/meta.properties. Expected {given.cluster_id}, "
                f"but read {meta.cluster_id}"
            )
        if not given.ignore_formatted:
            raise Failure(
                f"Log directory {folder} is already formatted. Use --ignore-formatted to ignore "
                f"this directory and format the others."
            )
    fresh = [folder for folder, meta in known.items() if meta is None]
    if not fresh:
        print("All of the log directories are already formatted.")
        return 0
    release = given.release_version or LATEST_RELEASE
    for number, folder in enumerate(fresh):
        kind = (
            "metadata directory" if number == 0 and len(fresh) == len(folders) else "data directory"
        )
        print(f"Formatting {kind} {folder} with {METADATA_VERSION} {release}.")
        try:
            os.makedirs(folder, exist_ok=True)
            meta = MetaProperties(config.node_id, given.cluster_id, random_uuid())
            write_meta_properties(OsFileSystem(), folder, meta)
        except OSError as error:
            raise Failure(f"{folder}: {error.strerror}; check the path and its rights") from None
    return 0


def _read(folder: str) -> MetaProperties | None:
    from ottla.runtime.files import OsFileSystem
    from ottla.storage.checkpoints import CheckpointError, read_meta_properties

    try:
        return read_meta_properties(OsFileSystem(), folder)
    except (CheckpointError, OSError) as error:
        raise Failure(f"Unable to read {folder}/meta.properties: {error}") from None


def _parser() -> Any:
    parser = subcommand_parser("kafka-storage", "Look at and prepare data folders.", help_code=0)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="Show the folders.", allow_abbrev=False)
    form = commands.add_parser("format", help="Prepare the folders.", allow_abbrev=False)
    for command in (info, form):
        command.add_argument("--config", "-c", required=True, help="The broker's properties file.")
    form.add_argument("--cluster-id", "-t", required=True, help="The cluster's id.")
    form.add_argument("--add-scram", "-S", action="append", help="Not served here.")
    form.add_argument(
        "--ignore-formatted", "-g", action="store_true", help="Leave prepared folders alone."
    )
    form.add_argument("--release-version", "-r", help="Printed, and without an effect.")
    form.add_argument("--feature", "-f", action="append", help="Accepted, without an effect.")
    quorum = form.add_mutually_exclusive_group()
    quorum.add_argument("--standalone", "-s", action="store_true", help="Without an effect.")
    quorum.add_argument(
        "--no-initial-controllers", "-N", action="store_true", help="Without an effect."
    )
    quorum.add_argument("--initial-controllers", "-I", help="Without an effect.")
    for name in ("version-mapping", "feature-dependencies"):
        other = commands.add_parser(name, help="Not served here.", allow_abbrev=False)
        other.add_argument("--release-version", "-r", help="Not served here.")
        other.add_argument("--feature", "-f", action="append", help="Not served here.")
    commands.add_parser("random-uuid", help="Print a new id.", allow_abbrev=False)
    return parser
