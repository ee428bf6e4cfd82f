"""Where the native code was not built the writer works, and says that it is slow."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PROGRAM = """
    import pyarrow as pa

    from ottla.pipelines.sink.columns import columns_of
    from ottla.pipelines.sink.encoder import Encoder, Format
    from ottla.pipelines.sink.partitioner import Partitioner
    from ottla.records.reader import iter_records
    import numpy as np

    encoder = Encoder(Format())
    Encoder(Format())  # says it once
    columns = columns_of(pa.RecordBatch.from_pydict({"key": [b"k"], "value": [b"v"]}))
    partitioner = Partitioner(chunk_bytes=1, ignore_keys=False)
    partitioner.add_topic("t", 1, [0])
    starts, order = partitioner.sort(
        partitioner.route(np.zeros(1, np.int64), columns.keys, columns.sizes())
    )
    assert list(encoder.add(("t", 0), columns, order, 0, 1, 0)) == []
    [batch] = encoder.finish()
    [record] = iter_records(batch.data)
    print(record.key, record.value)
"""


def test_batches_are_made_in_python_and_that_is_announced():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"OTTLA_NATIVE": "0"},
    )
    assert done.stdout == "b'k' b'v'\n", done.stderr
    assert done.stderr.count("plain Python, some forty times slower") == 1
    assert "OTTLA_NATIVE=0 turns the native code off; unset it" in done.stderr
