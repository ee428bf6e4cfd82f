"""What a Spark task does: read one range of offsets of one partition as Arrow record batches.

    for batch in read_range(part, settings):
        ...                                    # pyarrow.RecordBatch, schema as in `columns`

The way from the broker's bytes to Arrow has three stations. A thread fetches from the leader,
checks and unpacks what came (`fetcher`), at most `prefetch_bytes` ahead of the consumer. The
records are walked and copied straight into Arrow's buffers (`decoder`), by native code that
leaves the interpreter's lock alone. What Spark is handed are those buffers (`columns`).

Planning happens elsewhere, in processes that must start fast, and needs `FetchSettings` only: so
nothing heavy is imported until a task reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.pipelines.source.column_choice import USUAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.pipelines.source.loss import LossPolicy
    from ottla.pipelines.source.ranges import Range

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How to read; pickled into every task.

    Times are seconds. Sizes are bytes.

    loss                 what to do about records that are missing
    bootstrap            brokers to start from, "host:port,…"
    read_committed       leave out aborted transactions, and what is not decided yet
    max_partition_bytes  of one fetch; a larger batch comes whole all the same
    max_bytes            the same, as a limit on a whole answer
    min_bytes, max_wait  a broker answers once it has so much, or after so long
    request_timeout      for an answer; then the connection is made anew
    check_crcs           compare each batch's checksum
    columns              what the record batches have, in this order
    rows_per_batch       rows of one Arrow record batch, at most
    prefetch_bytes       how much may be ready before Spark asks for it
    retry_backoff        the first pause after a failure; pauses double up to `retry_backoff_max`
    patience             how long to try to reach a leader; None: for ever
    log_end_patience     how long a log may stay shorter than planned before it counts as truncated
    max_decompressed     one batch may not become larger than this
    rack                 `client.rack`
    """

    loss: LossPolicy
    bootstrap: str
    client_id: str = "ottla-spark"
    read_committed: bool = True
    max_partition_bytes: int = 8 * MIB
    max_bytes: int = 50 * MIB
    min_bytes: int = 1
    max_wait: float = 0.5
    request_timeout: float = 30.0
    check_crcs: bool = True
    columns: tuple[str, ...] = USUAL
    rows_per_batch: int = 10_000
    prefetch_bytes: int = 32 * MIB
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0
    patience: float | None = 120.0
    log_end_patience: float = 10.0
    max_decompressed: int = 128 * MIB
    rack: str = ""


def read_range(part: Range, settings: FetchSettings) -> Iterator[Any]:
    """The records of `part`, in order, as `pyarrow.RecordBatch`es of at most `rows_per_batch` rows.

    Raises DataLossError when records are missing and the policy says so, InvalidBatch for data
    that cannot be what a producer wrote, KafkaError when the leader cannot be read in time.
    """
    from ottla.pipelines.source.decoder import decode
    from ottla.pipelines.source.fetcher import fetch

    return decode(fetch(part, settings), part, settings)
