"""docs/reference/config.md, made from the declarations.

`python -m ottla.config.reference > docs/reference/config.md` writes it; a test fails when the file
and the declarations differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ottla.config.broker import FAMILIES, BrokerConfig
from ottla.config.client_metrics import ClientMetricsConfig
from ottla.config.declare import Settings
from ottla.config.group import GroupConfig
from ottla.config.retired import RETIRED
from ottla.config.setting import (
    MAX_DOUBLE,
    MAX_INT,
    MAX_LONG,
    Setting,
)
from ottla.config.topic import TopicConfig

_INTRODUCTION = """\
# Settings

Names, types, defaults and limits are those of Apache Kafka 4.2 (`metrics.listen` and what begins
with `ottla.` are ours); an existing `server.properties` works unchanged. They are given in a file
(`ottla server start --config FILE`, Java's .properties format), by flags (`--set key=value`, which
come before the file), and, where *change* says so, while the broker runs (AlterConfigs,
IncrementalAlterConfigs).

A value that is not allowed stops the start, with every mistake named at once. A name that
nothing knows is a warning with the nearest name, or an error with `--strict`.

**effect**: *yes*, it does what is written; *later*, it belongs to a part that is not built yet,
and is accepted, kept and shown; *none*, it has no meaning here (threads of a JVM, Kafka's own
controller quorum, tiered storage, Java plug-ins), and is accepted and named once at start.

**change**: whether a running broker takes a new value. *no*; *each*, for one broker at a time;
*all*, for all brokers at once as well.
"""
_EFFECT = {"used": "yes", "later": "later", "none": "none"}
_CHANGE = {"read-only": "no", "per-broker": "each", "cluster-wide": "all"}


def render() -> str:
    """The whole page."""
    topics = _inherited(
        "Topics",
        "Given when a topic is created, or changed while it exists. What a topic does not have "
        "of its own is taken from the broker setting named in *else*.",
        TopicConfig.settings.values(),
    )
    groups = _inherited(
        "Groups",
        "What a group does not have of its own is taken from the broker setting in *else*.",
        GroupConfig.settings.values(),
    )
    subscriptions = _inherited(
        "Client metrics",
        "Settings of a subscription to what clients measure (`kafka-client-metrics`, "
        "[operations](../operations.md#clients-metrics)).",
        ClientMetricsConfig.settings.values(),
    )
    parts = (_differences(), topics, _brokers(), groups, subscriptions, _retired())
    return "\n".join([_INTRODUCTION, *parts])


def _differences() -> str:
    lines = [
        "## Defaults that differ from Kafka's",
        "",
        "| setting | here | Kafka | why |",
        "|---|---|---|---|",
    ]
    for one in BrokerConfig.settings.values():
        if one.differs is not None:
            kafka = f"`{one.differs.kafka}`" if one.differs.kafka else "must be given"
            lines.append(f"| `{one.name}` | {_default(one)} | {kafka} | {one.differs.why} |")
    lines += [
        "",
        "`log.dir` is relative to where the broker is started. Kafka refuses to start with "
        "`listeners=…://0.0.0.0:…` and nothing advertised; here a name or address of the host that "
        "other machines can reach is advertised then, as it is for an empty host.",
        "",
    ]
    return "\n".join(lines)


def _inherited(title: str, introduction: str, settings: Iterable[Setting]) -> str:
    lines = [
        f"## {title}",
        "",
        introduction,
        "",
        "| setting | type | default | allowed | else | effect | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in settings:
        synonym = f"`{one.synonym}`" if one.synonym else ""
        lines.append(
            f"| `{one.name}` | {_type(one)} | {_default(one)} | {one.allowed} | {synonym} "
            f"| {_EFFECT[one.effect]} | {_cell(one.doc)} |"
        )
    return "\n".join([*lines, ""])


def _brokers() -> str:
    return "\n".join(["## Brokers", "", *(_family(family) for family in FAMILIES)])


def _family(family: type[Settings]) -> str:
    title = (family.__doc__ or "").rstrip(".")
    lines = [
        f"### {title}",
        "",
        "| setting | type | default | allowed | change | effect | |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.name}` | {_type(one)} | {_default(one)} | {one.allowed} "
        f"| {_CHANGE[one.update]} | {_EFFECT[one.effect]} | {_cell(one.doc)} |"
        for one in family.settings.values()
    ]
    return "\n".join([*lines, ""])


def _retired() -> str:
    lines = [
        "## Names that Kafka itself no longer has",
        "",
        "Kafka 3.9 knew these. They are accepted, without effect.",
        "",
        "| setting | instead |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {why} |" for name, why in sorted(RETIRED.items())]
    return "\n".join([*lines, ""])


def _type(setting: Setting) -> str:
    return setting.type.name.lower()


def _default(setting: Setting) -> str:
    named = {MAX_LONG: "2⁶³-1", MAX_INT: "2³¹-1", MAX_DOUBLE: "unlimited"}
    if setting.default is None:
        return "null"
    if not isinstance(setting.default, (bool, str, tuple)) and setting.default in named:
        return named[setting.default]
    text = setting.format(setting.default)
    return f"`{_cell(text)}`" if text else "empty"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
