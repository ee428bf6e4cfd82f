"""What a client is told before it starts: where the brokers are, and librdkafka's properties.

Every client takes `config=`, a mapping of librdkafka properties that wins over Ottla's own
defaults. Properties that the typed face relies on cannot be given there; the error names the
argument to use.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
ENVIRONMENT = "OTTLA_BOOTSTRAP"

LOGGER = logging.getLogger("ottla.client")

# What librdkafka says of every single connection, where `contact` says it once, and of
# transactions, where it is raised.
_CHATTER = frozenset({"FAIL", "ERROR", "CONNFAIL", "TXNERR", "GETPID", "ADDPARTS"})


class RdkafkaLog:
    """librdkafka's lines on their way to our log."""

    def log(self, level: int, message: str, *args: object) -> None:
        if args and args[0] in _CHATTER:
            level = logging.DEBUG
        LOGGER.log(level, message, *args)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


StatisticsCallback = Callable[[dict[str, Any]], None]
STATISTICS_DOC = (
    "Called with librdkafka's statistics, a dictionary, every five seconds (or as "
    "config={'statistics.interval.ms': ...} says), from inside a method of the client."
)
_STATISTICS_MS = 5_000

# Where confluent-kafka has a property, and we a keyword of the same meaning.
_KEYWORDS = {
    "acks": "acks",
    "auto.offset.reset": "reset",
    "client.id": "client_id",
    "compression.type": "compression",
    "enable.auto.commit": "auto_commit",
    "enable.idempotence": "idempotent",
    "group.id": "group",
    "partitioner": "partitioner",
}


def statistics(callback: StatisticsCallback | None) -> dict[str, object]:
    """librdkafka's properties for somebody who wants its statistics."""
    if callback is None:
        return {}

    def tell(text: str) -> None:
        # Raised, it would come out of a method that has done what it was asked to do, or end the
        # thread that serves the delivery reports.
        try:
            callback(json.loads(text))
        except Exception:
            LOGGER.exception("a statistics callback failed")

    return {"statistics.interval.ms": _STATISTICS_MS, "stats_cb": tell}


def bootstrap_servers(given: str | Iterable[str] | None = None, owner: str = "Admin") -> str:
    """The brokers to start from: what was given, else OTTLA_BOOTSTRAP, else 127.0.0.1:9092."""
    if isinstance(given, Mapping):
        raise TypeError(
            "the brokers come first, and options are keywords; instead of a mapping of "
            f"librdkafka's properties write ottla.{_as_call(owner, given)}"
        )
    if given is None:
        given = os.environ.get(ENVIRONMENT) or DEFAULT_BOOTSTRAP
    names = given.split(",") if isinstance(given, str) else list(given)
    servers = [f"{host}:{port}" for host, port in (parse_address(name) for name in names)]
    if not servers:
        raise ValueError(f"bootstrap names no broker; give HOST:PORT, such as {DEFAULT_BOOTSTRAP}")
    return ",".join(servers)


def _as_call(owner: str, given: Mapping[str, object]) -> str:
    """What to type in place of a configuration as confluent-kafka takes it."""
    keywords, rest = [], {}
    for name, value in given.items():
        if name in _KEYWORDS:
            keywords.append(f"{_KEYWORDS[name]}={value!r}")
        elif name != "bootstrap.servers":
            rest[name] = value
    if rest:
        keywords.append(f"config={rest!r}")
    arguments = [repr(given.get("bootstrap.servers", DEFAULT_BOOTSTRAP)), *keywords]
    return f"{owner}({', '.join(arguments)})"


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST, HOST:PORT or [IPV6]:PORT; the host of an IPv6 address keeps its brackets."""
    address = text.strip()
    host, port_text = address, ""
    if address.startswith("["):
        closing = address.find("]")
        host, port_text = address[: closing + 1], address[closing + 1 :].removeprefix(":")
    elif ":" in address:
        host, _, port_text = address.rpartition(":")
    port = DEFAULT_PORT
    if port_text:
        port = int(port_text) if port_text.isascii() and port_text.isdigit() else 0
    well_formed = host.endswith("]") if host.startswith("[") else host and ":" not in host
    if not well_formed or not 0 < port < 65536:
        hint = f"HOST:PORT, such as {DEFAULT_BOOTSTRAP}"
        if "://" in address:
            hint = f"it without {address.partition('://')[0]}://, as {hint}"
        elif not address.startswith("[") and address.count(":") > 1:
            hint = f"an IPv6 address in brackets, such as [::1]:{DEFAULT_PORT}"
        elif port_text and not 0 < port < 65536:
            hint += f"; {port_text!r} is no port, those are numbers from 1 to 65535"
        raise ValueError(f"{text!r} is not the address of a broker; give {hint}")
    return host, port


def librdkafka_config(
    own: Mapping[str, object],
    extra: Mapping[str, object] | None,
    reserved: Mapping[str, str],
) -> dict[str, object]:
    """Ottla's properties with the user's over them; `reserved` says what to use instead of some."""
    merged = dict(own)
    for name, value in (extra or {}).items():
        if name in reserved:
            raise ValueError(f"config may not set {name!r}: {reserved[name]}")
        merged[name] = value
    return merged


def check_options(owner: str, options: Mapping[str, object], known: type) -> None:
    """Refuse a misspelt keyword with the name that was probably meant."""
    names = known.__annotations__
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise TypeError(
                f"{owner} has no option {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(names)}")
                + " (librdkafka's own properties go into config=)"
            )


def sent_timestamp(moment: int | datetime | None) -> int:
    """A record's timestamp as librdkafka is told of it, for which 0 is none, and means now."""
    if moment is None:
        return 0
    timestamp = timestamp_ms(moment)
    if not timestamp:
        raise ValueError(
            f"a record cannot have the timestamp {moment}: librdkafka takes 0 for now. The first "
            f"one that can be sent is 1, a millisecond after 1970 began; None is now"
        )
    return timestamp


def timestamp_ms(moment: int | datetime) -> int:
    """Milliseconds since the epoch; a datetime without a zone is local time, and one before 1970
    is 0, since brokers take numbers below it for "latest", "earliest" and the like."""
    if isinstance(moment, datetime):
        return max(0, (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND)
    if isinstance(moment, bool) or not isinstance(moment, int):
        raise TypeError(
            f"a timestamp is a datetime or milliseconds since the epoch as an int, "
            f"not {type(moment).__name__}"
        )
    if moment < 0:
        raise ValueError(f"a timestamp is not negative, {moment} is")
    return moment
