"""`ottla config`: the settings of topics, brokers and groups, shown and changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Noun
from ottla.cli.names import nearest
from ottla.cli.options import bootstrap_option, connect, json_option, settings
from ottla.cli.output import Column, broker_errors, show_json, show_table
from ottla.cli.patience import patience
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.descriptions import ConfigEntry
    from ottla.client.direct import DirectAdmin

_KINDS = ("topic", "broker", "group")

# Where a value comes from when nobody set it on the thing itself.
_OWN_SOURCES: Mapping[str, frozenset[str]] = {
    "topic": frozenset({"topic"}),
    "broker": frozenset({"broker", "broker-default", "static"}),
    "group": frozenset({"group"}),
}


@click.group(cls=Noun)
def config() -> None:
    """Show and change settings of topics, brokers and groups."""


def _open(bootstrap: str) -> DirectAdmin:
    connect(bootstrap)
    from ottla.client.direct import DirectAdmin

    return DirectAdmin(bootstrap, client_id="ottla-cli")


def _number(kind: str) -> int:
    from ottla.client.direct import BROKER, GROUP, TOPIC

    return {"topic": TOPIC, "broker": BROKER, "group": GROUP}[kind]


@config.command()
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Also what nobody has set.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only this one; repeatable.")
@bootstrap_option
@json_option
def describe(
    kind: str, name: str, everything: bool, keys: tuple[str, ...], bootstrap: str, as_json: bool
) -> None:
    """Show the settings of a topic, a broker (by its number) or a group.

    SOURCE says where a value was set: on the topic, on the broker, for all brokers
    (broker-default), in the configuration file (static), or nowhere (default).

    \b
    JSON: {"kind", "name", "settings": [{"key", "value", "source", "read_only", "sensitive"}]}
    """
    topics = [name] if kind == "topic" else []
    with broker_errors(bootstrap, topics=topics), _open(bootstrap) as admin:
        _check_name(kind, name)
        found = admin.describe_configs(_number(kind), name, keys=keys or None)
        missing = [key for key in keys if key not in {each.name for each in found}]
        if missing:
            everything_there = admin.describe_configs(_number(kind), name)
            near = nearest(missing[0], (each.name for each in everything_there))
            raise click.ClickException(
                f"{kind} {name} has no setting {missing[0]!r}"
                + (f"; did you mean {near!r}?" if near else "; --all shows those it has")
            )
    own = _OWN_SOURCES[kind]
    chosen = sorted(
        (each for each in found if everything or keys or each.source in own),
        key=lambda each: each.name,
    )
    if as_json:
        show_json(
            {
                "kind": kind,
                "name": name,
                "settings": [
                    {
                        "key": each.name,
                        "value": each.value,
                        "source": each.source,
                        "read_only": each.read_only,
                        "sensitive": each.sensitive,
                    }
                    for each in chosen
                ],
            }
        )
        return
    show_table(
        [Column("KEY"), Column("VALUE"), Column("SOURCE")],
        [(each.name, _shown(each), each.source) for each in chosen],
        title=f"{kind} {name}"
        if chosen
        else f"{kind} {name}  nothing is set; --all shows defaults",
    )


def _shown(entry: ConfigEntry) -> str | None:
    return "(hidden)" if entry.sensitive else entry.value


@config.command()
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("name")
@click.option("--set", "changed", multiple=True, metavar="KEY=VALUE", help="Set; repeatable.")
@click.option("--delete", "deleted", multiple=True, metavar="KEY", help="Back to the default.")
@click.option("--append", "appended", multiple=True, metavar="KEY=VALUE", help="Add to a list.")
@click.option("--subtract", "removed", multiple=True, metavar="KEY=VALUE", help="Take from a list.")
@bootstrap_option
@json_option
def alter(
    kind: str,
    name: str,
    changed: tuple[str, ...],
    deleted: tuple[str, ...],
    appended: tuple[str, ...],
    removed: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Change settings of a topic, a broker (by its number) or a group.

    All of them or, if one is refused, none.

    JSON: {"kind", "name", "set": {key: value}, "deleted": [key], "appended": {key: value},
    "subtracted": {key: value}}
    """
    from ottla.client.direct import APPEND, DELETE, SET, SUBTRACT

    sets, appends = settings(changed, "--set"), settings(appended, "--append")
    subtracts = settings(removed, "--subtract")
    changes: list[tuple[str, int, str | None]] = [
        *((key, SET, value) for key, value in sets.items()),
        *((key, APPEND, value) for key, value in appends.items()),
        *((key, SUBTRACT, value) for key, value in subtracts.items()),
        *((key, DELETE, None) for key in deleted),
    ]
    if not changes:
        raise click.UsageError("nothing to change; give --set, --delete, --append or --subtract")
    topics = [name] if kind == "topic" else []
    with broker_errors(bootstrap, topics=topics), _open(bootstrap) as admin, patience():
        _check_name(kind, name)
        try:
            admin.alter_configs(_number(kind), name, changes)
        except KafkaError as error:
            raise KafkaError(
                error.code, f"{(error.message or error.code.text).rstrip('.')}; nothing was changed"
            ) from None
    if as_json:
        show_json(
            {
                "kind": kind,
                "name": name,
                "set": sets,
                "deleted": list(deleted),
                "appended": appends,
                "subtracted": subtracts,
            }
        )
    else:
        click.echo(f"altered {kind} {name}")


def _check_name(kind: str, name: str) -> None:
    if kind == "broker" and not (name.isascii() and name.isdigit()):
        raise click.UsageError(f"a broker is named by its number, not {name!r}")
