"""kafka-consumer-perf-test: read records as fast as they come, and say how fast that was."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from ottla.cli.kafka_compat.options import (
    BOOTSTRAP,
    Failure,
    Option,
    Parser,
    UsageError,
    bootstrap_of,
    check_required,
)
from ottla.cli.kafka_compat.perf_output import (
    client_config,
    date_text,
    for_librdkafka,
    metric_lines,
    number,
    quiet_client_log,
)
from ottla.client.contact import check_reachable

TOOL = "kafka-consumer-perf-test"
_CLIENT = "perf-consumer-client"
_MB = 1024 * 1024

PARSER = Parser(
    TOOL,
    "Measure how fast records are read.",
    [
        BOOTSTRAP,
        Option("command-config", "A properties file.", "FILE"),
        Option("consumer.config", "(DEPRECATED) The same as --command-config.", "FILE"),
        Option("command-property", "A consumer property; repeatable.", "NAME=VALUE"),
        Option("topic", "The topic to read.", "topic"),
        Option("include", "A regular expression; topics that match it are read.", "regex"),
        Option("group", "The group to read in.", "gid"),
        Option("num-records", "How many records to read (required).", "count", int),
        Option("messages", "(DEPRECATED) The same as --num-records.", "count", int),
        Option("fetch-size", "Most bytes of one partition per request.", "size", int, "1048576"),
        Option("socket-buffer-size", "The TCP receive buffer.", "size", int, "2097152"),
        Option("from-latest", "Begin at the end where the group has no offsets."),
        Option("timeout", "End when nothing came for so long, in ms.", "ms", int, "10000", True),
        Option("reporting-interval", "Milliseconds between two lines.", "ms", int, "5000"),
        Option("show-detailed-stats", "Print a line per interval."),
        Option("hide-header", "Print no header."),
        Option("print-metrics", "Print metrics at the end."),
        Option("date-format", "How times look.", "format", default="yyyy-MM-dd HH:mm:ss:SSS"),
        Option("broker-list", "", "HOST:PORT", hidden=True),
        Option("threads", "", "count", int, hidden=True),
        Option("num-fetch-threads", "", "count", int, hidden=True),
    ],
)  # fmt: skip

_COLUMNS = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


def main(arguments: Sequence[str]) -> int:  # noqa: C901, PLR0912 - the steps of Kafka's tool, in their order
    """The tool."""
    options = PARSER.parse(arguments)
    if not options.has("broker-list"):
        check_required(options, "bootstrap-server")
    for first, second in (("topic", "include"), ("messages", "num-records")):
        if options.has(first) == options.has(second):
            raise UsageError(
                f"Exactly one of the following arguments is required: [{first}], [{second}]"
            )
    for old, new in (("messages", "num-records"), ("consumer.config", "command-config")):
        if options.has(old):
            print(f"Warning: --{old} is deprecated. Use --{new} instead.")
    if number(options, "reporting-interval") <= 0:
        raise UsageError("Reporting interval must be greater than 0.")
    timeout = number(options, "timeout")
    wanted = number(options, "messages" if options.has("messages") else "num-records")
    bootstrap = bootstrap_of(options, "bootstrap-server", "broker-list")
    properties = client_config(
        (options.value("consumer.config"), options.value("command-config")),
        options.values("command-property"),
    )
    pattern = options.required("date-format")
    date_text(0, pattern)
    quiet_client_log()
    check_reachable(bootstrap)
    from ottla.client.load import Taken, consume_load

    detailed = options.has("show-detailed-stats")
    if not options.has("hide-header"):
        print(f"{'time, threadId' if detailed else 'start.time, end.time'}, {_COLUMNS}", flush=True)

    def window(whole: Taken, part: Taken) -> None:
        if detailed:
            fetching = part.seconds - part.joining
            cells = [
                date_text(time.time(), pattern),
                "0",
                f"{whole.bytes / _MB:.4f}",
                f"{part.bytes / _MB / part.seconds:.4f}",
                str(whole.records),
                f"{part.records / part.seconds:.4f}",
                str(int(part.joining * 1000)),
                str(int(fetching * 1000)),
                f"{part.bytes / _MB / fetching if fetching > 0 else 0:.4f}",
                f"{part.records / fetching if fetching > 0 else 0:.4f}",
            ]
            print(", ".join(cells), flush=True)

    config = {
        "client.id": _CLIENT,
        "fetch.message.max.bytes": number(options, "fetch-size"),
        "socket.receive.buffer.bytes": number(options, "socket-buffer-size"),
        "auto.offset.reset": "latest" if options.has("from-latest") else "earliest",
        "check.crcs": "false",
        **for_librdkafka(properties),
    }
    if options.has("print-metrics"):
        config["statistics.interval.ms"] = 500
    group = options.value("group") or properties.get("group.id")
    config.pop("group.id", None)
    include = options.value("include")
    topics = [f"^{include}$" if include is not None else options.required("topic")]
    begun = time.time()
    try:
        done = consume_load(
            bootstrap,
            topics,
            wanted,
            group=group or f"perf-consumer-{random.randrange(100_000)}",
            timeout=timeout / 1000,
            interval=number(options, "reporting-interval") / 1000,
            on_window=window,
            config=config,
        )
    except ValueError as error:
        raise Failure(str(error)) from None
    if not done.enough and not done.stopped:
        print(
            f"WARNING: Exiting before consuming the expected number of records: timeout "
            f"({timeout} ms) exceeded. You can use the --timeout option to increase the timeout."
        )
    total = done.total
    if not detailed:
        fetching = max(total.seconds - total.joining, 1e-9)
        cells = [
            date_text(begun, pattern),
            date_text(begun + total.seconds, pattern),
            f"{total.bytes / _MB:.4f}",
            f"{total.bytes / _MB / total.seconds:.4f}",
            str(total.records),
            f"{total.records / total.seconds:.4f}",
            str(int(total.joining * 1000)),
            str(int(fetching * 1000)),
            f"{total.bytes / _MB / fetching:.4f}",
            f"{total.records / fetching:.4f}",
        ]
        print(", ".join(cells))
    if options.has("print-metrics"):
        for line in metric_lines(done.statistics, str(config["client.id"])):
            print(line)
    return 0
