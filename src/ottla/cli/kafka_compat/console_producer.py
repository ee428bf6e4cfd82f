"""kafka-console-producer: lines of standard input become records.

Unlike Kafka's tool, records that were not stored make the exit code 1, and a topic that is not
there (and may not be created) is reported before anything is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.kafka_compat.client_properties import librdkafka_properties
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    BROKER_LIST,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    check_required,
    deprecated,
    explain,
    key_values,
    read_properties,
)
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.producer import Producer

READERS = (
    "org.apache.kafka.tools.LineMessageReader",
    "kafka.tools.ConsoleProducer$LineMessageReader",
)

PARSER = Parser(
    "kafka-console-producer",
    "Send the lines of standard input to a topic.",
    [
        BOOTSTRAP,
        BROKER_LIST,
        Option("topic", "The topic to send to (required).", "topic"),
        Option("sync", "Wait for each record to be stored before the next is read."),
        Option(
            "compression-codec",
            "none, gzip, snappy, lz4 or zstd; gzip when no name follows.",
            "codec",
            optional=True,
        ),
        Option("batch-size", "Bytes in a batch.", "size", int, default="16384"),
        Option("message-send-max-retries", "How often to try again.", "number", int),
        Option("retry-backoff-ms", "How long to wait before trying again.", "ms", int),
        Option("timeout", "How long a record may wait for others.", "ms", int),
        Option("request-required-acks", "Who must have a record: -1 or all, 1, 0.", "acks"),
        Option("request-timeout-ms", "How long a request may take.", "ms", int),
        Option("metadata-expiry-ms", "How long metadata is believed.", "ms", int),
        Option("max-block-ms", "How long to wait for room in the buffer.", "ms", int),
        Option("max-memory-bytes", "Bytes that may wait to be sent.", "size", int),
        Option("max-partition-memory-bytes", "The older name of --batch-size.", "size", int),
        Option("line-reader", "The reader of lines; there is one.", "class", default=READERS[0]),
        Option("socket-buffer-size", "The size of the socket's send buffer.", "size", int),
        Option(
            "reader-property",
            "How lines are read: parse.key, key.separator, parse.headers, headers.delimiter, "
            "headers.separator, headers.key.separator, ignore.error, null.marker.",
            "name=value",
        ),
        Option("property", "The older name of --reader-property.", "name=value"),
        Option("reader-config", "A file with reader properties.", "FILE"),
        Option("command-property", "A property of the producer.", "name=value"),
        Option("command-config", "A file with properties of the producer.", "FILE"),
        Option("producer-property", "The older name of --command-property.", "name=value"),
        Option("producer.config", "The older name of --command-config.", "FILE"),
    ],
)

# Flags that are producer properties under another name.
_AS_PROPERTIES = {
    "batch-size": "batch.size",
    "max-partition-memory-bytes": "batch.size",
    "message-send-max-retries": "retries",
    "retry-backoff-ms": "retry.backoff.ms",
    "timeout": "linger.ms",
    "request-required-acks": "acks",
    "request-timeout-ms": "request.timeout.ms",
    "metadata-expiry-ms": "metadata.max.age.ms",
    "max-memory-bytes": "buffer.memory",
    "socket-buffer-size": "send.buffer.bytes",
}

Headers = list[tuple[str, "bytes | None"]]


class Line(NamedTuple):
    """What one line says."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class LineReader:
    """Reads lines as Kafka's LineMessageReader does."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        def flag(name: str) -> bool:
            return properties.get(name, "").strip().lower() == "true"

        self.parse_key, self.parse_headers = flag("parse.key"), flag("parse.headers")
        self.ignore_error = flag("ignore.error")
        self.key_separator = properties.get("key.separator", "\t")
        self.delimiter = properties.get("headers.delimiter", "\t")
        self.separator = properties.get("headers.separator", ",")
        self.header_key_separator = properties.get("headers.key.separator", ":")
        self.null = properties.get("null.marker")
        self._check()
        self._split = re.compile(self.separator).split
        self.plain = not (self.parse_key or self.parse_headers or self.null is not None)

    def _check(self) -> None:
        pairs = (
            ("headers.delimiter", self.delimiter, "headers.separator", self.separator),
            (
                "headers.delimiter",
                self.delimiter,
                "headers.key.separator",
                self.header_key_separator,
            ),
            (
                "headers.separator",
                self.separator,
                "headers.key.separator",
                self.header_key_separator,
            ),
            ("null.marker", self.null, "key.separator", self.key_separator),
            ("null.marker", self.null, "headers.separator", self.separator),
            ("null.marker", self.null, "headers.delimiter", self.delimiter),
            ("null.marker", self.null, "headers.key.separator", self.header_key_separator),
        )
        for one, left, other, right in pairs:
            if left == right:
                raise Failure(f"{one} and {other} may not be equal")

    def read(self, line: str, number: int) -> Line:
        """What a line says; Failure when it has not the shape that was promised."""
        rest = line
        headers: str | None = None
        key: str | None = None
        if self.parse_headers:
            headers, rest = self._cut(line, rest, self.delimiter, "headers delimiter", number)
        if self.parse_key:
            key, rest = self._cut(line, rest, self.key_separator, "key separator", number)
        return Line(
            self._bytes(key),
            self._bytes(rest),
            [] if headers is None or headers == self.null else self._headers(headers, number),
        )

    def _cut(
        self, line: str, rest: str, mark: str, name: str, number: int
    ) -> tuple[str | None, str]:
        part, found, after = rest.partition(mark)
        if found:
            return part, after
        if self.ignore_error:
            return None, rest
        raise Failure(f"No {name} found on line number {number}: '{line}'")

    def _headers(self, text: str, number: int) -> Headers:
        found: Headers = []
        for pair in self._split(text):
            name, mark, value = pair.partition(self.header_key_separator)
            if not mark:
                if not self.ignore_error:
                    raise Failure(
                        f"No header key separator found in pair '{pair}' on line number {number}"
                    )
                found.append((pair, None))
                continue
            if name == self.null:
                raise Failure(
                    f"Header keys should not be equal to the null marker '{self.null}' as they "
                    f"can't be null"
                )
            found.append((name, self._bytes(value)))
        return found

    def _bytes(self, text: str | None) -> bytes | None:
        return (
            None if text is None or text == self.null else text.encode("utf-8", "surrogateescape")
        )


def main(arguments: Sequence[str]) -> int:
    """kafka-console-producer."""
    options = PARSER.parse(arguments)
    check_required(options, "topic")
    topic = options.required("topic")
    servers = _servers(options)
    properties = _producer_properties(options)
    reader = LineReader(_reader_properties(options))
    producer = _connect(servers, topic, options, properties)
    return _send(producer, topic, reader, options.has("sync"))


def _servers(options: Options) -> str:
    from ottla.client.settings import bootstrap_servers

    given = options.first_of("bootstrap-server", "broker-list")
    if given is None:
        raise UsageError('Missing required argument "[bootstrap-server]"')
    if not all(":" in server for server in given.split(",")):
        raise UsageError("Please provide valid host:port like host1:9091,host2:9092")
    try:
        return bootstrap_servers(given)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _producer_properties(options: Options) -> dict[str, str]:
    deprecated(options, "producer.config", "command-config", "Warning:")
    deprecated(options, "producer-property", "command-property", "Warning:")
    path = options.first_of("command-config", "producer.config")
    properties = {} if path is None else read_properties(path)
    properties |= key_values(options.values("producer-property"))
    properties |= key_values(options.values("command-property"))
    for flag, name in _AS_PROPERTIES.items():
        if options.has(flag):
            number = options.specs[flag].kind is int
            properties[name] = str(options.integer(flag)) if number else options.required(flag)
    if options.has("compression-codec"):
        properties["compression.type"] = (options.values("compression-codec") or ["gzip"])[0]
    properties.setdefault("client.id", "console-producer")
    return properties


def _reader_properties(options: Options) -> dict[str, str]:
    deprecated(options, "property", "reader-property", "Warning:")
    if options.value("line-reader") not in READERS:
        raise Failure(
            f"there is no line reader {options.value('line-reader')}; leave out --line-reader"
        )
    path = options.value("reader-config")
    properties = {} if path is None else read_properties(path)
    properties |= key_values(options.values("property"))
    return properties | key_values(options.values("reader-property"))


def _connect(
    servers: str, topic: str, options: Options, properties: Mapping[str, str]
) -> Producer[bytes | str, bytes | str]:
    import logging

    from ottla.client.contact import check_reachable
    from ottla.client.producer import Producer

    logging.getLogger("ottla.client").setLevel(logging.CRITICAL + 1)  # nor its FATAL lines
    config: dict[str, Any] = librdkafka_properties(properties)
    config.pop("bootstrap.servers", None)
    block = options.integer("max-block-ms")
    everyone = config.get("acks", "all") in ("all", "-1")
    acks = config.pop("acks", "all")
    chosen: dict[str, Any] = {
        "acks": "all" if everyone else int(acks),
        "max_block": 60.0 if block is None else block / 1000,
        "client_id": config.pop("client.id"),
    }
    for name, option in (("linger.ms", "linger"), ("delivery.timeout.ms", "delivery_timeout")):
        if name in config:
            chosen[option] = float(config.pop(name)) / 1000
    if "compression.type" in config:
        chosen["compression"] = config.pop("compression.type")
    if "enable.idempotence" in config:
        chosen["idempotent"] = config.pop("enable.idempotence") == "true"
    try:
        check_reachable(servers)
        producer: Producer[bytes | str, bytes | str] = Producer(servers, config=config, **chosen)
        producer.partitions(topic, timeout=5.0 if block is None else block / 1000)
    except ValueError as error:
        raise Failure(str(error)) from None
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise Failure(
                f"Topic {topic} not present in metadata; create it with kafka-topics --create "
                f"--topic {topic}"
            ) from None
        raise Failure(explain(error)) from None
    return producer


def _send(
    producer: Producer[bytes | str, bytes | str], topic: str, reader: LineReader, sync: bool
) -> int:
    code = 0
    try:
        _pump(producer, topic, reader, sync)
    except Failure as failure:
        print(failure.message, file=sys.stderr)
        code = 1
    except KafkaError as error:
        print(explain(error), file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130  # what was read is still sent
    try:
        producer.close()
    except KafkaError as error:
        print(f"Error when sending message to topic {topic}: {explain(error)}", file=sys.stderr)
        code = 1
    return code


def _pump(
    producer: Producer[bytes | str, bytes | str], topic: str, reader: LineReader, sync: bool
) -> None:
    prompt = sys.stdin.isatty() and sys.stdout.isatty()
    lines: Iterable[bytes] = sys.stdin.buffer
    post: Callable[..., None] = producer.post
    if reader.plain and not prompt and not sync:
        for text in lines:
            post(topic, _without_end(text))
        return
    if prompt:
        print(">", end="", flush=True)
    for number, text in enumerate(lines, 1):
        line = reader.read(_without_end(text).decode("utf-8", "surrogateescape"), number)
        if sync:
            producer.send(topic, line.value, key=line.key, headers=line.headers or None).result()
        else:
            post(topic, line.value, key=line.key, headers=line.headers or None)
        if prompt:
            print(">", end="", flush=True)


def _without_end(line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line
