"""Kills who reaches a point, or somebody else, once: `OTTLA_PIPELINE_POINTS=kill_points:reached`.

The file that `OTTLA_TEST_KILL` names says at which point, the how-manieth time, and, if it is not
the process that is there, which one is killed ("after-commit 2", "before-write 1 4711"). Its
children are killed with it: those of a database server go on serving without it for a while, and
may end what they have begun. The file is gone when that has happened.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def reached(point: object) -> None:
    file = Path(os.environ["OTTLA_TEST_KILL"])
    try:
        name, count, *victim = file.read_text().split()
    except FileNotFoundError:
        return
    if name != getattr(point, "value", None):
        return
    if int(count) > 1:
        file.write_text(" ".join([name, str(int(count) - 1), *victim]))
        return
    try:
        file.unlink()
    except FileNotFoundError:  # another task was faster
        return
    killed = [int(victim[0]), *_children_of(victim[0])] if victim else [os.getpid()]
    for process in killed:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _children_of(process: str) -> list[int]:
    return [
        int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]
