"""`python -m bench.interop`: Apache's Java clients, the newest and an older one, against Ottla.

The program in `bench/java` is compiled against each client version and run against one broker. The
table goes to the terminal and, between markers, into docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from bench import maven, table
from bench.maven import KAFKA_VERSION, OLD_CLIENTS_VERSION, ROOT, Libraries
from bench.processes import BenchError, run, wait_port
from bench.systems import ApacheKafka, Ottla, new_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.systems import Node, System

COMPATIBILITY = ROOT / "docs" / "compatibility.md"
SOURCES = ROOT / "bench" / "java"
_START_TIMEOUT = 60.0
_RUN_TIMEOUT = 600.0
_CLIENTS = ((KAFKA_VERSION, maven.CLIENTS), (OLD_CLIENTS_VERSION, maven.OLD_CLIENTS))


@dataclass(frozen=True, slots=True)
class Line:
    """One check of one client version."""

    suite: str
    check: str
    verdict: str
    milliseconds: int
    detail: str


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
        f"{sum(line.verdict == 'failed' for line in lines)} failed, "
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
        cells = [_cell(found.get((suite, check, version))) for version in versions]
        text.append(f"| {suite} | {check} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def _cell(line: Line | None) -> str:
    if line is None:
        return "**did not run**"
    if line.verdict == "failed":
        return f"**failed**: {line.detail}"
    return f"{line.verdict} ({line.detail})" if line.detail else line.verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.interop", description=__doc__)
    parser.add_argument("suites", nargs="*", help="only these: producer, consumer, admin")
    parser.add_argument(
        "--null", action="store_true", help="against Apache Kafka: the checks themselves"
    )
    parser.add_argument(
        "--client", choices=[version for version, _ in _CLIENTS], help="one version only"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, list[Line]] = {}
    try:
        system: System = ApacheKafka() if chosen.null else Ottla()
        with tempfile.TemporaryDirectory(prefix="ottla-interop-") as folder:
            for version, libraries in _CLIENTS:
                if chosen.client in {None, version}:
                    results[version] = _one_client(
                        system, version, libraries, Path(folder), chosen.suites
                    )
    except BenchError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterop: stopped", file=sys.stderr)
        return 130
    failed = [line for lines in results.values() for line in lines if line.verdict == "failed"]
    if not (chosen.null or chosen.suites or chosen.client):
        document = COMPATIBILITY.read_text()
        recorded = table.replace_between(document, "interop", markdown(results, date.today()))
        COMPATIBILITY.write_text(recorded)
    total = sum(len(lines) for lines in results.values())
    print(f"{total} checks, {len(failed)} failed")
    return 1 if failed else 0


def _one_client(
    system: System, version: str, libraries: Libraries, folder: Path, suites: Sequence[str]
) -> list[Line]:
    """A fresh broker for each client, so that neither meets what the other has left."""
    maven.fetch(libraries)
    classes = folder / f"classes-{version}"
    compile_against(libraries, classes)
    node = new_node(folder / f"broker-{version}")
    system.prepare(node, {})
    print(f"kafka-clients {version} against {system.name}", flush=True)
    with system.start(node) as broker:
        wait_port(node.port, broker, _START_TIMEOUT)
        lines = run_against(node, libraries, classes, suites)
    for line in lines:
        print(
            f"  {line.verdict:8} {line.suite:9} {line.check:42} {line.milliseconds:6} ms  "
            f"{line.detail}",
            flush=True,
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
