"""Waiting until a file system has forgotten what was deleted on it.

For a minute after a file is deleted, and for six while that is not written back, ext4 gives its
inode to nobody. It looks past every such inode again for each file that is made nearby: after
a broker's thirty thousand files were removed, the next broker's cost it ten times the CPU. A row in
which thousands of files are made would measure what was removed before it.

So such rows wait until making a file is cheap, and their own files stay until the run ends.
"""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUICK_SECONDS = 50e-6
"""CPU for a new file where nothing is in the way, several times over."""
PATIENCE = 420.0
_PAUSE = 15.0
_FOLDERS = 200
_FILES = 2


def cost_of_a_file(folder: Path) -> float:
    """The kernel's CPU seconds for one new file, measured with some hundred, which stay."""
    folder.mkdir()
    os.sync()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    for number in range(_FOLDERS):
        made = folder / str(number)
        made.mkdir()
        for name in range(_FILES):
            (made / str(name)).touch()
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_stime - before
    return spent / (_FOLDERS * (1 + _FILES))


def wait_settled(
    folder: Path,
    say: Callable[[str], None],
    *,
    cost: Callable[[Path], float] = cost_of_a_file,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return when making files in `folder`, which is made, is cheap; False after `PATIENCE`."""
    folder.mkdir(parents=True, exist_ok=True)
    waited = 0.0
    while True:
        found = cost(folder / f"probe-{len(os.listdir(folder))}")
        if found <= QUICK_SECONDS:
            return True
        told = f"a new file takes {found * 1e6:.0f} µs here, after others were deleted"
        if waited >= PATIENCE:
            say(f"{told}; the rows that make many are measured all the same")
            return False
        if not waited:
            say(f"{told}: waiting up to {PATIENCE / 60:.0f} minutes until that is over")
        sleep(_PAUSE)
        waited += _PAUSE
