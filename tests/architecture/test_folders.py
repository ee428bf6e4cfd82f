"""Each test is where tests/README.md says that it belongs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parents[1]
DOUBTFUL = """
import asyncio, socket, subprocess, sys

def test_a_connection_to_nobody():
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", 1))

def test_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_a_pair_of_sockets():
    for end in socket.socketpair():
        end.close()

def test_an_event_loop():
    asyncio.run(asyncio.sleep(0))
"""


def test_the_readme_names_every_folder() -> None:
    named = re.findall(r"^\| `(\w+)/` \|", (TESTS / "README.md").read_text(), re.MULTILINE)
    there = [path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    assert sorted(named) == sorted(there)


def test_a_unit_test_that_leaves_its_process_fails(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((TESTS / "unit" / "conftest.py").read_text())
    pytester.makepyfile(DOUBTFUL)
    run = pytester.runpytest_subprocess("-p", "no:ottla", "-p", "no:cacheprovider")
    run.assert_outcomes(passed=4, errors=2)
    run.stdout.fnmatch_lines(["*socket.connect, called from *", "*subprocess.Popen, called from *"])
