"""`make matrix`: the whole suite on every Python from 3.11 up that this machine has.

Interpreters are looked for on the PATH and among pyenv's. The newest of each minor version gets an
environment of its own in .cache/matrix, the suite is run in it, and the results go into
docs/compatibility.md. Versions that are not found are named: they count as nothing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from bench import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
ENVIRONMENTS = ROOT / ".cache" / "matrix"
FIRST, LAST = 11, 14
"""The minor versions of Python 3 that are looked for."""
ASK = "import sys; print('%d.%d.%d %s' % (*sys.version_info[:3], sys.version_info.releaselevel))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: Path
    version: tuple[int, int, int]

    @property
    def minor(self) -> str:
        return f"3.{self.version[1]}"

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(frozen=True, slots=True)
class Outcome:
    interpreter: Interpreter
    passed: int
    failed: int
    skipped: int

    @property
    def row(self) -> str:
        verdict = "all passed" if not self.failed else f"{self.failed:,} failed"
        cells = (self.interpreter, f"{self.passed:,}", self.failed, self.skipped, verdict)
        return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.matrix", description=__doc__)
    parser.add_argument("--only", action="append", metavar="3.N", help="this version (repeatable)")
    parser.add_argument("--workers", default="2", help="tests that run at the same time (2)")
    parser.add_argument("--list", action="store_true", help="print what was found and end")
    parser.add_argument("tests", nargs="*", help="only these tests; nothing is recorded then")
    options = parser.parse_args()
    found = {it.minor: it for it in newest(candidates())}
    for minor in (f"3.{number}" for number in range(FIRST, LAST + 1)):
        print(f"Python {minor}: {found[minor].path if minor in found else 'not found'}", flush=True)
    if options.list:
        return
    wanted = options.only or list(found)
    for minor in wanted:
        if minor not in found:
            sys.exit(f"there is no Python {minor} on the PATH, nor among pyenv's")
    outcomes = [run(found[minor], options.workers, options.tests) for minor in wanted]
    if not options.tests and not options.only:
        record(outcomes)
    print("\n".join(lines(outcomes)))
    sys.exit(any(outcome.failed for outcome in outcomes))


def candidates() -> list[Path]:
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += sorted(pyenv.glob("versions/*/bin"))
    names = [f"python3.{minor}" for minor in range(FIRST, LAST + 1)]
    paths = [folder / name for folder in folders for name in names]
    return [path for path in paths if os.access(path, os.X_OK)]


def newest(paths: list[Path]) -> list[Interpreter]:
    """The newest released interpreter of each minor version, the oldest version first."""
    best: dict[int, Interpreter] = {}
    for path in paths:
        version = version_of(path)
        if version is not None and (version[1] not in best or version > best[version[1]].version):
            best[version[1]] = Interpreter(path, version)
    return [best[minor] for minor in sorted(best)]


def version_of(path: Path) -> tuple[int, int, int] | None:
    """None for what does not run, such as pyenv's stand-ins, and for a version before release."""
    asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+) final", asked.stdout.strip())
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def run(interpreter: Interpreter, workers: str, tests: list[str]) -> Outcome:
    environment = ENVIRONMENTS / interpreter.minor
    print(f"\n== Python {interpreter}", flush=True)
    uv = [ROOT / ".uv" / "bin" / "uv", "sync", "--locked", "--quiet", "--all-extras"]
    subprocess.run(
        [*uv, "--python", interpreter.path],
        cwd=ROOT,
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)},
        check=True,
    )
    report = ENVIRONMENTS / f"{interpreter.minor}.xml"
    report.unlink(missing_ok=True)
    pytest = [environment / "bin" / "pytest", "-q", "-n", workers, "--dist", "worksteal"]
    subprocess.run([*pytest, f"--junitxml={report}", *tests], cwd=ROOT, check=False)
    if not report.exists():
        sys.exit(f"pytest did not run on Python {interpreter}; see above")
    return read(interpreter, report)


def read(interpreter: Interpreter, report: Path) -> Outcome:
    [suite] = ET.parse(report).getroot().iter("testsuite")
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    return Outcome(interpreter, passed, failed, count["skipped"])


def lines(outcomes: list[Outcome]) -> list[str]:
    head = ["| Python | passed | failed | skipped | |", "|---|---:|---:|---:|---|"]
    return head + [outcome.row for outcome in outcomes]


def record(outcomes: list[Outcome]) -> None:
    there = {outcome.interpreter.version[1] for outcome in outcomes}
    missing = [f"3.{minor}" for minor in range(FIRST, LAST + 1) if minor not in there]
    today = datetime.datetime.now(datetime.UTC).date()
    text = f"Recorded on {today} with `make matrix`.\n\n" + "\n".join(lines(outcomes))
    if missing:
        text += f"\n\nNot tried, since the machine had none: {', '.join(missing)}."
    PAGE.write_text(table.replace_between(PAGE.read_text(), "matrix", text))


if __name__ == "__main__":
    main()
