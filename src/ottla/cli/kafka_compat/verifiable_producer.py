"""kafka-verifiable-producer: send 0, 1, 2 …, and print the fate of each as a line of JSON."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from ottla.cli.kafka_compat.options import Failure, UsageError, subcommand_parser
from ottla.cli.kafka_compat.perf_output import (
    client_config,
    for_librdkafka,
    quiet_client_log,
    warn_of_old,
)
from ottla.client.contact import check_reachable
from ottla.client.settings import bootstrap_servers

if TYPE_CHECKING:
    from ottla.client.records import Delivery
    from ottla.errors import KafkaError

TOOL = "kafka-verifiable-producer"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made: argparse.ArgumentParser = subcommand_parser(TOOL, "Send numbers and report each one.")
    made.add_argument("--bootstrap-server", "--broker-list", metavar="HOST:PORT", required=True,
                      help="The brokers to ask first.")  # fmt: skip
    made.add_argument("--topic", required=True, help="The topic to send to.")
    made.add_argument("--max-messages", type=int, default=-1, help="How many; -1 for no end.")
    made.add_argument("--throughput", type=int, default=-1, help="Records a second; -1: no limit.")
    made.add_argument("--acks", type=int, default=-1, help="0, 1 or -1 for all.")
    for name in ("--producer.config", "--command-config"):
        made.add_argument(name, dest=name.lstrip("-"), metavar="FILE", help="A properties file.")
    made.add_argument("--message-create-time", type=int, default=-1,
                      help="Timestamps begin here, in milliseconds since 1970.")  # fmt: skip
    made.add_argument("--value-prefix", type=int, help="Send 7.0, 7.1 … for 7.")
    made.add_argument(
        "--repeating-keys", type=int, help="Keys 0 to this minus one, again and again."
    )
    return made


class Stop:
    """Whether SIGINT or SIGTERM has come; the exit code is then the one a Java program has."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self.code = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heard)

    def __bool__(self) -> bool:
        return self._come.is_set()

    def wait(self, seconds: float) -> bool:
        return self._come.wait(seconds)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.code = 128 + number
        self._come.set()


class Events:
    """Lines of JSON, each with the time and its name first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, name: str, **fields: object) -> None:
        document = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
        with self._lock:
            print(json.dumps(document, separators=(",", ":"), ensure_ascii=False), flush=True)


def main(arguments: Sequence[str]) -> int:  # noqa: C901 - the steps of Kafka's tool, in their order
    """The tool."""
    given = parser().parse_args(list(arguments))
    if given.acks not in (-1, 0, 1):
        raise UsageError(f"--acks {given.acks}: give 0, 1 or -1")
    try:
        bootstrap = bootstrap_servers(given.bootstrap_server)
    except ValueError as error:
        raise UsageError(str(error)) from None
    files = (getattr(given, "producer.config"), getattr(given, "command-config"))
    if files[0] is not None:
        warn_of_old("--producer.config", "--command-config")
    config = for_librdkafka(client_config(files, ()))
    config.pop("acks", None)
    quiet_client_log()
    check_reachable(bootstrap)
    from ottla.client.load import Pace
    from ottla.client.producer import Producer

    events = Events()
    stop = Stop()
    sent = acked = 0
    begun = time.monotonic()
    try:
        # Java's tool switches retries off, so that a failure is seen and not mended.
        producer = Producer(
            bootstrap,
            acks="all" if given.acks == -1 else given.acks,
            idempotent=False,
            client_id=str(config.pop("client.id", TOOL)),
            config={"retries": 0, **config},
        )
    except ValueError as error:
        raise Failure(str(error)) from None
    events.say("startup_complete")
    pace = Pace(given.throughput)
    created = given.message_create_time if given.message_create_time >= 0 else None
    while not stop and (given.max_messages < 0 or sent < given.max_messages):
        key = None if given.repeating_keys is None else str(sent % max(given.repeating_keys, 1))
        value = str(sent) if given.value_prefix is None else f"{given.value_prefix}.{sent}"

        def settled(
            delivery: Delivery | None,
            error: KafkaError | None,
            key: str | None = key,
            value: str = value,
        ) -> None:
            nonlocal acked
            if delivery is not None:
                acked += 1
                events.say(
                    "producer_send_success",
                    key=key,
                    value=value,
                    offset=delivery.offset,
                    topic=delivery.topic,
                    partition=delivery.partition,
                )
            elif error is not None:
                events.say(
                    "producer_send_error",
                    key=key,
                    value=value,
                    topic=given.topic,
                    exception=error.code.name,
                    message=error.message,
                )

        producer.post(given.topic, value, key=key, timestamp=created, on_delivery=settled)
        sent += 1
        if created is not None:
            created = given.message_create_time + int((time.monotonic() - begun) * 1000)
        while (early := pace.ahead(sent)) > 0 and not stop.wait(min(early, 0.1)):
            pass
    producer.close()
    events.say("shutdown_complete")
    elapsed = max(time.monotonic() - begun, 1e-9)
    events.say(
        "tool_data",
        sent=sent,
        acked=acked,
        target_throughput=given.throughput,
        avg_throughput=acked / elapsed,
    )
    return stop.code
