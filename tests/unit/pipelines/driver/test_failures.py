"""Why a query has ended, in one sentence."""

from __future__ import annotations

import pytest

from ottla.pipelines.driver.failures import (
    is_ended,
    is_full_disk,
    is_gone,
    is_wrong_python,
    sentence,
    told,
)
from ottla.pipelines.source.loss import Observation, judge

WRAPPED = """[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: \
[PYTHON_DATA_SOURCE_ERROR] Failed when running Python data source instance: Traceback:
  File "worker.py", line 3, in latestOffset
    raise OptionError(option, text)
ottla.pipelines.errors.OptionError: The topic orders was deleted.
 SQLSTATE: XXKST
=== Streaming Query ===
"""


def test_the_cause_is_what_was_raised_last():
    assert sentence(RuntimeError(WRAPPED)) == "OptionError: The topic orders was deleted."


def test_what_java_raised_is_the_cause_of_a_call_that_failed():
    """As Py4J shows it: the folder of a checkpoint could not be made."""
    text = """An error occurred while calling o287.start.
: java.io.IOException: mkdir of file:/proc/nope failed
\tat org.apache.hadoop.fs.FileContext.mkdir(FileContext.java:1)
"""
    assert sentence(RuntimeError(text)) == "IOException: mkdir of file:/proc/nope failed"


def test_a_failure_without_a_trace_is_its_first_line():
    assert sentence(ValueError("no\nmore")) == "no"
    assert sentence(KeyboardInterrupt()) == "KeyboardInterrupt"


UNREAD = """An error occurred while calling o42.save.
: org.apache.spark.SparkException: [FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] \
Encountered error while reading file file:///in/a%20b.parquet. Data type mismatches when reading \
Parquet column [name]. Expected Spark type bigint, actual Parquet type BINARY. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(x.scala:1)
Caused by: org.apache.spark.X.SchemaColumnConvertNotSupportedException: {why}
\tat org.apache.spark.sql.x(x.scala:2)
"""


def test_a_file_that_cannot_be_read_is_named_once():
    assert sentence(RuntimeError(UNREAD.format(why="column: [name]"))) == (
        "file:///in/a%20b.parquet cannot be read: "
        "SchemaColumnConvertNotSupportedException: column: [name]"
    )
    named = "file:/in/a b.parquet is not a Parquet file"
    assert sentence(RuntimeError(UNREAD.format(why=named))) == (
        f"SchemaColumnConvertNotSupportedException: {named}"
    )


ID, OTHER = b"1" * 16, b"2" * 16


@pytest.mark.parametrize(
    ("seen", "way"),
    [
        (
            Observation("a.b", 3, 7, 9, ID, found_topic_id=ID, log_start=8, log_end=9),
            "`ottla pipeline offsets reset p --topic a.b:3 --to current` lets the pipeline go on "
            "without them",
        ),
        (
            Observation("a.b", 3, 7, 9, ID, found_topic_id=ID, log_start=0, log_end=6),
            "`ottla pipeline offsets reset p --topic a.b:3 --to current` lets the pipeline go on "
            "without them",
        ),
        (
            Observation("a.b", 3, 7, 9, ID, found_topic_id=OTHER, log_end=2),
            "`ottla pipeline offsets reset p --topic a.b --to earliest` lets the pipeline begin "
            "with the new one",
        ),
        (
            Observation("a.b", 3, 7, 9, ID),
            "to go on without it, `ottla pipeline offsets reset p --to current` where a pattern "
            "has found it; where the file names it, take it out and run with --accept-changes",
        ),
    ],
)
def test_records_that_are_gone_come_with_the_command_that_goes_on_without_them(seen, way):
    """`failOnDataLoss` is nothing that a pipeline's file could say."""
    loss = judge(seen)
    text = f"[STREAM_FAILED] Query:\nottla.pipelines.errors.DataLossError: {loss.error()}\n SQL"
    assert told(RuntimeError(text), "p") == f"{loss.sentence()[:-1]}; {way}"


def test_a_pipeline_is_named_once():
    assert told(ValueError("pipeline p: there is no /in: create the folder"), "p") == (
        "there is no /in: create the folder"
    )


def test_a_full_disk_is_known_by_what_java_and_the_system_say():
    assert is_full_disk(RuntimeError("java.io.IOException: No space left on device"))
    assert is_full_disk(OSError(28, "No space left on device"))
    assert is_full_disk(RuntimeError("java.io.IOException: File too large"))
    assert not is_full_disk(RuntimeError("no"))


def test_a_java_process_that_is_gone_is_known():
    assert is_gone(ConnectionRefusedError(111, "Connection refused"))
    assert is_gone(RuntimeError("Answer from Java side is empty"))
    assert not is_gone(RuntimeError("ConnectionRefusedError: of a database"))


def test_an_application_that_the_cluster_has_ended_is_known():
    text = "Job 3 cancelled because SparkContext was shut down"
    assert is_ended(RuntimeError(text))
    assert is_ended(RuntimeError("Cannot call methods on a stopped SparkContext."))
    assert not is_ended(RuntimeError("Job 3 cancelled"))


def test_executors_without_the_right_python_are_known():
    other = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in"
    assert is_wrong_python(RuntimeError(other))
    assert is_wrong_python(RuntimeError('Cannot run program "/opt/bin/python3.11": error=2, No'))
    assert not is_wrong_python(RuntimeError('Cannot run program "cat"'))
