"""kafka-groups: list groups of every type, those of consumers and all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Failure,
    Option,
    Parser,
    UsageError,
    bootstrap_of,
    check_excluded,
    check_required,
    read_properties,
)
from ottla.client.groups import CONSUMER, GroupListing, Groups

TYPES = ("classic", "consumer", "share", "streams")
_FILTERS = ("consumer", "group-type", "protocol", "share", "streams")

PARSER = Parser(
    "kafka-groups",
    "List groups of all types.",
    [
        BOOTSTRAP,
        COMMAND_CONFIG,
        Option("list", "List the groups."),
        Option("consumer", "Only groups of consumers: type consumer, and those of type classic "
               "whose protocol is 'consumer' or empty."),
        Option("group-type", "Only this type: classic, consumer, share or streams.", "type"),
        Option("protocol", "Only this protocol.", "protocol"),
        Option("share", "Only share groups."),
        Option("streams", "Only streams groups."),
    ],
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The tool."""
    options = PARSER.parse(arguments)
    check_required(options, "bootstrap-server")
    if not options.has("list"):
        raise UsageError("Command must include exactly one action: --list.")
    kind = options.value("group-type")
    if kind is not None and kind.lower() not in TYPES:
        raise UsageError("--group-type must be a valid group type.")
    for name in ("consumer", "share", "streams"):
        check_excluded(options, name, *(other for other in _FILTERS if other != name))
    config = {}
    if options.has("command-config"):
        config = read_properties(options.required("command-config"))
    for name in ("share", "streams"):
        if options.has(name):
            kind = name
    bootstrap = bootstrap_of(options)
    try:
        groups = Groups(bootstrap, client_id="kafka-groups", config=config)
    except ValueError as error:
        raise Failure(str(error)) from None
    with groups:
        found = groups.list_groups()
    for line in table(
        chosen(found, kind, options.value("protocol"), consumers=options.has("consumer"))
    ):
        print(line)
    return 0


def chosen(
    groups: Iterable[GroupListing], kind: str | None, protocol: str | None, *, consumers: bool
) -> list[GroupListing]:
    """Those that the filters let through."""
    return [
        each
        for each in groups
        if (kind is None or each.type.lower() == kind.lower())
        and (protocol is None or each.protocol == protocol)
        and (not consumers or of_consumers(each))
    ]


def of_consumers(group: GroupListing) -> bool:
    """Formed by consumers, or by somebody who commits offsets without joining."""
    return group.type == "Consumer" or (
        group.type == "Classic" and group.protocol in ("", CONSUMER)
    )


def table(groups: Sequence[GroupListing]) -> Iterable[str]:
    """Three columns as wide as the longest cell; every line but the first ends in a space."""
    rows = [(each.name, each.type, each.protocol) for each in groups]
    width = max([20, *(len(cell) for row in rows for cell in row)])
    yield " ".join(cell.ljust(width) for cell in ("GROUP", "TYPE", "PROTOCOL"))
    for row in rows:
        yield "".join(f"{cell.ljust(width)} " for cell in row)
