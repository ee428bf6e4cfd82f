"""What a task loads before it reads its first record: each tenth of a second is felt there."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

from ottla.pipelines.source.batch import OttlaReader
from ottla.pipelines.source.options import ReadOptions

PROGRAM = """
    import pickle
    import sys

    pickle.loads(bytes.fromhex(sys.argv[1]))
    from ottla.pipelines.source import decoder, fetcher, kernel

    kernel.load()
    heavy = {"pandas", "confluent_kafka", "click", "rich"}
    print(sorted((heavy | {"ottla.pipelines.cluster"}) & set(sys.modules)))
"""


def test_a_task_loads_nothing_that_only_planning_needs():
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
