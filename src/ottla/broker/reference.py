"""Two pages of docs/reference, made from what a broker really has.

`protocol-support.md` comes from the table of handlers and their docstrings, `metrics.md` from a
broker that is started for the purpose, since a metric exists when something registers it and not
because a list says so. `make docs` writes both (`ottla.cli.reference`); a test compares.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
import tempfile
import textwrap
from collections.abc import Iterator

from ottla.config.load import load
from ottla.dispatch.table import Handler, Table
from ottla.handlers import HANDLERS
from ottla.runtime.metrics import LATENCY_BOUNDS, Reading

_PROTOCOL = """\
# Protocol support

<!-- Made by `make docs` from the table of handlers; a test compares. -->

ApiVersions answers from the same table, so a client is told exactly this (client telemetry only
while it is wanted). The ranges are those of
Apache Kafka 4.2's broker listener; where one differs, Kafka's stands beside it.

| key | API | versions |
|---:|---|---|
"""

_OWN = """
## Ours

For our own tools. ApiVersions does not list them, so that no client of Kafka's is surprised.

| key | API | versions |
|---:|---|---|
"""

_UNSERVED = """
## Not served yet

Kafka 4.2 has these as well. ApiVersions does not list them, so clients do not try; whoever sends
one nevertheless has the connection closed, as Kafka does with what it does not know.

"""

_METRICS = """\
# Metrics

<!-- Made by `make docs` from a broker that was started for it; a test compares. -->

A broker with [`metrics.listen`](config.md) serves all of this at `/metrics`, in Prometheus' text
format, and in OpenMetrics' for those who ask for that. Everything is counted from the start of the
process. What the numbers are good for: [operations](../operations.md#metrics).

**Names.** Where Kafka has an MBean for the same thing, the name is that MBean's: domain, type and
name in snake case, one after the other, and its other properties as labels. What only grows
(`PerSec`, counts) ends in `_total`; `Ms` and `Secs` become `_seconds`, `Percent` becomes `_ratio`.
So `kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=t` is
`kafka_server_broker_topic_metrics_messages_in_total{topic="t"}`. What has no such name begins with
`ottla_`; `process_` is what every Python program with Prometheus' library has, and `client_` what
[clients have pushed](../operations.md#clients-metrics), which is not listed here.

**Bounds.** The first 1,000 topics have series of their own, all others are counted together under
the topic `(others)`; of the lags of groups the 1,000 largest are shown, for groups whose partitions
this broker has replicas of. So nobody can make the page grow without end.

| metric | kind | labels | meaning |
|---|---|---|---|
"""

_WIDTH = 100
_LABELS = re.compile(r"^(Versions|Behaviour|Odd|Not done|See)\s+", re.MULTILINE)

# ApiVersions 0 without a client id: length, key, version, correlation id, null.
_ASK_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


# --- protocol -------------------------------------------------------------------------------------


def render_protocol() -> str:
    """docs/reference/protocol-support.md."""
    table = list(Table(HANDLERS))
    rows = "".join(f"{_row(handler)}\n" for handler in table if not handler.key.is_own)
    own = "".join(f"{_row(handler)}\n" for handler in table if handler.key.is_own)
    modules = dict.fromkeys(handler.function.__module__ for handler in table)
    sections = "".join(f"\n{_section(_docstring(name))}" for name in modules)
    return _PROTOCOL + rows + _OWN + own + sections + _UNSERVED + _unserved(table)


def _row(handler: Handler) -> str:
    spec = handler.spec
    title, _ = _head(_docstring(handler.function.__module__))
    versions = _span(handler.versions[0], handler.versions[-1])
    kafka = _span(spec.min_version, spec.max_version)
    if versions != kafka:
        versions = f"{versions} (Kafka: {kafka})"
    return f"| {int(handler.key)} | [{spec.name}](#{_anchor(title)}) | {versions} |"


def _section(doc: str) -> str:
    """A handler's docstring as a section: each of its labelled paragraphs becomes one."""
    title, summary = _head(doc)
    lines = [f"## {title}", ""]
    if summary:
        lines += [f"{summary[0].upper()}{summary[1:]}", ""]
    for label, text in paragraphs(doc):
        lines += [_wrapped(f"**{label}.** {text}"), ""]
    return "\n".join(lines)


def paragraphs(doc: str) -> Iterator[tuple[str, str]]:
    """The labelled paragraphs of a handler's docstring."""
    parts = _LABELS.split(doc)[1:]
    for label, text in zip(parts[::2], parts[1::2], strict=True):
        yield label, " ".join(text.split())


def _head(doc: str) -> tuple[str, str]:
    """What a docstring's first paragraph names, and what it says of that: `Names (…): summary.`"""
    first = " ".join(doc.partition("\n\n")[0].split())
    title, _, summary = first.partition(": ")
    return title.rstrip("."), summary


def _unserved(table: list[Handler]) -> str:
    served = {handler.key for handler in table}
    keys = type(table[0].key)
    names = [f"{key.api_name} ({int(key)})" for key in keys if key not in served]
    return _wrapped(f"{', '.join(names)}.") + "\n"


def _docstring(module: str) -> str:
    return sys.modules[module].__doc__ or ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _anchor(title: str) -> str:
    """The anchor that a Markdown renderer gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# --- metrics --------------------------------------------------------------------------------------


def render_metrics() -> str:
    """docs/reference/metrics.md."""
    rows = []
    for metric in asyncio.run(registered()):
        shown = ", ".join(f"`{label}`" for label in metric.names)
        rows.append(f"| `{metric.name}` | {metric.kind} | {shown} | {metric.help} |\n")
    bounds = ", ".join(f"{bound:g}" for bound in LATENCY_BOUNDS)
    tail = _wrapped(f"Histograms are in seconds and have the bounds {bounds}.")
    return f"{_METRICS}{''.join(sorted(rows))}\n{tail}\n"


async def registered() -> list[Reading]:
    """Every metric of a broker that has answered a request."""
    from ottla.broker.app import Broker
    from ottla.broker.metrics_page import documented

    with tempfile.TemporaryDirectory() as folder:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": folder}
        broker = Broker(load(None, settings).config)
        await broker.start()
        try:
            await _ask_once(broker.endpoints[0].port)
            return documented(broker.metrics, broker.data_dirs)
        finally:
            await broker.stop()


async def _ask_once(port: int) -> None:
    """One request: those metrics that carry an API's name appear with its first request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_ASK_VERSIONS)
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(length)
    finally:
        writer.close()
        await writer.wait_closed()
