"""What several commands share: --bootstrap and --json, KEY=VALUE, names to complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ottla.client.groups import Groups
    from ottla.client.router import Router

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_TIMEOUT = 1.0

BEGUN_ANEW = "--begun-anew"
"""With this flag the process that runs brokers on this machine becomes the program that is on the
disk: whatever number was typed once, all brokers that it has run until now go on."""

# librdkafka would wait 50 ms before its first request rather than connect to more brokers than
# it needs. A command is over before that matters.
CONFIG = {"enable.sparse.connections": False}


def bootstrap_option(command: F) -> F:
    """`--bootstrap`, here or before the command; else the environment; else the default."""
    return click.option(
        "--bootstrap",
        metavar="HOST:PORT",
        callback=_resolve,
        help="The broker to ask, or several with commas.  "
        "[default: $OTTLA_BOOTSTRAP, or 127.0.0.1:9092]",
    )(command)


def json_option(command: F) -> F:
    """`--json`, as every command that prints something has it."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def _resolve(context: click.Context, _option: click.Parameter, given: str | None) -> str:
    from ottla.client.settings import bootstrap_servers

    try:
        return bootstrap_servers(given or context.find_root().params.get("bootstrap"))
    except ValueError as error:
        raise click.UsageError(str(error), context) from None


def connect(bootstrap: str) -> None:
    """Fail at once when nobody listens, rather than when librdkafka gives up."""
    from ottla.client.contact import check_reachable

    check_reachable(bootstrap)


def quiet_client_log() -> None:
    """Keep librdkafka's own lines off the terminal; what matters of them is raised. That a
    partition is offline is printed, since the others are read and written all the same."""
    import logging

    logging.getLogger("ottla.client").setLevel(logging.CRITICAL + 1)  # nor its FATAL lines
    logging.getLogger("ottla.client.offline").setLevel(logging.WARNING)


def settings(pairs: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE arguments as a mapping."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{option} {pair!r}: expected KEY=VALUE, as retention.ms=60000")
        result[name.strip()] = value.strip()
    return result


def unescape(text: str) -> str:
    r"""Let `\t`, `\n`, `\0` and `\\` be typed in a shell without its own quoting rules."""
    return (
        text.replace("\\\\", "\0\0")
        .replace("\\t", "\t")
        .replace("\\n", "\n")
        .replace("\\r", "\r")
        .replace("\\0", "\0")
        .replace("\0\0", "\\")
    )


def complete_topics(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Names of topics that begin so; none when no broker answers quickly."""
    from ottla.client.direct import DirectAdmin
    from ottla.client.settings import bootstrap_servers
    from ottla.errors import KafkaError

    given = context.params.get("bootstrap") or context.find_root().params.get("bootstrap")
    try:
        with DirectAdmin(bootstrap_servers(given), timeout=COMPLETION_TIMEOUT) as admin:
            topics = admin.list_topics()
    except (KafkaError, ValueError):
        return []
    return [topic.name for topic in topics if topic.name.startswith(incomplete)]


def open_router(bootstrap: str) -> Router:
    """A connection, or the complaint that there is none."""
    connect(bootstrap)
    from ottla.client.router import Router

    return Router(bootstrap, client_id="ottla-cli")


def open_groups(bootstrap: str, *, timeout: float = 30.0) -> Groups:
    """The same for questions about groups."""
    connect(bootstrap)
    from ottla.client.groups import Groups

    return Groups(bootstrap, timeout=timeout, client_id="ottla-cli")


def complete_groups(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Names of groups that begin so; none when no broker answers quickly."""
    from ottla.client.groups import Groups
    from ottla.client.settings import bootstrap_servers
    from ottla.errors import KafkaError

    given = context.params.get("bootstrap") or context.find_root().params.get("bootstrap")
    try:
        with Groups(bootstrap_servers(given), timeout=COMPLETION_TIMEOUT) as groups:
            found = groups.list_groups()
    except (KafkaError, ValueError):
        return []
    return sorted(each.name for each in found if each.name.startswith(incomplete))
