"""`python -m bench`: Apache Kafka and Ottla in turns, then the table."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
from contextlib import suppress
from datetime import date
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine, migration, profiling, record, segments, table
from bench.cluster import ClusterSession
from bench.commands import CommandSession
from bench.compaction import CompactionSession
from bench.figures import Outcome, Part, rounds_of
from bench.groups import GroupSession
from bench.growth import GrowthSession, LargeGrowthSession, large_partitions
from bench.processes import BenchError
from bench.record import Spent
from bench.restarted import RestartedSession
from bench.rows import FULL, QUICK, ROWS, Sizes, rows_for
from bench.selection import Selection
from bench.session import Session
from bench.settling import wait_settled
from bench.split import SplitSession
from bench.systems import ApacheKafka, Ottla
from bench.transactions import ClusterTransactionSession, TransactionSession
from bench.walked import WalkedSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.course import Course
    from bench.systems import System

_CHECKS: tuple[tuple[str, Callable[[Path, ApacheKafka, System], record.Check]], ...] = (
    ("check-segments", segments.check),
    ("check-migration", migration.check),
)
SESSIONS: Mapping[Part, type[Course]] = {
    Part.BROKER: Session,
    Part.RECORDS: WalkedSession,
    Part.COMPACTION: CompactionSession,
    Part.GROWTH: GrowthSession,
    Part.LARGE_GROWTH: LargeGrowthSession,
    Part.GROUPS: GroupSession,
    Part.OFFSETS: RestartedSession,
    Part.TRANSACTIONS: TransactionSession,
    Part.COMMANDS: CommandSession,
    Part.CLUSTER: ClusterSession,
    Part.CLUSTER_TRANSACTIONS: ClusterTransactionSession,
    Part.PROCESSES: SplitSession,
}
_ROUNDS = 3


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--rows", default="*", metavar="GLOB", help="only these rows, e.g. 'group-*' or 'check-*'"
    )
    parser.add_argument(
        "--before",
        default="",
        metavar="GLOB",
        help="rows that are gone through before them, in the order of a whole run, unreported: "
        "--rows 'cold-*' --before '*' measures two rows after the past they have in a whole run",
    )
    parser.add_argument("--rounds", type=int, help=f"alternations ({_ROUNDS}; with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, a look rather than a claim"
    )
    parser.add_argument("--cold-gb", type=float, help="size of the evicted data to read")
    parser.add_argument("--compaction-gb", type=float, help="size of the topic to compact")
    parser.add_argument("--catch-up-gb", type=float, help="what a follower in a cluster missed")
    parser.add_argument(
        "--large",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="with the rows of very many partitions, in one round "
        f"({FULL.large_growth_partitions}, or as many as a process may open files)",
    )
    parser.add_argument("--no-checks", action="store_true", help="figures only")
    parser.add_argument(
        "--only", choices=("kafka", "ottla"), help="one of the two only; nothing is compared"
    )
    parser.add_argument(
        "--null",
        action="store_true",
        help="Apache Kafka on both sides: how far from 1.00 the noise of this machine alone leads",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="run Ottla under cProfile and print where its time went; figures then mean nothing",
    )
    parser.add_argument(
        "--record", action="store_true", help="write the results of a partial run as official ones"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the data folders go (the system's default)"
    )
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    return parser.parse_args(arguments)


def sizes_for(chosen: argparse.Namespace) -> Sizes:
    from dataclasses import replace

    sizes = QUICK if chosen.quick else FULL
    if chosen.cold_gb:
        sizes = replace(sizes, cold_bytes=int(chosen.cold_gb * 1e9))
    if chosen.compaction_gb:
        sizes = replace(sizes, compacted_bytes=int(chosen.compaction_gb * 1e9))
    if chosen.catch_up_gb:
        sizes = replace(sizes, catch_up_bytes=int(chosen.catch_up_gb * 1e9))
    if chosen.large is not None:
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        partitions = chosen.large or large_partitions(sizes.large_growth_partitions, hard)
        sizes = replace(sizes, large_growth_partitions=partitions)
    return sizes


def main() -> int:
    chosen = options()
    if chosen.list:
        for row in ROWS:
            print(f"{row.key:28} {row.title} ({row.unit})")
        for name, _check in _CHECKS:
            print(name)
        return 0
    # Leaving by SystemExit lets every context end the processes it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _raise_descriptor_limit()
    try:
        return compare(chosen)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: stopped", file=sys.stderr)
        return 130


def compare(chosen: argparse.Namespace) -> int:  # noqa: C901, PLR0915 - one run from its plan to its page, in order
    started = time.monotonic()
    sizes = sizes_for(chosen)
    rounds = chosen.rounds or (1 if chosen.quick else _ROUNDS)
    every = rows_for(sizes)
    selection = Selection.of(
        every, chosen.rows, before=chosen.before, large=chosen.large is not None
    )
    rows = [row for row in every if selection.reports(row.key)]
    if not rows and not any(fnmatchcase(name, chosen.rows) for name, _check in _CHECKS):
        raise BenchError(
            f"no row is named {chosen.rows!r}; --list names them all (growth-20k needs --large)"
        )
    kafka = ApacheKafka()
    ottla: System = ApacheKafka("Apache Kafka again") if chosen.null else Ottla()
    both: list[tuple[str, System]] = [("kafka", kafka), ("ottla", ottla)]
    sides = [side for side in both if chosen.only in (None, side[0])]
    samples: dict[tuple[str, str], list[float]] = {}
    failures: list[str] = []
    taken: dict[Part, float] = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-", dir=chosen.folder) as folder:
        home = Path(folder)
        if chosen.profile and isinstance(ottla, Ottla):
            ottla.profile_into = home / "profile"
        described = machine.describe(home)
        print(described.sentence(), flush=True)
        parts = [part for part in Part if any(row.part is part for row in rows)]
        rounds_in = {
            part: rounds_of(part, rounds, demanded=chosen.rounds is not None) for part in parts
        }
        for turn, part in product(range(1, rounds + 1), parts):
            if turn > rounds_in[part]:
                continue
            for side, system in sides:
                began = time.monotonic()
                head = f"round {turn}/{rounds_in[part]}  {system.name:12}"

                def take(key: str, value: float, side: str = side, head: str = head) -> None:
                    samples.setdefault((key, side), []).append(value)
                    print(f"{head}  {key:28} {table.figure(value)}", flush=True)

                folder_used = home / f"{side}-{part.name.lower()}-{turn}"
                session = SESSIONS[part](system, kafka, folder_used, sizes, selection, take)
                if session.MAKES_MANY_FILES:
                    wait_settled(home / "settling", lambda line: print(f"  {line}", flush=True))
                failures += _failures_of(session, system)
                if not session.MAKES_MANY_FILES:  # else they go with the run's folder
                    _remove(folder_used)
                minutes = (time.monotonic() - began) / 60
                taken[part] = taken.get(part, 0.0) + minutes
                print(f"{head}  {part.value}: {minutes:.1f} minutes", flush=True)
        checks: list[record.Check] = []
        if not chosen.no_checks and not chosen.only:
            checks = [
                _run_check(name, check, home, kafka, ottla)
                for name, check in _CHECKS
                if fnmatchcase(name, chosen.rows)
            ]
        if chosen.profile:
            profiling.show(home / "profile")
    outcomes = [
        Outcome(
            row,
            tuple(samples.get((row.key, "kafka"), ())),
            tuple(samples.get((row.key, "ottla"), ())),
        )
        for row in rows
    ]
    if not chosen.only:
        report = record.Report(
            day=date.today(),
            machine=described,
            rounds=rounds,
            minutes=(time.monotonic() - started) / 60,
            sizes=sizes,
            outcomes=outcomes,
            checks=checks,
            failures=failures,
            spent=[Spent(part, rounds_in[part], taken[part]) for part in parts],
        )
        whole = chosen.rows == "*" and not (chosen.quick or chosen.null or chosen.profile)
        _publish(report, official=whole or chosen.record)
    complete = chosen.only or all(outcome.measured for outcome in outcomes)
    return 0 if complete and not failures and all(check.passed for check in checks) else 1


def _failures_of(session: Course, system: System) -> list[str]:
    """Run it. A failure costs the rows of this session, not those of an hour."""
    try:
        session.run()
    except BenchError as error:
        print(f"  failed: {error}", flush=True)
        return [*session.failures, f"{system.name}: {error}"]
    return session.failures


def _publish(report: record.Report, *, official: bool) -> None:
    written = record.write(report, official=official)
    for part in (spent.part for spent in report.spent):
        print(f"\n{table.text([each for each in report.outcomes if each.row.part is part])}")
    for check in report.checks:
        print(f"{check.name}: {'passed' if check.passed else 'FAILED'} ({check.detail})")
    for stem in written:
        with suppress(ValueError):
            stem = stem.relative_to(Path.cwd())  # noqa: PLW2901 - the same, shorter to read
        print(f"written to {stem}.{{json,md,svg}}")


def _run_check(
    name: str,
    check: Callable[[Path, ApacheKafka, System], record.Check],
    home: Path,
    kafka: ApacheKafka,
    ottla: System,
) -> record.Check:
    print(f"{name} …", flush=True)
    try:
        found = check(home / name, kafka, ottla)
    except BenchError as error:
        print(error, flush=True)
        first_line = str(error).splitlines()[0]
        return record.Check(name, passed=False, detail=first_line)
    finally:
        _remove(home / name)
    return found


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _raise_descriptor_limit() -> None:
    """Idle connections and thousands of partitions need more files than a shell usually allows."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
