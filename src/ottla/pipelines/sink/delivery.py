"""One task's way from Arrow batches to acknowledged records: route, encode, send.

The part of the writer that runs inside a task, where numpy may be loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ottla.client.retry import UNREACHABLE
from ottla.errors import ErrorCode, KafkaError
from ottla.pipelines.sink.columns import columns_of, integers_of
from ottla.pipelines.sink.encoder import Batch, Encoder, Format
from ottla.pipelines.sink.failures import RowFailed, row_failed
from ottla.pipelines.sink.partitioner import Partitioner
from ottla.pipelines.sink.producer import Producer, Totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ottla.pipelines.sink.options import WriteOptions


class Delivery:
    """Takes Arrow batches; `finish` returns when all of their rows are acknowledged."""

    def __init__(self, settings: WriteOptions) -> None:
        settings = replace(settings, streaming=_in_a_stream())
        self._settings = settings
        self._task = _task()
        self._rows = 0
        self._partitioner = Partitioner(
            chunk_bytes=settings.chunk_bytes, ignore_keys=settings.ignore_keys
        )
        self._producer = Producer(settings, self._task)
        try:
            form = self._producer.begin(
                Format(
                    settings.compression,
                    settings.level,
                    settings.batch_bytes,
                    max(settings.buffer_bytes // 2, 1),
                )
            )
        except BaseException:
            self._producer.close()
            raise
        identity = self._producer.identity
        self._encoder = Encoder(form, None if identity is None else identity.sequences)

    def add(self, batch: Any) -> None:
        """Route and encode the rows of a `pyarrow.RecordBatch`, and send what is full."""
        try:
            self._add(batch)
        except RowFailed as failed:
            raise row_failed(
                self._task, self._rows + failed.row, failed.reason, failed.code
            ) from None
        self._rows += batch.num_rows

    def finish(self) -> Totals:
        for full in self._encoder.finish():
            self._send(full)
        return self._producer.flush()

    def close(self) -> None:
        self._producer.close()

    def _add(self, batch: Any) -> None:
        columns = columns_of(batch, timestamps=self._settings.keep_timestamps)
        topics = self._topics(batch)
        names = batch.schema.names
        chosen = (
            integers_of(batch.column(names.index("partition"))) if "partition" in names else None
        )
        lanes = self._partitioner.route(topics, columns.keys, columns.sizes(), chosen)
        starts, order = self._partitioner.sort(lanes)
        for lane in np.flatnonzero(np.diff(starts)).tolist():
            place = self._partitioner.lanes[lane]
            first, last = int(starts[lane]), int(starts[lane + 1])
            for full in self._encoder.add(place, columns, order, first, last, self._rows):
                self._send(full)
        for full in self._encoder.overflow():
            self._send(full)

    def _send(self, batch: Batch) -> None:
        limit = self._settings.record_bytes
        if limit is not None and len(batch) == 1 and len(batch.data) > limit:
            raise row_failed(
                self._task,
                int(batch.rows[0]),
                f"the record alone makes a batch of {len(batch.data)} bytes, more than "
                f"kafka.max.request.size={limit}",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        self._producer.send(batch)

    def _topics(self, batch: Any) -> NDArray[np.int64]:
        """The number of each row's topic; topics that are new are looked up."""
        if self._settings.topic is not None:
            return np.full(batch.num_rows, self._number(self._settings.topic, 0), np.int64)
        column = batch.column(batch.schema.names.index("topic"))
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise RowFailed(row, "its topic is null; the option topic would set one for all rows")
        coded = column.dictionary_encode()
        places = coded.indices.to_numpy(zero_copy_only=False)
        numbers = [
            self._number(name, int(np.argmax(places == place)))
            for place, name in enumerate(coded.dictionary.to_pylist())
        ]
        by_row: NDArray[np.int64] = np.asarray(numbers, np.int64)[places]
        return by_row

    def _number(self, topic: str, row: int) -> int:
        known = self._partitioner.number_of(topic)
        if known is not None:
            return known
        try:
            count, available = self._producer.partitions(topic)
        except KafkaError as error:
            raise RowFailed(row, self._not_there(topic, error), error.code) from None
        return self._partitioner.add_topic(topic, count, available)

    def _not_there(self, topic: str, error: KafkaError) -> str:
        waited = f"after {self._settings.max_block:g} s (kafka.max.block.ms)"
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return (
                f"topic {topic!r} is not there {waited}, and the brokers do not make it by "
                f"themselves: {error}"
            )
        if error.code in UNREACHABLE:
            return f"no broker of {self._settings.bootstrap} could be asked {waited}: {error}"
        return f"topic {topic!r} cannot be written to: {error}"


def _task() -> str:
    """Which part of the DataFrame this is, as errors call it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "the rows" if context is None else f"Spark partition {context.partitionId()}"


def _in_a_stream() -> bool:
    """Whether this is a task of a micro-batch, also of a batch that `foreachBatch` writes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.getLocalProperty("streaming.sql.batchId") is not None
