"""`make coverage`: how much of the modules without I/O their own unit tests reach.

Which modules these are is read from the contract `sans-io` in pyproject.toml. They are the ones
whose every branch a test can reach without a socket, a disk or a clock, so what is not reached is
either not tested or not needed. No package may fall below its floor: raise it in the commit that
raises the coverage. Property tests and simulations reach more, and take longer; they do not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = (
    "model",
    "protocol",
    "records",
    "net",
    "controller",
    "coordinator",
    "pipelines/source",
    "replication",
    "telemetry",
)
"""Folders of unit tests."""
FLOORS = {
    "controller": 100,
    "coordinator": 95,
    "model": 98,
    "net": 97,
    "pipelines": 100,
    "protocol": 99,
    "records": 96,
    "replication": 98,
    "telemetry": 97,
    "verify": 96,
}
"""Per cent of lines and branches, of all modules of a package together."""


def modules() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [each for each in contracts["contracts"] if each["id"] == "sans-io"]
    return list(contract["source_modules"])


def patterns(names: list[str]) -> list[str]:
    """Files of modules, as coverage wants them."""
    paths = [Path("src", *name.split(".")) for name in names]
    return [f"{path}/*" if (ROOT / path).is_dir() else f"{path}.py" for path in paths]


def by_package(files: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Per cent of the lines and branches of each package that were reached."""
    reached: dict[str, int] = defaultdict(int)
    there: dict[str, int] = defaultdict(int)
    for path, file in files.items():
        package = Path(path).parts[2]
        summary = file["summary"]
        reached[package] += summary["covered_lines"] + summary["covered_branches"]
        there[package] += summary["num_statements"] + summary["num_branches"]
    return {package: 100 * reached[package] / there[package] for package in sorted(there)}


def below(found: Mapping[str, float], floors: Mapping[str, int]) -> list[str]:
    """One sentence for each package that has lost something."""
    return [
        f"{package}: {found.get(package, 0.0):.2f} %, at least {floor} is asked for"
        for package, floor in floors.items()
        if found.get(package, 0.0) < floor
    ]


def main() -> None:
    include = ",".join(patterns(modules()))
    with tempfile.TemporaryDirectory(prefix="ottla-coverage-") as folder:
        data, report = f"--data-file={folder}/data", Path(folder, "report.json")
        coverage = [sys.executable, "-m", "coverage"]
        tests = [f"tests/unit/{name}" for name in TESTS]
        run = [*coverage, "run", "--branch", data, f"--include={include}", "-m", "pytest", "-q"]
        subprocess.run([*run, *tests], cwd=ROOT, check=True)
        shown = ["--show-missing", "--skip-covered"]
        subprocess.run([*coverage, "report", data, *shown], cwd=ROOT, check=True)
        subprocess.run([*coverage, "json", "-q", data, "-o", str(report)], cwd=ROOT, check=True)
        found = by_package(json.loads(report.read_text())["files"])
    print()
    for package, percent in found.items():
        print(f"{package:12} {percent:6.2f} %, floor {FLOORS[package]}")
    problems = below(found, FLOORS)
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
