"""kafka-broker-api-versions: which APIs each broker speaks, in which versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Parser,
    check_required,
    connect,
)

if TYPE_CHECKING:
    from ottla.client.descriptions import ApiSupport

PARSER = Parser(
    "kafka-broker-api-versions",
    "Show which APIs each broker speaks, in which versions.",
    [BOOTSTRAP, COMMAND_CONFIG],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-broker-api-versions."""
    if not arguments:
        sys.stderr.write(PARSER.help())
        return 1
    options = PARSER.parse(arguments)
    check_required(options, "bootstrap-server")
    with connect(options) as admin:
        fenced = admin.fenced_brokers()
        for node in admin.describe_cluster().nodes:
            rack = "null" if node.rack is None else node.rack
            shut_out = "true" if node.id in fenced else "false"
            lines = ",\n".join(f"\t{line(each)}" for each in admin.api_support(node.id))
            print(f"{node} (id: {node.id} rack: {rack} isFenced: {shut_out}) -> (\n{lines}\n)")
    return 0


def line(api: ApiSupport) -> str:
    """One API as Java prints it."""
    name = f"{api.name or 'UNKNOWN'}({api.key})"
    if api.minimum is None or api.maximum is None:
        return f"{name}: UNSUPPORTED"
    span = str(api.minimum)
    if api.maximum != api.minimum:
        span = f"{api.minimum} to {api.maximum}"
    if api.name is None:
        return f"{name}: {span}"
    usable = "UNSUPPORTED" if api.usable is None else str(api.usable)
    return f"{name}: {span} [usable: {usable}]"
