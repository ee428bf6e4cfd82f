"""The part of `make fuzz` that everybody runs: 200,000 mutated requests, always the same ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.py"


@pytest.mark.timeout(1300)
def test_two_hundred_thousand_mutated_requests_leave_the_broker_well():
    done = subprocess.run(
        [sys.executable, str(RUN), "--frames", "200000", "--seed", "3"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-8000:]
