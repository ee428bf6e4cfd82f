"""`ottla verify`: what clients see of a cluster, judged; and a cluster of our own, broken."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.command import Noun
from ottla.cli.group_changes import duration
from ottla.cli.options import bootstrap_option, connect, json_option
from ottla.cli.output import broker_errors, count, grouped, say
from ottla.cli.progress import WaitingLine

if TYPE_CHECKING:
    from ottla.verify.clients.writer import Progress
    from ottla.verify.cluster import StoreKind
    from ottla.verify.faults.fault import Fault
    from ottla.verify.run import Outcome

EXIT_ANOMALIES = 1
MOST_SEED = 1 << 32
WORKLOADS = ("all", "records", "transactions")


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
_workload_option = click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default="all",
    show_default=True,
    help="What clients do: write records, write transactions, or both.",
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
@_workload_option
@click.option("--keep", is_flag=True, help="Do not delete the topics in the end.")
@_seed_option
@_history_option
@bootstrap_option
@json_option
def run(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    seconds: float | None,
    writers: int,
    partitions: int,
    workload: str,
    keep: bool,
    seed: int | None,
    history: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write to and read from topics of its own on any cluster, and judge what was seen.

    For as long as asked, or until Ctrl-C. Meanwhile, restart brokers, pull cables, upgrade: what
    was acknowledged must be there in the end, once and in order, and transactions as a whole or not
    at all. The topics have up to three replicas, and min.insync.replicas=2 where there are as many
    brokers. Exits with 1 if anything is wrong, or nothing was acknowledged.

    JSON: {"seed", "history", "complete", "seconds", "acknowledged", "unknown", "refused",
    "longest_pause", "faults": {NAME: COUNT}, "fewest_in_flight", "gave_up", "events",
    "transactions": {"committed", "aborted", "unknown"},
    "anomalies": [{"check", "text", "events"}], "left_out", "flaws": {NAME: COUNT}}
    """
    from ottla.cli.verify_report import report
    from ottla.client.settings import parse_address
    from ottla.verify.clients.writer import Load
    from ottla.verify.run import Limits, judge_history, run_on_cluster
    from ottla.verify.workload import NotPossible, Plan

    with broker_errors(bootstrap):
        connect(bootstrap)
    seed = _chosen(seed)
    path = _history_path(history, seed)
    plan = Plan(
        f"ottla-verify-{seed}", partitions=partitions, writers=writers, seed=seed,
        creates=False, load=Load(pause=0.05),
    ).only(workload)  # fmt: skip
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
    if not report(outcome, as_json, *judge_history(outcome.history)):
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
@_workload_option
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the brokers have their data and logs.  [default: a folder that is removed]",
)
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the histories of many runs in this folder, and go on until it has --count faults.",
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
    workload: str,
    data_dir: Path | None,
    record: Path | None,
    seed: int | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Start brokers, break them in every way under load, and judge what clients saw.

    There are three of them, or four where partitions are moved (the fault `reassign`).
    Until the time or the number of faults is reached, or until Ctrl-C. The brokers are processes
    on loopback, each behind proxies. A run with the same seed has the same faults at about the same
    times. Exits with 1 if anything is wrong, or nothing was acknowledged; the folder is kept then.

    With --record there are as many runs as it takes, each with a new cluster and a history of its
    own, until the folder holds --count faults. What is there already counts, so the command may be
    stopped and typed again; `ottla verify check DIR` adds everything up.

    JSON: as of `ottla verify run`; with --record one line for each run.
    """
    from ottla.verify import record as records
    from ottla.verify.faults import choose

    names = [name.strip() for name in faults.split(",") if name.strip()]
    try:
        kinds = choose(names, store)
    except ValueError as error:
        raise click.UsageError(f"--faults: {error}") from None
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"--data-dir {data_dir}: it is not empty; name a new folder")
    job = _Job(kinds, store, outage_seconds, writers, workload, as_json, record is not None)
    if record is None:
        chosen = _chosen(seed)
        path = _history_path(history, chosen)
        job.run(chosen, path, seconds, faults_count, data_dir)
        return
    if seed is not None or history is not None or data_dir is not None:
        raise click.UsageError("--record has a seed, a history and a folder for each run by itself")
    if faults_count is None:
        raise click.UsageError("--record needs --count: how many faults the folder is to hold")
    try:
        record.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--record {record}: {error.strerror}") from None
    deadline = None if seconds is None else time.monotonic() + seconds
    while (done := records.faults_so_far(record, store)) < faults_count:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        say(f"{record} holds {grouped(done)} of {grouped(faults_count)} faults")
        chosen = _chosen(None)
        path = records.next_history(record, chosen)
        if not job.run(chosen, path, left, min(records.PART, faults_count - done), None):
            break
    done = records.faults_so_far(record, store)
    say(f"{record} holds {count(done, 'fault')}; `ottla verify check {record}` adds up")


@dataclass(frozen=True, slots=True)
class _Job:
    """Runs on clusters of our own, all alike."""

    kinds: Sequence[type[Fault]]
    store: StoreKind
    outage_seconds: float
    writers: int
    workload: str
    as_json: bool
    is_record: bool

    def run(
        self,
        seed: int,
        path: Path,
        seconds: float | None,
        faults: int | None,
        data_dir: Path | None,
    ) -> bool:
        """One run, judged and reported; False when it was stopped. Exits if anything is wrong."""
        from ottla.cli.verify_report import report
        from ottla.verify import record as records
        from ottla.verify.clients.writer import Load
        from ottla.verify.cluster import ClusterUnderTest, NotHealthy
        from ottla.verify.faults import brokers_for
        from ottla.verify.run import Limits, judge_history, run_on_own_cluster
        from ottla.verify.workload import NotPossible, Plan

        plan = Plan("verify", seed=seed, writers=self.writers, load=Load(pause=0.05)).only(
            self.workload
        )
        folder = data_dir or Path(tempfile.mkdtemp(prefix="ottla-verify-"))
        line = _ProgressLine()
        stopped = False
        _begin(seed, path)

        async def work(stop: asyncio.Event) -> Outcome:
            nonlocal stopped
            under_test = ClusterUnderTest(
                folder,
                brokers=brokers_for(self.kinds),
                store=self.store,
                outage_seconds=self.outage_seconds,
            )
            outcome = await run_on_own_cluster(
                under_test, self.kinds, plan, path, Limits(seconds, faults), stop,
                tell=line.tell, step=line.step,
            )  # fmt: skip
            stopped = stop.is_set()
            return outcome

        try:
            outcome = _run(work)
        except (NotPossible, NotHealthy) as error:
            say(f"the brokers' data and logs are in {folder}")
            raise click.ClickException(str(error)) from None
        line.over()
        verdict, complete = judge_history(path)
        if self.is_record:
            records.note(path, self.store, verdict, complete=complete)
        if not report(outcome, self.as_json, verdict, complete):
            say(f"the brokers' data and logs are in {folder}")
            sys.exit(EXIT_ANOMALIES)
        if data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        return not stopped


@verify.command("check")
@click.argument("file", metavar="FILE|DIR", type=click.Path(exists=True, path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> None:
    """Judge a history once more, or all histories in a folder.

    Of a folder everything is added up: runs, faults of each kind, records, anomalies. Exits with 1
    if anything is wrong, the run did not come to its end, or nothing was acknowledged in it.

    \b
    JSON: {"history", "seed", "complete", "events", "acknowledged", "faults",
           "transactions": {"committed", "aborted", "unknown"},
           "anomalies": [{"check", "text", "events"}], "left_out", "flaws": {NAME: COUNT}}
    JSON of a folder: {"runs", "incomplete", "unreadable", "code", "faults",
           "kinds": {NAME: COUNT}, "overlapping", "fewest_in_flight", "events", "acknowledged",
           "seconds", "available", "calm", "calm_available",
           "transactions": {"committed", "aborted", "unknown"},
           "flaws": {NAME: COUNT}, "anomalies": COUNT, "bad": [as above]}
    """
    from ottla.cli.verify_report import show_total, show_verdict
    from ottla.verify.history import History, NoHistory
    from ottla.verify.record import add_up, histories
    from ottla.verify.run import judge_history

    try:
        if file.is_dir():
            paths = histories(file)
            if not paths:
                raise click.ClickException(f"there is no history in {file}")
            right = show_total(add_up(paths), as_json)
        else:
            verdict, complete = judge_history(file)
            right = show_verdict(verdict, complete, History(file), as_json)
    except NoHistory as error:
        raise click.ClickException(str(error)) from None
    if not right:
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
