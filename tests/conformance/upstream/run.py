"""Run the integration suites of kafka-python and aiokafka against a broker (`make interop`).

    python tests/conformance/upstream/run.py                          against Ottla
    python tests/conformance/upstream/run.py --bootstrap HOST:PORT    against that broker
    python tests/conformance/upstream/run.py --aiokafka FOLDER        with aiokafka's suite too

kafka-python's source distribution holds its tests; it is downloaded at the version that is
installed here. aiokafka's does not, so its suite runs when a checkout of the installed version is
at hand. Nothing of either is copied into this project. What is left out is listed below, each
with its reason; everything else has to pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ottla.testing.process import BrokerProcess

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent

GROUPS = "needs consumer groups"
TRANSACTIONS = "needs transactions"
ACLS = "needs an authorizer"
SECURITY = "needs TLS or SASL"
REPLICAS = "needs leader election, reassignment or moving between folders"
QUORUM = "asks for the KRaft quorum, which is not what keeps our metadata"


NOT_YET = 15  # COORDINATOR_NOT_AVAILABLE: the offsets topic is only now being made


@dataclass(frozen=True, slots=True)
class Suite:
    """Which tests of a project to run, and why the others are not.

    The keys are expressions of `pytest -k`. `need_groups` are left out only where the broker
    answers a look-up of a group's coordinator with an error.
    """

    name: str
    paths: tuple[str, ...]
    left_out: dict[str, str]
    need_groups: tuple[str, ...]


KAFKA_PYTHON = Suite(
    name="kafka-python",
    paths=(
        "test/integration/test_admin_integration.py",
        "test/integration/test_consumer_integration.py",
        "test/integration/test_producer_integration.py",
    ),
    left_out={
        "test_create_describe_delete_acls": ACLS,
        "test_elect_leaders": REPLICAS,
        "test_alter_replica_log_dirs": REPLICAS,
        "test_alter_partition_reassignments": REPLICAS,
        "test_list_partition_reassignments": REPLICAS,
        "test_describe_metadata_quorum": QUORUM,
        "test_transactional_producer": TRANSACTIONS,
    },
    need_groups=(
        "test_describe_group_exists",
        "test_delete_groups",
        "test_kafka_consumer__offset_commit_resume",
        "test_kafka_consumer_max_bytes_one_msg",
        "test_group",
        "test_heartbeat_thread",
    ),
)

AIOKAFKA = Suite(
    name="aiokafka",
    paths=(
        "tests/test_admin.py",
        "tests/test_client.py",
        "tests/test_conn.py",
        "tests/test_consumer.py",
        "tests/test_fetcher.py",
        "tests/test_pep492.py",
        "tests/test_producer.py",
        "tests/test_sender.py",
    ),
    left_out={
        "test_ssl_consume": SECURITY,
        "test_producer_ssl": SECURITY,
        "test_sender_maybe_wait_for_pid_on_failure": TRANSACTIONS,
    },
    need_groups=(
        "consumer_group",
        "TestConsumerIteratorIntegration",
        # nearly every consumer in there joins a group, whatever it is the test looks at
        "(TestConsumerIntegration and not (no_group or nogroup or none_group or get_by_partition"
        " or seek_on_unassigned or seek_errors or invalid_crc or returns_older_msgs))",
    ),
)

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
            sys.exit("neither pip nor uv is here to download with")
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


def coordinates_groups(bootstrap: str) -> bool:
    """Ask which broker coordinates some group (FindCoordinator 0)."""
    host, _, port = bootstrap.rpartition(":")
    request = struct.pack(">hhihh5s", 10, 0, 1, -1, 5, b"group")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            answer = stream.read(10)
    return len(answer) == 10 and struct.unpack_from(">h", answer, 8)[0] in {0, NOT_YET}


def run(
    suite: Suite,
    bootstrap: str,
    folder: Path,
    environment: dict[str, str],
    arguments: list[str],
) -> int:
    left_out = dict(suite.left_out)
    if not coordinates_groups(bootstrap):
        left_out |= dict.fromkeys(suite.need_groups, GROUPS)
    print(f"\n{suite.name} {version(suite.name)}; left out:")
    for part, reason in left_out.items():
        print(f"  {part}: {reason}")
    excluded = " and ".join(f"not {part}" for part in left_out)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--timeout=120",
        "--show-capture=no",
        "--durations=0",
        "--durations-min=5",
        "-o",
        "asyncio_mode=strict",
        "-W",
        "ignore",
        "-k",
        excluded,
        *arguments,
        *suite.paths,
    ]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, check=False
    ).returncode


def run_kafka_python(bootstrap: str, folder: Path, arguments: list[str]) -> int:
    unpacked = download("kafka-python", folder)
    (unpacked / "test" / "__init__.py").touch()
    (unpacked / "test" / "service.py").write_text(SERVICE)
    environment = {
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": "4.2.0",
        "KAFKA_ROOT": str(folder),
    }
    return run(KAFKA_PYTHON, bootstrap, unpacked, environment, arguments)


def run_aiokafka(bootstrap: str, checkout: Path, folder: Path, arguments: list[str]) -> int:
    # only the tests are copied: the installed aiokafka, with its C modules, is what runs
    shutil.copytree(checkout / "tests", folder / "tests")
    shutil.copy(HERE / "aiokafka_fixtures.py", folder / "tests" / "conftest.py")
    environment = {"OTTLA_UPSTREAM_BOOTSTRAP": bootstrap}
    return run(AIOKAFKA, bootstrap, folder, environment, arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description="run other projects' suites against a broker")
    parser.add_argument("--bootstrap", metavar="HOST:PORT")
    parser.add_argument("--aiokafka", type=Path, metavar="FOLDER", help="a checkout of aiokafka")
    parser.add_argument("--only", choices=["kafka-python", "aiokafka"], help="run just this one")
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = options.bootstrap
        if bootstrap is None:
            # what the suites take for granted: node 0, two partitions, short sessions, and an
            # advertised address that was set
            settings = {"node.id": 0, "num.partitions": 2, "group.min.session.timeout.ms": 1_000}
            broker = stack.enter_context(BrokerProcess(folder / "broker", settings=settings))
            bootstrap = broker.bootstrap
            broker.settings["advertised.listeners"] = f"PLAINTEXT://{bootstrap}"
            broker.start()
        more, failed = options.pytest_arguments, 0
        if options.only != "aiokafka":
            failed |= run_kafka_python(bootstrap, subfolder(folder, "kafka-python"), more)
        if options.aiokafka is None:
            print("\naiokafka: not run, its source distribution holds no tests; see --aiokafka")
        elif options.only != "kafka-python":
            target = subfolder(folder, "aiokafka")
            failed |= run_aiokafka(bootstrap, options.aiokafka, target, more)
    return 1 if failed else 0


def subfolder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


if __name__ == "__main__":
    sys.exit(main())
