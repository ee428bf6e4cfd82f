"""Update mode: only the rows that changed since the last micro-batch, appended to a topic.

    from ottla.pipelines import write_updates

    query = (
        write_updates(counts, {"kafka.bootstrap.servers": "127.0.0.1:9092"}, topic="counts")
        .option("checkpointLocation", "…")
        .start()
    )

Spark gives no sink that is written in Python the rows of Update mode: `outputMode("update")` with
`format("ottla")` ends with "ottla does not support Update mode", to which a session made by
`spark_session` adds the name of this helper. `foreachBatch` does get the rows, so each micro-batch
is written from there as a batch, with the same options, checks and guarantees: it is finished when
all its rows are acknowledged, and one that failed is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Option = str | int | float | bool

REFUSAL: Final = "ottla does not support Update mode"
HINT: Final = "Use ottla.pipelines.write_updates(df), which writes the rows of Update mode."


def write_updates(
    df: DataFrame, options: Mapping[str, Option] | None = None, /, **more: Option
) -> DataStreamWriter:
    """A writer of `df` in Update mode; give it a checkpoint and a trigger, then `start()` it.

    options  what `format("ottla")` takes for a write: kafka.bootstrap.servers, kafka.*, …
    more     the same for names without a dot: topic="counts", delivery="idempotent"

    Options and columns are checked here, before the query starts. Options that are given to the
    returned writer are Spark's own, such as checkpointLocation.
    """
    # Here and not above: every session imports this module, for `name_the_helper`.
    from ottla.pipelines.interpreters import check
    from ottla.pipelines.sink.options import WriteOptions, check_schema

    given = {name: _text(value) for name, value in {**(options or {}), **more}.items()}
    if not df.isStreaming:
        raise ValueError(
            'write_updates is for a stream: write a batch with df.write.format("ottla").'
        )
    check_schema(df.schema, WriteOptions.parse(given))
    check(df.sparkSession)
    return df.writeStream.outputMode("update").foreachBatch(_appender(given))


def name_the_helper() -> None:
    """Let Spark's refusal say what to use instead.

    The refusal is made inside the JVM, at the first micro-batch and without a call of ours, so its
    text can only be added to where Python shows it. Done once, by `spark_session`.
    """
    from pyspark.errors.exceptions.captured import StreamingQueryException as Refused

    original = Refused.__str__
    if getattr(original, "__module__", None) == __name__:
        return  # it is ours already

    def explained(self: Refused) -> str:
        text = original(self)
        return f"{text}\n{HINT}" if REFUSAL in text else text

    Refused.__str__ = explained  # type: ignore[method-assign,assignment]  # Spark's, in place


def _appender(options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    def append(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("ottla").options(**options).mode("append").save()

    return append


def _text(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
