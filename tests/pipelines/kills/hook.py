"""What Spark's processes do at a named point: they tell the harness, and wait for its answer.

    OTTLA_PIPELINE_POINTS=kills.hook:reached

Every point is told over a socket (`switchboard.py`), with the process and, in a task, which attempt
of which task it is. Most are answered at once; a process at a point that the harness waits for is
held there while somebody is killed, itself perhaps. When nobody listens, it goes on.

Mistakes are planted (`planted.py`) when this module is imported, before any work is done.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

from kills import planted

SOCKET: Final = "OTTLA_KILLS_SOCKET"
PIPELINE: Final = "OTTLA_KILLS_PIPELINE"
PLANT: Final = "OTTLA_KILLS_PLANT"

_after = planted.plant(os.environ.get(PLANT))


def reached(point: Any) -> None:
    told = {
        "pipeline": os.environ[PIPELINE],
        "point": point.value,
        "process": os.getpid(),
        **_task(),
    }
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(os.environ[SOCKET])
            connection.sendall(json.dumps(told).encode() + b"\n")
            connection.recv(1)
    except OSError:
        pass
    _after(point)


def _task() -> dict[str, int]:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return {}
    return {
        "stage": task.stageId(),
        "partition": task.partitionId(),
        "attempt": task.attemptNumber(),
    }
