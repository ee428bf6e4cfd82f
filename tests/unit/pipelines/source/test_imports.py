"""What a task loads before it reads its first record: each tenth of a second is felt there."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

from ottla.pipelines.source import kernel
from ottla.pipelines.source.batch import OttlaReader
from ottla.pipelines.source.options import ReadOptions

PROGRAM = """
    import pickle
    import sys

    pickle.loads(bytes.fromhex(sys.argv[1]))
    from ottla.pipelines.source import decoder, fetcher, kernel

    assert kernel.load() is not None
    heavy = {"numba", "pandas", "confluent_kafka", "click", "rich", "ottla.pipelines.cluster"}
    print(sorted(heavy & set(sys.modules)))
"""


def test_a_task_loads_neither_numba_nor_what_only_planning_needs():
    kernel.LIBRARY.packed()  # compiled by now
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
    reader = OttlaReader(ReadOptions.of(options, streaming=False))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), pickle.dumps(reader).hex()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "[]\n", done.stderr
