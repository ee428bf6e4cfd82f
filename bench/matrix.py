"""`make matrix`: the whole suite on every Python from 3.11 up that this machine has.

Interpreters are looked for on the PATH and among pyenv's. The newest of each minor version gets an
environment of its own in .cache/matrix. The suite is run there part by part, a part being a folder
of tests, and each result is kept: a run that was stopped goes on where it was, as long as no file
has changed since. The newest result of each part goes into docs/compatibility.md, with the tests
that failed; a result from before the last change is marked as such, and a part or a version that
was not run is named. What was not run counts as nothing.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from bench import table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
ENVIRONMENTS = ROOT / ".cache" / "matrix"
FIRST, LAST = 11, 14
"""The minor versions of Python 3 that are looked for."""
PARTS = (
    "architecture",
    "unit",
    "contract",
    "property",
    "simulation",
    "integration",
    "docs",
    "examples",
    "conformance",
    "system",
    "fuzz",
    "pipelines",
)
"""Folders of tests: what fails early is known early, what takes long comes last."""
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
class Counts:
    """What became of the tests of one part, or of several."""

    passed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed,
            self.skipped + other.skipped,
            self.failures + other.failures,
        )

    def __str__(self) -> str:
        return f"{self.passed:,} passed, {len(self.failures)} failed, {self.skipped} skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """The newest result of one part on one Python."""

    counts: Counts
    earlier: bool
    """Whether files have changed since."""

    @property
    def cell(self) -> str:
        words = [f"{self.counts.passed:,}"]
        words += [f"{len(self.counts.failures):,} failed"] if self.counts.failures else []
        words += [f"{self.counts.skipped:,} skipped"] if self.counts.skipped else []
        return ", ".join(words) + (" ¹" if self.earlier else "")


Results = dict[Interpreter, dict[str, Result]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.matrix", description=__doc__)
    parser.add_argument("--only", action="append", metavar="3.N", help="this version (repeatable)")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="this folder of tests (repeatable)"
    )
    parser.add_argument("--workers", default="2", help="tests that run at the same time (2)")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--list", action="store_true", help="print what was found and end")
    options = parser.parse_args()
    found = {each.minor: each for each in newest(candidates())}
    for minor in (f"3.{number}" for number in range(FIRST, LAST + 1)):
        print(f"Python {minor}: {found[minor].path if minor in found else 'not found'}", flush=True)
    if options.list:
        return
    wanted = options.only or list(found)
    for minor in wanted:
        if minor not in found:
            sys.exit(f"there is no Python {minor} on the PATH, nor among pyenv's")
    parts = [part for part in PARTS if part in (options.part or PARTS)]
    state = state_of_files()
    failed = False
    for minor in wanted:
        runner = Runner(found[minor], state, options.workers, again=options.again)
        failed |= bool(runner.run(parts).failures)
        record({each: results_of(each, state) for each in found.values()})
    sys.exit(failed)


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


def state_of_files() -> str:
    """A word for the files as they are; what was run with another one is run again.

    The page that the results go into does not count.
    """
    digest = hashlib.sha256()
    names = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(["git", *names], cwd=ROOT, capture_output=True, check=True).stdout
    for name in sorted(filter(None, listed.split(b"\0"))):
        path = ROOT / os.fsdecode(name)
        if path.is_file() and path != PAGE:
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Runner:
    """One interpreter: its environment, its runs and their reports."""

    def __init__(
        self, interpreter: Interpreter, state: str, workers: str, *, again: bool = False
    ) -> None:
        self._interpreter = interpreter
        self._environment = ENVIRONMENTS / interpreter.minor
        self._reports = ENVIRONMENTS / f"{interpreter}-{state}"
        self._workers = workers
        self._again = again

    def run(self, parts: list[str]) -> Counts:
        print(f"\n== Python {self._interpreter}", flush=True)
        self._reports.mkdir(parents=True, exist_ok=True)
        counts = Counts()
        built = False
        for part in parts:
            report = self._reports / f"{part}.xml"
            done = None if self._again else read(report)
            if done is not None:
                print(f"{part}: {done} (before)", flush=True)
            else:
                built = built or self._build()
                began = time.monotonic()
                done = self._test(part, report) if built else _nothing(part, "no environment")
                print(f"{part}: {done}, {time.monotonic() - began:.0f} s", flush=True)
            for failure in done.failures:
                print(f"  {failure}", flush=True)
            counts += done
        return counts

    def _build(self) -> bool:
        uv, python = ROOT / ".uv" / "bin" / "uv", self._interpreter.path
        environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(self._environment)}
        options = ["sync", "--locked", "--quiet", "--all-extras", "--python", str(python)]
        scripts = self._environment / "bin"
        commands = (  # as `make setup` does
            [str(uv), *options],
            [str(scripts / "ottla"), "tools", "link", "--force", str(scripts)],
        )
        return all(
            subprocess.run(
                command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL
            ).returncode
            == 0
            for command in commands
        )

    def _test(self, part: str, report: Path) -> Counts:
        report.unlink(missing_ok=True)
        unfinished = report.with_suffix(".unfinished")
        pytest = [f"{self._environment}/bin/pytest", "-v", "-n", self._workers]
        options = ["--dist", "worksteal", f"--junitxml={unfinished}", f"tests/{part}"]
        with report.with_suffix(".log").open("wb") as log:
            subprocess.run(
                [*pytest, *options], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False
            )
        if read(unfinished) is None:
            return _nothing(part, f"pytest did not run, see {log.name}")
        unfinished.rename(report)
        return read(report) or _nothing(part, "no report")


def _nothing(part: str, why: str) -> Counts:
    return Counts(failures=(f"tests/{part}: {why}",))


def read(report: Path) -> Counts | None:
    """What is in pytest's report; None when there is none, or half a one."""
    try:
        [suite] = ET.parse(report).getroot().iter("testsuite")
    except (FileNotFoundError, ET.ParseError, ValueError):
        return None
    failures: list[str] = []
    skipped = passed = 0
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Counts(passed, skipped, tuple(dict.fromkeys(failures)))


def results_of(interpreter: Interpreter, state: str) -> dict[str, Result]:
    """The newest result of each part that was ever run to its end."""
    found = {}
    for part in PARTS:
        reports = sorted(
            ENVIRONMENTS.glob(f"{interpreter}-*/{part}.xml"), key=lambda path: path.stat().st_mtime
        )
        counts = read(reports[-1]) if reports else None
        if counts is not None:
            found[part] = Result(counts, reports[-1].parent.name != f"{interpreter}-{state}")
    return found


def lines(results: Results) -> list[str]:
    """The table: a line for each part, a column for each Python."""
    head = [_line("tests passed in", *results), "|---|" + "---:|" * len(results)]
    return head + [
        _line(f"`{part}`", *(_cell(parts.get(part)) for parts in results.values()))
        for part in PARTS
    ]


def _cell(result: Result | None) -> str:
    return "not run" if result is None else result.cell


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def record(results: Results) -> None:
    there = {interpreter.version[1] for interpreter in results}
    missing = [f"3.{minor}" for minor in range(FIRST, LAST + 1) if minor not in there]
    today = datetime.datetime.now(datetime.UTC).date()
    text = f"Recorded on {today} with `make matrix`.\n\n" + "\n".join(lines(results))
    if any(result.earlier for parts in results.values() for result in parts.values()):
        text += "\n\n¹ run before the last change to the files"
    for interpreter, parts in results.items():
        failures = [failure for result in parts.values() for failure in result.counts.failures]
        if failures:
            text += f"\n\nFailed on {interpreter}:\n"
            text += "".join(f"\n- `{failure}`" for failure in failures)
    if missing:
        text += f"\n\nNot tried, since the machine had none: {', '.join(missing)}."
    print("\n" + text, flush=True)
    PAGE.write_text(table.replace_between(PAGE.read_text(), "matrix", text))


if __name__ == "__main__":
    main()
