"""Records as lines of text: what `ottla consume` prints, and what `ottla produce` reads.

A plain line is `headers TAB key SEPARATOR value`, where headers and key are there when asked for:
the shape that Kafka's console tools have. A line of JSON holds everything about a record.
"""

from __future__ import annotations

import json
import string
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.cli.options import unescape
from ottla.cli.output import for_terminals

if TYPE_CHECKING:
    from ottla.client.records import Record

    Raw = Record[bytes, bytes]
    LineWriter = Callable[[Raw], bytes]

HeaderList = list[tuple[str, "bytes | None"]]

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")

_HEADERS_END = b"\t"


# -- out


def for_terminal(write: LineWriter) -> LineWriter:
    """The same lines, harmless to a terminal."""
    return lambda record: for_terminals(write(record))


def line_writer(
    as_json: bool, template: str | None, with_key: bool, with_headers: bool, null: str
) -> LineWriter:
    """The function that makes a line of a record."""
    if as_json:
        return json_line
    if template is not None:
        return template_writer(unescape(template), null)
    nothing = null.encode()

    def write(record: Raw) -> bytes:
        parts = [nothing if record.value is None else record.value]
        if with_key:
            parts.insert(0, nothing if record.key is None else record.key)
        if with_headers:
            parts.insert(0, header_text(record, nothing))
        return b"\t".join(parts) + b"\n"

    return write


def template_writer(template: str, null: str) -> LineWriter:
    """Lines after a template with {fields}."""
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise click.UsageError(f"--format {template!r}: {error}") from None
    for name in used:
        if name not in FIELDS:
            fields = " ".join(f"{{{field}}}" for field in FIELDS)
            raise click.UsageError(f"--format has no field {{{name}}}; there are {fields}")
    nothing = null.encode()

    def text(data: bytes | None) -> str:
        return null if data is None else data.decode("utf-8", "surrogateescape")

    def write(record: Raw) -> bytes:
        line = template.format(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp,
            time=record.time.isoformat(timespec="milliseconds") if "time" in used else "",
            key=text(record.key),
            value=text(record.value),
            headers=text(header_text(record, nothing)) if "headers" in used else "",
        )
        return line.encode("utf-8", "surrogateescape") + b"\n"

    return write


def header_text(record: Raw, nothing: bytes) -> bytes:
    """Headers as `ottla produce --headers-in-line` reads them."""
    return b",".join(
        name.encode() + b":" + (nothing if value is None else value)
        for name, value in record.headers
    )


def json_line(record: Raw) -> bytes:
    """A record as one line of JSON."""
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text = readable(data)
        document[name] = text
        if data is not None and text is None:
            document[f"{name}_base64"] = b64encode(data).decode()
    headers: list[list[object]] = []
    for name, data in record.headers:
        text = readable(data)
        undecodable = data is not None and text is None
        headers.append([name, {"base64": b64encode(data or b"").decode()} if undecodable else text])
    document["headers"] = headers
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def readable(data: bytes | None) -> str | None:
    """Text, if it is text."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


# -- in


class Line(NamedTuple):
    """What one line says."""

    value: bytes | None
    key: bytes | None
    headers: HeaderList


class BadLine(Exception):
    """A line that does not have the shape the options promise."""


class Shape(NamedTuple):
    """How lines are to be read."""

    separator: bytes | None = None
    headers_in_line: bool = False
    null: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def parse(line: bytes, shape: Shape) -> Line:
    """What a line says, without its end."""
    headers = list(shape.headers)
    if shape.headers_in_line:
        head, tab, line = line.partition(_HEADERS_END)
        if not tab:
            raise BadLine("has no tab after its headers")
        headers += _line_headers(head)
    key: bytes | None = None
    if shape.separator is not None:
        key, found, line = line.partition(shape.separator)
        if not found:
            raise BadLine(f"has no key separator {shape.separator.decode()!r}")
        if key == shape.null:
            key = None
    return Line(None if line == shape.null else line, key, headers)


def strip_ends(lines: Iterable[bytes]) -> Iterator[bytes]:
    r"""Lines without their ends, which are \n or \r\n as in Kafka's own tool."""
    for line in lines:
        if line.endswith(b"\n"):
            yield line[:-2] if line.endswith(b"\r\n") else line[:-1]
        else:
            yield line


def _line_headers(text: bytes) -> HeaderList:
    headers: HeaderList = []
    for part in text.split(b",") if text else ():
        name, colon, value = part.partition(b":")
        if not colon or not name:
            raise BadLine(f"has a header {part.decode(errors='replace')!r}, not NAME:VALUE")
        headers.append((name.decode(errors="replace"), value))
    return headers
