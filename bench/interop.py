"""`python -m bench.interop`: what others have written for Kafka, run against Ottla.

Its parts: Apache's Java clients, the newest and an older one, with the program in `bench/java`;
their transactions, under both transaction versions; Kafka Streams and Kafka Connect, killed while
they work exactly once (`exactly_once.py`); a folder of Apache Kafka with open transactions, taken
over (`takeover.py`); Apache's command-line tools beside ours (`bench/tools`); kcat; the suites of
kafka-python and aiokafka; `ottla verify run` on a cluster of Apache Kafka and on one of Ottla
(`verified.py`). What came out goes to the terminal and, between markers, into
docs/compatibility.md. A part that this machine cannot run is said to be not run, at the very end
and in capitals.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from bench import exactly_once, kcat, maven, table, takeover, upstream, verified
from bench.checks import Line, cell, failures
from bench.maven import KAFKA_VERSION, OLD_CLIENTS_VERSION, ROOT, Libraries
from bench.processes import BenchError, run, wait_port
from bench.systems import ApacheKafka, Ottla, new_node
from bench.tools import report as tools_report
from bench.tools.stage import command_files, compare_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.systems import Node, System
    from bench.tools.compare import Verdict

COMPATIBILITY = ROOT / "docs" / "compatibility.md"
SOURCES = ROOT / "bench" / "java"
_START_TIMEOUT = 60.0
_RUN_TIMEOUT = 600.0
_CLIENTS = ((KAFKA_VERSION, maven.CLIENTS), (OLD_CLIENTS_VERSION, maven.OLD_CLIENTS))
_CLIENT_SUITES = ("producer", "consumer", "admin", "groups")
_TRANSACTION_SUITES = ("transactions",)
# So that a check of time-outs need not wait for ten seconds.
_TRANSACTION_SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


@dataclass(slots=True)
class Summary:
    """What all parts came to."""

    said: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    failed: int = 0


def parse(output: str) -> list[Line]:
    """The program's lines; whatever else the JVM prints is left out."""
    lines = []
    for line in output.splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and fields[2] in {"passed", "failed", "skipped"}:
            suite, check, verdict, took, detail = fields
            lines.append(Line(suite, check, verdict, int(took), detail))
    return lines


def compile_against(libraries: Libraries, target: Path) -> None:
    javac = maven.program("javac", "the interoperability program is compiled on this machine")
    target.mkdir(parents=True)
    sources = sorted(str(source) for source in SOURCES.glob("*.java"))
    command = [
        javac,
        "-Xlint:all",
        "-Werror",
        "-cp",
        libraries.classpath,
        "-d",
        str(target),
        *sources,
    ]
    run("javac", command, timeout=120)


def run_against(
    node: Node, libraries: Libraries, classes: Path, suites: Sequence[str]
) -> list[Line]:
    command = [maven.java(), "-Xmx256M", "-cp", f"{classes}:{libraries.classpath}", "Interop"]
    done = run(
        "the Java client", [*command, node.bootstrap, *suites], timeout=_RUN_TIMEOUT, check=False
    )
    lines = parse(done.stdout)
    if not lines or (done.returncode != 0 and all(line.verdict != "failed" for line in lines)):
        raise BenchError(
            f"the Java client ended early:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        )
    return lines


def markdown(results: dict[str, list[Line]], day: date) -> str:
    """One row per check, one column per client version."""
    versions = list(results)
    passed = {
        version: f"{sum(line.verdict == 'passed' for line in lines)} passed, "
        f"{failures(lines)} failed, "
        f"{sum(line.verdict == 'skipped' for line in lines)} not in this client"
        for version, lines in results.items()
    }
    found = {
        (line.suite, line.check, version): line
        for version, lines in results.items()
        for line in lines
    }
    checks = list(
        dict.fromkeys((line.suite, line.check) for lines in results.values() for line in lines)
    )
    text = [
        f"Recorded on {day.isoformat()} with `make interop`: "
        + "; ".join(f"kafka-clients {version}: {passed[version]}" for version in versions)
        + ".",
        "",
        "| | check | " + " | ".join(f"kafka-clients {version}" for version in versions) + " |",
        "|---|---|" + "---|" * len(versions),
    ]
    for suite, check in checks:
        cells = [cell(found.get((suite, check, version))) for version in versions]
        text.append(f"| {suite} | {check} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def kcat_markdown(lines: Sequence[Line], version: str, day: date) -> str:
    return checks_markdown(f"kcat {version}", lines, day)


def checks_markdown(whose: str, lines: Sequence[Line], day: date) -> str:
    """One row per check."""
    text = [
        f"Recorded on {day.isoformat()} with `make interop`: {whose}: "
        f"{len(lines) - failures(lines)} passed, {failures(lines)} failed.",
        "",
        "| check | |",
        "|---|---|",
    ]
    return "\n".join([*text, *(f"| {line.check} | {cell(line)} |" for line in lines)])


def run_clients(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    system: System = ApacheKafka() if chosen.null else Ottla()
    results: dict[str, list[Line]] = {}
    for version, libraries in _CLIENTS:
        if chosen.client in {None, version}:
            suites = chosen.suites or _CLIENT_SUITES
            results[version] = _one_client(system, version, libraries, folder, suites)
    if not (chosen.null or chosen.suites or chosen.client):
        record("interop", markdown(results, date.today()))
    failed = sum(map(failures, results.values()))
    total = sum(map(len, results.values()))
    summary.said.append(f"Apache's Java clients: {total} checks, {failed} failed")
    summary.failed += failed


def run_transactions(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    """What the clients agree on with the cluster, and, after a downgrade, transaction version 1."""
    system: System = ApacheKafka() if chosen.null else Ottla()
    results: dict[str, list[Line]] = {}
    for (version, libraries), level in product(_CLIENTS, ("", "1")):
        # The older client knows version 1 only.
        if chosen.client in {None, version} and not (level and version == OLD_CLIENTS_VERSION):
            name = f"{version}, transaction.version={level}" if level else version
            results[name] = _one_client(
                system, version, libraries, folder, _TRANSACTION_SUITES, level=level
            )
    if not (chosen.null or chosen.client):
        record("transactions", markdown(results, date.today()))
    failed = sum(map(failures, results.values()))
    total = sum(map(len, results.values()))
    summary.said.append(f"Apache's transactional producer: {total} checks, {failed} failed")
    summary.failed += failed


def _one_client(
    system: System,
    version: str,
    libraries: Libraries,
    folder: Path,
    suites: Sequence[str],
    *,
    level: str = "",
) -> list[Line]:
    """A fresh broker for each client, so that neither meets what the other has left. With a `level`
    the cluster agrees on that transaction version before."""
    maven.fetch(libraries)
    name = "-".join([version, *suites, level])
    classes = folder / f"classes-{name}"
    compile_against(libraries, classes)
    node = new_node(folder / f"broker-{name}")
    system.prepare(node, _TRANSACTION_SETTINGS if suites == _TRANSACTION_SUITES else {})
    print(f"kafka-clients {version} against {system.name}", flush=True)
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        if level:
            change_level(node, level)
        lines = run_against(node, libraries, classes, suites)
    for line in lines:
        print(line, flush=True)
    return lines


def run_streams(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    _checked("streams", exactly_once.streams, chosen, folder, summary)


def run_connect(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    _checked("connect", exactly_once.connect, chosen, folder, summary)


def run_takeover(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    check = partial(takeover.check, compile_against=compile_against)
    _checked("takeover", check, chosen, folder, summary)


def _checked(
    name: str,
    check: Callable[[System, Path], list[Line]],
    chosen: argparse.Namespace,
    folder: Path,
    summary: Summary,
) -> None:
    lines = check(ApacheKafka() if chosen.null else Ottla(), folder)
    if not chosen.null:
        record(name, checks_markdown(f"Apache Kafka {KAFKA_VERSION}", lines, date.today()))
    summary.said.append(f"{name}: {len(lines)} checks, {failures(lines)} failed")
    summary.failed += failures(lines)


def change_level(node: Node, level: str) -> None:
    """Another transaction version, by Apache's own kafka-features."""
    command = ("--bootstrap-server", node.bootstrap, "downgrade")
    feature = f"transaction.version={level}"
    tool = ApacheKafka().classic_command("kafka-features", *command, "--feature", feature)
    print(run("kafka-features", tool, timeout=_START_TIMEOUT).stdout.strip(), flush=True)


def run_tools(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    """Several files at a time, each with its own broker: tools of Java mostly start and wait."""
    maven.fetch(maven.BROKER)
    files = [path for path in command_files() if not chosen.suites or path.stem in chosen.suites]
    print("Apache's tools and ours against Ottla", flush=True)
    stopped = threading.Event()

    def tell(verdict: Verdict) -> None:
        print(tools_report.terminal(verdict), flush=True)
        if stopped.is_set():
            raise BenchError("stopped")

    with ThreadPoolExecutor(chosen.jobs) as pool:
        try:
            found = pool.map(lambda path: compare_file(path, folder / path.stem, tell), files)
            verdicts = [verdict for each in found for verdict in each]
        except BaseException:
            stopped.set()
            raise
    if not chosen.suites:
        record("tools", tools_report.markdown(verdicts, date.today()))
    failed = sum(not verdict.good for verdict in verdicts)
    known = sum(verdict.outcome == "known" for verdict in verdicts)
    summary.said.append(
        f"Apache's tools beside ours: {len(verdicts)} commands, {failed} differ, "
        f"{known} in a way that is known and listed"
    )
    summary.failed += failed


def run_kcat(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    try:
        program = kcat.obtain()
    except kcat.NotHere as why:
        summary.not_run.append(f"kcat: {why}")
        return
    system = Ottla()
    node = new_node(folder / "broker-kcat")
    system.prepare(node, {"node.id": "1", "advertised.listeners": f"PLAINTEXT://{node.bootstrap}"})
    version = program.version()
    print(f"kcat {version} against {system.name}", flush=True)
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        lines = kcat.checks(node, program)
    record("kcat", kcat_markdown(lines, version, date.today()))
    summary.said.append(f"kcat: {len(lines)} checks, {failures(lines)} failed")
    summary.failed += failures(lines)


def run_upstream(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    given = ["--aiokafka", str(chosen.aiokafka)] if chosen.aiokafka else []
    outcomes = upstream.run(folder, given)
    for outcome in outcomes:
        name = f"{outcome['suite']} {outcome['version']}"
        if outcome["not_run"]:
            summary.not_run.append(f"{name}: {outcome['not_run']}")
            continue
        failed = len(outcome["failed"])
        summary.said.append(
            f"{name}'s own suite: {outcome['passed']} of {upstream.total(outcome)} passed, "
            f"{failed} failed"
        )
        summary.failed += failed
    if not any(outcome["not_run"] for outcome in outcomes):
        record("upstream", upstream.markdown(outcomes, date.today()))


def run_verify(chosen: argparse.Namespace, folder: Path, summary: Summary) -> None:
    """Apache Kafka first: what the harness finds there is a mistake of the harness."""
    told = []
    for name, system in (("apache", ApacheKafka()), ("ottla", Ottla())):
        print(f"ottla verify run against three brokers of {system.name}", flush=True)
        one = verified.verify(system, folder / f"verify-{name}")
        for anomaly in one.report["anomalies"]:
            print(f"{anomaly['check']}: {anomaly['text']}", flush=True)
        if one.anomalies:
            kept = Path(tempfile.mkdtemp(prefix="ottla-interop-kept-"))
            shutil.copy(folder / f"verify-{name}" / verified.HISTORY, kept)
            print(f"the history is kept in {kept}", flush=True)
        told.append(one)
        summary.said.append(
            f"ottla verify run on {one.system}: {one.report['acknowledged']:,} records "
            f"acknowledged, {one.anomalies} anomalies"
        )
        summary.failed += one.anomalies
    record("verify", verified.markdown(told, date.today()))


PARTS: dict[str, Callable[[argparse.Namespace, Path, Summary], None]] = {
    "clients": run_clients,
    "transactions": run_transactions,
    "streams": run_streams,
    "connect": run_connect,
    "takeover": run_takeover,
    "tools": run_tools,
    "kcat": run_kcat,
    "upstream": run_upstream,
    "verify": run_verify,
}


def record(name: str, text: str) -> None:
    """Write a part's table between its markers."""
    document = COMPATIBILITY.read_text()
    COMPATIBILITY.write_text(table.replace_between(document, name, text))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.interop", description=__doc__)
    parser.add_argument(
        "suites",
        nargs="*",
        help="only these: producer, consumer, admin, groups of the clients, or with --part tools "
        "the names of command files; nothing is recorded then",
    )
    parser.add_argument("--part", choices=list(PARTS), help="only this part")
    parser.add_argument(
        "--null", action="store_true", help="clients against Apache Kafka: the checks themselves"
    )
    parser.add_argument(
        "--client", choices=[version for version, _ in _CLIENTS], help="one version only"
    )
    parser.add_argument(
        "--aiokafka", type=Path, metavar="FOLDER", help="a checkout of aiokafka, else git clones it"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="command files of the tools at a time"
    )
    chosen = parser.parse_args()
    if chosen.part is None and (chosen.suites or chosen.null or chosen.client):
        chosen.part = "clients"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    summary = Summary()
    try:
        with tempfile.TemporaryDirectory(prefix="ottla-interop-") as folder:
            for name, part in PARTS.items():
                if chosen.part in {None, name}:
                    part(chosen, Path(folder), summary)
    except BenchError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterop: stopped", file=sys.stderr)
        return 130
    print("\n" + "\n".join(summary.said))
    for missing in summary.not_run:
        print(f"NOT RUN: {missing}")
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
