"""The writers that Spark calls: rows of a DataFrame into topics, in batch and as a stream.

On the driver they are made and check options and columns without asking any broker; then they are
pickled, and `write` runs in each task. It returns, with counts, only when every row is
acknowledged. When it raises, Spark reports the job as failed and nothing of it as written; what
had already been sent is in the topic, as with every at-least-once sink, and a task that Spark
tries again sends its rows again, under other sequence numbers: `idempotent` covers requests, not
tasks.

Columns are those of Spark's Kafka connector: `value`, `key`, `topic`, `partition`, `headers`, and
`timestamp` for `keepTimestamps=true`; records have the time of writing else. Others are left out.

Arrow batches are sorted by partition and appended to record batches while earlier ones travel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.pipelines.errors import OptionError
from ottla.pipelines.sink.options import WriteOptions, check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.pipelines.sink.delivery import Delivery


LOGGER = logging.getLogger("ottla.pipelines")

_REMIND: Final = 600.0


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task has written, all of it acknowledged."""

    records: int
    bytes: int
    """Of record batches, as they travelled."""
    batches: int
    requests: int
    plain: str = ""
    """Which machine it was, and why, if the batches were made without native code."""


class OttlaWriter(DataSourceArrowWriter):
    """Appends a DataFrame to topics."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "mode",
                'save mode overwrite is not possible, records of a topic stay: use mode("append").',
            )
        self._settings = _settings(schema, options)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_rows(iterator, self._settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is in its topic already. What tasks could not report is logged here."""
        _say_what_is_slow(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is in a topic cannot be taken back."""


class OttlaStreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch; `overwrite` is how Spark says Complete, where a micro-batch has the
    whole result: it is appended too, as Spark's connector does."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._settings = _settings(schema, options)

    def write(self, iterator: Iterator[Any]) -> Written:
        return write_rows(iterator, self._settings)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name for it
        """Everything is in its topic already. What tasks could not report is logged here."""
        _say_what_is_slow(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name for it
        """What is in a topic cannot be taken back."""


_told: dict[str, float] = {}


def _say_what_is_slow(messages: Sequence[WriterCommitMessage | None]) -> None:
    """In the driver's log: the machines that made batches without native code. A stream commits
    every few seconds, in one process, and does not repeat itself each time."""
    slow: dict[str, int] = {}
    for each in messages:
        if isinstance(each, Written) and each.plain:
            slow[each.plain] = slow.get(each.plain, 0) + 1
    now = time.monotonic()
    for where, count in slow.items():
        if now - _told.get(where, -_REMIND) >= _REMIND:
            _told[where] = now
            LOGGER.warning(
                "%d of %d tasks made record batches in plain Python, some forty times slower, on "
                "%s.",
                count,
                len(messages),
                where,
            )


def _settings(schema: StructType, options: Mapping[str, str]) -> WriteOptions:
    settings = WriteOptions.parse(options)
    check_schema(schema, settings)
    for notice in settings.notices:
        LOGGER.warning("%s", notice)
    return settings


def write_rows(batches: Iterator[Any], settings: WriteOptions) -> Written:
    """Write Arrow batches in this process; `WriteFailed` names the row that was in the way."""
    # Here and not above: numpy takes a while to load, and only tasks need it.
    from ottla.pipelines.native import missing_here
    from ottla.pipelines.sink.delivery import Delivery

    delivery: Delivery | None = None
    try:
        for batch in batches:
            if batch.num_rows:
                if delivery is None:
                    delivery = Delivery(settings)
                delivery.add(batch)
        if delivery is None:  # an empty task asks no broker
            return Written(0, 0, 0, 0)
        totals = delivery.finish()
    finally:
        if delivery is not None:
            delivery.close()
    return Written(
        totals.records, totals.bytes, totals.batches, totals.requests, plain=missing_here()
    )
