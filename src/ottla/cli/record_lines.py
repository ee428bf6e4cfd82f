"""Records as lines of text: what `ottla consume` prints, and what `ottla produce` reads.

A plain line is `headers TAB key SEPARATOR value`, where headers and key are there when asked for:
the shape that Kafka's console tools have. A line of JSON holds everything about a record, and what
one tool prints is what the other reads.
"""

from __future__ import annotations

import json
import string
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.harmless import for_terminals
from ottla.cli.options import unescape
from ottla.client.records import record_size

if TYPE_CHECKING:
    from ottla.client.records import Record

    Raw = Record[bytes, bytes]
    LineWriter = Callable[[Raw], bytes]

HeaderList = list[tuple[str, "bytes | None"]]

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")

_HEADERS_END = b"\t"
_READ = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
_IGNORED = ("topic", "offset", "timestamp_type")
_LATEST = 2**63 - 1
_CHUNK = 1 << 20


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
    partition: int | None = None
    timestamp: int | None = None

    @property
    def size(self) -> int:
        """Bytes of value, key and headers."""
        return record_size(self.key, self.value, self.headers)


class BadLine(Exception):
    """A line that does not have the shape the options promise."""


class LongLine(BadLine):
    """A line that is longer than anything that could be sent."""

    def __init__(self, size: int) -> None:
        super().__init__(f"has {size:,} bytes")
        self.size = size


class Shape(NamedTuple):
    """How lines are to be read."""

    separator: bytes | None = None
    headers_in_line: bool = False
    null: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    key: bytes | None = None
    is_json: bool = False


def parse(line: bytes, shape: Shape) -> Line:
    """What a line says, without its end."""
    if shape.is_json:
        return parse_json(line, shape.headers)
    headers = list(shape.headers)
    if shape.headers_in_line:
        head, tab, line = line.partition(_HEADERS_END)
        if not tab:
            raise BadLine("has no tab after its headers")
        headers += _line_headers(head)
    key = shape.key
    if shape.separator is not None:
        key, found, line = line.partition(shape.separator)
        if not found:
            raise BadLine(f"has no key separator {shape.separator.decode()!r}")
        if key == shape.null:
            key = None
    return Line(None if line == shape.null else line, key, headers)


def parse_json(text: bytes, more_headers: Sequence[tuple[str, bytes | None]] = ()) -> Line:
    """What a line of JSON says, in the form of `json_line`. Where the record came from (its topic
    and offset) says nothing about where it goes."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine(f"is not JSON: {error.msg} at character {error.pos + 1:,}") from None
    except (ValueError, RecursionError) as error:
        raise BadLine(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadLine('is not a JSON object, as {"key": "k", "value": "v"}')
    for name in document:
        if name not in _READ and name not in _IGNORED:
            raise BadLine(f"has an unknown field {name!r}; there are {', '.join(_READ)}")
    if "value" not in document and "value_base64" not in document:
        raise BadLine('has no value; one that is null is written "value": null')
    return Line(
        _json_data(document, "value"),
        _json_data(document, "key"),
        [*more_headers, *_json_headers(document.get("headers"))],
        _json_number(document, "partition", 2**31 - 1),
        _json_timestamp(document),
    )


def _json_data(document: dict[str, Any], name: str) -> bytes | None:
    text, encoded = document.get(name), document.get(f"{name}_base64")
    if encoded is None:
        return _json_text(text, name)
    if text is not None:
        raise BadLine(f"has both {name} and {name}_base64")
    return _json_base64(encoded, f"{name}_base64")


def _json_text(text: object, name: str) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadLine(f"has a {name} that is not a string; write JSON inside of one as text")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadLine(f"has a {name} with half a surrogate pair, which is no text") from None


def _json_base64(text: object, name: str) -> bytes:
    try:
        if isinstance(text, str):
            return b64decode(text, validate=True)
    except ValueError:
        pass
    raise BadLine(f"has a {name} that is not base64")


def _json_headers(given: object) -> HeaderList:
    headers: HeaderList = []
    if given is not None and not isinstance(given, list):
        raise BadLine("has headers that are not a list of [name, value]")
    for pair in given or ():
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadLine(f"has a header {pair!r} that is not [name, value]")
        name, value = pair
        _json_text(name, "header's name")
        if isinstance(value, dict) and list(value) == ["base64"]:
            headers.append((name, _json_base64(value["base64"], f"header {name!r}")))
        else:
            headers.append((name, _json_text(value, f"header {name!r}")))
    return headers


def _json_number(document: dict[str, Any], name: str, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadLine(f"has a {name} that is not a whole number from 0 to {most:,}")
    return value


def _json_timestamp(document: dict[str, Any]) -> int | None:
    if document.get("timestamp") == -1:
        return None  # a record of old that has none
    found = _json_number(document, "timestamp", _LATEST)
    if found == 0:
        raise BadLine("has the timestamp 0, which librdkafka takes for the present")
    return found


def bounded_lines(stream: IO[bytes], bound: int) -> Iterator[bytes]:
    """The lines of a stream; one of `bound` bytes or more is not kept in memory, but measured."""
    while line := stream.readline(bound):
        if len(line) == bound and not line.endswith(b"\n"):
            size = len(line)
            while rest := stream.readline(_CHUNK):
                size += len(rest)
                if rest.endswith(b"\n"):
                    break
            raise LongLine(size)
        yield line


def strip_end(line: bytes) -> bytes:
    r"""A line without its end, which is \n or \r\n as in Kafka's own tool."""
    if not line.endswith(b"\n"):
        return line
    return line[:-2] if line.endswith(b"\r\n") else line[:-1]


def _line_headers(text: bytes) -> HeaderList:
    headers: HeaderList = []
    for part in text.split(b",") if text else ():
        name, colon, value = part.partition(b":")
        if not colon or not name:
            raise BadLine(f"has a header {part.decode(errors='replace')!r}, not NAME:VALUE")
        headers.append((name.decode(errors="replace"), value))
    return headers
