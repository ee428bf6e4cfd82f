"""kafka-configs: describe and change the settings of topics, brokers and groups.

Quotas and credentials (users, clients, ips) are asked of the broker like everything else; one
that does not know them, as Ottla until it has quotas and users, says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    read_properties,
)
from ottla.errors import KafkaError
from ottla.model.names import topic_name_problem

if TYPE_CHECKING:
    from ottla.client.descriptions import ConfigEntry
    from ottla.client.direct import DirectAdmin

KINDS = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "client-metrics",
    "groups",
    "broker-loggers",
)
NAMED = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "ip": "ips",
    "client-metrics": "client-metrics",
    "group": "groups",
}
DEFAULTS = {
    "client-defaults": "clients",
    "user-defaults": "users",
    "broker-defaults": "brokers",
    "ip-defaults": "ips",
}
QUOTAS = ("users", "clients", "ips")

# The number of each kind in the protocol, and where its own settings come from.
_RESOURCES = {"topics": 2, "brokers": 4, "broker-loggers": 8, "client-metrics": 16, "groups": 32}
_OWN_SOURCE = {
    "topics": "topic",
    "brokers": "broker",
    "client-metrics": "client-metrics",
    "groups": "group",
}
_SOURCE_NAMES = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "broker": "DYNAMIC_BROKER_CONFIG",
    "broker-default": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "static": "STATIC_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
    "logger": "DYNAMIC_BROKER_LOGGER_CONFIG",
    "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
    "group": "DYNAMIC_GROUP_CONFIG",
    "unknown": "UNKNOWN",
}
_DELETE, _SET = 1, 0

# Commas and equals signs inside [brackets] do not separate.
_OUTSIDE = r"(?=[^\]]*(?:\[|$))"
_KEY = re.compile(r"[a-zA-Z0-9._-]*")

PARSER = Parser(
    "kafka-configs",
    "Describe and change the settings of topics, brokers, groups, clients and users.",
    [
        BOOTSTRAP,
        Option("bootstrap-controller", "The controllers to ask first.", "HOST:PORT,..."),
        COMMAND_CONFIG,
        Option("alter", "Change settings."),
        Option("describe", "Show settings."),
        Option("all", "With --describe: also those that nobody changed."),
        Option("entity-type", f"What to look at: {', '.join(KINDS)}.", "type"),
        Option("entity-name", "Which one: a topic's name, a broker's id and so on.", "name"),
        Option("entity-default", "The default of all brokers, users, clients or ips."),
        Option(
            "add-config",
            "Settings to change; brackets hold commas together.",
            "k1=v1,k2=[v1,v2]",
        ),
        Option("add-config-file", "A properties file with settings to change.", "FILE"),
        Option("delete-config", "Settings to take back.", "k1,k2"),
        Option("force", "Accepted for old scripts; there are no questions.", hidden=True),
        Option("topic", "A topic's name.", "name"),
        Option("client", "A client's id.", "id"),
        Option("client-defaults", "The default of all clients."),
        Option("user", "A user's name.", "name"),
        Option("user-defaults", "The default of all users."),
        Option("broker", "A broker's id.", "id"),
        Option("broker-defaults", "The default of all brokers."),
        Option("broker-logger", "A broker's id, for its loggers.", "id"),
        Option("ip", "An address.", "address"),
        Option("ip-defaults", "The default of all addresses."),
        Option("group", "A group's id.", "id"),
        Option("client-metrics", "A subscription to client metrics.", "name"),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-configs."""
    options = PARSER.parse(arguments)
    kinds, names = entities(arguments, options)
    _check(options, kinds, names)
    added, deleted = _changes(options)
    try:
        with connect(options, "bootstrap-server", "bootstrap-controller") as admin:
            kind = kinds[0]
            if kind in QUOTAS:
                raise _not_served(kind)
            if options.has("alter"):
                _alter(admin, kind, names[0], added, deleted)
            else:
                _describe(admin, kind, names[0] if names else None, options.has("all"))
    except KafkaError as error:
        line = " ".join(arguments)
        raise Failure(
            f"Error while executing config command with args '{line}': {explain(error)}"
        ) from None
    return 0


def entities(arguments: Sequence[str], options: Options) -> tuple[list[str], list[str]]:
    """The kinds and names that a command line is about; the empty name is the default.

    `--entity-name` and `--entity-default` belong to the `--entity-type` before them, so the order
    of the words decides.
    """
    kinds = list(options.values("entity-type"))
    kinds += [kind for flag, kind in NAMED.items() if options.has(flag)]
    kinds += [kind for flag, kind in DEFAULTS.items() if options.has(flag)]
    given = iter(options.values("entity-name"))
    names: list[str] = []
    for word in arguments:
        flag = word.lstrip("-").partition("=")[0] if word.startswith("-") else ""
        if flag == "entity-name":
            names.append(next(given, ""))
        elif flag == "entity-default":
            names.append("")
    names += [options.values(flag)[0] for flag in NAMED if options.values(flag)]
    names += ["" for flag in DEFAULTS if options.has(flag)]
    return kinds, names


def _check(options: Options, kinds: list[str], names: list[str]) -> None:
    if options.has("alter") == options.has("describe"):
        raise UsageError("Command must include exactly one action: --describe, --alter")
    check_excluded(options, "describe", "add-config", "delete-config")
    if not options.has("bootstrap-server") and not options.has("bootstrap-controller"):
        raise UsageError("Either --bootstrap-server or --bootstrap-controller must be specified.")
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if twice:
        raise Failure(f"Duplicate entity type(s) specified: {','.join(twice)}")
    for kind in kinds:
        if kind not in KINDS:
            raise Failure(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(KINDS)} "
                f"with a --bootstrap-server or --bootstrap-controller argument"
            )
    if not kinds:
        raise Failure("At least one entity type must be specified")
    if len(kinds) > 1 and set(kinds) != {"users", "clients"}:
        raise Failure("Only 'users' and 'clients' entity types may be specified together")
    if {"entity-type", "entity-name", "entity-default"} & options.found.keys() and (
        {*NAMED, *DEFAULTS} & options.found.keys()
    ):
        raise Failure(
            "--entity-{type,name,default} should not be used in conjunction with specific entity "
            "flags"
        )
    _check_names(options, kinds, names)


def _check_names(options: Options, kinds: list[str], names: list[str]) -> None:  # noqa: C901 - Kafka's checks in Kafka's order, one refusal each
    named = any(names)
    listed = ",".join(kinds)
    for kind in kinds:
        if kind in ("brokers", "broker-loggers") and named and not names[0].lstrip("-").isdigit():
            raise Failure(
                f"The entity name for {kind} must be a valid integer broker id, but it is: "
                f"{names[0]}"
            )
    with_defaults = bool({"users", "clients", "brokers", "ips"} & set(kinds))
    if options.has("describe") and "" in names and not with_defaults:
        raise Failure(f"--entity-default must not be specified with --describe of {listed}")
    if options.has("describe") and "broker-loggers" in kinds and not named:
        raise Failure(f"An entity name must be specified with --describe of {listed}")
    if options.has("describe"):
        return
    if with_defaults:
        if not names:
            raise Failure(
                "An entity-name or default entity must be specified with --alter of users, "
                "clients, brokers or ips"
            )
    elif not named:
        raise Failure(f"An entity name must be specified with --alter of {listed}")
    if options.has("add-config") and options.has("add-config-file"):
        raise Failure("Only one of --add-config or --add-config-file must be specified")
    if not {"add-config", "add-config-file", "delete-config"} & options.found.keys():
        raise Failure(
            "At least one of --add-config, --add-config-file, or --delete-config must be "
            "specified with --alter"
        )


def _changes(options: Options) -> tuple[dict[str, str], list[str]]:
    """What to set and what to take back."""
    added: dict[str, str] = {}
    path = options.value("add-config-file")
    if path is not None:
        added.update(read_properties(path))
    text = options.value("add-config")
    if text is not None:
        for pair in re.split("," + _OUTSIDE, text):
            parts = re.split(r"\s*=\s*" + _OUTSIDE, pair)
            if len(parts) != 2:
                raise Failure(
                    "requirement failed: Invalid entity config: all configs to be added must be "
                    'in the format "key=val" or  "key=[val1,val2]" to group values which contain '
                    "commas."
                )
            added[parts[0].strip()] = parts[1].replace("[", "").replace("]", "").strip()
    for name in added:
        if not _KEY.fullmatch(name):
            raise Failure(f"Invalid character found for config key: {name}")
    deleted = [name.strip() for each in options.values("delete-config") for name in each.split(",")]
    return added, deleted


# -- the work


def _describe(admin: DirectAdmin, kind: str, name: str | None, everything: bool) -> None:
    known = _known(admin, kind)
    if (
        not everything
        and name
        and kind in ("topics", "brokers", "groups", "client-metrics")
        and name not in known
    ):
        print(
            f"The {kind.removesuffix('s')} '{name}' doesn't exist and doesn't have dynamic config."
        )
        return
    for each in known if name is None else [name]:
        if each:
            which = "All" if everything else "Dynamic"
            print(f"{which} configs for {kind.removesuffix('s')} {each} are:")
        else:
            print(f"Default configs for {kind} in the cluster are:")
        for entry in _own(admin, kind, each, everything):
            synonyms = ", ".join(
                f"{_SOURCE_NAMES[synonym.source]}:{synonym.name}={_java(synonym.value)}"
                for synonym in entry.synonyms
            )
            sensitive = "true" if entry.sensitive else "false"
            print(
                f"  {entry.name}={_java(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"
            )


def _alter(
    admin: DirectAdmin, kind: str, name: str, added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    if kind == "topics" and (problem := topic_name_problem(name)):
        raise Failure(f"Topic name is invalid: {problem}")
    if deleted:
        present = {entry.name for entry in _own(admin, kind, name, kind == "broker-loggers")}
        absent = [each for each in deleted if each not in present]
        if absent:
            raise Failure(f"Invalid config(s): {','.join(absent)}")
    changes: list[tuple[str, int, str | None]] = [
        *((each, _SET, value) for each, value in added.items()),
        *((each, _DELETE, None) for each in deleted),
    ]
    admin.alter_configs(_RESOURCES[kind], name, changes)
    if name:
        print(f"Completed updating config for {kind[:-1]} {name}.")
    else:
        print(f"Completed updating default config for {kind} in the cluster.")


def _known(admin: DirectAdmin, kind: str) -> list[str]:
    """All things of a kind that there are; the empty name is the default of all."""
    if kind == "topics":
        return sorted(admin.topics())
    if kind in ("brokers", "broker-loggers"):
        return [*(str(node.id) for node in admin.describe_cluster().nodes), ""]
    if kind == "groups":
        return sorted({*admin.groups(), *admin.config_resources(_RESOURCES[kind])})
    return admin.config_resources(_RESOURCES[kind])


def _own(admin: DirectAdmin, kind: str, name: str, everything: bool) -> list[ConfigEntry]:
    """Settings by name: all of them, or those that were changed on this very thing."""
    entries = sorted(admin.describe_configs(_RESOURCES[kind], name), key=lambda each: each.name)
    if everything or kind == "broker-loggers":
        return entries
    source = "broker-default" if kind == "brokers" and not name else _OWN_SOURCE[kind]
    return [entry for entry in entries if entry.source == source]


def _java(value: str | None) -> str:
    return "null" if value is None else value


def _not_served(kind: str) -> Failure:
    what = "connection quotas" if kind == "ips" else "quotas and credentials"
    return Failure(f"{kind} have no settings here: {what} are not served by this broker yet")
