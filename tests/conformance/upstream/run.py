"""Run the integration suites of kafka-python and aiokafka against a broker (`make interop`).

    python tests/conformance/upstream/run.py                          against Ottla
    python tests/conformance/upstream/run.py --bootstrap HOST:PORT    against that broker
    python tests/conformance/upstream/run.py --aiokafka FOLDER        aiokafka's from a checkout

kafka-python's source distribution holds its tests; it is downloaded at the version that is
installed here. aiokafka's does not: its suite comes from a checkout of the installed version,
which git clones unless one is named. Nothing of either is copied into this project. What is left
out is listed below, each with its reason; everything else has to pass. A suite that cannot be had
is said to be not run, which is no success.

`--report FILE` also writes what came out as JSON: one object per suite, or a reason why there is
none.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from ottla.testing.process import BrokerProcess

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
CACHE = ROOT / ".cache"
AIOKAFKA_SOURCE = "https://github.com/aio-libs/aiokafka"

ACLS = "needs an authorizer"
SECURITY = "needs TLS or SASL"

# So many failures at the most are looked at a second time.
AGAIN = 5

# What the suites take for granted: node 0, two partitions, sessions as short as the tests' own,
# and a group that forms as soon as its first member is there. An address that is advertised is
# set as well, once it is known.
SETTINGS = {
    "node.id": 0,
    "num.partitions": 2,
    "group.min.session.timeout.ms": 1_000,
    "group.initial.rebalance.delay.ms": 0,
}


@dataclass(frozen=True, slots=True)
class Suite:
    """Which tests of a project to run, and why the others are not: words of `pytest -k`."""

    name: str
    paths: tuple[str, ...]
    left_out: dict[str, str]


KAFKA_PYTHON = Suite(
    name="kafka-python",
    paths=("test/integration",),
    left_out={
        "test_sasl_integration": SECURITY,
        "test_ssl_integration": SECURITY,
        "test_create_describe_delete_acls": ACLS,
    },
)

AIOKAFKA = Suite(
    name="aiokafka",
    # every module with a test that speaks to a broker
    paths=(
        "tests/test_admin.py",
        "tests/test_client.py",
        "tests/test_conn.py",
        "tests/test_consumer.py",
        "tests/test_coordinator.py",
        "tests/test_pep492.py",
        "tests/test_producer.py",
        "tests/test_sasl.py",
        "tests/test_sender.py",
        "tests/test_transactional_consumer.py",
        "tests/test_transactional_producer.py",
    ),
    left_out={
        "test_sasl": SECURITY,
        "test_ssl_consume": SECURITY,
        "test_producer_ssl": SECURITY,
    },
)


@dataclass(slots=True)
class Outcome:
    """What came out of a suite, or why nothing did."""

    suite: str
    version: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """By the suite itself, with its reason."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """By us: the tests of each reason."""
    again: list[str] = field(default_factory=list)
    """Those that failed first and passed when they were run once more; counted as passed."""
    not_run: str = ""


# kafka-python's source distribution leaves out the two helpers that start processes; a broker
# that runs already needs only this much of them.
SERVICE = '''\
class ExternalService:
    """A broker that somebody else started."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    """Never used: the broker runs already."""
'''


def download(project: str, folder: Path) -> Path:
    """The source distribution of the installed version, unpacked."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        own = ROOT / ".uv" / "bin" / "uv"
        uv = shutil.which("uv") or (str(own) if own.exists() else None)
        if uv is None:
            raise LookupError("neither pip nor uv is here to download with")
        pip = [uv, "tool", "run", "pip"]
    wanted = f"{project}=={version(project)}"
    subprocess.run(
        [*pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder), wanted],
        check=True,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def run(suite: Suite, folder: Path, environment: dict[str, str], arguments: list[str]) -> Outcome:
    outcome = Outcome(suite.name, version(suite.name))
    print(f"\n{suite.name} {outcome.version}; left out:")
    for part, reason in suite.left_out.items():
        print(f"  {part}: {reason}")
    sys.stdout.flush()
    variables = {**os.environ, **environment}
    pytest = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        "-o", "asyncio_mode=strict", "-o", "junit_family=xunit1", "-W", "ignore",
    ]  # fmt: skip
    for part, reason in suite.left_out.items():
        listed = subprocess.run(
            [*pytest, "--collect-only", "-k", part, *suite.paths],
            cwd=folder, env=variables, check=False, capture_output=True, text=True,
        ).stdout  # fmt: skip
        tests = [line for line in listed.splitlines() if "::" in line]
        outcome.left_out.setdefault(reason, []).extend(tests)
    measured = ["--timeout=120", "--show-capture=no", "--durations=10", "--durations-min=5"]
    chosen = " and ".join(f"not {part}" for part in suite.left_out)
    results = folder / "results.xml"

    def attempt(expression: str) -> None:
        results.unlink(missing_ok=True)
        given = [f"--junitxml={results}", "-k", expression, *arguments, *suite.paths]
        subprocess.run([*pytest, *measured, *given], cwd=folder, env=variables, check=False)

    attempt(chosen)
    if not results.exists():
        outcome.not_run = "pytest ended before any test"
        return outcome
    count(results, outcome)
    if 0 < len(outcome.failed) <= AGAIN:
        # some wait 30 ms for something and count; a machine that is busy fails them
        names = {test.rpartition("::")[2].partition("[")[0] for test in outcome.failed}
        print(f"once more: {', '.join(sorted(names))}", flush=True)
        second = Outcome(suite.name, outcome.version)
        attempt(f"({' or '.join(sorted(names))}) and {chosen}")
        count(results, second)
        outcome.again = [test for test in outcome.failed if test not in second.failed]
        outcome.failed = [test for test in outcome.failed if test in second.failed]
        outcome.passed += len(outcome.again)
    return outcome


def count(results: Path, outcome: Outcome) -> None:
    """Add up what pytest has written down."""
    for case in ET.parse(results).getroot().iter("testcase"):
        name = f"{case.get('file', case.get('classname'))}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(name)
        elif skipped is not None:
            outcome.skipped[name] = skipped.get("message", "")
        else:
            outcome.passed += 1


def run_kafka_python(bootstrap: str, folder: Path, arguments: list[str]) -> Outcome:
    try:
        unpacked = download("kafka-python", folder)
    except (subprocess.CalledProcessError, LookupError) as error:
        return not_run(KAFKA_PYTHON, f"its source distribution could not be had: {error}")
    (unpacked / "test" / "__init__.py").touch()
    (unpacked / "test" / "service.py").write_text(SERVICE)
    environment = {
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": "4.2.0",
        "KAFKA_ROOT": str(folder),
    }
    return run(KAFKA_PYTHON, unpacked, environment, arguments)


def run_aiokafka(
    bootstrap: str, checkout: Path | None, folder: Path, arguments: list[str]
) -> Outcome:
    if checkout is None:
        try:
            checkout = clone(AIOKAFKA_SOURCE, f"v{version('aiokafka')}")
        except LookupError as error:
            return not_run(AIOKAFKA, str(error))
    if not (checkout / "tests").is_dir():
        return not_run(AIOKAFKA, f"{checkout} holds no tests")
    # only the tests are copied: the installed aiokafka, with its C modules, is what runs
    shutil.copytree(checkout / "tests", folder / "tests")
    shutil.copy(HERE / "aiokafka_fixtures.py", folder / "tests" / "conftest.py")
    environment = {"OTTLA_UPSTREAM_BOOTSTRAP": bootstrap}
    return run(AIOKAFKA, folder, environment, arguments)


def clone(source: str, tag: str) -> Path:
    """A shallow checkout of one tag, kept in the cache folder."""
    target = CACHE / f"{source.rpartition('/')[2]}-{tag}"
    if target.exists():
        return target
    git = shutil.which("git")
    if git is None:
        raise LookupError("git is not here to clone it; name a checkout with --aiokafka")
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [git, "clone", "--quiet", "--depth", "1", "--branch", tag, source]
        try:
            subprocess.run(
                [*command, f"{folder}/clone"],
                check=True, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
        except subprocess.SubprocessError as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            why = f"{source} cannot be cloned ({lines[-1]})"
            raise LookupError(f"{why}; name a checkout with --aiokafka") from None
        Path(folder, "clone").rename(target)
    return target


def not_run(suite: Suite, why: str) -> Outcome:
    return Outcome(suite.name, version(suite.name), not_run=why)


def said(outcome: Outcome) -> str:
    """One line that nobody can take for a success when it is none."""
    name = f"{outcome.suite} {outcome.version}"
    if outcome.not_run:
        return f"{name}: NOT RUN: {outcome.not_run}"
    left_out = sum(map(len, outcome.left_out.values()))
    total = outcome.passed + len(outcome.failed) + len(outcome.skipped) + left_out
    return (
        f"{name}: {outcome.passed} of {total} passed ({len(outcome.again)} at the second try), "
        f"{len(outcome.failed)} failed, "
        f"{len(outcome.skipped)} skipped by the suite itself, {left_out} left out"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="run other projects' suites against a broker")
    parser.add_argument("--bootstrap", metavar="HOST:PORT")
    parser.add_argument("--aiokafka", type=Path, metavar="FOLDER", help="a checkout of aiokafka")
    parser.add_argument("--only", choices=["kafka-python", "aiokafka"], help="run just this one")
    parser.add_argument("--report", type=Path, metavar="FILE", help="what came out, as JSON")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = options.bootstrap
        if bootstrap is None:
            broker = stack.enter_context(BrokerProcess(folder / "broker", settings=SETTINGS))
            bootstrap = broker.bootstrap
            broker.settings["advertised.listeners"] = f"PLAINTEXT://{bootstrap}"
            broker.start()
        more = options.pytest_arguments
        if options.only != "aiokafka":
            outcomes.append(run_kafka_python(bootstrap, subfolder(folder, "kafka-python"), more))
        if options.only != "kafka-python":
            target = subfolder(folder, "aiokafka")
            outcomes.append(run_aiokafka(bootstrap, options.aiokafka, target, more))
    print()
    for outcome in outcomes:
        print(said(outcome))
        for test in outcome.failed:
            print(f"  failed: {test}")
    if options.report:
        options.report.write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def subfolder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


if __name__ == "__main__":
    sys.exit(main())
