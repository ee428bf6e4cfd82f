"""kafka-console-consumer: the records of a topic on standard output.

Without --group Kafka's tool invents a group to read a topic. Where one topic is read we assign
its partitions instead: that gives the same records without the seconds that a group takes to
form. Records go out in the bytes they came in; the count goes to stderr at the end.
"""

from __future__ import annotations

import random
import signal
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Self

from ottla.cli.harmless import for_terminals
from ottla.cli.kafka_compat.client_properties import librdkafka_properties
from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    BROKER_LIST,
    Failure,
    Option,
    Options,
    Parser,
    UsageError,
    bootstrap_of,
    deprecated,
    explain,
    key_values,
    read_properties,
)
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.consumer import Consumer
    from ottla.client.records import Record

    Raw = Record[bytes, bytes]

DEFAULT_FORMATTER = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
_BATCH = 1000
_SLICE = 0.2

PARSER = Parser(
    "kafka-console-consumer",
    "Print the records of topics.",
    [
        BOOTSTRAP,
        BROKER_LIST,
        Option("topic", "The topic to read.", "topic"),
        Option("include", "A regular expression for the topics to read.", "regex"),
        Option("partition", "Read this partition only.", "number", int),
        Option("offset", "With --partition: where to start.", "number, earliest or latest"),
        Option("from-beginning", "Start with the first record rather than with the next."),
        Option("group", "The group to read for.", "group"),
        Option("max-messages", "End after so many records.", "number", int),
        Option("timeout-ms", "End when nothing came for so long.", "ms", int),
        Option(
            "isolation-level",
            "read_committed or read_uncommitted.",
            "level",
            default="read_uncommitted",
        ),
        Option("skip-message-on-error", "Go on after a record that cannot be printed."),
        Option("formatter", "How records are printed.", "class", default=DEFAULT_FORMATTER),
        Option(
            "formatter-property",
            "print.timestamp, print.key, print.offset, print.epoch, print.partition, "
            "print.headers, print.value, key.separator, line.separator, headers.separator, "
            "null.literal, key.deserializer, value.deserializer, headers.deserializer.",
            "name=value",
        ),
        Option("property", "The older name of --formatter-property.", "name=value"),
        Option("formatter-config", "A file with formatter properties.", "FILE"),
        Option("key-deserializer", "What keys are.", "class"),
        Option("value-deserializer", "What values are.", "class"),
        Option("command-property", "A property of the consumer.", "name=value"),
        Option("command-config", "A file with properties of the consumer.", "FILE"),
        Option("consumer-property", "The older name of --command-property.", "name=value"),
        Option("consumer.config", "The older name of --command-config.", "FILE"),
        Option("enable-systest-events", "Also say when the tool has shut down."),
        Option("new-consumer", "", hidden=True),
        Option("frombeginning", "", hidden=True),
    ],
)


def main(arguments: Sequence[str]) -> int:
    """kafka-console-consumer."""
    options = PARSER.parse(arguments)
    _check(options)
    properties = _consumer_properties(options)
    group = _group(options, properties)
    start = _start(options)
    format_record = formatter(options)
    servers = bootstrap_of(options, "bootstrap-server", "broker-list")
    most = options.integer("max-messages")
    timeout = options.integer("timeout-ms")
    printed = [0]
    code = 0
    try:
        with _Terminated() as signals, _open(servers, properties, group, options) as consumer:
            _begin(consumer, options, group, start)
            _copy(
                consumer,
                sys.stdout.buffer,
                format_record,
                printed,
                None if most is None or most < 0 else most,
                None if timeout is None or timeout < 0 else timeout / 1000,
                options.has("skip-message-on-error"),
                signals,
            )
            code = signals.code
            if group is not None and printed[0]:
                _commit(consumer, properties)
    except _Stop as stop:
        code = stop.code
    except KafkaError as error:
        raise Failure(explain(error)) from None
    print(f"Processed a total of {printed[0]} messages", file=sys.stderr)
    if options.has("enable-systest-events"):
        print("shutdown_complete")
    return code


# -- what the arguments mean


def _check(options: Options) -> None:
    if options.has("topic") == options.has("include"):
        raise UsageError("Exactly one of the following arguments is required: [topic], [include]")
    if options.has("partition"):
        if not options.has("topic"):
            raise UsageError("The topic is required when partition is specified.")
        if _from_beginning(options) and options.has("offset"):
            raise UsageError("Options from-beginning and offset cannot be specified together.")
    elif options.has("offset"):
        raise UsageError("The partition is required when offset is specified.")
    if not options.has("bootstrap-server") and not options.has("broker-list"):
        raise UsageError('Missing required argument "[bootstrap-server]"')


def _from_beginning(options: Options) -> bool:
    return options.has("from-beginning") or options.has("frombeginning")


def _consumer_properties(options: Options) -> dict[str, str]:
    deprecated(options, "consumer-property", "command-property")
    deprecated(options, "consumer.config", "command-config")
    path = options.first_of("command-config", "consumer.config")
    properties = {} if path is None else read_properties(path)
    given = key_values([*options.values("consumer-property"), *options.values("command-property")])
    groups = [
        each
        for each in (options.value("group"), properties.get("group.id"), given.get("group.id"))
        if each is not None
    ]
    if len(set(groups)) > 1:
        found = ", ".join(f"'{each}'" for each in dict.fromkeys(groups))
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via "
            "'--consumer-property', or via '--consumer.config') do not match. Detected group ids: "
            f"{found}"
        )
    if groups and options.has("partition"):
        raise UsageError("Options group and partition cannot be specified together.")
    properties |= given
    reset = properties.get("auto.offset.reset")
    if reset not in (None, "earliest") and _from_beginning(options):
        raise Failure(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', "
            f"please remove one option"
        )
    if options.has("isolation-level") or "isolation.level" not in properties:
        properties["isolation.level"] = options.required("isolation-level")
    if groups:
        properties["group.id"] = groups[0]
    properties.setdefault("auto.offset.reset", "earliest" if _from_beginning(options) else "latest")
    properties.setdefault("client.id", "console-consumer")
    return properties


def _group(options: Options, properties: Mapping[str, str]) -> str | None:
    """The group to join; None where the partitions of one topic are simply read."""
    group = properties.get("group.id")
    if group is None and options.has("include"):
        return f"console-consumer-{random.SystemRandom().randrange(100_000)}"
    return group


def _start(options: Options) -> Any:
    text = options.value("offset")
    if text is None:
        return "earliest" if _from_beginning(options) else "latest"
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', "
            f"'latest', or a non-negative long."
        )
    return int(text)


# -- reading


def _open(
    servers: str, properties: Mapping[str, str], group: str | None, options: Options
) -> Consumer[bytes, bytes]:
    import logging

    from ottla.client.consumer import Consumer
    from ottla.client.contact import check_reachable

    logging.getLogger("ottla.client").setLevel(logging.CRITICAL + 1)  # nor its FATAL lines
    check_reachable(servers)
    config: dict[str, Any] = {"allow.auto.create.topics": "true"}
    config |= librdkafka_properties(properties)
    reset = config.pop("auto.offset.reset")
    isolation = config.pop("isolation.level")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise Failure(
            f"Invalid value {isolation} for configuration isolation.level: String must be one of: "
            f"read_committed, read_uncommitted"
        )
    if reset not in ("earliest", "latest", "none"):
        raise Failure(
            f"Invalid value {reset} for configuration auto.offset.reset: give earliest, latest or "
            f"none"
        )
    for name in ("bootstrap.servers", "group.id"):
        config.pop(name, None)
    invented = group is not None and not properties.get("group.id")
    automatic = config.pop("enable.auto.commit", "false" if invented else "true") == "true"
    chosen: dict[str, Any] = {} if group is None else {"group": group, "auto_commit": automatic}
    try:
        return Consumer(
            servers,
            reset="error" if reset == "none" else reset,
            read_uncommitted=isolation == "read_uncommitted",
            config=config,
            **chosen,
        )
    except ValueError as error:
        raise Failure(str(error)) from None


def _begin(
    consumer: Consumer[bytes, bytes], options: Options, group: str | None, start: Any
) -> None:
    topic = options.value("topic")
    if topic is None:
        from ottla.cli.kafka_compat.topics import topic_pattern

        consumer.subscribe(f"^({topic_pattern(options.required('include')).pattern})$")
    elif group is not None:
        consumer.subscribe(topic)
    else:
        try:
            partitions = consumer.partitions(topic)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise Failure(
                    f"Topic {topic} does not exist; create it with kafka-topics --create --topic "
                    f"{topic}"
                ) from None
            if error.code is ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise Failure(f"Invalid topics: [{topic}]") from None
            raise
        number = options.integer("partition")
        if number is not None:
            partitions = tuple(each for each in partitions if each.partition == number)
            if not partitions:
                raise Failure(
                    f"Topic {topic} has no partition {number}; kafka-topics --describe lists those "
                    f"it has"
                )
        consumer.assign(partitions, start)


def _copy(
    consumer: Consumer[bytes, bytes],
    output: IO[bytes],
    format_record: Callable[[Raw], bytes],
    printed: list[int],
    most: int | None,
    timeout: float | None,
    skip: bool,
    signals: _Terminated,
) -> None:
    """Print until there is a reason to stop; `printed` counts. A signal stops it between two
    batches, so that what is printed can be committed as a whole."""
    import time

    last = time.monotonic()
    while not signals.code and (most is None or printed[0] < most):
        want = _BATCH if most is None else min(_BATCH, most - printed[0])
        with signals.raised():
            records = consumer.take(want, _SLICE)
        if not records:
            if timeout is not None and time.monotonic() - last > timeout:
                return
            continue
        for record in records:
            printed[0] += 1
            try:
                output.write(format_record(record))
            except (ValueError, struct.error) as error:
                if not skip:
                    output.flush()
                    raise Failure(
                        f"Offset {record.offset} of {record.topic}-{record.partition} cannot be "
                        f"printed ({error}); --skip-message-on-error goes on"
                    ) from None
        output.flush()
        last = time.monotonic()


def _commit(consumer: Consumer[bytes, bytes], properties: Mapping[str, str]) -> None:
    """What was printed is done: nothing of it is to be read again by the group."""
    named = "group.id" in properties
    if properties.get("enable.auto.commit", "true" if named else "false") == "true":
        consumer.commit()


class _Stop(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Terminated:
    """Turns SIGINT and SIGTERM into the exit code that Java has for them, `code`. Where they are
    `raised`, and the second time anywhere, they are `_Stop`."""

    def __init__(self) -> None:
        self.code = 0
        self._raising = True

    @contextmanager
    def raised(self) -> Iterator[None]:
        """The first one ends what is inside, and from now on nothing else."""
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def __enter__(self) -> Self:
        def stop(number: int, _frame: object) -> None:
            again, self.code = self.code != 0, 128 + number
            if again or self._raising:
                raise _Stop(self.code)

        try:
            self._kept = {
                number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
            }
        except ValueError:  # not in the main thread: then there are no signals to take either
            self._kept = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._kept.items():
            signal.signal(number, handler)


# -- printing


def formatter(options: Options) -> Callable[[Raw], bytes]:
    """The function that makes bytes of a record."""
    deprecated(options, "property", "formatter-property")
    path = options.value("formatter-config")
    properties = {} if path is None else read_properties(path)
    for name in ("key", "value"):
        given = options.value(f"{name}-deserializer")
        if given:
            properties[f"{name}.deserializer"] = given
    properties |= key_values(options.values("property"))
    properties |= key_values(options.values("formatter-property"))
    name = options.required("formatter")
    short = name.rpartition(".")[2]
    if short == "NoOpMessageFormatter":
        return lambda _record: b""
    if short not in ("DefaultMessageFormatter", "LoggingMessageFormatter"):
        raise UsageError(name)
    return default_formatter(properties)


def default_formatter(properties: Mapping[str, str]) -> Callable[[Raw], bytes]:  # noqa: C901 - one branch for each column that can be printed
    """Kafka's DefaultMessageFormatter."""

    def flag(name: str, default: str = "false") -> bool:
        return properties.get(name, default).strip().lower() == "true"

    separator = properties.get("key.separator", "\t").encode()
    end = properties.get("line.separator", "\n").encode()
    between = properties.get("headers.separator", ",").encode()
    null = properties.get("null.literal", "null").encode()
    read_key = _deserializer(properties.get("key.deserializer"))
    read_value = _deserializer(properties.get("value.deserializer"))
    read_header = _deserializer(properties.get("headers.deserializer"))

    stored = for_terminals if sys.stdout.isatty() else bytes

    def data(value: bytes | None, read: Callable[[bytes], bytes] | None) -> bytes:
        if read is not None and value is not None:
            return read(value)
        return null if value is None else stored(value)

    def timestamp(record: Raw) -> bytes:
        if record.timestamp_type == "none":
            return b"NO_TIMESTAMP"
        kind = b"LogAppendTime" if record.timestamp_type == "append" else b"CreateTime"
        return b"%s:%d" % (kind, record.timestamp)

    def headers(record: Raw) -> bytes:
        if not record.headers:
            return b"NO_HEADERS"
        return between.join(
            stored(name.encode()) + b":" + data(value, read_header)
            for name, value in record.headers
        )

    columns: list[Callable[[Raw], bytes]] = []
    if flag("print.timestamp"):
        columns.append(timestamp)
    if flag("print.partition"):
        columns.append(lambda record: b"Partition:%d" % record.partition)
    if flag("print.offset"):
        columns.append(lambda record: b"Offset:%d" % record.offset)
    # Kafka's tool drops both of these on the way to its formatter.
    if flag("print.delivery"):
        columns.append(lambda _record: b"Delivery:NOT_PRESENT")
    if flag("print.epoch"):
        columns.append(lambda _record: b"Epoch:NOT_PRESENT")
    if flag("print.headers"):
        columns.append(headers)
    if flag("print.key"):
        columns.append(lambda record: data(record.key, read_key))
    if flag("print.value", "true"):
        columns.append(lambda record: data(record.value, read_value))
    if not columns:
        return lambda _record: b""
    if len(columns) == 1:
        [only] = columns
        return lambda record: only(record) + end
    return lambda record: separator.join([column(record) for column in columns]) + end


def _number(layout: str) -> Callable[[bytes], bytes]:
    unpack = struct.Struct(layout).unpack
    return lambda data: str(unpack(data)[0]).encode()


_DESERIALIZERS: Mapping[str, Callable[[bytes], bytes] | None] = {
    "StringDeserializer": None,
    "ByteArrayDeserializer": None,
    "BytesDeserializer": None,
    "LongDeserializer": _number(">q"),
    "IntegerDeserializer": _number(">i"),
    "ShortDeserializer": _number(">h"),
    "DoubleDeserializer": _number(">d"),
    "FloatDeserializer": _number(">f"),
    "BooleanDeserializer": lambda data: b"true" if data == b"\x01" else b"false",
    "UUIDDeserializer": lambda data: str(uuid.UUID(data.decode())).encode(),
}


def _deserializer(name: str | None) -> Callable[[bytes], bytes] | None:
    if name is None:
        return None
    short = name.rpartition(".")[2]
    if short not in _DESERIALIZERS:
        raise Failure(f"there is no deserializer {name}; there are {', '.join(_DESERIALIZERS)}")
    return _DESERIALIZERS[short]
