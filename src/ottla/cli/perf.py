"""`ottla perf`: how fast a broker takes and gives records, and how long one is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Noun
from ottla.cli.options import (
    CONFIG,
    bootstrap_option,
    complete_topics,
    json_option,
    open_router,
    quiet_client_log,
    settings,
)
from ottla.cli.output import Column, broker_errors, count, grouped, say, show_json, show_table
from ottla.cli.progress import records_progress, sigterm_interrupts

if TYPE_CHECKING:
    from ottla.client.load import Sent, Taken, Window

_PROGRESS = 0.5  # seconds between two steps of the progress bar

_property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A property of librdkafka, as linger.ms=20; repeatable.",
)


@click.group(cls=Noun)
def perf() -> None:
    """Measure how fast records are sent and read."""


@contextmanager
def _measuring(bootstrap: str, topic: str) -> Iterator[None]:
    """What a broker complains about is one line; so is an end before there are any figures."""
    try:
        with sigterm_interrupts(), broker_errors(bootstrap, topics=[topic]):
            yield
    except KeyboardInterrupt:
        raise _nothing("stopped before the first record") from None


@contextmanager
def _bad_property() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.UsageError(f"--property: {error}") from None


def _nothing(why: str) -> click.ClickException:
    return click.ClickException(f"{why}: nothing was measured")


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--records", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=100, show_default=True, metavar="BYTES")
@click.option("--rate", type=click.IntRange(1), help="Records a second.  [default: no limit]")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@_property_option
@bootstrap_option
@json_option
def produce(
    topic: str,
    records: int,
    size: int,
    rate: int | None,
    acks: str,
    properties: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Send records and measure it.

    Latency is the time from handing a record over to the broker's acknowledgement.

    JSON: {"records", "failed", "bytes", "seconds", "records_per_second", "mb_per_second",
    "latency_ms": {"mean", "p50", "p95", "p99", "p999", "max"}}
    """
    config = {
        "acks": acks,
        "client.id": "ottla-perf",
        **CONFIG,
        **settings(properties, "--property"),
    }
    quiet_client_log()
    with _measuring(bootstrap, topic):
        _need_topic(bootstrap, topic)
        from ottla.client.load import letters, produce_load

        done = 0
        with records_progress("sending", records) as advance, _bad_property():

            def step(window: Window) -> None:
                nonlocal done
                done += window.records
                advance(done)

            sent = produce_load(
                bootstrap,
                topic,
                records,
                letters(size),
                rate=rate or -1,
                interval=_PROGRESS,
                on_window=step,
                config=config,
            )
    total = sent.total
    if not total.records:
        raise _not_stored(sent) or _nothing("stopped before the first record was acknowledged")
    names = ("p50", "p95", "p99", "p999")
    latencies = dict(zip(names, total.percentiles, strict=True))
    if as_json:
        show_json(
            {
                "records": total.records,
                "failed": sent.failed,
                "bytes": total.bytes,
                "seconds": total.seconds,
                "records_per_second": total.rate,
                "mb_per_second": total.megabytes,
                "latency_ms": {"mean": total.mean, **latencies, "max": total.longest},
            }
        )
    else:
        columns = [Column(name, True) for name in (
            "RECORDS", "SECONDS", "RECORDS/S", "MB/S",
            "MEAN MS", "P50", "P95", "P99", "P99.9", "MAX",
        )]  # fmt: skip
        row = [
            total.records,
            f"{total.seconds:,.2f}",
            f"{total.rate:,.0f}",
            f"{total.megabytes:,.2f}",
            *(f"{each:,.2f}" for each in (total.mean, *total.percentiles, total.longest)),
        ]
        show_table(columns, [row])
    if sent.stopped:
        left = f"; {grouped(sent.abandoned)} more may be stored or not" if sent.abandoned else ""
        say(f"stopped after {grouped(total.records)} of {count(records, 'record')}{left}")
    if failure := _not_stored(sent):
        raise failure


def _not_stored(sent: Sent) -> click.ClickException | None:
    if not sent.failed:
        return None
    reason = sent.first_failure.message if sent.first_failure else "unknown"
    verb = "was" if sent.failed == 1 else "were"
    return click.ClickException(
        f"{count(sent.failed, 'record')} {verb} not stored; the first: {reason}"
    )


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--records", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--group", metavar="NAME", help="Read as a member of it.  [default: on our own]")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True,
              metavar="SECONDS", help="End when nothing came for so long.")  # fmt: skip
@_property_option
@bootstrap_option
@json_option
def consume(
    topic: str,
    records: int,
    group: str | None,
    timeout: float,
    properties: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Read records from the beginning and measure it.

    JSON: {"records", "bytes", "seconds", "joining_seconds", "records_per_second",
    "mb_per_second", "enough"}
    """
    config = {"client.id": "ottla-perf", **CONFIG, **settings(properties, "--property")}
    quiet_client_log()
    with _measuring(bootstrap, topic):
        _need_topic(bootstrap, topic)
        from ottla.client.load import consume_load

        with records_progress("reading", records) as advance, _bad_property():

            def step(whole: Taken, _part: Taken) -> None:
                advance(whole.records)

            done = consume_load(
                bootstrap,
                [topic],
                records,
                group=group,
                timeout=timeout,
                interval=_PROGRESS,
                on_window=step,
                config=config,
            )
    total = done.total
    if not total.records:
        raise _nothing(
            "stopped before the first record came"
            if done.stopped
            else f"no record came within {timeout:g} s"
        )
    reading = max(total.seconds - total.joining - done.idle, 1e-9)
    rate, megabytes = total.records / reading, total.bytes / reading / 1048576
    if as_json:
        show_json(
            {
                "records": total.records,
                "bytes": total.bytes,
                "seconds": total.seconds,
                "joining_seconds": total.joining,
                "records_per_second": rate,
                "mb_per_second": megabytes,
                "enough": done.enough,
            }
        )
    else:
        names = ("RECORDS", "SECONDS", "JOINING", "RECORDS/S", "MB/S")
        row = [total.records, *(f"{x:,.2f}" for x in (total.seconds, total.joining)),
               f"{rate:,.0f}", f"{megabytes:,.2f}"]  # fmt: skip
        show_table([Column(name, True) for name in names], [row])
    if done.stopped:
        say(f"stopped after {grouped(total.records)} of {count(records, 'record')}")
    elif not done.enough:
        say(
            f"only {grouped(total.records)} of {count(records, 'record')} came; there are no more, "
            f"or give --timeout"
        )


@perf.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--records", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=100, show_default=True, metavar="BYTES")
@click.option("--acks", type=click.Choice(["1", "all"]), default="all", show_default=True)
@bootstrap_option
@json_option
def latency(topic: str, records: int, size: int, acks: str, bootstrap: str, as_json: bool) -> None:
    """Send one record at a time and measure until it has been read again.

    Nobody else may write to the topic meanwhile.

    JSON: {"records", "latency_ms": {"mean", "p50", "p95", "p99", "p999", "max"}}
    """
    quiet_client_log()
    found: list[float] = []
    with _measuring(bootstrap, topic):
        _need_topic(bootstrap, topic)
        from ottla.client.load import latency_load, letters, percentiles

        values = letters(size)
        with records_progress("measuring", records) as advance:
            try:
                for each in latency_load(
                    bootstrap, topic, records, lambda _: next(values), acks=acks,
                    producer_config=CONFIG, consumer_config=CONFIG,
                ):  # fmt: skip
                    found.append(each)
                    advance(len(found))
            except KeyboardInterrupt:
                pass
    if not found:
        raise _nothing("stopped before the first record came back")
    names = ("p50", "p95", "p99", "p999")
    mean = sum(found) / len(found)
    shares = dict(zip(names, percentiles(found), strict=True))
    if as_json:
        show_json(
            {"records": len(found), "latency_ms": {"mean": mean, **shares, "max": max(found)}}
        )
    else:
        columns = [Column(name, True) for name in
                   ("RECORDS", "MEAN MS", "P50", "P95", "P99", "P99.9", "MAX")]  # fmt: skip
        row = [len(found), *(f"{each:,.2f}" for each in (mean, *shares.values(), max(found)))]
        show_table(columns, [row])
    if len(found) < records:
        say(f"stopped after {grouped(len(found))} of {count(records, 'record')}")


def _need_topic(bootstrap: str, topic: str) -> None:
    """Complain about a topic that is not there instead of making one by accident."""
    from ottla.client.topic_offsets import TopicOffsets

    with open_router(bootstrap) as router:
        TopicOffsets(router).partitions([topic])
