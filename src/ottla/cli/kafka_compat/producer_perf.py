"""kafka-producer-perf-test: send records as fast as they go, or at a rate, and measure it."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import Failure, UsageError, subcommand_parser
from ottla.cli.kafka_compat.perf_output import (
    client_config,
    for_librdkafka,
    metric_lines,
    quiet_client_log,
    warn_of_old,
)
from ottla.client.contact import check_reachable
from ottla.client.settings import bootstrap_servers

if TYPE_CHECKING:
    from ottla.client.load import Payloads, Window

TOOL = "kafka-producer-perf-test"
_CLIENT = "perf-producer-client"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made: argparse.ArgumentParser = subcommand_parser(TOOL, "Measure how fast records are sent.")
    made.add_argument("--bootstrap-server", metavar="HOST:PORT", help="The brokers to ask first.")
    made.add_argument("--topic", required=True, help="The topic to send to.")
    made.add_argument("--num-records", type=int, required=True, help="How many records.")
    payload = made.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=int, help="Bytes of each record.")
    payload.add_argument("--payload-file", help="Send lines of this file, picked at random.")
    payload.add_argument(
        "--payload-monotonic", action="store_true", help="Send the numbers 0, 1, 2 and so on."
    )
    made.add_argument("--payload-delimiter", default="\\n", help="What is between two payloads.")
    made.add_argument(
        "--throughput", type=float, required=True, help="Records a second; -1 for no limit."
    )
    for name in ("--producer-props", "--command-property"):
        made.add_argument(
            name, nargs="+", action="extend", default=[], metavar="NAME=VALUE",
            help="Producer properties, over those of a file.",
        )  # fmt: skip
    for name in ("--producer.config", "--command-config"):
        made.add_argument(name, dest=name.lstrip("-"), metavar="FILE", help="A properties file.")
    made.add_argument("--print-metrics", action="store_true", help="Print metrics at the end.")
    made.add_argument("--transactional-id", help="Send in transactions, by this id.")
    made.add_argument(
        "--transaction-duration-ms", type=int, help="Commit after so long; 3000 by default."
    )
    made.add_argument(
        "--warmup-records", type=int, default=0, help="Leave these out of a second summary."
    )
    made.add_argument(
        "--reporting-interval", type=int, default=5000, help="Milliseconds between two lines."
    )
    return made


def main(arguments: Sequence[str]) -> int:  # noqa: C901, PLR0912 - the steps of Kafka's tool, in their order
    """The tool."""
    given = parser().parse_args(list(arguments))
    _check(given)
    files = (getattr(given, "producer.config"), getattr(given, "command-config"))
    if given.producer_props:
        warn_of_old("--producer-props", "--command-property")
    if files[0] is not None:
        warn_of_old("--producer.config", "--command-config")
    properties = client_config(files, [*given.producer_props, *given.command_property])
    servers = given.bootstrap_server or properties.get("bootstrap.servers")
    if servers is None:
        raise UsageError(
            "At least one of --bootstrap-server, --command-property, --producer-props, "
            "--producer.config or --command-config must be specified."
        )
    try:
        bootstrap = bootstrap_servers(servers)
    except ValueError as error:
        raise UsageError(str(error)) from None
    payloads = _payloads(given)
    quiet_client_log()
    check_reachable(bootstrap)

    from ottla.client.load import produce_load

    config = {"client.id": _CLIENT, **for_librdkafka(properties)}
    if given.print_metrics:
        config["statistics.interval.ms"] = 500
    duration = given.transaction_duration_ms
    transactional = given.transactional_id or properties.get("transactional.id")
    if transactional or duration is not None:
        config["transactional.id"] = transactional or f"performance-producer-{uuid.uuid4()}"
        duration = 3000 if duration is None else duration
    if given.warmup_records:
        print(
            f"Warmup first {given.warmup_records} records. Steady state results will print after "
            f"the complete test summary.",
            flush=True,
        )

    def window(done: Window) -> None:
        print(
            f"{done.records} records sent, {done.rate:.1f} records/sec ({done.megabytes:.2f} "
            f"MB/sec), {done.mean:.1f} ms avg latency, {done.longest:.1f} ms max latency.",
            flush=True,
        )

    try:
        sent = produce_load(
            bootstrap,
            given.topic,
            given.num_records,
            payloads,
            rate=given.throughput,
            warmup=given.warmup_records,
            interval=given.reporting_interval / 1000,
            on_window=window,
            on_steady=lambda: print("In steady state.", flush=True),
            transaction=None if duration is None else duration / 1000,
            config=config,
        )
    except ValueError as error:
        raise Failure(str(error)) from None
    if sent.total.records:
        print(total_line(sent.total))
    if sent.steady is not None:
        print(total_line(sent.steady, " steady state"))
    if given.print_metrics:
        for line in metric_lines(sent.statistics, str(config["client.id"])):
            print(line)
    if sent.failed:
        reason = sent.first_failure.message if sent.first_failure else None
        raise Failure(f"{sent.failed} records were not sent; the first: {reason}")
    return 0


def _check(given: argparse.Namespace) -> None:
    if given.num_records <= 0:
        raise UsageError("--num-records should be greater than zero.")
    if given.warmup_records >= given.num_records:
        raise UsageError("The value for --warmup-records must be strictly fewer than the number of "
                         "records in the test, --num-records.")  # fmt: skip
    if given.record_size is not None and given.record_size <= 0:
        raise UsageError("--record-size should be greater than zero.")
    if given.transaction_duration_ms is not None and given.transaction_duration_ms <= 0:
        raise UsageError("--transaction-duration-ms should be greater than zero.")
    if given.reporting_interval <= 0:
        raise UsageError("--reporting-interval should be greater than zero.")


def _payloads(given: argparse.Namespace) -> Payloads:
    from ottla.client import load

    if given.payload_file is not None:
        path = Path(given.payload_file)
        print(f"Reading payloads from: {path.absolute()}")
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            content = ""
        if not content:
            raise Failure("File does not exist or empty file provided.")
        values = content.split(given.payload_delimiter.replace("\\n", "\n").replace("\\t", "\t"))
        while values and not values[-1]:
            values.pop()
        print(f"Number of records read: {len(values)}")
        return load.picked([value.encode() for value in values])
    return load.counting() if given.payload_monotonic else load.letters(given.record_size)


def total_line(done: Window, kind: str = "") -> str:
    """The last line, whose columns scripts cut out."""
    shares = ", ".join(
        f"{int(value)} ms {name}"
        for value, name in zip(done.percentiles, ("50th", "95th", "99th", "99.9th"), strict=True)
    )
    return (
        f"{done.records}{kind} records sent, {done.rate:.6f} records/sec ({done.megabytes:.2f} "
        f"MB/sec), {done.mean:.2f} ms avg latency, {done.longest:.2f} ms max latency, {shares}."
    )
