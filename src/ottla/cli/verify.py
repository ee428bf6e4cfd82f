"""`ottla verify`: what clients see of a cluster, judged; and a cluster of our own, broken."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.command import Noun
from ottla.cli.group_changes import duration
from ottla.cli.options import bootstrap_option, connect, json_option
from ottla.cli.output import broker_errors, count, grouped, say, show_json
from ottla.cli.progress import WaitingLine

if TYPE_CHECKING:
    from ottla.verify.checks import Verdict
    from ottla.verify.clients.writer import Progress
    from ottla.verify.cluster import StoreKind
    from ottla.verify.run import Outcome

EXIT_ANOMALIES = 1
MOST_SEED = 1 << 32
_SHOWN_LINE = 600


@click.group(cls=Noun)
def verify() -> None:
    """Check what clients see of a cluster, in good times and bad."""


def _seconds(_context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    seconds = duration(given, option.opts[-1])
    if seconds <= 0:
        raise click.UsageError(f"{option.opts[-1]} {given!r}: it must be longer than nothing")
    return seconds


_duration_option = click.option(
    "--duration",
    "seconds",
    metavar="DURATION",
    callback=_seconds,
    help="How long: 90s, 15m, 2h.  [default: until it is stopped]",
)
_seed_option = click.option(
    "--seed", type=click.IntRange(0, MOST_SEED), help="What chance depends on.  [default: any]"
)
_history_option = click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the history is written.  [default: a new file in the temporary folder]",
)


@verify.command("run")
@_duration_option
@click.option("--writers", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 1000), default=3, show_default=True)
@click.option("--keep", is_flag=True, help="Do not delete the topic in the end.")
@_seed_option
@_history_option
@bootstrap_option
@json_option
def run(
    seconds: float | None,
    writers: int,
    partitions: int,
    keep: bool,
    seed: int | None,
    history: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write to and read from a topic of its own on any cluster, and judge what was seen.

    For as long as asked, or until Ctrl-C. Meanwhile, restart brokers, pull cables, upgrade: what
    was acknowledged must be there in the end, once and in order. The topic has up to three
    replicas, and min.insync.replicas=2 where there are as many brokers. Exits with 1 if anything
    is wrong.

    JSON: {"seed", "history", "complete", "seconds", "acknowledged", "unknown", "refused",
    "longest_pause", "faults": {NAME: COUNT}, "fewest_in_flight", "gave_up", "events",
    "anomalies": [{"check", "text", "events"}], "left_out"}
    """
    from ottla.client.settings import parse_address
    from ottla.verify.clients.writer import Load
    from ottla.verify.run import Limits, run_on_cluster
    from ottla.verify.workload import NotPossible, Plan

    with broker_errors(bootstrap):
        connect(bootstrap)
    seed = _chosen(seed)
    path = _history_path(history, seed)
    plan = Plan(
        f"ottla-verify-{seed}", partitions=partitions, writers=writers, seed=seed,
        creates=False, load=Load(pause=0.05),
    )  # fmt: skip
    line = _ProgressLine()
    _begin(seed, path)

    async def work(stop: asyncio.Event) -> Outcome:
        addresses = [parse_address(server) for server in bootstrap.split(",")]
        return await run_on_cluster(
            addresses, plan, path, Limits(seconds), stop, keep=keep, step=line.step
        )

    try:
        outcome = _run(work)
    except NotPossible as error:
        raise click.ClickException(str(error)) from None
    line.over()
    if not _report(outcome, as_json):
        sys.exit(EXIT_ANOMALIES)


@verify.command("cluster")
@click.option(
    "--faults",
    metavar="NAME,…",
    default="",
    help="Which faults, of those in docs/verify.md.  [default: all]",
)
@_duration_option
@click.option("--count", "faults_count", type=click.IntRange(1), help="How many faults.")
@click.option(
    "--store",
    type=click.Choice(["zookeeper", "ensemble", "lent"]),
    default="zookeeper",
    show_default=True,
    help="Where the metadata is: in a ZooKeeper, in three, or lent by a process of this machine.",
)
@click.option(
    "--outage",
    "outage_seconds",
    metavar="DURATION",
    callback=_seconds,
    default="60s",
    show_default=True,
    help="How long zookeeper-outage lasts.",
)
@click.option("--writers", type=click.IntRange(1, 1000), default=120, show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the brokers have their data and logs.  [default: a folder that is removed]",
)
@_seed_option
@_history_option
@json_option
def cluster(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    faults: str,
    seconds: float | None,
    faults_count: int | None,
    store: StoreKind,
    outage_seconds: float,
    writers: int,
    data_dir: Path | None,
    seed: int | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Start three brokers, break them in every way under load, and judge what clients saw.

    Until the time or the number of faults is reached, or until Ctrl-C. The brokers are processes
    on loopback, each behind proxies. A run with the same seed has the same faults at about the same
    times. Exits with 1 if anything is wrong; the folder is kept then.

    JSON: as of `ottla verify run`.
    """
    from ottla.verify.clients.writer import Load
    from ottla.verify.cluster import ClusterUnderTest
    from ottla.verify.faults import choose
    from ottla.verify.run import Limits, run_on_own_cluster
    from ottla.verify.workload import NotPossible, Plan

    names = [name.strip() for name in faults.split(",") if name.strip()]
    try:
        kinds = choose(names, store)
    except ValueError as error:
        raise click.UsageError(f"--faults: {error}") from None
    seed = _chosen(seed)
    path = _history_path(history, seed)
    plan = Plan("verify", seed=seed, writers=writers, load=Load(pause=0.05))
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"--data-dir {data_dir}: it is not empty; name a new folder")
    folder = data_dir or Path(tempfile.mkdtemp(prefix="ottla-verify-"))
    line = _ProgressLine()
    _begin(seed, path)

    async def work(stop: asyncio.Event) -> Outcome:
        under_test = ClusterUnderTest(folder, store=store, outage_seconds=outage_seconds)
        return await run_on_own_cluster(
            under_test, kinds, plan, path, Limits(seconds, faults_count), stop,
            tell=line.tell, step=line.step,
        )  # fmt: skip

    try:
        outcome = _run(work)
    except NotPossible as error:
        raise click.ClickException(str(error)) from None
    line.over()
    is_right = _report(outcome, as_json)
    if is_right and data_dir is None:
        shutil.rmtree(folder, ignore_errors=True)
    if not is_right:
        say(f"the brokers' data and logs are in {folder}")
        sys.exit(EXIT_ANOMALIES)


@verify.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> None:
    """Judge a history once more.

    Exits with 1 if anything is wrong.

    JSON: {"history", "seed", "complete", "events", "acknowledged", "faults",
    "anomalies": [{"check", "text", "events"}], "left_out"}
    """
    from ottla.verify.history import History, NoHistory
    from ottla.verify.run import judge_history

    try:
        seed = History(file).header.get("seed")
        verdict, complete = judge_history(file)
    except NoHistory as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        show_json(
            {
                "history": str(file),
                "seed": seed,
                "complete": complete,
                "events": verdict.events,
                "acknowledged": verdict.acknowledged,
                "faults": verdict.faults,
                **_anomalies(verdict),
            }
        )
    else:
        click.echo(
            f"{count(verdict.events, 'event')}, {count(verdict.acknowledged, 'record')} "
            f"acknowledged, {count(verdict.faults, 'fault')}"
        )
        if not complete:
            click.echo("the run did not come to its end")
        _show_anomalies(verdict, file)
    if verdict.anomalies:
        sys.exit(EXIT_ANOMALIES)


# ---------------------------------------------------------------------- what they share


def _chosen(seed: int | None) -> int:
    return random.SystemRandom().randrange(MOST_SEED) if seed is None else seed


def _history_path(given: Path | None, seed: int) -> Path:
    path = given or Path(tempfile.gettempdir()) / f"ottla-verify-{seed}.history.gz"
    try:
        path.touch()
    except OSError as error:
        raise click.UsageError(f"--history {path}: {error.strerror}") from None
    return path


def _run(work: Callable[[asyncio.Event], Coroutine[Any, Any, Outcome]]) -> Outcome:
    """Do something until it is done, or until Ctrl-C; a second one ends it at once."""
    from ottla.runtime.loop import run as run_loop

    async def main() -> Outcome:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work(stop))

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        return await task

    try:
        return run_loop(main())
    except asyncio.CancelledError:
        raise click.Abort from None


def _begin(seed: int, path: Path) -> None:
    say(f"seed {seed}, history {path}; Ctrl-C ends the run and judges it")


class _ProgressLine:
    """A line on a terminal; what breaks is said on a line of its own."""

    def __init__(self) -> None:
        self._text = ""
        self._line = WaitingLine(lambda: self._text, after=0.0)

    def step(self, seconds: float, progress: Progress, faults: int) -> None:
        self._text = (
            f"{seconds:.0f} s, {grouped(progress.acknowledged)} acknowledged, "
            f"{progress.in_flight} requests in flight, {count(faults, 'fault')}"
        )
        self._line.waiting()

    def tell(self, text: str) -> None:
        self._line.over()
        say(text)

    def over(self) -> None:
        self._line.over()


def _report(outcome: Outcome, as_json: bool) -> bool:
    """Judge a run and print what came of it; whether all is right."""
    from ottla.verify.run import judge_history

    verdict, complete = judge_history(outcome.history)
    if as_json:
        show_json(
            {
                "seed": outcome.seed,
                "history": str(outcome.history),
                "complete": complete,
                "seconds": outcome.seconds,
                "acknowledged": outcome.acknowledged,
                "unknown": outcome.unknown,
                "refused": outcome.refused,
                "longest_pause": outcome.longest_pause,
                "faults": dict(outcome.faults),
                "fewest_in_flight": outcome.fewest_in_flight,
                "gave_up": outcome.gave_up,
                "events": verdict.events,
                **_anomalies(verdict),
            }
        )
    else:
        if outcome.faults:
            kinds = ", ".join(f"{name} {number}" for name, number in sorted(outcome.faults.items()))
            click.echo(f"{count(sum(outcome.faults.values()), 'fault')}: {kinds}")
        click.echo(
            f"{count(outcome.acknowledged, 'record')} acknowledged, {grouped(outcome.unknown)} "
            f"unknown, {grouped(outcome.refused)} refused in {outcome.seconds:.0f} s; the longest "
            f"pause was {outcome.longest_pause:.1f} s"
        )
        _show_anomalies(verdict, outcome.history)
    if verdict.anomalies and not as_json:
        say(f"seed {outcome.seed}, history {outcome.history}")
    return not verdict.anomalies


def _anomalies(verdict: Verdict) -> dict[str, object]:
    return {
        "anomalies": [
            {"check": each.check, "text": each.text, "events": list(each.events)}
            for each in verdict.anomalies
        ],
        "left_out": verdict.left_out,
    }


def _show_anomalies(verdict: Verdict, path: Path) -> None:
    """What is wrong, each with the events that show it."""
    from ottla.verify.history import History, excerpt

    if not verdict.anomalies:
        click.echo("no anomalies")
        return
    number = len(verdict.anomalies) + verdict.left_out
    click.echo("1 anomaly:" if number == 1 else f"{grouped(number)} anomalies:")
    shown = {number for each in verdict.anomalies for number in each.events}
    events = {event.number: event for event in excerpt(History(path), shown)}
    for each in verdict.anomalies:
        click.echo(f"{each.check}: {each.text}")
        for number in each.events:
            click.echo(f"    {str(events[number])[:_SHOWN_LINE]}")
    if verdict.left_out:
        click.echo(f"{grouped(verdict.left_out)} more like these")
