"""The suite may run in the background of a shell, or under a program that does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASK = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"


def test_what_a_test_starts_can_be_interrupted() -> None:
    assert subprocess.run([sys.executable, "-c", ASK], check=False).returncode == 0


def test_so_it_can_where_the_suite_itself_runs_in_the_background() -> None:
    one = (
        f"{Path(__file__).relative_to(ROOT)}::{test_what_a_test_starts_can_be_interrupted.__name__}"
    )
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one]
    ended = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
